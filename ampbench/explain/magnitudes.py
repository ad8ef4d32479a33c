"""How large the values of a tensor are: a histogram by binary exponent, exact, in two passes over the bits."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

_SPREAD = 3
"""Mantissa bits that are counted apart and then put together: most values share few exponents, and a counter that is
incremented again at once waits for its own last write."""

_FEW = 1 << 12
"""Up to so many elements, putting counters together costs more than the waiting."""

_CHUNK = {"cpu": 1 << 18}
"""Elements counted at a time, so that the copies stay in the cache; on other devices `_LARGE`, to save launches."""

_LARGE = 1 << 24

SMALL = -25
"""Powers of two are counted apart up to this exponent: the largest magnitude that fp16 rounds to zero is one."""


_LOOK = 1 << 12
"""So many elements of a chunk are looked at for powers of two, before all are."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """The bits of a floating dtype: the integer of its width, of how many bits the mantissa is, the exponent's bias."""

    integer: torch.dtype
    mantissa: int
    bias: int

    @property
    def infinity(self) -> int:
        """The bits of +inf; those of a NaN are larger."""
        return (2 * self.bias + 1) << self.mantissa


_LAYOUTS = {torch.float32: _Layout(torch.int32, 23, 127), torch.float64: _Layout(torch.int64, 52, 1023)}


@dataclass(slots=True)
class Counts:
    """The magnitudes of `elements` values.

    `exponents[e]` of them have 2**e <= |x| < 2**(e + 1), `zeros` are zero, `nonfinite` infinite or NaN; `largest` is
    the largest finite |x| (None: none is finite). `powers[e]` of `exponents[e]`, for e up to `SMALL`, are 2**e exactly;
    of large tensors those are left out of which not one is among a few thousand values, evenly spaced.
    """

    elements: int = 0
    zeros: int = 0
    nonfinite: int = 0
    largest: float | None = None
    exponents: Counter[int] = field(default_factory=Counter)
    powers: Counter[int] = field(default_factory=Counter)

    def add(self, other: "Counts") -> None:
        """Put the values of `other` to these."""
        self.elements += other.elements
        self.zeros += other.zeros
        self.nonfinite += other.nonfinite
        self.exponents.update(other.exponents)
        self.powers.update(other.powers)
        if other.largest is not None:
            self.largest = other.largest if self.largest is None else max(self.largest, other.largest)


def count_magnitudes(tensor: torch.Tensor) -> Counts:
    """Return the magnitudes of a floating tensor of any dtype, shape, layout and device, subnormals included.

    Exact: nothing is sampled, and no value is rounded. What a sparse tensor does not store is zero.
    """
    counts = count_chunks(in_chunks(flat(tensor.detach())))
    if not tensor.is_nested and tensor.numel() > counts.elements:
        absent = tensor.numel() - counts.elements
        counts.add(Counts(elements=absent, zeros=absent, largest=0.0))
    return counts


def count_chunks(chunks: Iterable[torch.Tensor]) -> Counts:
    """Return the magnitudes of floating tensors of one dimension, put together; none may be empty."""
    counts = Counts()
    for chunk in chunks:
        _count(chunk if chunk.dtype in _LAYOUTS else chunk.float(), counts)  # every narrower dtype fits into fp32
    return counts


def in_chunks(values: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return a tensor of one dimension in parts of a size that is quick to work on, as views."""
    size = _CHUNK.get(values.device.type, _LARGE)
    return [values[start : start + size] for start in range(0, len(values), size)]


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in one dimension, in the order of memory, without a copy where they lie densely."""
    if tensor.is_nested:
        return tensor.values()
    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
    if not tensor.is_contiguous():
        tensor = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    return tensor.reshape(-1)


def _count(values: torch.Tensor, counts: Counts) -> None:
    layout, elements = _LAYOUTS[values.dtype], len(values)
    bits = _magnitude_bits(values, layout)
    largest = bits.max().view(values.dtype).item()
    spread = _SPREAD if elements > _FEW else 0
    bits >>= layout.mantissa - spread  # in place: a second copy takes as long to allocate as to fill
    fields = _fields(bits, layout, spread)
    counts.elements += elements
    zeros = 0
    nonfinite = int(fields[-1])
    if nonfinite:
        counts.nonfinite += nonfinite
        finite = _magnitude_bits(values, layout)
        largest = finite.where(finite < layout.infinity, 0).max().view(values.dtype).item()
    if nonfinite < elements:
        counts.largest = largest if counts.largest is None else max(counts.largest, largest)
    if fields[0]:
        # Zeros and subnormals share an exponent field; a subnormal's bits are its value in steps of the smallest one.
        bits = _magnitude_bits(values, layout)
        zeros = elements - int(torch.count_nonzero(bits))
        counts.zeros += zeros
        if zeros < fields[0]:
            small = bits[(bits > 0) & (bits < 1 << layout.mantissa)]
            smallest = 1 - layout.bias - layout.mantissa
            counts.exponents.update((small.double().frexp().exponent + (smallest - 1)).tolist())
            single = small[(small & (small - 1)) == 0]
            counts.powers.update((single.double().frexp().exponent + (smallest - 1)).tolist())
    if fields[1 : SMALL + layout.bias + 1].any() and _shows_power(values, layout):
        # One step below a power of two is the exponent below; below zero the bits of a NaN.
        torch.bitwise_and(values.view(layout.integer), torch.iinfo(layout.integer).max, out=bits)
        bits -= 1
        bits &= torch.iinfo(layout.integer).max
        bits >>= layout.mantissa - spread
        moved = zeros + (_fields(bits, layout, spread) - fields)[: SMALL + layout.bias].cumsum()
        places = moved.nonzero()[0]
        counts.powers.update(dict(zip((places + (1 - layout.bias)).tolist(), moved[places].tolist(), strict=True)))
    places = fields[1:-1].nonzero()[0]
    counts.exponents.update(dict(zip((places + (1 - layout.bias)).tolist(), fields[places + 1].tolist(), strict=True)))


def _fields(bits: torch.Tensor, layout: _Layout, spread: int) -> Any:
    """Return how many values have each exponent field, of bits that are it and `spread` more; a NumPy array."""
    fields = torch.bincount(bits, minlength=(2 * layout.bias + 2) << spread).cpu().numpy()
    return fields.reshape(-1, 1 << spread).sum(axis=1) if spread else fields


def _shows_power(values: torch.Tensor, layout: _Layout) -> bool:
    """Return whether a small normal power of two is among every so many of the values."""
    bits = _magnitude_bits(values[:: -(-len(values) // _LOOK)], layout)
    least, most = 1 << layout.mantissa, (SMALL + layout.bias) << layout.mantissa
    return bool(((bits & (least - 1) == 0) & (bits >= least) & (bits <= most)).any())


def _magnitude_bits(values: torch.Tensor, layout: _Layout) -> torch.Tensor:
    """Return the bits of |x|, which are ordered as the values are."""
    return values.view(layout.integer) & torch.iinfo(layout.integer).max
