"""The distance of a case's numbers from the fp64 reference with the same weights and inputs; untimed."""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from msgspec import structs

from ampbench.core.precisions import BASELINE, PRECISIONS
from ampbench.core.stats import BLOCK, Floats, Sketch, sketch_of
from ampbench.records.case import Case
from ampbench.records.labels import few
from ampbench.records.measured import (
    LOSS_NOT_FINITE,
    Divergence,
    GradientDivergence,
    OutputDivergence,
    ReferenceStep,
)
from ampbench.worker.data import Larger, inputs_digest, pairs_of, tensors_of, weights_digest
from ampbench.worker.distances import (
    COUNTS,
    Distance,
    argmax_agreement,
    compare,
    compare_each,
    identical,
    worst_gradient,
)
from ampbench.worker.machine import Cpu, Device, fp64_device, precision_flags, rounded_products
from ampbench.worker.memory import is_out_of_memory
from ampbench.worker.outputs import Agreement, Compared, batch_length, decisions_of, spent, state
from ampbench.worker.reference import (
    NOT_DECIDED,
    Reference,
    References,
    StepNumbers,
    full_reference,
    is_chance,
    run_step,
)
from ampbench.worker.updates import updated_by
from ampbench.workload import Workload

REFERENCE_ITSELF = "it is the reference: fp64 failed"
"""The reason why fp32 has no error where fp32 is the reference."""
NO_REFERENCE = "there is no reference: fp64 failed: {}"
PART = 1e-2
"""The least share of the norm with which a parameter's gradient is judged on its own."""


class _Group:
    """The reference of a group's cases, and the results that all of them share, computed on first use.

    `larger` as in `measure_divergence`.
    """

    def __init__(self, workload: Workload, case: Case, device: Device, larger: Larger | None):
        self._workload, self._device, self._larger = workload, device, larger
        self._samples = batch_length(workload, case)
        self.reference = full_reference(workload, case, device)

    @property
    def numbers(self) -> StepNumbers:
        """The numbers of the reference, which exists."""
        assert self.reference.numbers is not None
        return self.reference.numbers

    @cached_property
    def digests(self) -> tuple[str, str]:
        """The digests of the workload's weights and of its inputs."""
        return weights_digest(self._workload), inputs_digest(self._workload)

    @cached_property
    def sketches(self) -> tuple[Sketch, Sketch]:
        """The sketches of its outputs and of its gradients."""
        outputs = {str(place): tensor for place, tensor in enumerate(self.numbers.outputs)}
        return _sketch(outputs), _sketch(self.numbers.gradients)

    @cached_property
    def compared(self) -> Compared:
        """Its outputs, prepared for comparisons."""
        numbers = self.numbers
        targets = batch_targets(self._workload)
        decided = decisions_of(self._workload, numbers.names, numbers.outputs, targets, numbers.decided)
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
        return Agreement(self._workload, self.compared, where, held.dtype, held.draws, self._larger)


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
    held = group.reference
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
            loss=_finite(numbers.loss),
            gradient=GradientDivergence(elements=sum(value.numel() for value in numbers.gradients.values())),
            scaler_scale=numbers.scaler_scale,
            skipped_steps=numbers.skipped_steps,
            recipe=numbers.recipe,
            target_largest=largest((targets for _, targets in pairs_of(workload)), numbers.half),
            statistics_stall=numbers.stall,
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
        output_norm=_finite(outputs.norm),
        output_sketch=outputs.text,
        grad_norm=_finite(gradients.norm) if training else None,
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
    update, (bias, noise) = updated_by(held.intended, numbers.native, device)
    nonfinite = max(divergence.param_nonfinite or 0, update.nonfinite or 0 if update else 0)
    gradient = structs.replace(divergence.gradient, bias=bias, noise=noise)
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
    outputs = _without_errors_of_itself(outputs, numbers, held)
    divergence.notes.extend(outputs.notes)
    divergence.notes.extend(compared.notes)
    rounding = getattr(torch, PRECISIONS[case.precision].rounding)
    agreeing, decisions = argmax_agreement(numbers.outputs, compared.references, compared.decided)
    by_chance = [
        chance if is_chance(chance, (fp32_distance if case.path == "eager" else distance).rel_l2) else None
        for chance, distance, fp32_distance in zip(held.chances, by_output, fp32[1:] or by_output, strict=False)
    ]
    output = OutputDivergence(
        **{name: getattr(outputs, name) for name in (*COUNTS, "rel_l2", "max_abs", "cosine", "undefined")},
        fp32_nonfinite=fp32[0].nonfinite if fp32 else None,
        floor_rel_l2=compared.floors(rounding)[0].rel_l2,
        fp32_rel_l2=fp32[0].rel_l2 if fp32 else None,
        tensors=None if itself else compared.errors(numbers.outputs, by_output, rounding, by_chance),
        predictions=None if itself else compared.predictions(numbers.outputs),
        argmax_agreeing=None if itself else agreeing,
        argmax_decisions=None if itself else decisions,
    )
    reference = structs.replace(divergence.reference, output_norm=outputs.reference_norm)
    return structs.replace(divergence, output=output, reference=reference)


def _without_errors_of_itself(distance: Distance, numbers: StepNumbers, held: Reference) -> Distance:
    """Return the distance of the reference from itself without errors, as it measures nothing; others unchanged."""
    if held.numbers is not numbers or distance.undefined:
        return distance
    return dataclasses.replace(
        distance, rel_l2=None, max_abs=None, cosine=None, undefined=REFERENCE_ITSELF, notes=[REFERENCE_ITSELF]
    )


def _with_gradients(divergence: Divergence, numbers: StepNumbers, held: Reference, keep: Device) -> Divergence:
    """Return the divergence of a training step with the errors of its loss, gradients and updated weights."""
    reference = held.numbers
    assert reference is not None
    itself = reference is numbers
    loss = None if itself else _finite(reference.loss)
    divergence = structs.replace(divergence, reference=structs.replace(divergence.reference, loss=loss))
    if others := numbers.gradients.keys() ^ reference.gradients.keys():
        why = f"a gradient that only one of this step and the reference has: {few(sorted(others))}"
        divergence.notes.append(f"gradients: {why}")
        return structs.replace(divergence, gradient=structs.replace(divergence.gradient, undefined=why))
    expected = [reference.gradients[name] for name in numbers.gradients]
    values = list(numbers.gradients.values())
    gradients, by_gradient = compare_each(values, expected, keep, what="gradient", against=held.dtype)
    gradients = _without_errors_of_itself(gradients, numbers, held)
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


def batch_targets(workload: Workload) -> Any:
    """Return the targets of the first batch, the batch of the divergence pass."""
    return pairs_of(workload)[0][1]


def _sketch(tensors: Mapping[str, torch.Tensor]) -> Sketch:
    return sketch_of((name, _in_blocks(tensor)) for name, tensor in tensors.items())


def _in_blocks(tensor: torch.Tensor) -> Iterator[Floats]:
    """Yield the numbers of a tensor in fp64, in order."""
    flat = tensor.reshape(-1)
    for start in range(0, flat.numel(), BLOCK):
        yield flat[start : start + BLOCK].cpu().double().numpy()


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
