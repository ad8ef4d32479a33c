"""How far a case's numbers lie from the fp64 reference with the same weights and inputs; untimed.

Norms are Euclidean and taken in fp64 on the CPU or device where the values lie. Definitions: relative L2 error
|x - r| / |r|; cosine similarity x.r / (|x| |r|).
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ampbench.precisions import BASELINE, PRECISIONS
from ampbench.records.cases import Case
from ampbench.records.divergences import Divergence
from ampbench.worker.data import digest, named_tensors
from ampbench.worker.devices import Cpu, Device, fp64_device
from ampbench.worker.flags import precision_flags
from ampbench.worker.memory import is_out_of_memory
from ampbench.worker.step import Step
from ampbench.workload import Workload

NEGLIGIBLE_GRADIENT = 1e-6
"""Parameters whose reference gradient is below this share of the total norm are not named as the worst: a bias before a
batch normalisation has a true gradient of zero, and any rounding is infinitely far from it."""


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
    return all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(first, second, strict=True))


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
        notes = []
        if step.training and switch_off_dropout(step.module):
            notes.append("dropout layers were switched off for the divergence pass")
        if not reference and precision is None and step.prepare_path(case.path) is not None:
            torch.manual_seed(0)
        if not step.training:
            with step.mode():
                found = StepNumbers(outputs=kept_outputs(step.run(), keep, copy=update), notes=notes)
            step.let_go()
            return found
        step.settle_scaler()
        output, unscaled = step.unscaled_gradients()
        gradients = {name: _kept_one(value, keep, copy=update) for name, value in unscaled.items()}
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
            name: _kept_one(tensor, keep) for name, tensor in named_tensors(step.module) if tensor.is_floating_point()
        }
        return numbers


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of one list of tensors from another; None where it is undefined (`notes` says why)."""

    reference_norm: float
    rel_l2: float | None
    max_abs: float | None
    cosine: float | None
    nonfinite: int
    notes: list[str]


def compare(values: Sequence[torch.Tensor], references: Sequence[torch.Tensor], on: Device | None = None) -> Distance:
    """Return the distance of `values` from `references`, lists of fp64 tensors of the same shapes, taken as one vector.

    With `on` they may lie anywhere in any dtype: each pair is brought there, into fp64, in its turn.
    A value that is not finite where the reference is makes the distance undefined and is counted; a reference of zero
    norm makes relative error and cosine undefined. Raises `ValueError` for other shapes.
    """
    if [value.shape for value in values] != [reference.shape for reference in references]:
        raise ValueError(
            f"the outputs' shapes differ from the reference's: {[tuple(v.shape) for v in values]} "
            f"against {[tuple(r.shape) for r in references]}"
        )
    error = reference_square = value_square = product = largest = 0.0
    nonfinite = 0
    for value, reference in zip(values, references, strict=True):
        if on is not None:
            value, reference = (each.to(on.type, torch.float64) for each in (value, reference))  # noqa: PLW2901
        comparable = torch.isfinite(reference)
        finite = torch.isfinite(value) & comparable
        nonfinite += int((comparable & ~finite).sum())
        x, r = torch.where(finite, value, 0.0), torch.where(finite, reference, 0.0)
        difference = x - r
        error += float(difference.square().sum())
        reference_square += float(r.square().sum())
        value_square += float(x.square().sum())
        product += float((x * r).sum())
        largest = max(largest, float(difference.abs().max()) if difference.numel() else 0.0)
    norm = math.sqrt(reference_square)
    if nonfinite:
        return Distance(norm, None, None, None, nonfinite, ["values that are not finite: no distance is defined"])
    if norm == 0.0:
        return Distance(norm, None, largest, None, 0, ["the reference is zero: no relative error is defined"])
    cosine = product / (norm * math.sqrt(value_square)) if value_square else None
    return Distance(norm, math.sqrt(error) / norm, largest, cosine, 0, [])


def worst_gradient(
    values: Mapping[str, torch.Tensor], references: Mapping[str, torch.Tensor]
) -> tuple[str, float | None] | None:
    """Return (name, relative error) of the parameter whose gradient lies relatively farthest from the reference's.

    A gradient that is not finite is the worst of all, with an undefined error (None). Parameters with a negligible
    reference gradient are passed over (see NEGLIGIBLE_GRADIENT); None where nothing is left.
    """
    total = math.sqrt(sum(float(references[name].square().sum()) for name in values))
    worst: tuple[str, float] | None = None
    for name, value in values.items():
        distance = compare([value], [references[name]])
        if distance.nonfinite:
            return name, None
        if distance.rel_l2 is None or distance.reference_norm < NEGLIGIBLE_GRADIENT * total:
            continue
        if worst is None or distance.rel_l2 > worst[1]:
            worst = name, distance.rel_l2
    return worst


def argmax_agreement(
    outputs: list[torch.Tensor], references: list[torch.Tensor], targets: Any
) -> tuple[int | None, int | None]:
    """Return (decisions that agree, decisions) for a classifier, (None, None) for anything else.

    A classifier is recognised by integer targets with the shape of the first output less its class dimension, the one
    after the batch (as in `cross_entropy`) or the last. A decision is the class with the largest output.
    """
    dimension = class_dimension(outputs[0], targets) if outputs else None
    if dimension is None:
        return None, None
    agreeing = outputs[0].argmax(dimension) == references[0].argmax(dimension)
    return int(agreeing.sum()), agreeing.numel()


def class_dimension(output: torch.Tensor, targets: Any) -> int | None:
    """Return the dimension of a classifier's `output` that its classes lie in (see `argmax_agreement`), else None."""
    if not isinstance(targets, torch.Tensor) or targets.is_floating_point() or output.ndim != targets.ndim + 1:
        return None
    for dimension in (1, output.ndim - 1):
        if dimension < output.ndim and output.shape[:dimension] + output.shape[dimension + 1 :] == targets.shape:
            return dimension
    return None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the floating tensors in `value`: a tensor, or any nesting of tuples, lists, mappings and dataclasses."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for entry in dataclasses.fields(value):
            yield from tensors_in(getattr(value, entry.name))


def weights_digest(workload: Workload) -> str:
    """Return the digest of the workload's fp32 parameters and buffers."""
    return digest(named_tensors(workload.module))


def inputs_digest(workload: Workload) -> str:
    """Return the digest of the workload's inputs and targets."""
    leaves = torch.utils._pytree.tree_leaves([workload.inputs, workload.targets])
    return digest((str(place), leaf) for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))


def batch_targets(workload: Workload) -> Any:
    """Return the targets of the first batch, the one the divergence pass runs."""
    return workload.targets[0] if isinstance(workload.inputs, list) and workload.targets else workload.targets


def kept_outputs(output: Any, keep: Device, *, copy: bool = True) -> list[torch.Tensor]:
    """Return copies of the floating tensors in what a network returned, in fp64 on `keep`; `TypeError` for none.

    Without `copy` they are as they came, on `keep`.
    """
    tensors = [_kept_one(tensor, keep, copy=copy) for tensor in tensors_in(output)]
    if not tensors:
        raise TypeError(f"forward returned no floating tensor to compare, but {type(output).__name__}")
    return tensors


def _kept_one(tensor: torch.Tensor, keep: Device, *, copy: bool = True) -> torch.Tensor:
    there = tensor.detach().to(keep.type)
    return there.double().clone() if copy else there


def switch_off_dropout(module: torch.nn.Module) -> bool:
    """Switch off dropout, as a layer or inside attention and recurrent modules, and torchvision's stochastic depth.

    Return whether any was on.
    """
    found = False
    for layer in module.modules():
        if isinstance(layer, torch.nn.modules.dropout._DropoutNd) or type(layer).__name__ == "StochasticDepth":
            found |= bool(layer.p)
            layer.eval()
        elif isinstance(layer, torch.nn.MultiheadAttention | torch.nn.RNNBase):
            found |= bool(layer.dropout)
            layer.dropout = 0.0
    return found


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
