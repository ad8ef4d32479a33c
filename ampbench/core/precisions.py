"""The table of precisions, and the ranges of the low formats.

Dtypes are named like attributes of `torch` ("float32"), so the table needs no torch.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from ampbench.errors import UnknownNameError, UsageError

SHORT_DTYPES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""The short name of a dtype, as used in case ids and in the column `input_dtype`."""
LONG_DTYPES = {short: name for name, short in SHORT_DTYPES.items()}
HALVES = ("fp16", "bf16")
FP32_PRODUCTS = ("ieee", "tf32", "bf16", "shipped")
UPDATES = ("nearest", "stochastic", "kahan")
"""How an optimizer writes a weight that is stored in bf16: rounded to nearest, up or down by chance (right in the
mean), or to nearest with the lost part stored and added next time."""
NAMED = "up to 40 of a-z, 0-9 and _, a letter first"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_UNNAMED = "text"
_PATTERN = re.compile(r"[\w.*?!\[\]-]+", re.ASCII)


class Factors(NamedTuple):
    """The formats to which the factors of a product are rounded, as `trace.formats.quantise` names them; "": none.

    The product of `inputs` and `weights` is a layer's output. Of `gradients` with either come the backward products.
    """

    inputs: str
    weights: str
    gradients: str


COMPUTES: Mapping[str, Factors] = {
    "float8_e4m3:tensor": Factors("float8_e4m3:tensor", "float8_e4m3:tensor", "float8_e5m2:tensor"),
    **{name: Factors(name, name, name) for name in ("float8_e4m3:row", "float8_e5m2:tensor", "float8_e5m2:row")},
    **{name: Factors(name, name, name) for name in ("mxfp8", "nvfp4")},
    "int8:row": Factors("", "int8:row", ""),
}
"""The formats below 16 bits that products are computed in.

Gradients are in e5m2 with one scale a tensor and in e4m3 with one a row, as in torchao's recipes of training in float8;
mxfp8 is e4m3 throughout (OCP MX 1.0, and NVIDIA's recipe); nvfp4 rounds gradients to nearest, where NVIDIA's recipe
rounds them stochastically after a Hadamard transform. int8 is of weights alone, for inference.
"""
BLOCKS: Mapping[str, tuple[int, str]] = MappingProxyType({"mxfp8": (32, "float8_e4m3"), "nvfp4": (16, "float4_e2m1")})
"""The numbers that share a scale in a format of blocks, and the format of these numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """One way of running a network; `text` is its value as a text, which is also its name unless it has another.

    `storage` is the dtype of parameters and floating inputs, `autocast` the dtype that autocast casts to (None: no
    autocast); the error floor is the error of rounding the reference output to `rounding`. `scaler`: training uses
    `torch.amp.GradScaler`. `fp32_products` is the allowed rounding of factors of fp32 products and convolutions: "ieee"
    none, "tf32", "bf16", or "shipped", torch's default. `compute` is one of `COMPUTES`: the factors of linear layers
    and convolutions are rounded to it, which is emulated, and their output is in autocast's or the storage dtype.
    `master`: the optimizer moves fp32 copies of the weights, with fp32 state, and the network computes with these,
    rounded to `storage` after every step. `updates` is one of `UPDATES`. Modules whose paths match a pattern of `keep`,
    "PATTERN:DTYPE", compute in fp32, or in the 16 bits around them. It is measured by default on the device types
    `default_on`. `prepare(module, optimizer)` may change a network on its device, in `storage`, before it runs, and the
    function that makes its optimizer (`Workload.optimizer`; None in inference); it returns the module, or both. The
    reference is never prepared.

    Raises `UsageError` for an impossible precision.
    """

    name: str = ""
    summary: str = ""
    storage: str = "float32"
    autocast: str | None = None
    rounding: str = ""
    fp32_products: str = "ieee"
    compute: str = ""
    scaler: bool = False
    master: bool = False
    updates: str = UPDATES[0]
    keep: tuple[str, ...] = ()
    default_on: tuple[str, ...] = ("cpu", "cuda", "xpu")
    aliases: tuple[str, ...] = ()
    prepare: Callable[[Any, Any], Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.rounding:
            object.__setattr__(self, "rounding", self.autocast or self.storage)
        named = f"precision {self.name}".strip()
        known = {"storage": SHORT_DTYPES, "autocast": (None, *SHORT_DTYPES), "rounding": SHORT_DTYPES,
                 "fp32_products": FP32_PRODUCTS, "compute": ("", *COMPUTES), "updates": UPDATES}  # fmt: skip
        for attribute, allowed in known.items():
            if (value := getattr(self, attribute)) not in allowed:
                listed = ", ".join(filter(None, allowed))
                raise UsageError(f"{named}: {attribute} is {value!r}; give one of {listed}")
        if self.prepare is not None and not callable(self.prepare):
            raise UsageError(f"{named}: prepare is no function")
        named = f"precision {self.text if self.name in ('', _UNNAMED) else self.name}"
        if self.updates != UPDATES[0] and (self.storage != "bfloat16" or self.master):
            raise UsageError(f"{named}: rounding={self.updates} is for weights that the optimizer moves in bf16")
        output = SHORT_DTYPES[self.autocast or self.storage]
        if self.compute and output not in HALVES:
            raise UsageError(f"{named}: products in {self.compute} have an output in bf16 or fp16")
        for text in self.keep:
            pattern, _, dtype = text.rpartition(":")
            if not _PATTERN.fullmatch(pattern):
                raise UsageError(f"{named}: keep is {text!r}; give PATTERN:DTYPE, as in keep=*.head:fp32")
            if dtype not in (kept := ["fp32", *([output] if self.compute else [])]):
                raise UsageError(f"{named}: {text} is kept in {dtype!r}; give {' or '.join(kept)}")
        if not self.name:
            found = PRECISIONS.get(self.text)
            if found is None or self.prepare or any(getattr(found, key) != getattr(self, key) for key in _VALUES):
                raise UsageError(f"precision {self.text}: no text says all of it: give it a name")
            object.__setattr__(self, "name", found.name)
        elif not _NAME.fullmatch(self.name) and self.name != self.text:
            raise UsageError(f"a precision cannot be called {self.name!r}: give {NAMED}")

    def __str__(self) -> str:
        return self.text

    @property
    def own(self) -> bool:
        """Whether it is a user's own, with a name and perhaps with code."""
        return self.name not in BUILT_IN and "=" not in self.name

    @property
    def tf32(self) -> bool:
        """Whether fp32 products may be rounded to tf32 wherever they can."""
        return self.fp32_products == "tf32"

    @property
    def emulated(self) -> bool:
        """Whether its products or updates are emulated: it has errors, and no time."""
        return bool(self.compute) or self.updates != UPDATES[0]

    @property
    def same_ops(self) -> str:
        """The precision with the same ops, and so the same inference, but another step of the optimizer; "" if none."""
        if self.own or not (self.master or self.updates != UPDATES[0]):
            return ""
        plain = replace(self, name="", summary="", aliases=(), master=False, scaler=False, updates=UPDATES[0])
        return plain.name

    @property
    def kind(self) -> str:
        """The built-in precision that studies take it for: without what it keeps, or `float8` for any emulated one."""
        if self.own or self.name in BUILT_IN:
            return self.name
        return "float8" if self.compute else replace(self, name="", keep=()).name

    @property
    def text(self) -> str:
        """The value in the grammar of `parse_precision`, without the fields that follow from others."""
        storage, output = SHORT_DTYPES[self.storage], SHORT_DTYPES[self.autocast or self.storage]
        products = {"ieee": storage if self.autocast is None else output}.get(self.fp32_products, self.fp32_products)
        compute = self.compute or products
        parts = {"params": storage}
        if compute != storage:
            parts["compute"] = compute
        if output != _output(storage, compute):
            parts["output"] = output
        if self.master:
            parts["master"] = "fp32"
        if self.updates != UPDATES[0]:
            parts["rounding"] = self.updates
        if self.autocast is not None and output == storage:
            parts["via"] = "autocast"
        if self.scaler != _scaled(output, self.autocast, self.master):
            parts["scaler"] = str(self.scaler).lower()
        return ",".join([*(f"{key}={value}" for key, value in parts.items()), *(f"keep={text}" for text in self.keep)])


_VALUES = [
    row.name for row in fields(Precision) if row.name not in ("name", "summary", "default_on", "aliases", "prepare")
]
"""The fields that are a precision's value."""


def _output(storage: str, compute: str) -> str:
    """Return the dtype of products' outputs that follows from the other fields of a text."""
    if compute in COMPUTES:
        return storage if storage in HALVES else "bf16"
    return compute if compute in HALVES else storage


def _scaled(output: str, autocast: str | None, master: bool) -> bool:
    """Return whether training scales its loss by default: in fp16 with fp32 weights."""
    return output == "fp16" and (autocast is not None or master)


FIELDS: Mapping[str, tuple[str, ...]] = {
    "params": tuple(LONG_DTYPES),
    "compute": (*LONG_DTYPES, "tf32", "shipped", *COMPUTES),
    "output": tuple(LONG_DTYPES),
    "master": ("fp32",),
    "rounding": UPDATES,
    "block": tuple(str(size) for size, _ in BLOCKS.values()),
    "via": ("autocast", "cast"),
    "scaler": ("true", "false"),
    "keep": (),
}
"""The fields of a precision's text with their values; `keep` may come more than once."""


@lru_cache(maxsize=1024)
def parse_precision(text: str) -> Precision:
    """Return the precision of a text such as "params=bf16,compute=float8_e4m3:row,output=bf16,master=fp32".

    `params` is the dtype of weights and inputs (default: fp32). `compute` is the format of the factors of products, by
    default params'; `output` the dtype of their results. `via=autocast` enters by autocast, the default where output is
    not params; `via=cast` casts weights and inputs. `block=32` with compute=float8_e4m3 is mxfp8, `block=16` with
    float4_e2m1 nvfp4. A text with the value of a built-in precision is that precision.

    Raises `UsageError` for an impossible text, `UnknownNameError` with the nearest names for an unknown field or value.
    """
    given, keep = _fields_of(text)
    storage, compute = given.get("params", "fp32"), given.get("compute", "")
    compute = compute or storage
    output = given.get("output", _output(storage, compute))
    via = given.get("via", "cast" if output == storage else "autocast")
    if via == "cast" and output != storage:
        raise UsageError(
            f"precision {text}: via=cast casts the weights: give params={output},master=fp32 or via=autocast"
        )
    if via == "autocast" and output not in HALVES:
        raise UsageError(f"precision {text}: autocast casts to bf16 or fp16, and output is {output}")
    products = {"tf32": "tf32", "shipped": "shipped"}.get(compute, "bf16" if compute == "bf16" != output else "ieee")
    plain = compute in SHORT_DTYPES.values() and products == "ieee"
    if (products != "ieee" and (storage, output) != ("fp32", "fp32")) or (plain and compute != output):
        raise UsageError(f"precision {text}: products in {compute} of params={storage} have no output in {output}")
    if "master" in given and storage not in HALVES:
        raise UsageError(f"precision {text}: master=fp32 is for params=bf16 or params=fp16")
    autocast, master = LONG_DTYPES[output] if via == "autocast" else None, "master" in given
    scaler = given["scaler"] == "true" if "scaler" in given else _scaled(output, autocast, master)
    row = Precision(
        name=_UNNAMED,
        storage=LONG_DTYPES[storage],
        autocast=autocast,
        fp32_products=products,
        compute=compute if compute in COMPUTES else "",
        scaler=scaler,
        master=master,
        updates=given.get("rounding", UPDATES[0]),
        keep=keep,
        default_on=(),
    )
    known = {PRECISIONS[name].text: PRECISIONS[name] for name in BUILT_IN}
    return known.get(row.text) or replace(row, name=row.text)


def _fields_of(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the fields of a precision's text, with block and shorter spellings in `compute`, and what it keeps."""
    given: dict[str, str] = {}
    keep: list[str] = []
    for part in text.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in FIELDS:
            raise UnknownNameError(f"field of precision {text}:", key, FIELDS)
        if key in given:
            raise UsageError(f"precision {text}: {key} comes twice")
        if key == "keep":
            keep.append(value)
        else:
            given[key] = SHORT_DTYPES.get(value, value)
    compute, block = given.get("compute", ""), given.pop("block", "")
    if block in FIELDS["block"]:
        named = {(str(size), spelling): name for name, (size, kind) in BLOCKS.items() for spelling in (name, kind)}
        if (block, compute) not in named:
            fitting = " or ".join(f"compute={name}" for name, (size, _) in BLOCKS.items() if str(size) == block)
            raise UsageError(f"precision {text}: block={block} is for {fitting}")
        given["compute"] = named[block, compute]
    elif block:
        given["block"] = block
    elif f"{compute}:tensor" in COMPUTES:
        given["compute"] = f"{compute}:tensor"
    for key, value in given.items():
        if value not in FIELDS[key]:
            raise UnknownNameError(f"{key} of precision {text}:", value, FIELDS[key])
    return given, tuple(keep)


class _Table(dict[str, Precision]):
    """Rows of precisions by name; a text is the name of its own row, which the table need not hold."""

    def __missing__(self, name: str) -> Precision:
        if "=" not in name:
            raise KeyError(name)
        return parse_precision(name)

    def __contains__(self, name: object) -> bool:
        return self.get(name) is not None

    def get(self, name: Any, default: Any = None) -> Any:
        """Return the row of a name or a text; `default` for others."""
        try:
            return self[name]
        except (KeyError, UsageError):
            return default


PRECISIONS: dict[str, Precision] = _Table(
    (row.name, row)
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
                  scaler=True, master=True, default_on=("cuda", "xpu"), aliases=("fp16-master-weights",)),
        Precision(name="bf16_master", summary="network in bf16, fp32 master weights", storage="bfloat16", master=True,
                  default_on=("cuda", "xpu"), aliases=("bf16-master-weights",)),
        Precision(name="fp16_pure", summary="weights, inputs and compute in fp16", storage="float16",
                  aliases=("fp16-true", "16-true", "half")),
        Precision(name="bf16_pure", summary="weights, inputs and compute in bf16", storage="bfloat16",
                  aliases=("bf16-true",)),
        Precision(name="bf16_stochastic", summary="pure bf16, updates rounded up or down by chance",
                  storage="bfloat16", updates="stochastic", default_on=(), aliases=("stochastic-rounding",)),
        Precision(name="bf16_kahan", summary="pure bf16, updates by Kahan summation", storage="bfloat16",
                  updates="kahan", default_on=(), aliases=("kahan",)),
        Precision(name="float8", summary="bf16 autocast, products in float8, a scale a tensor; emulated",
                  autocast="bfloat16", compute="float8_e4m3:tensor", default_on=(),
                  aliases=("fp8", "float8-tensorwise", "fp8-tensorwise")),
        Precision(name="float8_row", summary="bf16 autocast, products in float8, a scale a row; emulated",
                  autocast="bfloat16", compute="float8_e4m3:row", default_on=(),
                  aliases=("float8-rowwise", "fp8-rowwise", "fp8-row")),
        Precision(name="mxfp8", summary="bf16 autocast, products in float8, a scale for 32 numbers; emulated",
                  autocast="bfloat16", compute="mxfp8", default_on=(), aliases=("mx-fp8",)),
        Precision(name="nvfp4", summary="bf16 autocast, products in float4, a scale for 16 numbers; emulated",
                  autocast="bfloat16", compute="nvfp4", default_on=(), aliases=("nv-fp4", "fp4")),
        Precision(name="int8_weights", summary="bf16 with weights in int8, for inference; emulated",
                  storage="bfloat16", compute="int8:row", default_on=(),
                  aliases=("int8", "int8-weight-only", "int8wo")),
    )
)  # fmt: skip
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
EXAMINED = [row.name for row in PRECISIONS.values() if row.rounding != "float32" and not row.same_ops]
"""Precisions with ops in low formats, without those with `same_ops`, in the order of every table."""
LOW = [name for name in EXAMINED if not PRECISIONS[name].emulated]
"""Those with ops in fp16 or bf16."""
AUTOCAST = [name for name in LOW if PRECISIONS[name].autocast]
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


def is_emulated(name: str) -> bool:
    """Return whether a precision is emulated, and so has no time; False for those of foreign runs."""
    row = PRECISIONS.get(name)
    return row is not None and row.emulated


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

    A text with "=" is for `parse_precision`. Names in `BY_DEVICE` depend on `device` ("": a GPU). A bare `bf16` or
    `fp16` means autocast.
    """
    if "=" in name:
        return parse_precision(name)
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
