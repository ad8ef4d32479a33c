"""Precision is data: one row each; everything that depends on the precision reads its row here.

Dtypes are spelled as attributes of `torch` ("float32"), so that this table needs no torch. What their formats can hold,
as far as headroom asks, stands beside them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ampbench.errors import UnknownNameError, UsageError

SHORT_DTYPES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""The short name of a dtype, as used in case ids and in the column `input_dtype`."""
FP32_PRODUCTS = ("ieee", "tf32", "bf16", "shipped")
ENTRY_POINTS = "ampbench.precisions"
"""The entry points that installed packages offer precisions by."""
NAMED = "up to 40 of a-z, 0-9 and _, a letter first"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """One way of running a network.

    `storage` is the dtype of parameters and of floating inputs, `autocast` the dtype that autocast casts to (None: no
    autocast), `rounding` the dtype whose mere rounding of the reference output is the error floor; `scaler` means that
    training uses `torch.amp.GradScaler`. `fp32_products` says how the factors of fp32 matrix products and convolutions
    may be rounded: "ieee" not at all, to "tf32" (TensorFloat-32) or "bf16", or as torch does it as it is "shipped".
    `master`: the optimizer moves fp32 copies of the weights, with fp32 state, and the network computes, forward and
    backward, with these rounded to `storage` after every step. That is a matter of training: its ops are those of
    another precision, `same_ops`, and so is all of its inference. `default_on` are the types of devices on which it is
    measured where no precision is named.
    `colour` is from the Okabe-Ito palette, which colour-blind readers can tell apart, `shape` one of Vega's, for those
    who see none; `on_light` and `on_dark` are shades of it where it stands out too little from such a page (WCAG 2.2,
    1.4.11: 3 to 1). A user's own has neither: charts give it one.
    `prepare(module, optimizer)` changes a network that lies on its device in `storage` before it runs, and what makes
    the optimizer that trains it, as `Workload.optimizer` does (None in inference). It returns the module, or both. The
    reference is never prepared.

    Raises `UsageError` for what no precision can be.
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
    colour: str = ""
    on_light: str = ""
    on_dark: str = ""
    shape: str = ""
    prepare: Callable[[Any, Any], Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"a precision cannot be called {self.name!r}: give {NAMED}")
        if not self.rounding:
            object.__setattr__(self, "rounding", self.autocast or self.storage)
        for what, dtype in (("storage", self.storage), ("autocast", self.autocast), ("rounding", self.rounding)):
            if dtype is not None and dtype not in SHORT_DTYPES:
                raise UsageError(f"precision {self.name}: {what} is {dtype!r}; give one of {', '.join(SHORT_DTYPES)}")
        if self.fp32_products not in FP32_PRODUCTS:
            known = ", ".join(FP32_PRODUCTS)
            raise UsageError(f"precision {self.name}: fp32_products is {self.fp32_products!r}; give one of {known}")
        if self.prepare is not None and not callable(self.prepare):
            raise UsageError(f"precision {self.name}: prepare is no function")

    @property
    def tf32(self) -> bool:
        """Whether fp32 products may be rounded to tf32 wherever they can."""
        return self.fp32_products == "tf32"


PRECISIONS: dict[str, Precision] = {
    row.name: row
    for row in (
        Precision(
            name="fp32",
            summary="IEEE single precision, tf32 off",
            aliases=("float32", "32", "32-true", "full"),
            colour="#000000",
            on_dark="#f2f2f2",
            shape="circle",
        ),
        Precision(
            name="default",
            summary="fp32 as torch ships it: tf32 convolutions on CUDA",
            fp32_products="shipped",
            default_on=("cuda",),
            colour="#8C5A2B",
            on_dark="#c08a52",
            shape="M0,-1L0.29,-0.4L0.95,-0.31L0.47,0.15L0.59,0.81L0,0.5L-0.59,0.81L-0.47,0.15L-0.95,-0.31L-0.29,-0.4Z",
        ),
        Precision(
            name="tf32",
            summary="fp32 storage, TensorFloat-32 matrix products",
            fp32_products="tf32",
            aliases=("tensorfloat32",),
            colour="#999999",
            on_light="#858585",
            shape="cross",
        ),
        Precision(
            name="fp32_bf16_products",
            summary="fp32 storage, products in bf16 where a kernel does it",
            fp32_products="bf16",
            default_on=(),
            aliases=("bf16-products",),
            colour="#F0E442",
            on_light="#8a8300",
            shape="M-1,-1L1,-1L-1,1L1,1Z",
        ),
        Precision(
            name="fp16_autocast",
            summary="fp32 weights, autocast to fp16, GradScaler in training",
            autocast="float16",
            scaler=True,
            aliases=("fp16-mixed", "16-mixed"),
            colour="#D55E00",
            shape="square",
        ),
        Precision(
            name="bf16_autocast",
            summary="fp32 weights, autocast to bf16",
            autocast="bfloat16",
            aliases=("bf16-mixed",),
            colour="#0072B2",
            shape="triangle-up",
        ),
        Precision(
            name="fp16_master",
            summary="network in fp16, fp32 master weights, GradScaler",
            storage="float16",
            scaler=True,
            master=True,
            same_ops="fp16_pure",
            default_on=("cuda", "xpu"),
            aliases=("fp16-master-weights",),
            colour="#CC79A7",
            on_light="#c0679a",
            shape="M-0.9,-0.9L0.9,-0.9L0.9,-0.2L0.35,-0.2L0.35,0.9L-0.35,0.9L-0.35,-0.2L-0.9,-0.2Z",
        ),
        Precision(
            name="bf16_master",
            summary="network in bf16, fp32 master weights",
            storage="bfloat16",
            master=True,
            same_ops="bf16_pure",
            default_on=("cuda", "xpu"),
            aliases=("bf16-master-weights",),
            colour="#009E73",
            shape="triangle-right",
        ),
        Precision(
            name="fp16_pure",
            summary="weights, inputs and compute in fp16",
            storage="float16",
            aliases=("fp16-true", "16-true"),
            colour="#E69F00",
            on_light="#b57f00",
            shape="diamond",
        ),
        Precision(
            name="bf16_pure",
            summary="weights, inputs and compute in bf16",
            storage="bfloat16",
            aliases=("bf16-true",),
            colour="#56B4E9",
            on_light="#3490cc",
            shape="triangle-down",
        ),
    )
}
"""The measured precisions, in the order of every table; `fp64` is the reference and is not measured."""

BUILT_IN = frozenset(PRECISIONS)
"""The names of ampbench's own; a user's are added by `meet`."""
_RANKS = {name: place for place, name in enumerate(PRECISIONS)}
BY_DEVICE = {
    "amp": {"cpu": "bf16_autocast", "cuda": "fp16_autocast", "xpu": "fp16_autocast"},
    "half": {"cpu": "bf16_pure", "cuda": "fp16_pure", "xpu": "fp16_pure"},
    "default": {"cpu": "fp32", "cuda": "default", "xpu": "fp32"},
}
"""Names that stand for another precision by the device, and what they are there: that of its default dtype of autocast
(`torch.get_autocast_dtype`), and as torch ships: it rounds fp32 products on CUDA alone (Context.h of torch 2.15)."""

FP64 = Precision(name="fp64", summary="the reference", storage="float64", default_on=())
"""What every precision is held against; nobody measures it, so it is no row of the table."""
BASELINE = "fp32"
DEFAULT = "default"
"""What a user runs who changes nothing."""
LOW = [row.name for row in PRECISIONS.values() if row.rounding != "float32" and not row.same_ops]
"""The precisions whose ops round to fp16 or bf16 as no other's do, in the order of every table, as are the next."""
AUTOCAST = [row.name for row in PRECISIONS.values() if row.autocast]
SCALED = [name for name in AUTOCAST if PRECISIONS[name].scaler]
"""Those whose loss scaling is studied: with master weights the same gradients are scaled in the same way."""


def meet(row: Precision) -> None:
    """Make a user's own precision known to this process; `UsageError` for a name or an alias that is ampbench's own."""
    taken = {_typed(alias): known.name for known in PRECISIONS.values() for alias in (known.name, *known.aliases)}
    for name in (row.name, *row.aliases):
        owner = _typed(name) if _typed(name) in BY_DEVICE else taken.get(_typed(name), "")
        if owner in BUILT_IN or owner in BY_DEVICE:
            raise UsageError(f"precision {name} is ampbench's own ({owner}): give yours another name")
    PRECISIONS[row.name] = row


def rank(name: str) -> int:
    """Return the place of a precision in every table; names that only foreign runs have come last."""
    return _RANKS.get(name, len(_RANKS))


def ordered(names: Iterable[str]) -> list[str]:
    """Return names of precisions, each once, in the order of every table, unknown ones last by their alphabet."""
    return sorted(set(names), key=lambda name: (rank(name), name))


def default_autocast(dtype: str) -> str | None:
    """Return the precision that autocasts to `dtype`, a short name: of several the first, None where there is none."""
    return next((name for name in AUTOCAST if SHORT_DTYPES[PRECISIONS[name].autocast or ""] == dtype), None)


def find_precision(name: str, device: str = "") -> Precision:
    """Return the row that `name`, a precision or one of its aliases, stands for.

    Case does not count, nor whether "-" or "_" is typed. "amp" and "half" stand for the default dtype of `device`, of a
    GPU's where none is given, and "default" for fp32 where torch ships that. Raises `UnknownNameError`, with the
    nearest names, for anything else: a bare half dtype may mean autocast to it as well as all in it, fp64 is the
    reference.
    """
    wanted = _typed(name)
    if by_device := BY_DEVICE.get(wanted):
        return PRECISIONS[by_device.get(device, by_device["cuda"])]
    for row in PRECISIONS.values():
        if wanted in map(_typed, (row.name, *row.aliases)):
            return row
    raise UnknownNameError("precision", name, PRECISIONS, like=SHORT_DTYPES.get(wanted, ""))


def _typed(name: str) -> str:
    """Return what all ways of typing a name have in common: case does not count, nor whether it is "-" or "_"."""
    return name.strip().lower().replace("-", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A binary format of IEEE 754's kind: `digits` is the precision in bits, the hidden one included.

    `highest` and `lowest` are the exponents of its largest and smallest normal numbers.
    """

    name: str
    digits: int
    highest: int
    lowest: int

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return (2.0 - 2.0 ** (1 - self.digits)) * 2.0**self.highest

    @property
    def overflow(self) -> float:
        """The smallest magnitude that rounding to nearest takes to infinity: half a unit above the largest."""
        return (2.0 - 2.0**-self.digits) * 2.0**self.highest

    @property
    def normal(self) -> float:
        """The smallest normal number."""
        return 2.0**self.lowest

    @property
    def flush(self) -> float:
        """The largest magnitude that rounding to nearest takes to zero: half the smallest subnormal, a tie to even."""
        return 2.0 ** (self.lowest - self.digits)


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "fp16": Format(name="fp16", digits=11, highest=15, lowest=-14),
        "bf16": Format(name="bf16", digits=8, highest=127, lowest=-126),
    }
)
"""The low formats by their short names: IEEE 754's binary16, and the upper half of binary32."""


def find_format(dtype: str) -> Format:
    """Return the format of a short dtype; raises `UnknownNameError` for any but those of `FORMATS`."""
    if dtype not in FORMATS:
        raise UnknownNameError("low dtype", dtype, FORMATS)
    return FORMATS[dtype]
