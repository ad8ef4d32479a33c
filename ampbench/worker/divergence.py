"""How far a case's numbers lie from the fp64 reference with the same weights and inputs; untimed."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ampbench.errors import first_line, own_place
from ampbench.labels import few
from ampbench.precisions import BASELINE, PRECISIONS
from ampbench.records.cases import Case
from ampbench.records.divergences import Divergence
from ampbench.sketch import BLOCK, Floats, Sketch, sketch_of
from ampbench.worker.data import inputs_digest, named_tensors, weights_digest
from ampbench.worker.devices import Cpu, Device, fp64_device
from ampbench.worker.distances import (
    Distance,
    argmax_agreement,
    compare,
    identical,
    kept_one,
    kept_outputs,
    worst_gradient,
)
from ampbench.worker.flags import precision_flags
from ampbench.worker.memory import is_out_of_memory
from ampbench.worker.seeded import switch_off_dropout
from ampbench.worker.step import Step
from ampbench.workload import Workload

REFERENCE_ITSELF = "it is the reference: fp64 failed"
"""Why the error of fp32 is undefined where fp32 is what others are held against."""
NO_REFERENCE = "there is no reference: fp64 failed: {}"


@dataclass(slots=True)
class StepNumbers:
    """What one step gave, in fp64 on the reference device: outputs in order, and for training the rest.

    Of a step that was not to `update`, outputs and gradients are in the dtypes they came in, and that is all.
    """

    outputs: list[torch.Tensor]
    loss: float | None = None
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    updated: dict[str, torch.Tensor] = field(default_factory=dict)
    scaler_scale: float | None = None
    skipped_steps: int | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reference:
    """What a group of cases is held against: the fp64 step, or that in fp32 where the fp64 step fails.

    `dtype` says which ("fp64", "fp32", "" where fp32 fails, too, and there are no `numbers`), `where` the device it
    ran on, `error` why the fp64 step failed. `fp32` is the fp32 step on the device, None where that fails or does not
    fit into its memory.
    """

    numbers: StepNumbers | None
    fp32: StepNumbers | None
    where: str
    dtype: str = "fp64"
    error: str = ""


class References:
    """The reference and the fp32 step of the case group last asked for: the precisions of one table share them."""

    def __init__(self) -> None:
        self._workload: Workload | None = None
        self._key: tuple[str, ...] = ()
        self._numbers: Reference | None = None
        self._passed_key: tuple[str, ...] = ()
        self._passed: Reference | None = None
        self._sketched: tuple[StepNumbers, Sketch, Sketch] | None = None

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

    def passed(self, workload: Workload, case: Case, device: Device) -> Reference:
        """Return outputs and gradients of the reference alone, on the CPU: they take no room on the device.

        Raises as `of` does.
        """
        key = (case.group, case.device, case.phase)
        if workload is not self._workload or key != self._passed_key or self._passed is None:
            self._numbers = self._passed = None
            device.release()
            self._workload, self._passed_key, self._passed = workload, key, passing_reference(workload, case, device)
        return self._passed


def passing_reference(workload: Workload, case: Case, device: Device) -> Reference:
    """Return outputs and gradients of the fp64 step, on the CPU; where it fails, of the fp32 step on the device.

    Raises `torch.OutOfMemoryError` where the step does not fit into the memory, and what the fp32 step raises.
    """
    where = fp64_device(device)
    try:
        exact = run_step(workload, case, where, keep=Cpu(), reference=True, update=False)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        said = first_line(error) + own_place(error)
    else:
        return Reference(numbers=exact, fp32=None, where=where.type)
    device.release()
    numbers = run_step(workload, case, device, keep=Cpu(), precision=BASELINE, update=False)
    return Reference(numbers=numbers, fp32=numbers, where=device.type, dtype="fp32", error=said)


def _referred(workload: Workload, case: Case, device: Device) -> Reference:
    """Run the fp64 and the fp32 step of the group of `case`."""
    where = fp64_device(device)
    exact = fp32 = None
    error = ""
    try:
        exact = run_step(workload, case, where, keep=where, reference=True)
    except Exception as raised:
        if is_out_of_memory(raised):
            raise
        error = first_line(raised) + own_place(raised)
    if exact is None:
        device.release()  # what the error held of the step
    try:
        fp32 = run_step(workload, case, device, keep=where, precision=BASELINE)
    except Exception as raised:
        if is_out_of_memory(raised):
            if exact is None:
                raise
        elif exact is None:
            error = f"{error}; fp32 failed: {first_line(raised)}{own_place(raised)}"
    if exact is not None:
        return Reference(numbers=exact, fp32=fp32, where=where.type)
    return Reference(numbers=fp32, fp32=fp32, where=device.type, dtype="" if fp32 is None else "fp32", error=error)


def measure_divergence(workload: Workload, case: Case, device: Device, references: References) -> Divergence:
    """Return how far one step of `case` lies from the same step in fp64.

    Where the fp64 step fails, that of fp32 on the device is the reference, and the record says so; where fp32 fails,
    too, no error is defined. Raises what the step of `case` itself raises.
    """
    held = references.of(workload, case, device)
    is_baseline = held.fp32 is not None and case.precision == BASELINE and case.path == "eager"
    keep = fp64_device(device)
    numbers = held.fp32 if held.fp32 is not None and is_baseline else run_step(workload, case, device, keep=keep)
    found = Divergence(
        case_id=case.case_id,
        reference_device=held.where,
        reference_dtype=held.dtype,
        reference_error=held.error,
        weights_digest=weights_digest(workload),
        inputs_digest=inputs_digest(workload),
        repeatable=None if isinstance(device, Cpu) else is_repeatable(workload, case, device, numbers, keep),
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
        )
    if held.numbers is None:
        why = NO_REFERENCE.format(held.error)
        found.notes.append(why)
        return dataclasses.replace(found, output_undefined=why, grad_undefined=why if training else "")
    outputs, gradients = references.sketches(held.numbers)
    found = dataclasses.replace(
        found,
        output_shapes=[list(tensor.shape) for tensor in held.numbers.outputs],
        output_reference_norm=_finite(outputs.norm),
        output_sketch=outputs.text,
        grad_reference_norm=_finite(gradients.norm) if training else None,
        grad_sketch=gradients.text if training else None,
    )
    found = _with_outputs(found, workload, case, numbers, held)
    return _with_gradients(found, numbers, held) if training else found


def _with_outputs(
    found: Divergence, workload: Workload, case: Case, numbers: StepNumbers, held: Reference
) -> Divergence:
    """Return a divergence with what its outputs say."""
    assert held.numbers is not None
    reference = held.numbers.outputs
    try:
        outputs = compare(numbers.outputs, reference, against=held.dtype)
    except ValueError as error:  # other shapes: a detector found other boxes
        found.notes.append(f"{error}: no error is defined")
        return dataclasses.replace(found, output_undefined=str(error))
    outputs = _told_of_itself(outputs, numbers, held)
    found.notes.extend(outputs.notes)
    rounding = getattr(torch, PRECISIONS[case.precision].rounding)
    fp32 = None
    if held.fp32 is not None and held.dtype == "fp64":
        with contextlib.suppress(ValueError):
            fp32 = compare(held.fp32.outputs, reference)
    agreeing, decisions = argmax_agreement(numbers.outputs, reference, batch_targets(workload))
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
        output_fp32_nonfinite=None if fp32 is None else fp32.nonfinite,
        output_undefined=outputs.undefined,
        output_floor_rel_l2=compare([tensor.to(rounding).double() for tensor in reference], reference).rel_l2,
        output_fp32_rel_l2=None if fp32 is None else fp32.rel_l2,
        argmax_agreeing=None if held.numbers is numbers else agreeing,
        argmax_decisions=None if held.numbers is numbers else decisions,
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
    gradients = compare(list(numbers.gradients.values()), expected, what="gradient", against=held.dtype)
    gradients = _told_of_itself(gradients, numbers, held)
    found.notes.extend(note for note in gradients.notes if note not in found.notes)
    worst = None if itself else worst_gradient(numbers.gradients, reference.gradients)
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
        param_rel_l2=None if itself else updated.rel_l2,
    )


def is_repeatable(workload: Workload, case: Case, device: Device, numbers: StepNumbers, keep: Device) -> bool | None:
    """Return whether the step that gave `numbers` gives the same bits again; None where it does not fit once more.

    Kernels that add atomically do not. torch's CPU kernels add in an order that only the number of threads decides.
    """
    try:
        again = run_step(workload, case, device, keep=keep)
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
    reference: bool = False,
    precision: str | None = None,
    kept: Sequence[str] = (),
    update: bool = True,
) -> StepNumbers:
    """Run one step of `case` (as the fp64 reference, or in another precision) and return its numbers on device `keep`.

    `kept` are the modules kept in fp32, as in `Step`. Without `update` the optimizer does not run, and outputs and
    gradients are not copied into fp64.
    Dropout is switched off: two precisions draw different masks, whose distance says nothing about precision. What else
    is random draws from the same seed.
    """
    torch.manual_seed(0)
    row = None if reference else PRECISIONS[precision or case.precision]
    with precision_flags(row):
        step = Step(workload, case, device, reference=reference, precision=precision, kept=kept)
        notes: list[str] = []
        if step.training:
            switch_off_dropout(step.module, notes)
        if not reference and precision is None and step.prepare_path(case.path) is not None:
            torch.manual_seed(0)
        if not step.training:
            with step.mode():
                found = StepNumbers(outputs=kept_outputs(step.run(), keep, copy=update), notes=notes)
            step.let_go()
            return found
        step.settle_scaler()
        output, unscaled = step.unscaled_gradients()
        gradients = {name: kept_one(value, keep, copy=update) for name, value in unscaled.items()}
        assert step.loss is not None
        numbers = StepNumbers(
            outputs=kept_outputs(output, keep, copy=update),
            loss=float(step.loss.detach()),
            gradients=gradients,
            notes=notes,
        )
        if not update:
            step.let_go()
            return numbers
        if step.scaler is not None:
            numbers.scaler_scale = step.scaler.get_scale()
        taken = step.apply_gradients()
        if step.scaler is not None:
            numbers.skipped_steps = int(not taken)
        numbers.updated = {
            name: kept_one(tensor, keep)
            for name, tensor in named_tensors(step.module)
            if tensor.is_floating_point() or tensor.is_complex()
        }
        return numbers


def batch_targets(workload: Workload) -> Any:
    """Return the targets of the first batch, the one the divergence pass runs."""
    return workload.targets[0] if isinstance(workload.inputs, list) and workload.targets else workload.targets


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
