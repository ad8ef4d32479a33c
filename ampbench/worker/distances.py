"""Distances between tensors, checks that values are finite, and the decisions of a classifier.

Norms are Euclidean, in fp64, on the device of the values. Definitions: relative L2 error |x - r| / |r|; cosine
similarity x.r / (|x| |r|).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from msgspec import structs
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ampbench.core.precisions import BASELINE, PRECISIONS
from ampbench.errors import UsageError, WorkloadError
from ampbench.records.case import Case
from ampbench.records.labels import few
from ampbench.records.measured import ZERO_REFERENCE
from ampbench.records.ranges import FirstNonfinite
from ampbench.trace.modules import named_tensors_in, tensors_in
from ampbench.trace.nonfinite import find_nonfinite
from ampbench.worker.data import named_tensors, plain_parts
from ampbench.worker.machine import Device, precision_flags
from ampbench.worker.step import seeded_step
from ampbench.workload import Workload

NEGLIGIBLE_GRADIENT = 1e-6
"""Parameters whose reference gradient is below this share of the total norm are never named as the worst: a bias before
a batch normalisation has a true gradient of zero, and an infinite relative error."""


COUNTS = ("elements", "nonfinite", "nan", "reference_nonfinite", "reference_nan", "unlike")
LEFT_OUT = "{} infinite, as in {}: the error leaves them out"


@dataclass(slots=True)
class Distance:
    """The distance of one list of tensors from another, as one vector; numbers are None where they are undefined.

    `elements` counts real numbers. `reference_nonfinite` counts elements that are not finite in the reference,
    `reference_nan` the NaN among them; `nonfinite` counts elements that are finite in the reference alone, `nan` the
    NaN among them; `unlike` counts infinities of the reference without the same infinity in the value. `what` names the
    tensors in texts, `against` the reference. `itself` is the reason why a reference has no distance from itself.
    """

    what: str = "output"
    against: str = "fp64"
    itself: str = ""
    elements: int = 0
    nonfinite: int = 0
    nan: int = 0
    reference_nonfinite: int = 0
    reference_nan: int = 0
    unlike: int = 0
    _errors: list[float] = field(default_factory=list)
    _references: list[float] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)
    _products: list[float] = field(default_factory=list)
    _largest: float = 0.0

    def add(self, value: torch.Tensor, reference: torch.Tensor) -> None:
        """Add a pair of fp64 tensors of one shape."""
        comparable = torch.isfinite(reference)
        finite = torch.isfinite(value) & comparable
        self.elements += reference.numel()
        if not bool(finite.all()):
            broken = comparable & ~finite
            self.nonfinite += int(broken.sum())
            self.nan += int((broken & value.isnan()).sum())
            self.reference_nonfinite += int((~comparable).sum())
            self.reference_nan += int(reference.isnan().sum())
            self.unlike += int((reference.isinf() & (value != reference)).sum())
        whole = torch.where(comparable, reference, 0.0)
        x, r = (torch.where(finite, side, 0.0) for side in (value, reference))
        self._references.append(float(whole.square().sum()))
        self._values.append(float(x.square().sum()))
        self._products.append(float((x * r).sum()))
        apart = x.sub_(r)
        self._errors.append(float(apart.square().sum()))
        if apart.numel():
            self._largest = max(self._largest, float(apart.abs().max()))

    def take(self, distance: "Distance") -> None:
        """Add the sums and counts of another distance."""
        for name in ("_errors", "_references", "_values", "_products"):
            getattr(self, name).extend(getattr(distance, name))
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(distance, name))
        self._largest = max(self._largest, distance._largest)

    @property
    def undefined(self) -> str:
        """The reason why there is no relative error, "" where there is one."""
        if self.reference_nan:
            return f"{self._are(self.reference_nan)} NaN in {self.against} already"
        if self.nonfinite:
            kind = "NaN" if self.nan == self.nonfinite else "infinite" if not self.nan else "not finite"
            return f"{self._are(self.nonfinite)} {kind}, and not in {self.against}"
        if self.unlike:
            return f"{self._are(self.unlike)} infinite in {self.against}, and not the same infinity here"
        if self.elements == 0:
            return f"the {self.what} is empty"
        if self.reference_nonfinite == self.elements:
            return f"all {self.elements:,} {self.what} elements are infinite, in {self.against}, too"
        return self.itself if any(self._references) else ZERO_REFERENCE.format(self.what)

    def _are(self, count: int) -> str:
        noun = "element" if self.elements == 1 else "elements"
        return f"{count:,} of {self.elements:,} {self.what} {noun} {'is' if count == 1 else 'are'}"

    @property
    def notes(self) -> list[str]:
        """The reason for an undefined error, or the number of elements left out."""
        if undefined := self.undefined:
            return [undefined]
        left_out = self.reference_nonfinite
        return [LEFT_OUT.format(self._are(left_out), self.against)] if left_out else []

    @property
    def reference_norm(self) -> float | None:
        """The norm of the reference's finite elements; None above the range of fp64."""
        return finite_or_none(_root(self._references))

    @property
    def rel_l2(self) -> float | None:
        """The norm of the error over the reference's."""
        norm = self.reference_norm
        return None if self.undefined or not norm else finite_or_none(_root(self._errors) / norm)

    @property
    def max_abs(self) -> float | None:
        """The largest error of an element."""
        broken = self.itself or self.reference_nan or self.nonfinite or self.unlike
        return None if broken else finite_or_none(self._largest)

    @property
    def cosine(self) -> float | None:
        """The cosine similarity; None for a value of zeros, too."""
        norms = _root(self._references) * _root(self._values)
        return None if self.undefined or not norms else finite_or_none(math.fsum(self._products) / norms)


def _root(squares: Sequence[float]) -> float:
    try:
        return math.sqrt(math.fsum(squares))
    except OverflowError:
        return math.inf


def finite_or_none(value: float | None) -> float | None:
    """Return a number, None where it is not finite."""
    return value if value is not None and math.isfinite(value) else None


def compare(
    values: Sequence[torch.Tensor],
    references: Sequence[torch.Tensor],
    on: Device | None = None,
    *,
    against: str = "fp64",
) -> Distance:
    """Return the distance of `values` from `references`, lists of fp64 tensors of the same shapes.

    With `on`, tensors may be on any device in any dtype: each pair is moved there, in fp64. Elements that are infinite
    in both with one sign, such as masks, are left out. Elements that are not finite in one alone, or NaN in the
    reference, are counted and make the distance undefined; a reference of zeros, or an empty one, does, too. Raises
    `ValueError` for other shapes.
    """
    return compare_each(values, references, on, against=against)[0]


def compare_each(
    values: Sequence[torch.Tensor],
    references: Sequence[torch.Tensor],
    on: Device | None = None,
    *,
    what: str = "output",
    against: str = "fp64",
) -> tuple[Distance, list[Distance]]:
    """Return the result of `compare`, and the distance of each tensor."""
    if [value.shape for value in values] != [reference.shape for reference in references]:
        raise ValueError(
            f"the {what}s' shapes differ from the reference's: {[tuple(v.shape) for v in values]} "
            f"against {[tuple(r.shape) for r in references]}"
        )
    every, by_tensor = Distance(what, against), []
    for value, reference in zip(values, references, strict=True):
        value, reference = real_parts(value), real_parts(reference)  # noqa: PLW2901
        if on is not None:
            value, reference = (tensor.to(on.type, torch.float64) for tensor in (value, reference))  # noqa: PLW2901
        pair = Distance(what, against)
        pair.add(value, reference)
        every.take(pair)
        by_tensor.append(pair)
    return every, by_tensor


def identical(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    """Return whether two results are the same to the last bit, including NaN."""

    def bits(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous().reshape(-1).view(torch.uint8)

    return len(first) == len(second) and all(
        left.dtype is right.dtype and left.shape == right.shape and torch.equal(bits(left), bits(right))
        for left, right in zip(first, second, strict=True)
    )


def worst_gradient(
    distances: Mapping[str, Distance], share: float = NEGLIGIBLE_GRADIENT
) -> tuple[str, float | None] | None:
    """Return (name, relative error) of the parameter whose gradient has the largest relative error.

    A gradient that is not finite is the worst of all, with an undefined error (None). Parameters below this `share` of
    the reference's norm are ignored (see NEGLIGIBLE_GRADIENT); None where none is left.
    """
    total = math.hypot(*(distance.reference_norm or 0.0 for distance in distances.values()))
    worst: tuple[str, float] | None = None
    for name, distance in distances.items():
        if distance.nonfinite or distance.reference_nan or distance.unlike:
            return name, None
        norm = distance.reference_norm
        if distance.rel_l2 is None or norm is None or norm < share * total:
            continue
        if worst is None or distance.rel_l2 > worst[1]:
            worst = name, distance.rel_l2
    return worst


class LossTargets(TorchFunctionMode):
    """Records the arguments of `cross_entropy` and `nll_loss` with integer targets, within a `with` statement."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[torch.Tensor, int]] = []

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call `func`, and note its logits and the dimension of their classes."""
        keywords = dict(kwargs or {})
        if func in (torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss):
            named = dict(zip(("input", "target"), args, strict=False)) | keywords
            dimension = class_dimension(named["input"], named["target"])
            if dimension is not None:
                self._calls.append((named["input"].detach(), dimension))
        return func(*args, **keywords)

    def decisions(self, outputs: list[torch.Tensor]) -> list["Decisions"]:
        """Return the places of the logits in `outputs`: a reshaped, cast or normalised output decides the same."""
        decisions = []
        for logits, dimension in self._calls:
            classes = logits.argmax(dimension)
            for place, output in enumerate(outputs):
                if output.numel() == logits.numel():
                    decided = output.reshape(logits.shape).argmax(dimension)
                    if torch.equal(decided, classes.to(decided.device)):
                        decisions.append(Decisions(place, logits.shape, dimension))
                        break
        return decisions

    @property
    def seen(self) -> bool:
        """Whether there was such a call."""
        return bool(self._calls)


@dataclass(frozen=True, slots=True)
class Decisions:
    """A classifier's decisions in its outputs: the `place` of the output, its shape and the dimension of its
    classes."""

    place: int
    shape: torch.Size
    dimension: int


def argmax_agreement(
    outputs: Sequence[torch.Tensor], references: Sequence[torch.Tensor], decided: Sequence[Decisions]
) -> tuple[int | None, int | None]:
    """Return (agreeing decisions, decisions) of a classifier, (None, None) for other networks or other shapes.

    A decision is the class with the largest output. NaN in the reference decides nothing; NaN in the output agrees with
    nothing.
    """
    if not decided or [tensor.shape for tensor in outputs] != [tensor.shape for tensor in references]:
        return None, None
    agreeing = decisions = 0
    for decision in decided:
        own, true = (classes_of(tensors[decision.place], decision) for tensors in (outputs, references))
        agreeing += int(((own == true) & (true >= 0)).sum())
        decisions += int((true >= 0).sum())
    return agreeing, decisions


def classes_of(output: torch.Tensor, decisions: Decisions) -> torch.Tensor:
    """Return the class that an output chooses at each place; -1 where it is NaN."""
    rows = output.reshape(decisions.shape)
    return torch.where(rows.isnan().any(decisions.dimension), -1, rows.argmax(decisions.dimension))


def class_dimension(output: torch.Tensor, targets: Any) -> int | None:
    """Return the dimension of a classifier's classes in its `output`, None for other networks.

    A classifier has integer targets in the shape of the output without its class dimension, the one after the batch (as
    in `cross_entropy`) or the last. Targets of 1 and -1 are no classes but pairs, alike or not (as in
    `cosine_embedding_loss`).
    """
    if not isinstance(targets, torch.Tensor) or targets.is_floating_point() or output.ndim != targets.ndim + 1:
        return None
    if bool((targets == -1).any()) and bool((targets.abs() == 1).all()):
        return None
    for dimension in (1, output.ndim - 1):
        if dimension < output.ndim and output.shape[:dimension] + output.shape[dimension + 1 :] == targets.shape:
            return dimension
    return None


def floating_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the floating tensors in `value`: a tensor, or any nesting of tuples, lists, mappings and dataclasses."""
    return (tensor for tensor in tensors_in(value) if tensor.is_floating_point())


def outputs_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the floating tensors in a network's output, as `floating_in`; complex ones as `real_parts`."""
    return (real_parts(tensor) for _, tensor in named_outputs(value))


def named_outputs(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the floating and complex tensors in a network's output by name, as `named_tensors_in`."""
    return ((name, leaf) for name, leaf in named_tensors_in(value) if leaf.is_floating_point() or leaf.is_complex())


def real_parts(tensor: torch.Tensor) -> torch.Tensor:
    """Return a complex tensor as its real and imaginary parts, in a last dimension; others unchanged."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def kept_outputs(output: Any, keep: Device, *, copy: bool = True) -> list[torch.Tensor]:
    """Return fp64 copies of a network's output tensors (`outputs_in`) on `keep`; `TypeError` where it has none.

    Without `copy` they keep their dtype.
    """
    tensors = [kept_one(tensor, keep, copy=copy) for tensor in outputs_in(output)]
    if not tensors:
        raise TypeError(f"forward returned no floating tensor to compare, but {type(output).__name__}")
    return tensors


def kept_one(tensor: torch.Tensor, keep: Device, *, copy: bool = True) -> torch.Tensor:
    """Return an fp64 copy of a tensor, which may be sparse, on `keep`, without its graph; complex ones as parts.

    Without `copy` it keeps its dtype.
    """
    moved = real_parts(tensor.detach().to_dense()).to(keep.type)
    return moved.double().clone() if copy else moved


MEANT = "the outputs hold intended infinities, as masks do"
UNKNOWN = "the outputs hold infinities, intended or not: no op could be watched: {}"


def is_finite(tensors: Iterable[torch.Tensor | None]) -> bool:
    """Return whether all values of `tensors` are finite."""
    parts = (_values(tensor) for tensor in tensors if tensor is not None)
    # A sum is as fast as reading. Finite values may sum to infinity, so that case checks each element.
    return all(math.isfinite(float(part.sum())) or bool(part.isfinite().all()) for part in parts)


def count_nonfinite(tensors: Iterable[torch.Tensor]) -> int:
    """Return the number of elements of `tensors` that are not finite; finite tensors are read once."""
    parts = [part for tensor in tensors for part in plain_parts(tensor)]
    return sum(int((~_values(part).isfinite()).sum()) for part in parts if not is_finite([part]))


class Fp32Check:
    """Checks each fp32 step of a case, and refuses a case with values that are not finite in fp32.

    Outputs, the loss and gradients decide, not values within the network: a mask is filled with -inf. Infinite outputs,
    too, are intended where no op creates them from finite values (see `find_nonfinite`).
    """

    def __init__(self) -> None:
        self._wrong: int | None = None
        self._doubtful: int | None = None

    @property
    def outputs_finite(self) -> bool:
        """Whether no output was infinite so far."""
        return self._doubtful is None

    def look(self, turn: int, output: Any, loss: torch.Tensor | None, gradients: Iterable[torch.Tensor] = ()) -> bool:
        """Check the results of step `turn`, from 0; return whether to continue."""
        outputs = list(outputs_in(output))
        if not is_finite([loss, *gradients]) or any(bool(tensor.isnan().any()) for tensor in outputs):
            self._wrong = turn
        elif self._doubtful is None and not is_finite(outputs):
            self._doubtful = turn
        return self._wrong is None

    def refuse(
        self, workload: Workload, case: Case, device: Device, notes: list[str], where: str | None = None
    ) -> None:
        """Raise `WorkloadError` where a step was not finite, with the place in the network where it began.

        `where` is a module that holds such a value, in case the op is not found. `notes` get infinities that are not
        refused.
        """
        turn = self._doubtful if self._wrong is None else self._wrong
        if turn is None:
            return
        first, unwatched = None, ""
        try:
            first = _first_nonfinite(workload, case, device, turn)
        except UsageError as refused:  # a program whose ops cannot be watched
            unwatched = str(refused)
        if first is not None:
            place = str(first)
        elif self._wrong is None:
            notes.append(UNKNOWN.format(unwatched) if unwatched else MEANT)
            return
        else:
            holder = f"; {where} is the first module to hold one" if where else ""
            place = f"no op makes them of finite values{_held(workload)}"
            place = f"{f'their origin is unknown: {unwatched}' if unwatched else place}{holder}"
        raise WorkloadError(f"values are not finite in fp32 already: {place}; half precision cannot be judged")


def _held(workload: Workload) -> str:
    """Return the weights, buffers and inputs of a workload that are not finite, or that there are none, in words."""
    leaves, _ = pytree.tree_flatten_with_path(workload.inputs)
    inputs = [(f"input{pytree.keystr(path)}", leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]
    holding = [name for name, tensor in (*named_tensors(workload.module), *inputs) if not is_finite([tensor])]
    if holding:
        return f", {few(holding)} {'holds' if len(holding) == 1 else 'hold'} them"
    return "; neither weights nor inputs hold them, so a constant that the code makes does"


def _first_nonfinite(workload: Workload, case: Case, device: Device, turn: int) -> FirstNonfinite | None:
    device.release()
    before = max(turn - 1, 0)  # the optimizer's part of a step shows in the next
    with precision_flags(PRECISIONS[BASELINE]):
        step = seeded_step(workload, case, device, [], precision=PRECISIONS[BASELINE])
        with step.mode():
            for _ in range(before):
                step.run()
            with find_nonfinite(step.module) as watched:
                for _ in range(before, turn + 1):
                    step.run()
    return watched.first and structs.replace(watched.first, step=before + watched.first.step)


def _values(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's stored values, dense and real: the gradient of an embedding may be sparse."""
    return real_parts(tensor.detach() if tensor.layout is torch.strided else tensor.detach().coalesce().values())


def right_decisions(output: Any, targets: Any) -> tuple[int, int] | None:
    """Return (correct decisions, decisions) of a classifier's output by its targets, None for anything else.

    Targets below zero mark examples to ignore, as in `cross_entropy`. NaN is never correct.
    """
    first = next(floating_in(output), None)
    dimension = None if first is None else class_dimension(first, targets)
    if first is None or dimension is None:
        return None
    right = (first.argmax(dimension) == targets) & ~first.isnan().any(dimension)
    return int(right.sum()), int((targets >= 0).sum())
