"""How far tensors lie from others, whether their values are finite, and how a network that is trained scores.

Norms are Euclidean and taken in fp64 on the CPU or device where the values lie. Definitions: relative L2 error
|x - r| / |r|; cosine similarity x.r / (|x| |r|).
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
"""Parameters whose reference gradient is below this share of the total norm are not named as the worst: a bias before a
batch normalisation has a true gradient of zero, and any rounding is infinitely far from it."""


COUNTS = ("elements", "nonfinite", "nan", "reference_nonfinite", "reference_nan", "unlike")
LEFT_OUT = "{} infinite, as in {}: the error is that of the others"


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of one list of tensors from another; None where it is undefined (`undefined` says why).

    `elements` are counted as real numbers. `reference_nonfinite` are not finite in the reference, `reference_nan` of
    these NaN; `nonfinite` are not finite where the reference is, `nan` of these NaN; `unlike` are not the same infinity
    where the reference is infinite. `reference_norm` is of what is finite in the reference, whatever the values are; a
    number above the range of fp64 is None. `notes` say what is undefined, and which elements were left out.
    """

    reference_norm: float | None
    rel_l2: float | None
    max_abs: float | None
    cosine: float | None
    elements: int
    nonfinite: int
    nan: int
    reference_nonfinite: int
    reference_nan: int
    unlike: int
    undefined: str
    notes: list[str]


@dataclass(slots=True)
class _Sum:
    """A sum of squares or products that neither overflows nor underflows: parts, each times a power of two."""

    parts: list[tuple[float, int]] = field(default_factory=list)

    def add(self, tensor: torch.Tensor, exponent: int) -> None:
        """Add the elements of `tensor`, times two to the `exponent`."""
        if total := float(tensor.sum()):
            self.parts.append((total, exponent))

    @property
    def total(self) -> tuple[float, int]:
        """The sum, as a number and the power of two that it is times."""
        most = max((exponent for _, exponent in self.parts), default=0)
        return math.fsum(math.ldexp(part, exponent - most) for part, exponent in self.parts), most

    @property
    def root(self) -> tuple[float, int]:
        """The square root of a sum of squares, as `total` is; the powers of squares are even."""
        total, exponent = self.total
        return math.sqrt(total), exponent // 2


def compare(
    values: Sequence[torch.Tensor],
    references: Sequence[torch.Tensor],
    on: Device | None = None,
    *,
    against: str = "fp64",
) -> Distance:
    """Return the distance of `values` from `references`, lists of fp64 tensors of the same shapes, taken as one vector.

    What they are held `against` is for words. With `on` they may lie anywhere in any dtype: each
    pair is brought there, into fp64, in its turn. Elements that are infinite in both, with one sign, are left out, as
    masks are. What is not finite in one alone, or NaN in the reference, makes the distance undefined and is counted; so
    do a reference of zeros and one without elements. Raises `ValueError` for other shapes.
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
    """Return what `compare` does, and the distance of each tensor from its reference; `what` they are is for words."""
    if [value.shape for value in values] != [reference.shape for reference in references]:
        raise ValueError(
            f"the {what}s' shapes differ from the reference's: {[tuple(v.shape) for v in values]} "
            f"against {[tuple(r.shape) for r in references]}"
        )
    every, each = _Pairs(what, against), []
    for value, reference in zip(values, references, strict=True):
        value, reference = real_parts(value), real_parts(reference)  # noqa: PLW2901
        if on is not None:
            value, reference = (one.to(on.type, torch.float64) for one in (value, reference))  # noqa: PLW2901
        pair = _Pairs(what, against)
        pair.add(value, reference)
        every.take(pair)
        each.append(pair.distance)
    return every.distance, each


@dataclass(slots=True)
class _Pairs:
    """What is summed and counted of pairs of tensors; counts are those of `Distance`."""

    what: str
    against: str
    error: _Sum = field(default_factory=_Sum)
    reference: _Sum = field(default_factory=_Sum)
    value: _Sum = field(default_factory=_Sum)
    product: _Sum = field(default_factory=_Sum)
    largest: float | None = 0.0
    elements: int = 0
    nonfinite: int = 0
    nan: int = 0
    reference_nonfinite: int = 0
    reference_nan: int = 0
    unlike: int = 0

    def add(self, value: torch.Tensor, reference: torch.Tensor) -> None:
        """Add a pair of tensors of one shape."""
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
        whole, exponent = scaled(torch.where(comparable, reference, 0.0))
        self.reference.add(whole.square(), 2 * exponent)
        x, x_exponent = scaled(torch.where(finite, value, 0.0))
        r, r_exponent = scaled(torch.where(finite, reference, 0.0))
        self.value.add(x.square(), 2 * x_exponent)
        self.product.add(x * r, x_exponent + r_exponent)
        shift = max(x_exponent, r_exponent)
        x = x if x_exponent == shift else x * 2.0 ** max(x_exponent - shift, -1000)
        r = r if r_exponent == shift else r * 2.0 ** max(r_exponent - shift, -1000)
        furthest, exponent = scaled(x - r)
        self.error.add(furthest.square(), 2 * (exponent + shift))
        if self.largest is not None and furthest.numel():
            apart = _times_power(float(furthest.abs().max()), exponent + shift)
            self.largest = None if apart is None else max(self.largest, apart)

    def take(self, other: "_Pairs") -> None:
        """Add what was added to another."""
        for name in ("error", "reference", "value", "product"):
            getattr(self, name).parts.extend(getattr(other, name).parts)
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        known = [one for one in (self.largest, other.largest) if one is not None]
        self.largest = max(known) if len(known) == 2 else None

    @property
    def undefined(self) -> str:
        """Why there is no relative error, "" where there is one."""
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
        return "" if self.reference.parts else ZERO_REFERENCE.format(self.what)

    def _are(self, count: int) -> str:
        noun = "element" if self.elements == 1 else "elements"
        return f"{count:,} of {self.elements:,} {self.what} {noun} {'is' if count == 1 else 'are'}"

    @property
    def distance(self) -> Distance:
        """The distance."""
        undefined, norm = self.undefined, self.reference.root
        rel_l2 = cosine = None
        notes = [undefined] if undefined else []
        if not undefined:
            own = self.error.root
            rel_l2 = _times_power(own[0] / norm[0], own[1] - norm[1])
            if self.value.parts:
                along, root = self.product.total, self.value.root
                cosine = _times_power(along[0] / (norm[0] * root[0]), along[1] - norm[1] - root[1])
            if self.reference_nonfinite:
                notes = [LEFT_OUT.format(self._are(self.reference_nonfinite), self.against)]
        return Distance(
            reference_norm=_times_power(*norm),
            rel_l2=rel_l2,
            max_abs=None if self.reference_nan or self.nonfinite or self.unlike else self.largest,
            cosine=cosine,
            undefined=undefined,
            notes=notes,
            **{name: getattr(self, name) for name in COUNTS},
        )


def scaled(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return a tensor divided by a power of two where its squares would leave the range of fp64, and that power."""
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    if largest == 0.0 or 1e-120 < largest < 1e120:
        return tensor, 0
    exponent = max(math.frexp(largest)[1], -1000)
    return tensor * 2.0**-exponent, exponent


def _times_power(value: float, exponent: int) -> float | None:
    """Return `value` times two to the `exponent`; None where that is above the range of fp64."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return None


def identical(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    """Return whether two results are the same to the last bit, that of a NaN included."""
    return len(first) == len(second) and all(
        one.dtype is other.dtype and one.shape == other.shape and torch.equal(_bits(one), _bits(other))
        for one, other in zip(first, second, strict=True)
    )


def worst_gradient(
    distances: Mapping[str, Distance], share: float = NEGLIGIBLE_GRADIENT
) -> tuple[str, float | None] | None:
    """Return (name, relative error) of the parameter whose gradient lies relatively farthest from the reference's.

    `distances` are those of each gradient by itself. One that is not finite is the worst of all, with an undefined
    error (None). Parameters whose reference gradient has less than this `share` of the norm of all are passed over (see
    NEGLIGIBLE_GRADIENT); None where nothing is left.
    """
    total = math.hypot(*(one.reference_norm or 0.0 for one in distances.values()))
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
    """Sees what the calls of `cross_entropy` and `nll_loss` within it are given, with integer targets."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[torch.Tensor, int]] = []

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call `func`, and note its logits and in which dimension their classes lie."""
        given = dict(kwargs or {})
        if func in (torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss):
            named = dict(zip(("input", "target"), args, strict=False)) | given
            dimension = class_dimension(named["input"], named["target"])
            if dimension is not None:
                self._calls.append((named["input"].detach(), dimension))
        return func(*args, **given)

    def decisions(self, outputs: list[torch.Tensor]) -> list["Decisions"]:
        """Return where in `outputs` the logits lie: reshaped, cast or normalised, an output decides as they do."""
        found = []
        for logits, dimension in self._calls:
            classes = logits.argmax(dimension)
            for place, output in enumerate(outputs):
                if output.numel() == logits.numel():
                    decided = output.reshape(logits.shape).argmax(dimension)
                    if torch.equal(decided, classes.to(decided.device)):
                        found.append(Decisions(place, logits.shape, dimension))
                        break
        return found

    @property
    def seen(self) -> bool:
        """Whether there was any such call."""
        return bool(self._calls)


@dataclass(frozen=True, slots=True)
class Decisions:
    """A classifier's decisions among its outputs: at which `place`, in which shape, classes in which dimension."""

    place: int
    shape: torch.Size
    dimension: int


def argmax_agreement(
    outputs: Sequence[torch.Tensor], references: Sequence[torch.Tensor], decided: Sequence[Decisions]
) -> tuple[int | None, int | None]:
    """Return (decisions that agree, decisions) for a classifier, (None, None) where nothing is `decided`.

    So it is where shapes are others than the reference's. A decision is the class with the largest output; where the
    reference holds NaN there is none, and NaN agrees with nothing.
    """
    if not decided or [one.shape for one in outputs] != [one.shape for one in references]:
        return None, None
    agreeing = decisions = 0
    for made in decided:
        own, truth = (tensors[made.place].reshape(made.shape) for tensors in (outputs, references))
        known = ~truth.isnan().any(made.dimension)
        same = own.argmax(made.dimension) == truth.argmax(made.dimension)
        agreeing += int((same & ~own.isnan().any(made.dimension) & known).sum())
        decisions += int(known.sum())
    return agreeing, decisions


def class_dimension(output: torch.Tensor, targets: Any) -> int | None:
    """Return the dimension of a classifier's `output` that its classes lie in, None where it is none.

    A classifier is recognised by integer targets with the shape of the output less its class dimension, the one after
    the batch (as in `cross_entropy`) or the last. Targets that are 1 or -1 name no classes but pairs that are alike or
    not (as in `cosine_embedding_loss`).
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
    """Yield the floating tensors in what a network returned, as `floating_in`; complex ones as `real_parts`."""
    return (real_parts(tensor) for _, tensor in named_outputs(value))


def named_outputs(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the floating and complex tensors in what a network returned by their names, as `named_tensors_in`."""
    return ((name, one) for name, one in named_tensors_in(value) if one.is_floating_point() or one.is_complex())


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient as a dense tensor: that of an embedding may be sparse."""
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


def real_parts(tensor: torch.Tensor) -> torch.Tensor:
    """Return a complex tensor as its real and imaginary parts, in a last dimension; others as they are."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def kept_outputs(output: Any, keep: Device, *, copy: bool = True) -> list[torch.Tensor]:
    """Return copies of the tensors of `outputs_in` what a network returned, in fp64 on `keep`; `TypeError` for none.

    Without `copy` they are as they came, on `keep`.
    """
    tensors = [kept_one(tensor, keep, copy=copy) for tensor in outputs_in(output)]
    if not tensors:
        raise TypeError(f"forward returned no floating tensor to compare, but {type(output).__name__}")
    return tensors


def kept_one(tensor: torch.Tensor, keep: Device, *, copy: bool = True) -> torch.Tensor:
    """Return a tensor, which may be sparse, on `keep`, without its graph, of a complex one the parts: in fp64, a copy.

    Without `copy` it is as it came.
    """
    there = real_parts(tensor.detach().to_dense()).to(keep.type)
    return there.double().clone() if copy else there


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


MEANT = "the outputs hold infinities that are meant, as masks are"
UNKNOWN = "the outputs hold infinities; whether they are meant is not known, as no op could be watched: {}"


def is_finite(tensors: Iterable[torch.Tensor | None]) -> bool:
    """Return whether all values of the floating ones among `tensors` are finite."""
    parts = (_values(tensor) for tensor in tensors if tensor is not None)
    # A sum is as fast as reading; only where it is not finite, which it can be of finite values, each must be asked.
    return all(math.isfinite(float(part.sum())) or bool(part.isfinite().all()) for part in parts)


def count_nonfinite(tensors: Iterable[torch.Tensor]) -> int:
    """Return how many elements of `tensors` are not finite; where they all are, they are read once."""
    parts = [part for tensor in tensors for part in plain_parts(tensor)]
    return sum(int((~_values(part).isfinite()).sum()) for part in parts if not is_finite([part]))


class Fp32Check:
    """Looks at each fp32 step of a case, and refuses a case whose values are not finite in fp32 already.

    Outputs, the loss and gradients decide, not what modules hand each other: a mask is filled with -inf. Infinite
    outputs, too, are meant where no op makes them of finite values (see `find_nonfinite`).
    """

    def __init__(self) -> None:
        self._wrong: int | None = None
        self._doubtful: int | None = None

    @property
    def outputs_finite(self) -> bool:
        """Whether no output was infinite so far."""
        return self._doubtful is None

    def look(self, turn: int, output: Any, loss: torch.Tensor | None, gradients: Iterable[torch.Tensor] = ()) -> bool:
        """Look at what step `turn`, from 0, gave; return whether to go on."""
        outputs = list(outputs_in(output))
        if not is_finite([loss, *gradients]) or any(bool(tensor.isnan().any()) for tensor in outputs):
            self._wrong = turn
        elif self._doubtful is None and not is_finite(outputs):
            self._doubtful = turn
        return self._wrong is None

    def refuse(
        self, workload: Workload, case: Case, device: Device, notes: list[str], where: str | None = None
    ) -> None:
        """Raise `WorkloadError` where a step was not finite; says where in the network it began.

        `where` is a module that was seen to hold such a value, for when the op is not found. `notes` get what is not
        refused.
        """
        turn = self._doubtful if self._wrong is None else self._wrong
        if turn is None:
            return
        first, unwatched = None, ""
        try:
            first = _first_nonfinite(workload, case, device, turn)
        except UsageError as refused:  # a program that no op of can be watched
            unwatched = str(refused)
        if first is not None:
            place = str(first)
        elif self._wrong is None:
            notes.append(UNKNOWN.format(unwatched) if unwatched else MEANT)
            return
        else:
            holder = f"; {where} is the first module to hold one" if where else ""
            place = f"no op makes them of finite values{_held(workload)}"
            place = f"{f'what makes them is not known: {unwatched}' if unwatched else place}{holder}"
        raise WorkloadError(f"values are not finite in fp32 already: {place}; half precision cannot be judged")


def _held(workload: Workload) -> str:
    """Say which weights, buffers and inputs of a workload are not finite, or that none are."""
    leaves, _ = pytree.tree_flatten_with_path(workload.inputs)
    inputs = [(f"input{pytree.keystr(path)}", leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]
    holding = [name for name, tensor in (*named_tensors(workload.module), *inputs) if not is_finite([tensor])]
    if holding:
        return f", {few(holding)} {'holds' if len(holding) == 1 else 'hold'} them"
    return "; neither weights nor inputs hold them, so a constant that the code makes does"


def _first_nonfinite(workload: Workload, case: Case, device: Device, turn: int) -> FirstNonfinite | None:
    """Run the fp32 steps up to `turn` again and return what makes the first value that is not finite."""
    device.release()
    before = max(turn - 1, 0)  # the optimizer's part of a step shows in the next
    with precision_flags(PRECISIONS[BASELINE]):
        step = seeded_step(workload, case, device, [], precision=PRECISIONS[BASELINE])
        with step.mode():
            for _ in range(before):
                step.run()
            with find_nonfinite(step.module) as found:
                for _ in range(before, turn + 1):
                    step.run()
    return found.first and structs.replace(found.first, step=before + found.first.step)


def _values(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a tensor stores, as a dense, real tensor: the gradient of an embedding may be sparse."""
    return real_parts(tensor.detach() if tensor.layout is torch.strided else tensor.detach().coalesce().values())


def right_decisions(output: Any, targets: Any) -> tuple[int, int] | None:
    """Return how many of how many decisions of a classifier's output are the targets', None for anything else.

    Targets below zero stand for examples to ignore, as in `cross_entropy`. NaN decides nothing.
    """
    first = next(floating_in(output), None)
    dimension = None if first is None else class_dimension(first, targets)
    if first is None or dimension is None:
        return None
    right = (first.argmax(dimension) == targets) & ~first.isnan().any(dimension)
    return int(right.sum()), int((targets >= 0).sum())
