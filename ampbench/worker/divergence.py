"""The distance of a case's numbers from the fp64 reference with the same weights and inputs; untimed.

One step gives its numbers and those of its references, the fp64 and the fp32 step. The distance that chance alone makes
between two such steps is measured, too.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar, cast

import torch
from msgspec import structs

from ampbench.core.precisions import BASELINE, FP64, PRECISIONS, Precision
from ampbench.core.recipes import find_recipe
from ampbench.core.stats import BLOCK, Sketch, sketch_of
from ampbench.errors import WorkloadError
from ampbench.records.case import Case
from ampbench.records.labels import few
from ampbench.records.measured import (
    CHANCE,
    LOSS_NOT_FINITE,
    Divergence,
    GradientDivergence,
    Late,
    LossAlone,
    OutputDivergence,
    Recipe,
    ReferenceStep,
)
from ampbench.worker.data import Larger, inputs_digest, is_wrapper, named_tensors, pairs_of, tensors_of, weights_digest
from ampbench.worker.distances import (
    Decisions,
    Distance,
    LossTargets,
    argmax_agreement,
    compare,
    compare_each,
    finite_or_none,
    identical,
    kept_one,
    kept_outputs,
    named_outputs,
    outputs_in,
    worst_gradient,
)
from ampbench.worker.late import Place, Snapshot, late_place, take_snapshot
from ampbench.worker.loss import measure_loss
from ampbench.worker.machine import Cpu, Device, fp64_device, precision_flags, rounded_products
from ampbench.worker.memory import is_out_of_memory, said_of
from ampbench.worker.network import (
    is_named,
    least_rate,
    misses,
    recipe_of,
    running_statistics,
    steps_alone,
    stops_away,
)
from ampbench.worker.outputs import Agreement, Compared, batch_length, compared_outputs, decisions_of, spent, state
from ampbench.worker.step import (
    EQUAL_DRAWS,
    EqualDraws,
    InferenceStep,
    OwnStep,
    TrainingStep,
    build_step,
    random_states,
    seed_all,
    switch_off_dropout,
)
from ampbench.worker.updates import (
    Gradients,
    Intended,
    batch_noise,
    intended_update,
    measure_update,
    with_noise,
)
from ampbench.workload import Workload

NOT_DECIDED = "decisions are not counted: the logits of the loss are not an output of the network"
MATTERS = 1e-3
"""Chance below this share of an error is negligible."""
SAME = 1e-2
"""An error below this share of chance is not chance: both steps drew the same random numbers."""
_FP32 = PRECISIONS[BASELINE]

Made = TypeVar("Made")


@dataclass(slots=True)
class StepNumbers:
    """The results of one step, on the reference device: named outputs in fp64, and for training the rest.

    Gradients and updated weights keep their dtypes: fp64 copies would take most of the memory of a pass. `half` are the
    sizes of a training's outputs in dtypes narrower than fp32, `stall` the distance at which its running statistics
    stop. `apart` is the distance of the updated weights from given ones; on a CPU no weights are kept then.

    Without an update, outputs keep their dtypes, too, and no weights are updated. `native` are the gradients for an
    optimizer, if requested. `drew`: the step drew random numbers. `decided` are a reference's decisions, as recorded in
    its loss; `recipe` describes its optimizer (None: none is named).
    """

    outputs: list[torch.Tensor]
    names: list[str] = field(default_factory=list)
    half: list[int] = field(default_factory=list)
    loss: float | None = None
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    updated: dict[str, torch.Tensor] = field(default_factory=dict)
    apart: Distance | None = None
    native: Gradients | None = None
    scaler_scale: float | None = None
    skipped_steps: int | None = None
    drew: bool = False
    decided: list[Decisions] = field(default_factory=list)
    recipe: Recipe | None = None
    stall: float | None = None
    loss_alone: LossAlone | None = None
    notes: list[str] = field(default_factory=list)


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
    weights: Mapping[str, torch.Tensor] | None = None,
) -> StepNumbers:
    """Run one step of `case` (in another `precision` if one is named) and return its numbers on device `keep`.

    `kept` are the modules kept in fp32, as in `build_network`. Without `update` the optimizer does not run, and outputs
    are not copied to fp64. With `native` the noise of a batch follows in fp64. `weights` are updated weights to compare
    with. Where the optimizer refuses fp64, that step has no updated weights. Dropout is off: the masks of two
    precisions differ, which says nothing about precision. Other random numbers come from the same seed and, in eager
    mode with `equal`, are the same in every precision.
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
        loss = LossTargets()
        if watched := update and precision is not None:
            step.network.watch_loss(loss)
        if not isinstance(step, TrainingStep):
            numbers, output = _of_forward(step, workload, keep, notes, equal=equal, copy=update)
            if watched:
                with step.mode(), contextlib.suppress(Exception):  # a loss of training may not take it
                    step.network.loss_of(output, step.data.targets[0])
                _note_decisions(numbers, loss)
            step.let_go()
            return numbers
        numbers, gradients = _of_backward(
            step, workload, case, keep, notes, equal=equal, copy=update, lone=precision is None
        )
        if is_named(workload, find_recipe(case.recipe)):
            numbers.recipe = misses(recipe_of(step.optimizer, step.module), step.optimizer, step.stored())
        if native:
            stored = {name: weight.dtype for name, weight in step.stored().items()}
            draws = (precision or PRECISIONS[case.precision]).updates == "stochastic"
            numbers.native = Gradients(first=gradients, stored=stored, make=step.network.make_optimizer, draws=draws)
        if update:
            _note_decisions(numbers, loss)
            if numbers.native is not None and precision is FP64:
                with _drawing(equal):
                    numbers.native = with_noise(step, workload, case, numbers.native)
            try:
                _update(step, numbers, keep, weights)
            except Exception as error:
                if precision is not FP64 or is_out_of_memory(error):
                    raise  # an optimizer may refuse fp64 alone
        if numbers.native is not None and numbers.skipped_steps:
            numbers.native = replace(numbers.native, skipped=True)
        if update and numbers.recipe is not None:
            least = least_rate(workload, find_recipe(case.recipe), step.optimizer)
            numbers.recipe = structs.replace(numbers.recipe, least_rate=least)
        step.let_go()
        return numbers


def _of_forward(
    step: InferenceStep, workload: Workload, keep: Device, notes: list[str], *, equal: bool, copy: bool
) -> tuple[StepNumbers, Any]:
    before = random_states(step.device)
    with step.mode(), _drawing(equal):
        output = step.run()
    taken = compared_outputs(workload, output)
    numbers = StepNumbers(kept_outputs(taken, keep, copy=copy), notes=notes)
    numbers.names = [name for name, _ in named_outputs(taken)]
    numbers.drew = random_states(step.device) != before
    return numbers, output


def _of_backward(
    step: TrainingStep,
    workload: Workload,
    case: Case,
    keep: Device,
    notes: list[str],
    *,
    equal: bool,
    copy: bool,
    lone: bool,
) -> tuple[StepNumbers, dict[str, torch.Tensor]]:
    """Return the numbers of a step of training without its update, and its gradients unchanged.

    With `lone`, the loss is also measured apart from the network where the precision rounds to half.
    """
    step.settle_scaler()
    seed_all(0)
    before = random_states(step.device)
    with _drawing(equal):
        output, unscaled = step.unscaled_gradients()
    gradients = {name: kept_one(value, keep, copy=False) for name, value in unscaled.items()}
    assert step.loss is not None
    taken = compared_outputs(workload, output)
    numbers = StepNumbers(
        outputs=kept_outputs(taken, keep, copy=copy),
        names=[name for name, _ in named_outputs(taken)],
        half=[tensor.numel() for tensor in outputs_in(taken) if tensor.itemsize < 4],
        loss=float(step.loss.detach()),
        gradients=gradients,
        drew=random_states(step.device) != before,
        notes=notes,
        stall=max(
            (stops_away(momentum, dtype) for _, momentum, dtype in running_statistics(step.module)), default=None
        ),
    )
    row = PRECISIONS[case.precision]
    if copy and lone and (row.autocast or row.storage != "float32"):
        scale = step.scaler.get_scale() if step.scaler is not None else 1.0
        numbers.loss_alone = measure_loss(step.network, output, step.device, scale)
    return numbers, unscaled


def _update(step: TrainingStep, numbers: StepNumbers, keep: Device, weights: Mapping[str, torch.Tensor] | None) -> None:
    """Take the optimizer's step, and add the weights after it, the scale and whether it was skipped to `numbers`.

    With `weights` to compare with, only the distance from these is added.
    """
    scale = step.scaler.get_scale() if step.scaler is not None else None
    if step.optimizer._optimizer_step_pre_hooks or not steps_alone(step.optimizer):  # it may clip them in place
        for weight in step.stored().values():
            weight.grad = None if weight.grad is None else weight.grad.clone()
    applied = step.apply_gradients() if isinstance(step, OwnStep) else step.apply_in_blocks()
    if scale is not None:
        numbers.scaler_scale, numbers.skipped_steps = scale, int(not applied)
    stored = step.stored()
    updated = {
        name: kept_one(stored.get(name, tensor), keep, copy=False)
        for name, tensor in named_tensors(step.module)
        if (tensor.is_floating_point() or tensor.is_complex()) and not is_wrapper(tensor)
    }
    if weights is not None:
        expected = weights or updated
        numbers.apart = compare(list(updated.values()), [expected[name] for name in updated], keep)
        if isinstance(step.device, Cpu):  # elsewhere a second step is compared with these
            return
    numbers.updated = updated


def _drawing(equal: bool) -> contextlib.AbstractContextManager[Any]:
    """Return the context of random draws: `EqualDraws` if they are to be `equal` in all precisions."""
    return EqualDraws() if equal else contextlib.nullcontext()


def _note_decisions(numbers: StepNumbers, loss: LossTargets) -> None:
    """Keep the decisions recorded in a loss; a note says where none matches an output."""
    numbers.decided = loss.decisions(numbers.outputs)
    if loss.seen and not numbers.decided:
        numbers.notes.append(NOT_DECIDED)


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
    """Return the fp64 step of `case`, or one in another `precision`; an `equal` one where it draws random numbers."""
    run = partial(run_step, workload, case, device, keep=keep, precision=precision, update=update, native=native)
    numbers = run()
    if not numbers.drew:
        return numbers
    del numbers
    return run(equal=True)


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference of a group of cases: the fp64 step, or the fp32 step where fp64 fails.

    `dtype` is its precision ("fp64", "fp32", "" where both fail and there are no `numbers`), `where` the device it ran
    on, `error` the reason why fp64 failed. `fp32` is the fp32 step on the device, None where it fails or runs out of
    memory. `chance` is the distance of a second step in that dtype that differs only in random numbers and hidden state
    of the network (None: unknown), `chances` the same for each output. In training, `intended` is the intended change
    of the weights, and `fp32` has only outputs.
    """

    numbers: StepNumbers | None
    fp32: StepNumbers | None
    where: str
    dtype: str = "fp64"
    error: str = ""
    chance: float | None = None
    chances: Sequence[float | None] = ()
    intended: Intended | None = None

    @property
    def draws(self) -> bool:
        """Whether the step draws random numbers, so that other steps must draw `equal` ones."""
        return self.numbers is not None and self.numbers.drew


class References:
    """The shared results of the current group of cases, computed once."""

    def __init__(self) -> None:
        self._workload: Workload | None = None
        self._key: tuple[object, ...] = ()
        self._made: Any = None

    def of(self, workload: Workload, case: Case, device: Device, topic: object, make: Callable[[], Made]) -> Made:
        """Return the result of `make` for the group of `case`, computed now unless it is the last one asked for.

        Another group, or another `topic`, replaces it. Raises any error of `make`.
        """
        key = (topic, case.group, case.device, case.phase)
        if self._made is None or workload is not self._workload or key != self._key:
            self._made = None
            device.release()
            self._made, self._workload, self._key = make(), workload, key
        return cast(Made, self._made)


def passing_reference(workload: Workload, case: Case, device: Device, *, updates: bool = False) -> Reference:
    """Return outputs and gradients of the fp64 step, on the CPU; where it fails, of the fp32 step on the device.

    With `updates`, also the intended change by a named optimizer, where the fp64 step runs. Raises
    `torch.OutOfMemoryError` where the step does not fit into the memory, and any error of the fp32 step.
    """
    where = fp64_device(device)
    updates = updates and is_named(workload, find_recipe(case.recipe))
    try:
        exact = reference_step(workload, case, where, keep=Cpu(), update=False, native=updates)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = said_of(error)
    else:
        intended = None
        if exact.native is not None:
            intended = intended_update(take_snapshot(workload, case, device), exact.native, where)
        return Reference(numbers=exact, fp32=None, where=where.type, intended=intended)
    device.release()
    numbers = reference_step(workload, case, device, keep=Cpu(), precision=_FP32, update=False)
    return Reference(numbers=numbers, fp32=numbers, where=device.type, dtype="fp32", error=reason)


def trusted_reference(workload: Workload, case: Case, device: Device, *, updates: bool = False) -> Reference:
    """Return a `passing_reference`; raises `WorkloadError` where chance decides its distance from the fp32 step."""
    held = passing_reference(workload, case, device, updates=updates)
    if held.dtype == "fp64" and held.numbers is not None:
        chance = _chance(workload, case, fp64_device(device), held.numbers, Cpu())[0]
        if chance:
            fp32 = run_step(workload, case, device, keep=Cpu(), precision=_FP32, update=False, equal=held.draws)
            if is_chance(chance, compare(fp32.outputs, held.numbers.outputs, Cpu()).rel_l2):
                raise WorkloadError(CHANCE.format(chance))
    return held


def full_reference(workload: Workload, case: Case, device: Device, snapshot: Snapshot | None = None) -> Reference:
    """Return the fp64 and the fp32 step of the group of `case`, with chance and the intended update from `snapshot`.

    Raises `torch.OutOfMemoryError` where the reference does not fit into the memory.
    """
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
        device.release()  # frees the failed step
    try:
        if exact is None:
            fp32 = reference_step(workload, case, device, keep=where, precision=_FP32)
        else:
            fp32 = run_step(workload, case, device, keep=where, precision=_FP32, equal=exact.drew, update=not training)
            fp32.outputs, fp32.gradients = [output.double() for output in fp32.outputs], {}
    except Exception as raised:
        if is_out_of_memory(raised):
            if exact is None:
                raise
        elif exact is None:
            error = f"{error}; fp32 failed: {said_of(raised)}"
    if exact is not None:
        chance, chances = _chance(workload, case, where, exact, where)
        if exact.native is not None:
            intended = intended_update(snapshot or take_snapshot(workload, case, device), exact.native, where)
        return Reference(numbers=exact, fp32=fp32, where=where.type, chance=chance, chances=chances, intended=intended)
    if fp32 is None:
        return Reference(numbers=None, fp32=None, where=device.type, dtype="", error=error)
    chance, chances = _chance(workload, case, device, fp32, where, precision=_FP32)
    return Reference(fp32, fp32, device.type, dtype="fp32", error=error, chance=chance, chances=chances)


def _chance(
    workload: Workload, case: Case, device: Device, numbers: StepNumbers, keep: Device, precision: Precision = FP64
) -> tuple[float | None, list[float | None]]:
    """Return the distance of another forward pass from `numbers`: with another seed, if those drew random numbers.

    The pass is in fp64 or another `precision`. The result is the distance of all outputs, and of each: 1 for other
    shapes; None where it is undefined or memory runs out.
    """
    seed_all(int(numbers.drew))
    try:
        with precision_flags(precision):
            step = build_step(workload, case, device, precision=precision)
            if isinstance(step, TrainingStep):
                switch_off_dropout(step.module, [])
            with step.mode(), EqualDraws() if numbers.drew else contextlib.nullcontext():
                output = step.run() if isinstance(step, OwnStep) else step.network.forward_and_loss()[0]
            outputs = kept_outputs(compared_outputs(workload, output), keep)
            step.let_go()
            del output
            every, by_output = compare_each(outputs, numbers.outputs, keep)
            return every.rel_l2, [distance.rel_l2 for distance in by_output]
    except ValueError:
        return 1.0, []
    except Exception as error:
        if is_out_of_memory(error):
            return None, []
        raise


def is_chance(apart: float | None, error: float | None) -> bool:
    """Return whether an error, fp32's where it is known, comes from two random draws with the distance `apart`.

    Where both drew the same numbers, the error is rounding, far below another draw's; where chance is far below
    rounding, it hides nothing.
    """
    return apart is not None and error is not None and apart > 0 and MATTERS * error <= apart <= error / SAME


REFERENCE_ITSELF = "it is the reference: fp64 failed"
"""The reason why fp32 has no error where fp32 is the reference."""
NO_REFERENCE = "there is no reference: fp64 failed: {}"
PART = 1e-2
"""The least share of the norm with which a parameter's gradient is judged on its own."""


class _Group:
    """The reference of a group's cases, and the results that all of them share, computed on first use.

    `larger` as in `measure_divergence`; the update begins from `snapshot`.
    """

    def __init__(
        self, workload: Workload, case: Case, device: Device, larger: Larger | None, snapshot: Snapshot | None = None
    ):
        self.workload, self._device, self._larger = workload, device, larger
        self._samples = batch_length(workload, case)
        self.reference = full_reference(workload, case, device, snapshot)

    @property
    def numbers(self) -> StepNumbers:
        """The numbers of the reference, which exists."""
        assert self.reference.numbers is not None
        return self.reference.numbers

    @cached_property
    def digests(self) -> tuple[str, str]:
        """The digests of the workload's weights and of its inputs."""
        return weights_digest(self.workload), inputs_digest(self.workload)

    @cached_property
    def sketches(self) -> tuple[Sketch, Sketch]:
        """The sketches of its outputs and of its gradients."""
        outputs = {str(place): tensor for place, tensor in enumerate(self.numbers.outputs)}
        return _sketch(outputs), _sketch(self.numbers.gradients)

    @cached_property
    def compared(self) -> Compared:
        """Its outputs, prepared for comparisons."""
        numbers = self.numbers
        targets = pairs_of(self.workload)[0][1]
        decided = decisions_of(self.workload, numbers.names, numbers.outputs, targets, numbers.decided)
        return Compared(numbers.names, numbers.outputs, decided, self._samples, self.reference.dtype, targets)

    @cached_property
    def fp32(self) -> list[Distance]:
        """The distances of fp32's outputs from the reference: of all, then of each; [] where unknown."""
        held = self.reference
        if held.fp32 is not None and held.dtype == "fp64":
            with contextlib.suppress(ValueError):
                every, by_output = self.compared.distances(held.fp32.outputs)
                return [every, *by_output]
        return []

    @cached_property
    def agreement(self) -> Agreement:
        """Its decisions on further batches."""
        held = self.reference
        where = fp64_device(self._device) if held.dtype == "fp64" else self._device
        return Agreement(self.workload, self.compared, where, held.dtype, held.draws, self._larger)


def measure_divergence(
    workload: Workload, case: Case, device: Device, references: References, larger: Larger | None = None
) -> Divergence:
    """Return the distance of one step of `case` from the same step in fp64.

    Where a classifier makes too few decisions, further batches follow: the workload's own, then those of `larger`.
    Where the fp64 step fails, the fp32 step on the device is the reference, as the record notes; where fp32 fails, too,
    no error is defined. Raises any error of the step of `case` itself.
    """
    started = spent(device)
    group = references.of(workload, case, device, "divergence", partial(_Group, workload, case, device, larger))
    return _divergence(group, case, device, started)


def measure_late(
    workload: Workload, case: Case, device: Device, references: References, larger: Larger | None = None
) -> Late:
    """Return the divergence of one step of `case` at the group's late place (`late_place`), on the next batch.

    The workload is unchanged afterwards. Raises as `measure_divergence` does.
    """
    started = spent(device)

    def make() -> tuple[Place, _Group | None]:
        place = late_place(workload, case, device)
        device.release()
        if not place.snapshot.steps:
            return place, None
        with place.weights():
            return place, _Group(place.workload, case, device, larger, place.snapshot)

    place, group = references.of(workload, case, device, "late", make)
    late = Late(
        case_id=case.case_id,
        stop=place.stop,
        steps=place.snapshot.steps,
        batches=place.batches,
        undefined=place.error,
    )
    if group is None:
        return late
    with place.weights():
        return structs.replace(late, divergence=_divergence(group, case, device, started))


def _divergence(group: _Group, case: Case, device: Device, started: float) -> Divergence:
    """Return the divergence of `case` from the reference of its group, which began at `started` (`spent`)."""
    workload, held = group.workload, group.reference
    keep = fp64_device(device)
    known = held.numbers is held.fp32 or case.phase == "inference"
    numbers = held.fp32 if known and case.precision == BASELINE and case.path == "eager" else None
    if numbers is None:
        native, weights = held.intended is not None, held.numbers.updated if held.numbers is not None else {}
        numbers = run_step(workload, case, device, keep=keep, equal=held.draws, native=native, weights=weights)
    divergence = Divergence(
        case_id=case.case_id,
        reference=ReferenceStep(device=held.where, dtype=held.dtype, error=held.error),
        weights_digest=group.digests[0],
        inputs_digest=group.digests[1],
        repeatable=None if isinstance(device, Cpu) else is_repeatable(workload, case, device, numbers, held, keep),
        fp32_products=fp32_products(case, device),
        input_largest=largest(batch for batch, _ in pairs_of(workload)),
        notes=list(numbers.notes),
    )
    training = case.phase == "training"
    if training:
        if numbers.loss is None or not math.isfinite(numbers.loss):
            divergence.notes.append(LOSS_NOT_FINITE)
        divergence = structs.replace(
            divergence,
            loss=finite_or_none(numbers.loss),
            gradient=GradientDivergence(elements=sum(value.numel() for value in numbers.gradients.values())),
            scaler_scale=numbers.scaler_scale,
            skipped_steps=numbers.skipped_steps,
            recipe=numbers.recipe,
            target_largest=largest((targets for _, targets in pairs_of(workload)), numbers.half),
            statistics_stall=numbers.stall,
            loss_alone=numbers.loss_alone,
        )
    if held.numbers is None:
        why = NO_REFERENCE.format(held.error)
        divergence.notes.append(why)
        output = structs.replace(divergence.output, undefined=why)
        gradient = structs.replace(divergence.gradient, undefined=why if training else "")
        return structs.replace(divergence, output=output, gradient=gradient)
    if NOT_DECIDED in held.numbers.notes and NOT_DECIDED not in divergence.notes:
        divergence.notes.append(NOT_DECIDED)
    outputs, gradients = group.sketches
    reference = structs.replace(
        divergence.reference,
        output_shapes=[list(tensor.shape) for tensor in held.numbers.outputs],
        output_norm=finite_or_none(outputs.norm),
        output_sketch=outputs.text,
        grad_norm=finite_or_none(gradients.norm) if training else None,
        grad_sketch=gradients.text if training else None,
    )
    divergence = structs.replace(divergence, reference=reference)
    divergence = _with_outputs(divergence, case, numbers, held, group.compared, group.fp32)
    decided = divergence.output.decided
    if decided is not None and decided[1] and case.path == "eager" and not state(*decided):
        further = group.agreement
        taken = spent(device) - started
        decisions = further.measure(case, device, *decided, taken, divergence.notes)
        divergence = structs.replace(divergence, output=structs.replace(divergence.output, further=decisions))
    by_fp32 = case.path == "eager" and held.dtype == "fp64" and held.fp32 is not None
    if is_chance(held.chance, divergence.output.fp32_rel_l2 if by_fp32 else divergence.output.rel_l2):
        divergence = structs.replace(divergence, chance_rel_l2=held.chance)
    if not training:
        return divergence
    divergence = _with_gradients(divergence, numbers, held, keep)
    if held.intended is None or numbers.native is None:
        return divergence
    update = measure_update(held.intended, numbers.native, device, keep) if held.intended.snapshot.named else None
    noise = batch_noise(held.intended, numbers.native, divergence.gradient.tensor_parameter)
    nonfinite = max(divergence.param_nonfinite or 0, update.nonfinite or 0 if update else 0)
    gradient = structs.replace(divergence.gradient, **noise)
    return structs.replace(divergence, update=update, gradient=gradient, param_nonfinite=nonfinite)


def fp32_products(case: Case, device: Device) -> dict[str, str] | None:
    """Return the rounding of fp32 products in a case's precision here; None where weights are stored in half."""
    row = PRECISIONS[case.precision]
    if row.storage != "float32":
        return None
    with precision_flags(row):
        return rounded_products(device)


def _with_outputs(
    divergence: Divergence,
    case: Case,
    numbers: StepNumbers,
    held: Reference,
    compared: Compared,
    fp32: Sequence[Distance],
) -> Divergence:
    """Return a divergence with the errors of its outputs; `fp32` holds fp32's distances, of all and of each."""
    itself = held.numbers is numbers
    try:
        outputs, by_output = compared.distances(numbers.outputs)
    except ValueError as error:  # other shapes: a detector found other boxes
        divergence.notes.append(f"{error}: no error is defined")
        return structs.replace(divergence, output=structs.replace(divergence.output, undefined=str(error)))
    if itself and not outputs.undefined:
        outputs.itself = REFERENCE_ITSELF
    divergence.notes.extend(outputs.notes)
    divergence.notes.extend(compared.notes)
    rounding = getattr(torch, PRECISIONS[case.precision].rounding)
    agreeing, decisions = argmax_agreement(numbers.outputs, compared.references, compared.decided)
    by_chance = [
        chance if is_chance(chance, (fp32_distance if case.path == "eager" else distance).rel_l2) else None
        for chance, distance, fp32_distance in zip(held.chances, by_output, fp32[1:] or by_output, strict=False)
    ]
    output = OutputDivergence(
        **{name: getattr(outputs, name) for name in OutputDivergence.__struct_fields__ if hasattr(outputs, name)},
        fp32_nonfinite=fp32[0].nonfinite if fp32 else None,
        floor_rel_l2=compared.floors(rounding)[0].rel_l2,
        fp32_rel_l2=fp32[0].rel_l2 if fp32 else None,
        tensors=None if itself else compared.errors(numbers.outputs, by_output, rounding, by_chance),
        predictions=None if itself else compared.predictions(numbers.outputs),
        argmax_agreeing=None if itself else agreeing,
        argmax_decisions=None if itself else decisions,
        near_ties=None if itself or agreeing == decisions else compared.near_ties(numbers.outputs, rounding),
    )
    reference = structs.replace(divergence.reference, output_norm=outputs.reference_norm)
    return structs.replace(divergence, output=output, reference=reference)


def _with_gradients(divergence: Divergence, numbers: StepNumbers, held: Reference, keep: Device) -> Divergence:
    """Return the divergence of a training step with the errors of its loss, gradients and updated weights."""
    reference = held.numbers
    assert reference is not None
    itself = reference is numbers
    loss = None if itself else finite_or_none(reference.loss)
    divergence = structs.replace(divergence, reference=structs.replace(divergence.reference, loss=loss))
    if others := numbers.gradients.keys() ^ reference.gradients.keys():
        why = f"a gradient that only one of this step and the reference has: {few(sorted(others))}"
        divergence.notes.append(f"gradients: {why}")
        return structs.replace(divergence, gradient=structs.replace(divergence.gradient, undefined=why))
    expected = [reference.gradients[name] for name in numbers.gradients]
    values = list(numbers.gradients.values())
    gradients, by_gradient = compare_each(values, expected, keep, what="gradient", against=held.dtype)
    if itself and not gradients.undefined:
        gradients.itself = REFERENCE_ITSELF
    divergence.notes.extend(note for note in gradients.notes if note not in divergence.notes)
    worst = part = None
    if not itself:
        by_name = dict(zip(numbers.gradients, by_gradient, strict=True))
        worst, part = worst_gradient(by_name), worst_gradient(by_name, PART)
    updated_weights = list(numbers.updated.values())
    updated = numbers.apart or compare(updated_weights, updated_weights, keep)
    gradient = structs.replace(
        divergence.gradient,
        rel_l2=gradients.rel_l2,
        worst_parameter=worst[0] if worst else None,
        flushed=None
        if itself
        else sum(
            int(((value == 0) & (reference.gradients[name] != 0)).sum()) for name, value in numbers.gradients.items()
        ),
        nonfinite=gradients.nonfinite,
        nan=gradients.nan,
        reference_nonfinite=gradients.reference_nonfinite,
        reference_nan=gradients.reference_nan,
        undefined=gradients.undefined,
        tensor_parameter=None if part is None else part[0],
        tensor_rel_l2=None if part is None else part[1],
    )
    return structs.replace(
        divergence,
        gradient=gradient,
        param_rel_l2=updated.rel_l2 if reference.updated and not itself else None,
        param_nonfinite=updated.nonfinite,
    )


def is_repeatable(
    workload: Workload, case: Case, device: Device, numbers: StepNumbers, held: Reference, keep: Device
) -> bool | None:
    """Return whether the step of `numbers` gives the same bits again; None where memory does not allow a second.

    Kernels that add atomically do not repeat. torch's CPU kernels add in an order that only the number of threads
    decides.
    """
    try:
        again = run_step(workload, case, device, keep=keep, equal=held.draws, weights={})
    except Exception as error:
        if is_out_of_memory(error):
            return None
        raise
    first = [*numbers.outputs, *numbers.gradients.values(), *numbers.updated.values()]
    second = [*again.outputs, *again.gradients.values(), *again.updated.values()]
    return identical(first, second)


def largest(trees: Iterable[Any], elements: Sequence[int] | None = None) -> float | None:
    """Return the largest finite magnitude of the floating tensors in `trees`; None where there are none.

    With `elements`, only tensors of these sizes count; without, all but masks, which hold 0 and one number below.
    """
    most = []
    for tensor in tensors_of(list(trees)):
        if tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_nested and tensor.numel():
            values = tensor.detach().where(tensor.isfinite(), 0.0)
            mask = elements is None and bool(((values == 0) | (values == values.min())).all() and values.min() < 0)
            if not mask and (elements is None or tensor.numel() in elements):
                most.append(float(values.abs().max()))
    return max(most, default=None)


def _sketch(tensors: Mapping[str, torch.Tensor]) -> Sketch:
    """Return the sketch of the numbers of tensors in fp64, in order."""
    return sketch_of(
        (name, (block.cpu().double().numpy() for block in torch.split(tensor.reshape(-1), BLOCK)))
        for name, tensor in tensors.items()
    )
