"""The table of precisions, and the ranges of the low formats.

Dtypes are named like attributes of `torch` ("float32"), so the table needs no torch.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from ampbench.errors import UnknownNameError, UsageError

SHORT_DTYPES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""The short name of a dtype, as used in case ids and in the column `input_dtype`."""
FP32_PRODUCTS = ("ieee", "tf32", "bf16", "shipped")
NAMED = "up to 40 of a-z, 0-9 and _, a letter first"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """One way of running a network.

    `storage` is the dtype of parameters and floating inputs, `autocast` the dtype that autocast casts to (None: no
    autocast); the error floor is the error of rounding the reference output to `rounding`. `scaler`: training uses
    `torch.amp.GradScaler`. `fp32_products` is the allowed rounding of factors of fp32 products and convolutions: "ieee"
    none, "tf32", "bf16", or "shipped", torch's default. `master`: the optimizer moves fp32 copies of the weights, with
    fp32 state, and the network computes with these, rounded to `storage` after every step; its ops, and its inference,
    equal those of the precision `same_ops`. It is measured by default on the device types `default_on`.
    `prepare(module, optimizer)` may change a network on its device, in `storage`, before it runs, and the function that
    makes its optimizer (`Workload.optimizer`; None in inference); it returns the module, or both. The reference is
    never prepared.

    Raises `UsageError` for an impossible precision.
    """

    name: str
    summary: str = ""
    storage: str = "float32"
    autocast: str | None = None
    rounding: str = ""
    fp32_products: str = "ieee"
    scaler: bool = False
    master: bool = False
    same_ops: str = ""
    default_on: tuple[str, ...] = ("cpu", "cuda", "xpu")
    aliases: tuple[str, ...] = ()
    prepare: Callable[[Any, Any], Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"a precision cannot be called {self.name!r}: give {NAMED}")
        if not self.rounding:
            object.__setattr__(self, "rounding", self.autocast or self.storage)
        for attribute in ("storage", "autocast", "rounding", "fp32_products"):
            value, known = getattr(self, attribute), FP32_PRODUCTS if attribute == "fp32_products" else SHORT_DTYPES
            if value not in known and (attribute, value) != ("autocast", None):
                raise UsageError(f"precision {self.name}: {attribute} is {value!r}; give one of {', '.join(known)}")
        if self.prepare is not None and not callable(self.prepare):
            raise UsageError(f"precision {self.name}: prepare is no function")

    @property
    def tf32(self) -> bool:
        """Whether fp32 products may be rounded to tf32 wherever they can."""
        return self.fp32_products == "tf32"


PRECISIONS: dict[str, Precision] = {
    row.name: row
    for row in (
        Precision(name="fp32", summary="IEEE single precision, tf32 off",
                  aliases=("float32", "32", "32-true", "full")),
        Precision(name="default", summary="fp32 as torch ships it: tf32 convolutions on CUDA",
                  fp32_products="shipped", default_on=("cuda",)),
        Precision(name="tf32", summary="fp32 storage, TensorFloat-32 matrix products", fp32_products="tf32",
                  aliases=("tensorfloat32",)),
        Precision(name="fp32_bf16_products", summary="fp32 storage, products in bf16 where a kernel does it",
                  fp32_products="bf16", default_on=(), aliases=("bf16-products",)),
        Precision(name="fp16_autocast", summary="fp32 weights, autocast to fp16, GradScaler in training",
                  autocast="float16", scaler=True, aliases=("fp16", "fp16-mixed", "16-mixed", "16")),
        Precision(name="bf16_autocast", summary="fp32 weights, autocast to bf16", autocast="bfloat16",
                  aliases=("bf16", "bf16-mixed")),
        Precision(name="fp16_master", summary="network in fp16, fp32 master weights, GradScaler", storage="float16",
                  scaler=True, master=True, same_ops="fp16_pure", default_on=("cuda", "xpu"),
                  aliases=("fp16-master-weights",)),
        Precision(name="bf16_master", summary="network in bf16, fp32 master weights", storage="bfloat16", master=True,
                  same_ops="bf16_pure", default_on=("cuda", "xpu"), aliases=("bf16-master-weights",)),
        Precision(name="fp16_pure", summary="weights, inputs and compute in fp16", storage="float16",
                  aliases=("fp16-true", "16-true", "half")),
        Precision(name="bf16_pure", summary="weights, inputs and compute in bf16", storage="bfloat16",
                  aliases=("bf16-true",)),
    )
}  # fmt: skip
"""The measured precisions, in the order of every table; `fp64` is the reference and is not measured."""

BUILT_IN = frozenset(PRECISIONS)
"""The precisions of ampbench; `meet` adds a user's."""
_RANKS = {name: place for place, name in enumerate(PRECISIONS)}
BY_DEVICE = {
    "amp": {"cpu": "bf16_autocast", "cuda": "fp16_autocast", "xpu": "fp16_autocast"},
    "default": {"cpu": "fp32", "cuda": "default", "xpu": "fp32"},
}
"""Names that mean another precision on each device: by its default dtype of autocast (`torch.get_autocast_dtype`), and
by torch's defaults, which round fp32 products on CUDA alone (Context.h of 2.15)."""

FP64 = Precision(name="fp64", summary="the reference", storage="float64", default_on=())
"""The reference of every precision; it is not measured, so the table has no row for it."""
BASELINE = "fp32"
DEFAULT = "default"
"""The precision of a user who changes nothing."""
LOW = [row.name for row in PRECISIONS.values() if row.rounding != "float32" and not row.same_ops]
"""Precisions with ops in fp16 or bf16, without those with `same_ops`, in the order of every table."""
AUTOCAST = [row.name for row in PRECISIONS.values() if row.autocast]
SCALED = [name for name in AUTOCAST if PRECISIONS[name].scaler]
"""Precisions whose loss scaling is studied; with master weights it is the same."""


def meet(row: Precision) -> None:
    """Add a user's own precision; `UsageError` for a name or an alias of ampbench's own."""
    taken = {_typed(alias): known.name for known in PRECISIONS.values() for alias in (known.name, *known.aliases)}
    for name in (row.name, *row.aliases):
        owner = _typed(name) if _typed(name) in BY_DEVICE else taken.get(_typed(name), "")
        if owner in BUILT_IN or owner in BY_DEVICE:
            raise UsageError(f"precision {name} is ampbench's own ({owner}): give yours another name")
    PRECISIONS[row.name] = row


def rank(name: str) -> int:
    """Return the place of a precision in every table; unknown ones, of foreign runs, come last."""
    return _RANKS.get(name, len(_RANKS))


def ordered(names: Iterable[str]) -> list[str]:
    """Return names of precisions, each once, in the order of every table; unknown ones last, sorted."""
    return sorted(set(names), key=lambda name: (rank(name), name))


def default_autocast(dtype: str) -> str | None:
    """Return the first precision that autocasts to `dtype`, a short name; None without one."""
    return next((name for name in AUTOCAST if SHORT_DTYPES[PRECISIONS[name].autocast or ""] == dtype), None)


def find_precision(name: str, device: str = "") -> Precision:
    """Return the precision with this name or alias, in any case, with "-" or "_"; `UnknownNameError` without one.

    Names in `BY_DEVICE` depend on `device` ("": a GPU). A bare `bf16` or `fp16` means autocast.
    """
    wanted = _typed(name)
    if by_device := BY_DEVICE.get(wanted):
        return PRECISIONS[by_device.get(device, by_device["cuda"])]
    for row in PRECISIONS.values():
        if wanted in map(_typed, (row.name, *row.aliases)):
            return row
    raise UnknownNameError("precision", name, PRECISIONS, like=SHORT_DTYPES.get(wanted, ""))


def _typed(name: str) -> str:
    """Return a name in lower case, with "_" for "-"."""
    return name.strip().lower().replace("-", "_")


class Format(NamedTuple):
    """A binary format: `digits` of precision, the hidden one included, exponents of normal numbers, and magnitudes.

    `largest` is the largest finite number, and `normal` the smallest normal one. Rounding to nearest takes `overflow`
    and more beyond the largest, and `flush` and less to zero: half the smallest subnormal.
    """

    name: str
    digits: int
    highest: int
    lowest: int
    largest: float
    overflow: float
    normal: float
    flush: float

    @property
    def border(self) -> float:
        """Where a histogram by powers of two has overflow begin: in 16 bits half a unit above, at a power of two."""
        return self.overflow if self.name in FLOAT8 else 2.0 ** (self.highest + 1)


def _format(name: str, digits: int, highest: int, lowest: int) -> Format:
    largest, overflow = ((2.0 - 2.0**last) * 2.0**highest for last in (1 - digits, -digits))
    return Format(name, digits, highest, lowest, largest, overflow, normal=2.0**lowest, flush=2.0 ** (lowest - digits))


FORMATS: Mapping[str, Format] = MappingProxyType(
    {"fp16": _format("fp16", 11, 15, -14), "bf16": _format("bf16", 8, 127, -126)}
)
"""The low formats by their short names: IEEE 754's binary16, and the upper half of binary32."""

FLOAT8: Mapping[str, Format] = MappingProxyType(
    {
        "float8_e4m3": _format("float8_e4m3", 4, 8, -6)._replace(largest=448.0, overflow=math.nextafter(464.0, 500.0)),
        "float8_e5m2": _format("float8_e5m2", 3, 15, -14),
    }
)
"""The formats of 8 bits (arXiv 2209.05433). e4m3 has no infinity, and its largest bit pattern, 480, is NaN: the tie at
464 still rounds to 448."""


def find_format(dtype: str) -> Format:
    """Return the format of a short dtype; raises `UnknownNameError` for a dtype outside `FORMATS` and `FLOAT8`."""
    known = {**FORMATS, **FLOAT8}
    if dtype not in known:
        raise UnknownNameError("low dtype", dtype, known)
    return known[dtype]
