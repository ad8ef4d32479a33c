"""How far a case's numbers lie from the fp64 reference with the same weights and inputs; untimed."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ampbench.base.precisions import BASELINE, FP64, PRECISIONS, Precision
from ampbench.base.sketch import BLOCK, Floats, Sketch, sketch_of
from ampbench.errors import WorkloadError
from ampbench.measure.data import Larger, inputs_digest, named_tensors, weights_digest
from ampbench.measure.distances import (
    Decisions,
    Distance,
    LossTargets,
    argmax_agreement,
    compare,
    compare_each,
    identical,
    kept_one,
    kept_outputs,
    named_outputs,
    worst_gradient,
)
from ampbench.measure.machine import Cpu, Device, fp64_device, precision_flags, rounded_products
from ampbench.measure.memory import is_out_of_memory, said_of
from ampbench.measure.optimizer import recipe_of
from ampbench.measure.outputs import Agreement, Compared, batch_length, compared_outputs, decisions_of, spent, state
from ampbench.measure.sources import EQUAL_DRAWS, EqualDraws, random_states, seed_all, switch_off_dropout
from ampbench.measure.step import TrainingStep, build_step
from ampbench.measure.updates import (
    Gradients,
    Intended,
    batch_bias,
    intended_update,
    measure_update,
    second_gradients,
    take_snapshot,
)
from ampbench.records.case import Case
from ampbench.records.labels import few
from ampbench.records.measured import CHANCE, Divergence, Recipe, Update
from ampbench.workload import Workload

_FP32 = PRECISIONS[BASELINE]
REFERENCE_ITSELF = "it is the reference: fp64 failed"
"""Why the error of fp32 is undefined where fp32 is what others are held against."""
NOT_DECIDED = "decisions are not counted: what the loss gives to cross_entropy is no output of the network, reshaped"
MATTERS = 1e-3
"""Chance that is a smaller share of an error than this hides none of it."""
SAME = 1e-2
"""An error below this share of what chance makes is not chance: both steps saw the same random numbers."""
NO_REFERENCE = "there is no reference: fp64 failed: {}"
PART = 1e-2
"""The least share of the norm with which the gradient of one parameter is judged by itself."""

Updated = tuple[Update, tuple[float | None, float | None]]
"""What an optimizer's step changes; bias and noise of gradients over batches."""


@dataclass(slots=True)
class StepNumbers:
    """What one step gave, in fp64 on the reference device: outputs with their names, and for training the rest.

    Of a step that was not to `update`, outputs and gradients are in the dtypes they came in, and that is all. `native`
    are its gradients as they came, where they were asked for, `make_optimizer` what made its optimizer. `drew` tells
    whether it drew random numbers; `decided` are a reference's decisions, as its loss was seen to make them; `recipe`
    is what trains it.
    """

    outputs: list[torch.Tensor]
    names: list[str] = field(default_factory=list)
    loss: float | None = None
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    updated: dict[str, torch.Tensor] = field(default_factory=dict)
    native: Gradients | None = None
    make_optimizer: Callable[[Any], Any] | None = None
    scaler_scale: float | None = None
    skipped_steps: int | None = None
    drew: bool = False
    decided: list[Decisions] = field(default_factory=list)
    recipe: Recipe | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reference:
    """What a group of cases is held against: the fp64 step, or that in fp32 where the fp64 step fails.

    `dtype` says which ("fp64", "fp32", "" where fp32 fails, too, and there are no `numbers`), `where` the device it
    ran on, `error` why the fp64 step failed. `fp32` is the fp32 step on the device, None where that fails or does not
    fit into its memory. `chance` is how far another step in that dtype lies from it that differs in nothing but random
    numbers and what the network keeps to itself (None: not known), `chances` the same of each output. In
    training, `intended` is what a step should change of the weights, and `fp32_update` what `_update_of` says of the
    fp32 step.
    """

    numbers: StepNumbers | None
    fp32: StepNumbers | None
    where: str
    dtype: str = "fp64"
    error: str = ""
    chance: float | None = None
    chances: Sequence[float | None] = ()
    intended: Intended | None = None
    fp32_update: Updated | None = None

    @property
    def draws(self) -> bool:
        """Whether the step draws random numbers, so that others must be `equal` to it."""
        return self.numbers is not None and self.numbers.drew


class References:
    """The reference and the fp32 step of the case group last asked for: the precisions of one table share them."""

    def __init__(self) -> None:
        self._workload: Workload | None = None
        self._key: tuple[str, ...] = ()
        self._numbers: Reference | None = None
        self._passed_key: tuple[str, ...] = ()
        self._passed: Reference | None = None
        self._sketched: tuple[StepNumbers, Sketch, Sketch] | None = None
        self._compared: tuple[StepNumbers, Compared, list[Distance]] | None = None
        self._agreement: tuple[Compared, Agreement] | None = None

    def of(self, workload: Workload, case: Case, device: Device) -> Reference:
        """Return what the group of `case` is held against.

        Raises `torch.OutOfMemoryError` where the reference does not fit into the memory.
        """
        key = (case.group, case.device, case.phase)
        if workload is not self._workload or key != self._key or self._numbers is None:
            self._numbers = self._passed = None
            device.release()
            self._workload, self._key, self._numbers = workload, key, _referred(workload, case, device)
        return self._numbers

    def sketches(self, reference: StepNumbers) -> tuple[Sketch, Sketch]:
        """Return the sketches of the outputs and of the gradients of a group's reference."""
        if self._sketched is None or self._sketched[0] is not reference:
            outputs = {str(place): tensor for place, tensor in enumerate(reference.outputs)}
            self._sketched = (reference, _sketch(outputs), _sketch(reference.gradients))
        return self._sketched[1:]

    def compared(self, workload: Workload, case: Case, held: Reference) -> tuple[Compared, list[Distance]]:
        """Return the outputs of a group's reference, and how far fp32 lies from all and each ([]: not known)."""
        reference = held.numbers
        assert reference is not None
        if self._compared is None or self._compared[0] is not reference:
            decided = decisions_of(
                workload, reference.names, reference.outputs, batch_targets(workload), reference.decided
            )
            samples = batch_length(workload, case)
            compared = Compared(reference.names, reference.outputs, decided, samples, held.dtype)
            fp32: list[Distance] = []
            if held.fp32 is not None and held.dtype == "fp64":
                with contextlib.suppress(ValueError):
                    every, each = compared.distances(held.fp32.outputs)
                    fp32 = [every, *each]
            self._compared = reference, compared, fp32
        return self._compared[1:]

    def agreement(
        self, workload: Workload, device: Device, held: Reference, compared: Compared, larger: Larger | None
    ) -> Agreement:
        """Return the decisions of a group's reference on further batches."""
        if self._agreement is None or self._agreement[0] is not compared:
            where = fp64_device(device) if held.dtype == "fp64" else device
            self._agreement = compared, Agreement(workload, compared, where, held.dtype, held.draws, larger)
        return self._agreement[1]

    def passed(self, workload: Workload, case: Case, device: Device, *, updates: bool = False) -> Reference:
        """Return outputs and gradients of the reference alone, on the CPU: they take no room on the device.

        Raises as `of` does, and `WorkloadError` where chance decides how far the fp32 step lies from it.
        """
        key = (case.group, case.device, case.phase, str(updates))
        if workload is not self._workload or key != self._passed_key or self._passed is None:
            self._numbers = self._passed = None
            device.release()
            found = passing_reference(workload, case, device, updates=updates)
            refuse_chance(workload, case, device, found)
            self._workload, self._passed_key, self._passed = workload, key, found
        return self._passed


def refuse_chance(workload: Workload, case: Case, device: Device, held: Reference) -> None:
    """Raise `WorkloadError` where chance decides how far the fp32 step lies from a `passing_reference`."""
    if held.dtype != "fp64" or held.numbers is None:
        return
    chance = _chance(workload, case, fp64_device(device), held.numbers, Cpu())[0]
    if chance:
        fp32 = run_step(workload, case, device, keep=Cpu(), precision=_FP32, update=False, equal=held.draws)
        if is_chance(chance, compare(fp32.outputs, held.numbers.outputs, Cpu()).rel_l2):
            raise WorkloadError(CHANCE.format(chance))


def passing_reference(workload: Workload, case: Case, device: Device, *, updates: bool = False) -> Reference:
    """Return outputs and gradients of the fp64 step, on the CPU; where it fails, of the fp32 step on the device.

    With `updates`, what an optimizer's step should change, too, where the fp64 step runs.
    Raises `torch.OutOfMemoryError` where the step does not fit into the memory, and what the fp32 step raises.
    """
    where = fp64_device(device)
    try:
        exact = reference_step(workload, case, where, keep=Cpu(), update=False, native=updates)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        said = said_of(error)
    else:
        intended = None
        if exact.native is not None:
            intended = intended_update(workload, take_snapshot(workload, case, device), exact.native, where)
            exact.native = None
        return Reference(numbers=exact, fp32=None, where=where.type, intended=intended)
    device.release()
    numbers = reference_step(workload, case, device, keep=Cpu(), precision=_FP32, update=False)
    return Reference(numbers=numbers, fp32=numbers, where=device.type, dtype="fp32", error=said)


def _referred(workload: Workload, case: Case, device: Device) -> Reference:
    """Run the fp64 and the fp32 step of the group of `case`."""
    where = fp64_device(device)
    exact = fp32 = intended = None
    error = ""
    training = case.phase == "training"
    try:
        exact = reference_step(workload, case, where, keep=where, native=training)
    except Exception as raised:
        if is_out_of_memory(raised):
            raise
        error = said_of(raised)
    if exact is None:
        device.release()  # what the error held of the step
    elif exact.native is not None:
        intended = intended_update(workload, take_snapshot(workload, case, device), exact.native, where)
        exact.native = None
    try:
        if exact is None:
            fp32 = reference_step(workload, case, device, keep=where, precision=_FP32)
        else:
            fp32 = run_step(workload, case, device, keep=where, precision=_FP32, equal=exact.drew, native=training)
    except Exception as raised:
        if is_out_of_memory(raised):
            if exact is None:
                raise
        elif exact is None:
            error = f"{error}; fp32 failed: {said_of(raised)}"
    if exact is not None:
        chance, chances = _chance(workload, case, where, exact, where)
        fp32_update = None
        if fp32 is not None and fp32.native is not None and intended is not None:
            fp32_update = _update_of(workload, intended, fp32.native, device)
            fp32.native = None
        return Reference(
            numbers=exact,
            fp32=fp32,
            where=where.type,
            chance=chance,
            chances=chances,
            intended=intended,
            fp32_update=fp32_update,
        )
    if fp32 is None:
        return Reference(numbers=None, fp32=None, where=device.type, dtype="", error=error)
    chance, chances = _chance(workload, case, device, fp32, where, precision=_FP32)
    return Reference(fp32, fp32, device.type, dtype="fp32", error=error, chance=chance, chances=chances)


def measure_divergence(
    workload: Workload, case: Case, device: Device, references: References, larger: Larger | None = None
) -> Divergence:
    """Return how far one step of `case` lies from the same step in fp64.

    Where a classifier's decisions are too few, further batches follow, the workload's own and those of `larger`.
    Where the fp64 step fails, that of fp32 on the device is the reference, and the record says so; where fp32 fails,
    too, no error is defined. Raises what the step of `case` itself raises.
    """
    started = spent(device)
    held = references.of(workload, case, device)
    is_baseline = held.fp32 is not None and case.precision == BASELINE and case.path == "eager"
    keep = fp64_device(device)
    numbers = held.fp32 if is_baseline else None
    if numbers is None:
        numbers = run_step(workload, case, device, keep=keep, equal=held.draws, native=held.intended is not None)
    found = Divergence(
        case_id=case.case_id,
        reference_device=held.where,
        reference_dtype=held.dtype,
        reference_error=held.error,
        weights_digest=weights_digest(workload),
        inputs_digest=inputs_digest(workload),
        repeatable=None if isinstance(device, Cpu) else is_repeatable(workload, case, device, numbers, held, keep),
        fp32_products=fp32_products(case, device),
        notes=list(numbers.notes),
    )
    training = case.phase == "training"
    if training:
        if numbers.loss is None or not math.isfinite(numbers.loss):
            found.notes.append("the loss is not finite")
        found = dataclasses.replace(
            found,
            loss=_finite(numbers.loss),
            grad_elements=sum(value.numel() for value in numbers.gradients.values()),
            scaler_scale=numbers.scaler_scale,
            skipped_steps=numbers.skipped_steps,
            recipe=numbers.recipe,
        )
    if held.numbers is None:
        why = NO_REFERENCE.format(held.error)
        found.notes.append(why)
        return dataclasses.replace(found, output_undefined=why, grad_undefined=why if training else "")
    if NOT_DECIDED in held.numbers.notes and NOT_DECIDED not in found.notes:
        found.notes.append(NOT_DECIDED)
    outputs, gradients = references.sketches(held.numbers)
    found = dataclasses.replace(
        found,
        output_shapes=[list(tensor.shape) for tensor in held.numbers.outputs],
        output_reference_norm=_finite(outputs.norm),
        output_sketch=outputs.text,
        grad_reference_norm=_finite(gradients.norm) if training else None,
        grad_sketch=gradients.text if training else None,
    )
    compared, fp32 = references.compared(workload, case, held)
    found = _with_outputs(found, case, numbers, held, compared, fp32)
    if found.decided is not None and found.decided[1] and case.path == "eager" and not state(*found.decided):
        further = references.agreement(workload, device, held, compared, larger)
        taken = spent(device) - started
        agreeing, decisions = found.decided
        found = dataclasses.replace(found, further=further.measure(case, device, agreeing, decisions, taken))
    seen = case.path == "eager" and held.dtype == "fp64" and held.fp32 is not None
    if is_chance(held.chance, found.output_fp32_rel_l2 if seen else found.output_rel_l2):
        found = dataclasses.replace(found, chance_rel_l2=held.chance)
    if not training:
        return found
    found = _with_gradients(found, numbers, held)
    if held.intended is not None:
        measured = held.fp32_update if is_baseline else None
        if measured is None and numbers.native is not None:
            own = dataclasses.replace(workload, optimizer=numbers.make_optimizer or workload.optimizer)
            measured = _update_of(own, held.intended, numbers.native, device)
        found = _with_update(found, measured) if measured is not None else found
    return found


def fp32_products(case: Case, device: Device) -> dict[str, str] | None:
    """Return how fp32 products are rounded in a case's precision here; None where weights are stored in half."""
    row = PRECISIONS[case.precision]
    if row.storage != "float32":
        return None
    with precision_flags(row):
        return rounded_products(device)


def _with_outputs(
    found: Divergence,
    case: Case,
    numbers: StepNumbers,
    held: Reference,
    compared: Compared,
    fp32: Sequence[Distance],
) -> Divergence:
    """Return a divergence with what its outputs say; `fp32` is the distance of fp32 from all of them and each."""
    itself = held.numbers is numbers
    try:
        outputs, each = compared.distances(numbers.outputs)
    except ValueError as error:  # other shapes: a detector found other boxes
        found.notes.append(f"{error}: no error is defined")
        return dataclasses.replace(found, output_undefined=str(error))
    outputs = _told_of_itself(outputs, numbers, held)
    found.notes.extend(outputs.notes)
    found.notes.extend(compared.notes)
    rounding = getattr(torch, PRECISIONS[case.precision].rounding)
    agreeing, decisions = argmax_agreement(numbers.outputs, compared.references, compared.decided)
    by_chance = [
        chance if is_chance(chance, (seen if case.path == "eager" else own).rel_l2) else None
        for chance, own, seen in zip(held.chances, each, fp32[1:] or each, strict=False)
    ]
    return dataclasses.replace(
        found,
        output_reference_norm=outputs.reference_norm,
        output_elements=outputs.elements,
        output_reference_nonfinite=outputs.reference_nonfinite,
        output_reference_nan=outputs.reference_nan,
        output_rel_l2=outputs.rel_l2,
        output_max_abs=outputs.max_abs,
        output_cosine=outputs.cosine,
        output_nonfinite=outputs.nonfinite,
        output_nan=outputs.nan,
        output_unlike=outputs.unlike,
        output_fp32_nonfinite=fp32[0].nonfinite if fp32 else None,
        output_undefined=outputs.undefined,
        output_floor_rel_l2=compared.floors(rounding)[0].rel_l2,
        output_fp32_rel_l2=fp32[0].rel_l2 if fp32 else None,
        outputs=None if itself else compared.errors(numbers.outputs, each, rounding, by_chance),
        predictions=None if itself else compared.predictions(numbers.outputs),
        argmax_agreeing=None if itself else agreeing,
        argmax_decisions=None if itself else decisions,
    )


def _told_of_itself(distance: Distance, numbers: StepNumbers, held: Reference) -> Distance:
    """Return a distance without errors where it is the reference's from itself, which is no measurement."""
    if held.numbers is not numbers or distance.undefined:
        return distance
    return dataclasses.replace(
        distance, rel_l2=None, max_abs=None, cosine=None, undefined=REFERENCE_ITSELF, notes=[REFERENCE_ITSELF]
    )


def _with_gradients(found: Divergence, numbers: StepNumbers, held: Reference) -> Divergence:
    """Return the divergence of a training step with what loss, gradients and updated weights say."""
    reference = held.numbers
    assert reference is not None
    itself = reference is numbers
    found = dataclasses.replace(found, reference_loss=None if itself else _finite(reference.loss))
    if others := numbers.gradients.keys() ^ reference.gradients.keys():
        why = f"a gradient that only one of this step and the reference has: {few(sorted(others))}"
        found.notes.append(f"gradients: {why}")
        return dataclasses.replace(found, grad_undefined=why)
    expected = [reference.gradients[name] for name in numbers.gradients]
    gradients, each = compare_each(list(numbers.gradients.values()), expected, what="gradient", against=held.dtype)
    gradients = _told_of_itself(gradients, numbers, held)
    found.notes.extend(note for note in gradients.notes if note not in found.notes)
    worst = part = None
    if not itself:
        by_name = dict(zip(numbers.gradients, each, strict=True))
        worst, part = worst_gradient(by_name), worst_gradient(by_name, PART)
    updated = compare(list(numbers.updated.values()), [reference.updated[name] for name in numbers.updated])
    return dataclasses.replace(
        found,
        grad_rel_l2=gradients.rel_l2,
        grad_worst_parameter=worst[0] if worst else None,
        grad_worst_rel_l2=worst[1] if worst else None,
        grad_flushed=None
        if itself
        else sum(
            int(((value == 0) & (reference.gradients[name] != 0)).sum()) for name, value in numbers.gradients.items()
        ),
        grad_nonfinite=gradients.nonfinite,
        grad_nan=gradients.nan,
        grad_reference_nonfinite=gradients.reference_nonfinite,
        grad_reference_nan=gradients.reference_nan,
        grad_undefined=gradients.undefined,
        grad_tensor_parameter=None if part is None else part[0],
        grad_tensor_rel_l2=None if part is None else part[1],
        param_rel_l2=None if itself else updated.rel_l2,
        param_nonfinite=updated.nonfinite,
    )


def _update_of(workload: Workload, intended: Intended, gradients: Gradients, device: Device) -> Updated:
    """Return what an optimizer's step changes with these gradients, and bias and noise of these over batches."""
    keep = fp64_device(device)
    return measure_update(workload, intended, gradients, device, keep), batch_bias(intended, gradients, keep)


def _with_update(found: Divergence, measured: Updated) -> Divergence:
    """Return the divergence of a training step with what `_update_of` returned."""
    update, (bias, noise) = measured
    nonfinite = max(found.param_nonfinite or 0, update.nonfinite or 0)
    return dataclasses.replace(found, update=update, grad_bias=bias, grad_noise=noise, param_nonfinite=nonfinite)


def _chance(
    workload: Workload, case: Case, device: Device, found: StepNumbers, keep: Device, precision: Precision = FP64
) -> tuple[float | None, list[float | None]]:
    """Return how far another fp64 forward pass lies from `found`: from another seed, where that one drew numbers.

    In another `precision`, if one is named. That is the distance of all outputs, and of each: 1 where its outputs have
    other shapes; None where that is undefined or there is no room.
    """
    seed_all(int(found.drew))
    try:
        with precision_flags(precision):
            step = build_step(workload, case, device, precision=precision)
            if isinstance(step, TrainingStep):
                switch_off_dropout(step.module, [])
            with step.mode(), EqualDraws() if found.drew else contextlib.nullcontext():
                output, _ = step.network.forward_and_loss()
            outputs = kept_outputs(compared_outputs(workload, output), keep)
            step.let_go()
            del output, _
            every, each = compare_each(outputs, found.outputs, keep)
            return every.rel_l2, [one.rel_l2 for one in each]
    except ValueError:
        return 1.0, []
    except Exception as error:
        if is_out_of_memory(error):
            return None, []
        raise


def _note_decisions(numbers: StepNumbers, loss: LossTargets) -> None:
    """Keep which decisions a loss was seen to make; where they are in no output, the notes say so."""
    numbers.decided = loss.decisions(numbers.outputs)
    if loss.seen and not numbers.decided:
        numbers.notes.append(NOT_DECIDED)


def is_chance(apart: float | None, error: float | None) -> bool:
    """Return whether an error, that of fp32 where it is known, is that of two random draws that lie so far `apart`.

    Where both saw the same draws, the error is that of rounding, far below what another draw makes; where chance is far
    below rounding, it hides nothing.
    """
    return apart is not None and error is not None and apart > 0 and MATTERS * error <= apart <= error / SAME


def reference_step(
    workload: Workload,
    case: Case,
    device: Device,
    *,
    keep: Device,
    precision: Precision = FP64,
    update: bool = True,
    native: bool = False,
) -> StepNumbers:
    """Return the fp64 step of `case`, or that in another `precision`; where it drew random numbers, an `equal` one."""
    run = partial(run_step, workload, case, device, keep=keep, precision=precision, update=update, native=native)
    found = run()
    return run(equal=True) if found.drew else found


def is_repeatable(
    workload: Workload, case: Case, device: Device, numbers: StepNumbers, held: Reference, keep: Device
) -> bool | None:
    """Return whether the step that gave `numbers` gives the same bits again; None where it does not fit once more.

    Kernels that add atomically do not. torch's CPU kernels add in an order that only the number of threads decides.
    """
    try:
        again = run_step(workload, case, device, keep=keep, equal=held.draws)
    except Exception as error:
        if is_out_of_memory(error):
            return None
        raise
    first = [*numbers.outputs, *numbers.gradients.values(), *numbers.updated.values()]
    second = [*again.outputs, *again.gradients.values(), *again.updated.values()]
    return identical(first, second)


def run_step(
    workload: Workload,
    case: Case,
    device: Device,
    *,
    keep: Device,
    precision: Precision | None = None,
    kept: Sequence[str] = (),
    update: bool = True,
    equal: bool = False,
    native: bool = False,
) -> StepNumbers:
    """Run one step of `case` (in another `precision` if one is named) and return its numbers on device `keep`.

    `kept` are the modules kept in fp32, as in `Step`. Without `update` the optimizer does not run, and outputs and
    gradients are not copied into fp64. With `native` gradients are kept as they came, too.
    Dropout is switched off: two precisions draw different masks, whose distance says nothing about precision. What else
    is random draws from the same seed and, in eager mode with `equal`, the same numbers in every precision.
    """
    seed_all(0)
    with precision_flags(precision or PRECISIONS[case.precision]):
        step = build_step(workload, case, device, precision=precision, kept=kept)
        notes: list[str] = []
        if isinstance(step, TrainingStep):
            switch_off_dropout(step.module, notes)
        if precision is None and step.prepare_path(case.path) is not None:
            seed_all(0)
        equal = equal and (precision is not None or case.path == "eager")
        if equal:
            notes.append(EQUAL_DRAWS)
        drawing = EqualDraws() if equal else contextlib.nullcontext()
        before = random_states(device)
        loss = LossTargets()
        if watched := update and precision is not None:
            step.network.watch_loss(loss)
        if not isinstance(step, TrainingStep):
            with step.mode(), drawing:
                output = step.run()
            taken = compared_outputs(workload, output)
            found = StepNumbers(kept_outputs(taken, keep, copy=update), names=_names(taken), notes=notes)
            found.drew = random_states(device) != before
            if watched:
                with step.mode(), contextlib.suppress(Exception):  # a loss of training may not take it
                    step.network.apply_loss(output)
                _note_decisions(found, loss)
            step.let_go()
            return found
        step.settle_scaler()
        seed_all(0)
        before = random_states(device)
        with drawing:
            output, unscaled = step.unscaled_gradients()
        gradients = {name: kept_one(value, keep, copy=update) for name, value in unscaled.items()}
        assert step.loss is not None
        taken = compared_outputs(workload, output)
        numbers = StepNumbers(
            outputs=kept_outputs(taken, keep, copy=update),
            names=_names(taken),
            loss=float(step.loss.detach()),
            gradients=gradients,
            drew=random_states(device) != before,
            notes=notes,
            recipe=recipe_of(step.optimizer, step.module),
        )
        if not update:
            return _without_update(numbers, step, unscaled if native else None)
        _note_decisions(numbers, loss)
        scale = step.scaler.get_scale() if step.scaler is not None else None
        applied = step.apply_gradients()
        if scale is not None:
            numbers.scaler_scale, numbers.skipped_steps = scale, int(not applied)
        stored = step.stored()
        numbers.updated = {
            name: kept_one(stored.get(name, tensor), keep)
            for name, tensor in named_tensors(step.module)
            if tensor.is_floating_point() or tensor.is_complex()
        }
        if native:
            numbers.make_optimizer, numbers.native = (
                step.network.make_optimizer,
                _native(step, workload, unscaled, equal=equal, skipped=not applied),
            )
        return numbers


def _without_update(
    numbers: StepNumbers, step: TrainingStep, gradients: Mapping[str, torch.Tensor] | None
) -> StepNumbers:
    """Return the numbers of a step that takes no update, with its `gradients` as they came if given; drop the step."""
    if gradients is not None:
        stored = {name: weight.dtype for name, weight in step.stored().items()}
        numbers.native = Gradients(first=gradients, stored=stored)
    step.let_go()
    return numbers


def _native(
    step: TrainingStep, workload: Workload, first: Mapping[str, torch.Tensor], *, equal: bool, skipped: bool
) -> Gradients:
    """Return a step's gradients as they came, and those of the second batch, if there is one."""
    seed_all(0)
    with EqualDraws() if equal else contextlib.nullcontext():
        second = second_gradients(step, workload)
    stored = {name: weight.dtype for name, weight in step.stored().items()}
    return Gradients(first=first, second=second, stored=stored, skipped=skipped)


def batch_targets(workload: Workload) -> Any:
    """Return the targets of the first batch, the one the divergence pass runs."""
    return workload.targets[0] if isinstance(workload.inputs, list) and workload.targets else workload.targets


def _names(output: Any) -> list[str]:
    return [name for name, _ in named_outputs(output)]


def _sketch(tensors: Mapping[str, torch.Tensor]) -> Sketch:
    return sketch_of((name, _in_blocks(tensor)) for name, tensor in tensors.items())


def _in_blocks(tensor: torch.Tensor) -> Iterator[Floats]:
    """Yield the real numbers of a tensor in the order of its places."""
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    flat = real.reshape(-1)
    for start in range(0, flat.numel(), BLOCK):
        yield flat[start : start + BLOCK].double().cpu().numpy()


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
