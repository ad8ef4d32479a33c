"""How far tensors lie from others: distances, bits, decisions; and which tensors of what a network returns count.

Norms are Euclidean and taken in fp64 on the CPU or device where the values lie. Definitions: relative L2 error
|x - r| / |r|; cosine similarity x.r / (|x| |r|).
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ampbench.worker.devices import Device

NEGLIGIBLE_GRADIENT = 1e-6
"""Parameters whose reference gradient is below this share of the total norm are not named as the worst: a bias before a
batch normalisation has a true gradient of zero, and any rounding is infinitely far from it."""


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


def identical(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    """Return whether two results are the same to the last bit, that of a NaN included."""
    return len(first) == len(second) and all(
        one.dtype is other.dtype and one.shape == other.shape and torch.equal(_bits(one), _bits(other))
        for one, other in zip(first, second, strict=True)
    )


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


def floating_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the floating tensors in `value`: a tensor, or any nesting of tuples, lists, mappings and dataclasses."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from floating_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from floating_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for entry in dataclasses.fields(value):
            yield from floating_in(getattr(value, entry.name))


def kept_outputs(output: Any, keep: Device, *, copy: bool = True) -> list[torch.Tensor]:
    """Return copies of the floating tensors in what a network returned, in fp64 on `keep`; `TypeError` for none.

    Without `copy` they are as they came, on `keep`.
    """
    tensors = [kept_one(tensor, keep, copy=copy) for tensor in floating_in(output)]
    if not tensors:
        raise TypeError(f"forward returned no floating tensor to compare, but {type(output).__name__}")
    return tensors


def kept_one(tensor: torch.Tensor, keep: Device, *, copy: bool = True) -> torch.Tensor:
    """Return a tensor, which may be sparse, on `keep`, without its graph: a copy in fp64, or as it came."""
    there = tensor.detach().to_dense().to(keep.type)
    return there.double().clone() if copy else there


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
