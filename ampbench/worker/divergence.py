"""How far a case's numbers lie from the fp64 reference with the same weights and inputs; untimed."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ampbench.precisions import BASELINE, PRECISIONS
from ampbench.records.cases import Case
from ampbench.records.divergences import Divergence
from ampbench.sketch import BLOCK, Floats, Sketch, sketch_of
from ampbench.worker.data import inputs_digest, named_tensors, weights_digest
from ampbench.worker.devices import Cpu, Device, fp64_device
from ampbench.worker.distances import argmax_agreement, compare, identical, kept_one, kept_outputs, worst_gradient
from ampbench.worker.flags import precision_flags
from ampbench.worker.memory import is_out_of_memory
from ampbench.worker.seeded import switch_off_dropout
from ampbench.worker.step import Step
from ampbench.workload import Workload


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


class References:
    """The reference and the fp32 step of the case group last asked for: the precisions of one table share them."""

    def __init__(self) -> None:
        self._workload: Workload | None = None
        self._key: tuple[str, ...] = ()
        self._numbers: tuple[StepNumbers, StepNumbers | None, str] | None = None
        self._passed_key: tuple[str, ...] = ()
        self._passed: StepNumbers | None = None
        self._sketched: tuple[StepNumbers, Sketch, Sketch] | None = None

    def of(self, workload: Workload, case: Case, device: Device) -> tuple[StepNumbers, StepNumbers | None, str]:
        """Return (the fp64 step, the fp32 step on the device, the reference's device) for the group of `case`.

        The fp32 step is None where it does not fit into the device's memory. Raises `torch.OutOfMemoryError` where the
        reference does not.
        """
        key = (case.group, case.device, case.phase)
        if workload is not self._workload or key != self._key or self._numbers is None:
            self._numbers = self._passed = None
            device.release()
            where = fp64_device(device)
            reference = run_step(workload, case, where, keep=where, reference=True)
            fp32: StepNumbers | None = None
            try:
                fp32 = run_step(workload, case, device, keep=where, precision=BASELINE)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            self._workload, self._key, self._numbers = workload, key, (reference, fp32, where.type)
        return self._numbers

    def sketches(self, reference: StepNumbers) -> tuple[Sketch, Sketch]:
        """Return the sketches of the outputs and of the gradients of a group's fp64 step."""
        if self._sketched is None or self._sketched[0] is not reference:
            outputs = {str(place): tensor for place, tensor in enumerate(reference.outputs)}
            self._sketched = (reference, _sketch(outputs), _sketch(reference.gradients))
        return self._sketched[1:]

    def passed(self, workload: Workload, case: Case, device: Device) -> StepNumbers:
        """Return outputs and gradients of the fp64 step alone, on the CPU: they take no room on the device.

        Raises as `of` does.
        """
        key = (case.group, case.device, case.phase)
        if workload is not self._workload or key != self._passed_key or self._passed is None:
            self._numbers = self._passed = None
            device.release()
            where = fp64_device(device)
            self._passed = run_step(workload, case, where, keep=Cpu(), reference=True, update=False)
            self._workload, self._passed_key = workload, key
        return self._passed


def measure_divergence(workload: Workload, case: Case, device: Device, references: References) -> Divergence:
    """Return how far one step of `case` lies from the same step in fp64."""
    reference, fp32, where = references.of(workload, case, device)
    is_baseline = fp32 is not None and case.precision == BASELINE and case.path == "eager"
    keep = device if where == device.type else Cpu()
    numbers = fp32 if fp32 is not None and is_baseline else run_step(workload, case, device, keep=keep)
    outputs = compare(numbers.outputs, reference.outputs)
    notes = [*numbers.notes, *outputs.notes]
    rounding = getattr(torch, PRECISIONS[case.precision].rounding)
    rounded = [tensor.to(rounding).double() for tensor in reference.outputs]
    output_sketch, grad_sketch = references.sketches(reference)
    agreeing, decisions = argmax_agreement(numbers.outputs, reference.outputs, batch_targets(workload))
    found = Divergence(
        case_id=case.case_id,
        reference_device=where,
        weights_digest=weights_digest(workload),
        inputs_digest=inputs_digest(workload),
        output_reference_norm=outputs.reference_norm,
        output_rel_l2=outputs.rel_l2,
        output_max_abs=outputs.max_abs,
        output_cosine=outputs.cosine,
        output_nonfinite=outputs.nonfinite,
        output_floor_rel_l2=compare(rounded, reference.outputs).rel_l2,
        output_fp32_rel_l2=compare(fp32.outputs, reference.outputs).rel_l2 if fp32 is not None else None,
        argmax_agreeing=agreeing,
        argmax_decisions=decisions,
        output_shapes=[list(tensor.shape) for tensor in reference.outputs],
        output_sketch=output_sketch.text,
        repeatable=None if isinstance(device, Cpu) else is_repeatable(workload, case, device, numbers, keep),
        notes=notes,
    )
    if case.phase != "training":
        return found
    if numbers.loss is None or not math.isfinite(numbers.loss):
        notes.append("the loss is not finite")
    gradients = compare(list(numbers.gradients.values()), [reference.gradients[name] for name in numbers.gradients])
    notes += [f"gradients: {note}" for note in gradients.notes]
    worst = worst_gradient(numbers.gradients, reference.gradients)
    return dataclasses.replace(
        found,
        loss=_finite(numbers.loss),
        reference_loss=_finite(reference.loss),
        grad_rel_l2=gradients.rel_l2,
        grad_worst_parameter=worst[0] if worst else None,
        grad_worst_rel_l2=worst[1] if worst else None,
        grad_flushed=sum(
            int(((value == 0) & (reference.gradients[name] != 0)).sum()) for name, value in numbers.gradients.items()
        ),
        grad_elements=sum(value.numel() for value in numbers.gradients.values()),
        grad_nonfinite=gradients.nonfinite,
        param_rel_l2=compare(
            list(numbers.updated.values()), [reference.updated[name] for name in numbers.updated]
        ).rel_l2,
        scaler_scale=numbers.scaler_scale,
        skipped_steps=numbers.skipped_steps,
        grad_reference_norm=grad_sketch.norm,
        grad_sketch=grad_sketch.text,
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
            name: kept_one(tensor, keep) for name, tensor in named_tensors(step.module) if tensor.is_floating_point()
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
