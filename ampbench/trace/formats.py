"""Formats below 16 bits with their scales, emulated on any device: no dtype or kernel of such a format is needed.

`watch_blocks` counts how the factors of a network's products fit into them, while fp32 code runs it.

Elements are rounded to the nearest number of the format, ties to even, in fp32 (fp64 for fp64 tensors). Spacings are
powers of two read from the bits, so that this is exact; no finite value is left beyond the largest.

* `float8_e4m3`, `float8_e5m2` (arXiv 2209.05433; e4m3fn: no infinity), `:tensor` or `:row`: one fp32 scale, the
  format's largest number over the largest magnitude, not rounded to a power of two, as torchao scales dynamically.
* `mxfp8`, `mxfp8_e5m2` (OCP MX v1.0): blocks of 32, scales that are powers of two. OCP's rule rounds scales down, and
  the largest elements saturate; here they are rounded up so that none does, as in NVIDIA's recipe (arXiv 2506.08027,
  cuBLAS, torchao's RCEIL), which is the rule of the hardware.
* `nvfp4` (NVIDIA, arXiv 2509.25149): e2m1 in blocks of 16, each with an e4m3 scale, below an fp32 scale of the tensor.
* `int8:row`: integers from -127 to 127, an fp32 scale for each output channel (arXiv 2004.09602).

A NaN makes its tensor, row or block NaN; so does an infinity, except in MX, where it saturates and the rest flushes.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from ampbench.core.precisions import FLOAT8, Format
from ampbench.records.ranges import GRADIENT, INPUT, WEIGHT, Blocks
from ampbench.trace.modules import ModuleRun, tensors_in, watch_runs
from ampbench.trace.ranges import LAYOUTS

TENSOR, ROW, MX, NV = "tensor", "row", "mx", "nv"
"""The ways to scale: one fp32 scale for a tensor or a row, or a scale for each block as in MX or NVFP4."""

_E4M3, _E5M2 = FLOAT8["float8_e4m3"], FLOAT8["float8_e5m2"]
_E2M1 = Format("float4_e2m1", 2, highest=2, lowest=0, largest=6.0, overflow=7.0, normal=1.0, flush=0.25)
_INT8 = Format("int8", 7, highest=6, lowest=6, largest=127.0, overflow=127.5, normal=1.0, flush=0.5)

_LEAST = 1e-12
"""A largest magnitude below this counts as it, so that zeros have a finite scale (torchao's EPS)."""

_MX_EXPONENTS = (-127, 127)
"""The exponents of e8m0."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """The format of elements, the way to scale them, and the length of blocks (0: a row or a tensor is one)."""

    element: Format
    scaling: str
    block: int = 0


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {f"{name}:{scaling}": Scheme(form, scaling) for name, form in FLOAT8.items() for scaling in (TENSOR, ROW)}
    | {
        "mxfp8": Scheme(_E4M3, MX, 32),
        "mxfp8_e5m2": Scheme(_E5M2, MX, 32),
        "nvfp4": Scheme(_E2M1, NV, 16),
        "int8:row": Scheme(_INT8, ROW),
    }
)
"""The formats of `quantise` by their names."""

_Decode = Callable[[torch.Tensor], torch.Tensor]


@torch.no_grad()
def quantise(tensor: torch.Tensor, fmt: str, axis: int | None = None) -> torch.Tensor:
    """Return a floating tensor rounded to the format `fmt` and back, in its own dtype, without a graph.

    Rows and blocks run along `axis`, the inner dimension of a product (None: the last); a last block that is not full
    is filled with zeros. Elements times scales are rounded to fp32 (fp64 for a tensor in it), exact where scales are
    powers of two, and then to the dtype of the tensor.
    """
    if not tensor.numel():
        return tensor.clone()
    scheme, axis = SCHEMES[fmt], -1 if axis is None else axis
    scaled, decode = _scaled(_in_blocks(tensor, scheme, axis), scheme, axis)
    values = decode(_rounded(scaled, scheme.element))
    if scheme.block:
        values = values.flatten(-2)[..., : tensor.shape[axis]].movedim(-1, axis)
    return values.to(tensor.dtype)


class BlockCounts(NamedTuple):
    """Of `blocks`, `saturated` have an element that saturates and `flushed` one that becomes zero and was not.

    A block is the row or the whole tensor where these share a scale. An element saturates if rounding to nearest would
    take it beyond the format's largest number; scales that follow the largest magnitude mostly prevent that. Of
    `elements`, which are not zero, `zeroed` become zero.
    """

    blocks: int = 0
    saturated: int = 0
    flushed: int = 0
    elements: int = 0
    zeroed: int = 0


@torch.no_grad()
def count_blocks(tensor: torch.Tensor, fmt: str, axis: int | None = None) -> BlockCounts:
    """Return the counts of a tensor's blocks in the format `fmt` along `axis`, as in `quantise`."""
    if not tensor.numel():
        return BlockCounts()
    scheme, axis = SCHEMES[fmt], -1 if axis is None else axis
    values = _in_blocks(tensor, scheme, axis)
    scaled, decode = _scaled(values, scheme, axis)
    zero, used = decode(_rounded(scaled, scheme.element)) == 0, values != 0
    events = (scaled.abs() >= scheme.element.overflow) & ~zero, zero & used
    blocks = [event.any() if scheme.scaling == TENSOR else event.any(_along(scheme, axis)) for event in events]
    saturated, flushed = (int(block.sum()) for block in blocks)
    return BlockCounts(blocks[0].numel(), saturated, flushed, int(used.sum()), int(events[1].sum()))


def _along(scheme: Scheme, axis: int) -> int:
    """Return the dimension of `_in_blocks` whose values share a scale."""
    return -1 if scheme.block else axis


def _in_blocks(tensor: torch.Tensor, scheme: Scheme, axis: int) -> torch.Tensor:
    """Return the values in fp32 or fp64; blocks are the last dimension, in their order along `axis` before it."""
    values = tensor if tensor.dtype is torch.float64 else tensor.float()
    if not scheme.block:
        return values
    values = values.movedim(axis, -1)
    values = torch.nn.functional.pad(values, (0, -values.shape[-1] % scheme.block))
    return values.reshape(*values.shape[:-1], -1, scheme.block)


def _scaled(values: torch.Tensor, scheme: Scheme, axis: int) -> tuple[torch.Tensor, _Decode]:
    """Return values over their scales, and the function that takes such numbers back."""
    if scheme.scaling == TENSOR:
        return _by_float(values, values.abs().amax(), scheme.element)
    largest = values.abs().amax(_along(scheme, axis), keepdim=True)
    scale = {ROW: _by_float, MX: _by_power, NV: _by_two_levels}[scheme.scaling]
    return scale(values, largest, scheme.element)


def _by_float(values: torch.Tensor, largest: torch.Tensor, form: Format) -> tuple[torch.Tensor, _Decode]:
    """Scale so that the largest magnitude becomes the format's largest, by an fp32 factor."""
    factor = _divided(form.largest, largest).clamp(max=form.largest / _LEAST).float()
    return values * factor, lambda elements: elements / factor


def _by_power(values: torch.Tensor, largest: torch.Tensor, form: Format) -> tuple[torch.Tensor, _Decode]:
    """Scale by the least power of two that takes no magnitude beyond the format's largest."""
    layout = LAYOUTS[values.dtype]
    bits = largest.view(layout.integer)
    top = math.frexp(form.largest)[0] * 2 - 1  # the fraction of the format's largest number
    above = (bits & ((1 << layout.mantissa) - 1)) > int(top * (1 << layout.mantissa))
    exponent = ((bits >> layout.mantissa) - layout.bias - form.highest + above).clamp(*_MX_EXPONENTS)
    scaled = torch.where(largest.isnan(), largest, _shifted(values, -exponent))
    return scaled, lambda elements: _shifted(elements, exponent)


def _by_two_levels(values: torch.Tensor, largest: torch.Tensor, form: Format) -> tuple[torch.Tensor, _Decode]:
    """Scale blocks by e4m3 numbers, and these so that the largest is e4m3's largest.

    The order of operations is torchao's: a factor is the reciprocal of the fp32 scale, over the block's scale.
    """
    info = torch.finfo(torch.float32)
    whole = _divided(largest.amax().float(), form.largest * _E4M3.largest).clamp(min=info.tiny)
    scale = _rounded(_divided(_divided(largest.float(), form.largest), whole), _E4M3)
    factor = (_divided(1.0, whole) / scale).clamp(max=info.max)
    return values * factor, lambda elements: elements * (whole * scale)


def _divided(above: torch.Tensor | float, below: torch.Tensor | float) -> torch.Tensor:
    """Return a quotient rounded once: torch multiplies by rounded reciprocals where a Python number takes part."""
    some = above if isinstance(above, torch.Tensor) else below
    assert isinstance(some, torch.Tensor)
    first, second = (
        part if isinstance(part, torch.Tensor) else torch.full((), part, dtype=some.dtype, device=some.device)
        for part in (above, below)
    )
    return first / second


def _shifted(values: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    layout, half = LAYOUTS[values.dtype], exponent >> 1
    first, second = ((part + layout.bias << layout.mantissa).view(values.dtype) for part in (half, exponent - half))
    return values * first * second


def _rounded(values: torch.Tensor, form: Format) -> torch.Tensor:
    """Return the nearest numbers of a format, ties to even, up to its largest; NaN stays."""
    layout = LAYOUTS[values.dtype]
    values = values.clamp(-form.largest, form.largest)
    powers = (values.view(layout.integer) & layout.infinity).view(values.dtype)  # a power of two not above each |x|
    spacing = powers.clamp(2.0**form.lowest, 2.0**form.highest) * 2.0 ** (1 - form.digits)
    return (values / spacing).round() * spacing


CONVOLUTIONS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)


class _Place(NamedTuple):
    module: str
    kind: str
    what: str
    format: str


class FactorBlocks:
    """The blocks that `watch_blocks` has seen so far; `formats` are those of each kind of factor."""

    def __init__(self, formats: Mapping[str, list[str]]):
        self._formats = formats
        self._counts: dict[_Place, BlockCounts] = {}

    @property
    def records(self) -> list[Blocks]:
        """A record for each factor and format, in the order of first running."""
        return [Blocks(**place._asdict(), **counts._asdict()) for place, counts in self._counts.items()]

    def after(self, run: ModuleRun) -> None:
        """Count the inputs and weights of a layer, and the gradients of its outputs when these come."""
        module: Any = run.module
        if not isinstance(module, (torch.nn.Linear, *CONVOLUTIONS)):
            return
        channel = -1 - len(getattr(module, "kernel_size", ()))  # the dimension of channels, from the last
        for tensor in tensors_in((run.args, run.kwargs)):
            self._count(run, INPUT, channel, tensor)
        if not any(place[0] == run.path and place.what == WEIGHT for place in self._counts):
            self._count(run, WEIGHT, 1, module.weight.flatten(1))
        for tensor in run.outputs:
            if tensor.requires_grad and GRADIENT in self._formats:
                tensor.register_hook(partial(self._count, run, GRADIENT, channel))  # type: ignore[no-untyped-call]

    def _count(self, run: ModuleRun, what: str, axis: int, tensor: torch.Tensor) -> None:
        for fmt in self._formats.get(what, ()):
            place = _Place(run.path, type(run.module).__name__, what, fmt)
            counts = count_blocks(tensor.detach(), fmt, axis)
            old = self._counts.get(place, BlockCounts())
            self._counts[place] = BlockCounts(*(sum(pair) for pair in zip(old, counts, strict=True)))


@contextmanager
def watch_blocks(model: torch.nn.Module, formats: Mapping[str, list[str]]) -> Iterator[FactorBlocks]:
    """Count the blocks of linear layers and convolutions of `model` in formats, while the block runs it in fp32.

    `formats` are names of `SCHEMES` by kind of factor: inputs, weights (once), gradients of outputs. Rows and
    blocks run along the channels, those of a weight along all but its outputs. Results equal those of the unwatched
    program.
    """
    blocks = FactorBlocks(formats)
    with watch_runs(model, blocks.after):
        yield blocks
