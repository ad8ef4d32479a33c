"""Ceilings: what a device attains at best, beside what is promised of it, and in half precision against fp32.

A ceiling is the fastest sample of the best size: whatever else runs on a machine only ever delays, and the time of a
case is that of its fastest samples, too (`stats.round_value`), so that both are told by the same measure.

A step takes at least max(Σ FLOPs of an operation in a dtype / its ceiling, least bytes / bandwidth): a device does one
operation after the other. FLOPs are those that no kernel can leave out, bytes those that any step must move
(`records.measured.MemoryPass`), at the bandwidth of the cache that they fit (`bandwidth_of`).

What vendors promise are peak rates of dense matrices: where a datasheet has only those with structured sparsity, half
of these (as its own footnote says). fp32 is without tensor cores, fp16 accumulates in fp32. What could not be checked
against pages that quote the vendor's figures is left out, as are CPUs' rates, of which vendors state none.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import structs

from ampbench.core.statement import Severity, Statement, state
from ampbench.core.units import counted, format_bandwidth, format_flop_rate
from ampbench.errors import NothingToRunError, UnknownNameError
from ampbench.records.bounds import Count, Seconds, StepSeconds, one_of
from ampbench.records.case import DeviceDescription, Environment
from ampbench.records.kinds import CEILINGS
from ampbench.records.labels import arithmetic, few
from ampbench.records.measured import ATTENTION, CONV, MATMUL, MULTIPLYING, Failure, Fitness, MemoryPass
from ampbench.records.run import Header, Selection
from ampbench.records.wire import Task
from ampbench.show.charts import Drawing, Rows, series_encoded, tooltip
from ampbench.show.document import Column
from ampbench.show.page import place_of
from ampbench.studies.paired import unfit
from ampbench.studies.study import Given, Option, Session, Study, Table, View

if TYPE_CHECKING:
    from ampbench.drive.pieces import Piece
    from ampbench.drive.servers import Channel
    from ampbench.show.studies import Subject
    from ampbench.store import StoredRun

COPY, READ = MOVING = "copy", "read"
OPERATIONS = (*MULTIPLYING, *MOVING)
"""What ceilings are measured with: those that multiply in FLOP/s, the others in bytes per second, read and written."""

FP32, TF32 = "fp32", "tf32"
"""Dtypes of ceilings that share a torch dtype: torch.float32, without and with tf32 allowed."""
DTYPES = (FP32, TF32, "bf16", "fp16", "fp64")
"""What ceilings are measured in, in the order of every table."""


class Attained(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What one `size` ("1024x1024x1024") attained: `work` FLOPs or bytes in each of `samples` seconds."""

    size: str
    work: Count
    samples: list[StepSeconds]


class Ceiling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a device attains with one `operation`, one of `OPERATIONS`, in one dtype ("bf16"; "tf32"), over sizes.

    `run` is the id of the run that measured it, where another has taken it over, else "". `threads` are torch's.
    `error` says why there is nothing attained.
    """

    device: str
    operation: Annotated[str, one_of(*OPERATIONS)]
    dtype: Annotated[str, one_of(*DTYPES)]
    threads: Count
    attained: list[Attained] = []
    run: str = ""
    error: str = ""
    fitness: Fitness = Fitness()
    notes: list[str] = []


class CeilingAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a device attains with an `operation` in a `dtype`, as in `Ceiling`, measured for about `seconds`."""

    operation: str
    dtype: str
    seconds: Seconds


class CeilingsAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To measure each of the `operations` in each of the `dtypes` (none: all that a device has) for about `seconds`."""

    seconds: Seconds = 2.0
    operations: list[str] = []
    dtypes: list[str] = []


BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


def rate(attained: Attained) -> float | None:
    """Return FLOP/s or bytes per second of one size: its work in the time of its fastest sample."""
    fastest = min(attained.samples, default=0.0)
    return attained.work / fastest if fastest > 0 else None


def top(found: Ceiling) -> Attained | None:
    """Return the size that a ceiling stands for; None where nothing was attained.

    For what multiplies that is the fastest; for copies and reads the largest, as only it is sure to go to main memory:
    smaller ones run at the speed of a cache.
    """
    if found.operation in MOVING:
        return max(found.attained, key=lambda one: one.work, default=None)
    return max(found.attained, key=lambda one: rate(one) or 0.0, default=None)


def ceiling_rate(found: Ceiling) -> float | None:
    """Return FLOP/s or bytes per second of the size that a ceiling stands for; None where nothing was attained."""
    attained = top(found)
    return None if attained is None else rate(attained)


def best(ceilings: Iterable[Ceiling], device: str, dtype: str, operation: str | None = None) -> float | None:
    """Return the most FLOP/s that a type of device attains in `dtype`, in matrix products or convolutions.

    Only in `operation`, where it is given. None where nothing was attained.
    """
    wanted = (MATMUL, CONV) if operation is None else (operation,)
    able = [one for one in ceilings if (one.device, one.dtype) == (device, dtype) and one.operation in wanted]
    return max(filter(None, map(ceiling_rate, able)), default=None)


def bandwidth(ceilings: Iterable[Ceiling], device: str, dtype: str | None = None) -> float | None:
    """Return the most bytes per second that copies in main memory moved, in `dtype` or whichever is fastest.

    None where that was not measured.
    """
    copies = [one for one in ceilings if (one.device, one.operation) == (device, COPY) and dtype in (None, one.dtype)]
    return max(filter(None, map(ceiling_rate, copies)), default=None)


def bandwidth_of(ceilings: Iterable[Ceiling], device: str, moved: int) -> float | None:
    """Return the most bytes per second at which a step that moves `moved` bytes can do so, in whichever cache they fit.

    That is the highest of all copies and reads that touched as many bytes or more, beginning with the largest one that
    touched no more than it: what fits a cache runs at that cache's speed, and a larger working set is no faster. None
    where no read was measured, as a copy counts less than it moves where a line is read before it is overwritten, and
    where the smallest touched more.
    """
    own = [one for one in ceilings if one.device == device and one.operation in MOVING]
    if not any(one.operation == READ and one.attained for one in own):
        return None
    points = [(each.work, reached) for one in own for each in one.attained if (reached := rate(each))]
    within = [work for work, _ in points if work <= moved]
    return max(reached for work, reached in points if work >= max(within)) if within else None


def copy_ratio(ceilings: Sequence[Ceiling], device: str, dtype: str) -> float | None:
    """Return how long copying as many values takes in `dtype`, over the time it takes in fp32; None: not known."""
    here, full = bandwidth(ceilings, device, dtype), bandwidth(ceilings, device, FP32)
    return (BYTES[dtype] / here) / (BYTES[FP32] / full) if here and full else None


TERA, GIGA = 1e12, 1e9


class Datasheet(NamedTuple):
    """What the vendor's `source` says of devices with a name that `pattern` is found in.

    Rates are in TFLOP/s by dtype, None where the device does not have it or it is not known; `memory` is in GB/s.
    """

    name: str
    pattern: str
    fp32: float | None
    tf32: float | None
    bf16: float | None
    fp16: float | None
    memory: float
    source: str

    @property
    def flops(self) -> dict[str, float]:
        """FLOP/s by dtype, of those that are known."""
        rates = {"fp32": self.fp32, "tf32": self.tf32, "bf16": self.bf16, "fp16": self.fp16}
        return {dtype: rate * TERA for dtype, rate in rates.items() if rate is not None}

    @property
    def bandwidth(self) -> float:
        """Bytes per second of the memory."""
        return self.memory * GIGA


_A100 = "NVIDIA A100 Tensor Core GPU datasheet, specifications"
_SPARSE = "(half of the rates with sparsity)"
_H100 = f"NVIDIA H100 Tensor Core GPU datasheet, specifications {_SPARSE}"
_H200 = f"NVIDIA H200 Tensor Core GPU datasheet, specifications {_SPARSE}"
_MAX = (
    "Intel ARK 232873 (3276.8 GB/s) and TACC's Stampede3 user guide (52 and 832 TFLOP/s a card), halved: drivers show "
    "each of the two stacks as a device (ZE_FLAT_DEVICE_HIERARCHY=FLAT, the default)"
)
DATASHEETS = tuple(Datasheet(*row) for row in (
    ("V100 SXM2", r"V100-SXM2", 15.7, None, None, 125, 900, "NVIDIA Tesla V100 datasheet, specifications"),
    ("T4", r"\bT4$", 8.1, None, None, 65, 320, "NVIDIA T4 datasheet, specifications"),
    ("A10", r"\bA10$", 31.2, None, 125, 125, 600, "NVIDIA A10 Tensor Core GPU datasheet, specifications"),
    ("A100 SXM 40 GB", r"A100-SXM4-40GB$", 19.5, 156, 312, 312, 1555, _A100),
    ("A100 SXM 80 GB", r"A100-SXM4-80GB$", 19.5, 156, 312, 312, 2039, _A100),
    ("A100 PCIe 40 GB", r"A100-PCIE-40GB$", 19.5, 156, 312, 312, 1555, _A100),
    ("A100 PCIe 80 GB", r"A100 80GB PCIe$", 19.5, 156, 312, 312, 1935, _A100),
    ("L4", r"\bL4$", 30.3, 60, 121, 121, 300, f"NVIDIA L4 Tensor Core GPU datasheet, specifications {_SPARSE}"),
    ("L40S", r"\bL40S$", 91.6, 183, 362.05, 362.05, 864, "NVIDIA L40S datasheet, technical specifications"),
    ("RTX 3090", r"RTX 3090$", 35.6, None, 71, 71, 936, "NVIDIA Ampere GA102 GPU Architecture whitepaper, appendix A"),
    ("RTX 4090", r"RTX 4090$", 82.6, 82.6, 165.2, 165.2, 1008,
     "NVIDIA Ada GPU Architecture whitepaper, appendix A"),
    ("H100 SXM", r"H100 80GB HBM3$", 67, 494.5, 989.5, 989.5, 3350, _H100),
    ("H100 PCIe", r"H100 PCIe$", 51, 378, 756.5, 756.5, 2000, _H100),
    ("H100 NVL", r"H100 NVL$", None, None, 835.5, 835.5, 3900, f"{_H100}, column of NVL"),
    ("H200 SXM", r"\bH200$", 67, 494.5, 989.5, 989.5, 4800, _H200),
    ("B200 HGX", r"\bB200$", 75, 1100, 2250, 2250, 7700,
     f"NVIDIA HGX B200 datasheet, individual Blackwell GPU specifications {_SPARSE}"),
    ("H200 NVL", r"H200 NVL$", None, None, None, None, 4800, f"{_H200}, column of NVL: only its memory was checked"),
    ("RTX 5090", r"RTX 5090$", None, None, None, None, 1792,
     "NVIDIA RTX Blackwell GPU Architecture whitepaper: only its memory was checked"),
    ("Max 1550, one stack", r"Data Center GPU Max 1550$", 26, None, 416, 416, 1638.4, _MAX),
))  # fmt: skip
"""The devices whose datasheets are known; `torch.cuda.get_device_name` and torch's of XPUs have the names."""


def datasheet_of(name: str) -> Datasheet | None:
    """Return the datasheet of a device by the name that its driver gives; None where none is known."""
    return next((row for row in DATASHEETS if re.search(row.pattern, name.strip())), None)


class Instruction(NamedTuple):
    """What a CPU with the flag `flag` multiplies: up to `times` the multiply-adds of its instructions for fp32.

    That is for each instruction, of tiles for each cycle, as `source` says.
    """

    name: str
    flag: str
    dtype: str
    times: float
    source: str


_SDM = "Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2"
_AMX = (
    "Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter on AMX: 1024 operations of bf16 a cycle "
    "and core, beside 64 of fp32 by two units of AVX-512"
)
INSTRUCTIONS = (
    Instruction("AMX-BF16", "amx_bf16", "bf16", 16, _AMX),
    Instruction("AMX-FP16", "amx_fp16", "fp16", 16, f"{_AMX}; tiles of fp16 are as large"),
    Instruction("AVX512-BF16", "avx512_bf16", "bf16", 2,
                f"{_SDM}, VDPBF16PS: 32 products a register of 512 bits, VFMADD231PS: 16"),
    Instruction("AVX512-FP16", "avx512_fp16", "fp16", 2,
                f"{_SDM}, VFMADD231PH: 32 products a register of 512 bits, VFMADD231PS: 16"),
)  # fmt: skip
"""Instructions of CPUs that multiply in half precision, the fastest of each dtype first.

How many a cycle a CPU does of them is another matter, and no promise: a core may have one unit for these and two for
fp32.
"""


def instruction_of(flags: Collection[str], dtype: str) -> Instruction | None:
    """Return the fastest instruction that a CPU with these flags has for `dtype`; None: none is known."""
    return next((row for row in INSTRUCTIONS if row.dtype == dtype and row.flag in flags), None)


def share(found: Ceiling, promised: Datasheet | None) -> float | None:
    """Return the share of the datasheet's peak that a ceiling attained; None where one of the two is not known."""
    if promised is None:
        return None
    peak = promised.bandwidth if found.operation in MOVING else promised.flops.get(found.dtype)
    reached = ceiling_rate(found)
    return reached / peak if peak and reached else None


_FLAGS = "instructions"


def described(environment: Environment, type: str) -> DeviceDescription:
    """Return what is known of a type of device; without an environment that knows it, its type alone.

    A CPU's details have the flags of instructions that multiply in half precision.
    """
    device = environment.device(type) or DeviceDescription(type=type, available=False)
    flags = [row.flag for row in INSTRUCTIONS if row.flag in environment.cpu_flags]
    if type != "cpu" or not flags:
        return device
    return structs.replace(device, details=device.details | {_FLAGS: " ".join(flags)})


EMULATED, NATIVE = 0.5, 1.0
"""Less than the first of fp32's best rate shows that a dtype is emulated, and the second that it is not.

Hardware that multiplies in half does no fewer operations at a time than in fp32; what converts to fp32 and back around
each does far fewer. Between the two a rate decides nothing.
"""


def shown(device: DeviceDescription, ceilings: Iterable[Ceiling]) -> DeviceDescription:
    """Return `device` with the arithmetic that its ceilings show; where these decide nothing, as it describes itself.

    What others on the machine may have slowed shows nothing.
    """
    quiet = [one for one in ceilings if disturbance(one) is None]
    full = best(quiet, device.type, FP32)
    kinds = dict(arithmetic(device))
    for dtype in HALVES:
        half = best(quiet, device.type, dtype)
        if full and half and (half < EMULATED * full or half >= NATIVE * full):
            kinds[dtype] = "emulated" if half < EMULATED * full else "native"
    return structs.replace(device, arithmetic=kinds)


HALVES = ("bf16", "fp16")
REACHED = 0.9
"""A promise of throughput is held from this share of it."""
HALVED = 0.55
"""Copying as many values in at most this share of fp32's time counts as traffic halved."""


def disturbance(found: Ceiling) -> float | None:
    """Return the share of CPU time that others took while a ceiling was measured, if it is enough to spoil that."""
    seen = found.fitness
    return max(seen.other_share or 0.0, seen.steal_share or 0.0) if unfit(seen) else None


class Attains(StrEnum):
    """What the ceilings of a device say of half precision against fp32, and whether they can be trusted."""

    RATIO = "ceiling-ratio"
    """How many times fp32's FLOP/s a dtype attains: nothing is promised, or other work may have spoilt it."""
    HELD = "ceiling-held"
    MISSED = "ceiling-missed"
    TRAFFIC_HALVED = "ceiling-traffic-halved"
    TRAFFIC_NOT_HALVED = "ceiling-traffic-not-halved"
    DISTURBED = "ceiling-disturbed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What a device of a machine attains: of several ceilings of one operation and dtype the highest.

    Whatever else runs only delays.
    """

    name: str
    device: DeviceDescription
    ceilings: Sequence[Ceiling]


def conclusions(_: None, found: Ceilings) -> Iterator[Statement]:
    """Yield what is promised of each dtype and whether it holds, and what other work spoilt."""
    own, device = found.ceilings, shown(found.device, found.ceilings)
    for dtype in (TF32, *HALVES, "fp64"):
        yield from _of_dtype(own, device, dtype)
    disturbed = {f"{each.operation} {each.dtype}": taken for each in own if (taken := disturbance(each))}
    if disturbed:
        which = few(disturbed) if len(disturbed) < len(own) else None
        yield state(Attains.DISTURBED, "", Severity.ADVICE, share=max(disturbed.values()), which=which)


def _of_dtype(own: Sequence[Ceiling], device: DeviceDescription, dtype: str) -> Iterator[Statement]:
    """Yield whether what is promised of a dtype holds: its throughput, and in half precision the traffic halved.

    Numbers that other work on the machine may have spoilt get no verdict.
    """
    spoilt = {each.operation for each in own if each.dtype in (FP32, dtype) and disturbance(each)}
    full, low = best(own, device.type, FP32), best(own, device.type, dtype)
    if full and low:
        promise, by = _promised(device, dtype)
        emulated = int(device.arithmetic.get(dtype) == "emulated") or None
        held = Attains.HELD if low >= REACHED * (promise or 0.0) * full else Attains.MISSED
        code = held if promise is not None and not spoilt.difference(MOVING) else Attains.RATIO
        yield state(code, dtype, Severity.INFO, ratio=low / full, promise=promise, by=by, emulated=emulated)
    moved = copy_ratio(own, device.type, dtype) if dtype in HALVES and COPY not in spoilt else None
    if moved is not None:
        code = Attains.TRAFFIC_HALVED if moved <= HALVED else Attains.TRAFFIC_NOT_HALVED
        yield state(code, dtype, Severity.INFO, ratio=moved)


def _promised(device: DeviceDescription, dtype: str) -> tuple[float | None, str | None]:
    """Return how many times fp32's throughput is promised of a dtype, and by what; None where nothing is."""
    sheet = datasheet_of(device.name)
    peaks = sheet.flops if sheet is not None else {}
    if dtype in peaks and FP32 in peaks:
        return peaks[dtype] / peaks[FP32], "the datasheet"
    row = instruction_of(device.details.get(_FLAGS, "").split(), dtype) if device.type == "cpu" else None
    return (row.times, row.name) if row is not None else (None, None)


MEMORY = "memory"
BINDING = {MATMUL: "products", CONV: "convolutions", ATTENTION: "attention"}
"""What binds a step, by the operation that takes most of its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How long a step takes at least: the `seconds` of each operation and dtype, and those that its bytes take.

    `memory_seconds` is None where nothing is claimed: bytes were not counted, or bandwidth was not measured for so few.
    `lacking` are the operations and dtypes of which there is no ceiling: with any, nothing is bounded.
    """

    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    memory_seconds: float | None = None
    lacking: list[tuple[str, str]] = field(default_factory=list)

    @property
    def least(self) -> float | None:
        """The least seconds of a step; None where they are not known."""
        if self.lacking:
            return None
        return max(sum(self.seconds.values()), self.memory_seconds or 0.0) or None

    @property
    def binds(self) -> str | None:
        """What binds, in a word: memory, or the operation that takes most of the arithmetic's time."""
        least = self.least
        if least is None:
            return None
        if self.memory_seconds is not None and self.memory_seconds >= least:
            return MEMORY
        by_operation: dict[str, float] = {}
        for (operation, _), seconds in self.seconds.items():
            by_operation[operation] = by_operation.get(operation, 0.0) + seconds
        return BINDING[max(by_operation, key=lambda operation: by_operation[operation])]


class Bounds:
    """The bounds of the cases of a run, of its `ceilings`: each is looked up once."""

    def __init__(self, ceilings: Iterable[Ceiling]):
        self._ceilings = list(ceilings)
        self._best = cache(partial(best, self._ceilings))

    def of(self, memory: MemoryPass | None, device: str) -> Bound:
        """Return what bounds a step of which `memory` was measured on a type of device; nothing without work."""
        if memory is None or memory.flops_by_operation is None:
            return Bound()
        flops = {
            (operation, dtype): count
            for operation, counts in memory.flops_by_operation.items()
            for dtype, count in counts.items()
        }
        rates = {(operation, dtype): self._best(device, dtype, operation) for operation, dtype in flops}
        moved = memory.least_bytes
        bandwidth = bandwidth_of(self._ceilings, device, moved) if moved else None
        return Bound(
            seconds={what: flops[what] / rate for what, rate in rates.items() if rate},
            memory_seconds=moved / bandwidth if moved and bandwidth else None,
            lacking=[what for what, rate in rates.items() if not rate],
        )


class Size(NamedTuple):
    """A size of a ceiling, None where there is none; `best` is the one that the ceiling stands for.

    Of that, `to_fp32` is how many times fp32's rate it attained, and `share` how much of the vendor's peak.
    """

    found: Ceiling
    size: Attained | None
    best: bool
    arithmetic: str
    to_fp32: float | None
    share: float | None

    @property
    def rate(self) -> float | None:
        """What it attained."""
        return None if self.size is None else rate(self.size)


def sizes(found: Ceilings) -> list[Size]:
    """Return a row for each size that was measured, and one for each operation and dtype without any."""
    kinds = shown(found.device, found.ceilings).arithmetic
    promised = datasheet_of(found.device.name)
    full = {each.operation: ceiling_rate(each) for each in found.ceilings if each.dtype == FP32}
    rows = []
    for each in found.ceilings:
        counts, reached, fp32 = top(each), ceiling_rate(each), full.get(each.operation)
        arithmetic = kinds.get(each.dtype, "") if each.operation not in MOVING else ""
        told = {"to_fp32": reached / fp32 if reached and fp32 else None, "share": share(each, promised)}
        for size in each.attained or (None,):
            own = told if size is counts else dict.fromkeys(told)
            rows.append(Size(each, size, best=size is counts, arithmetic=arithmetic, **own))
    return rows


def _rate_text(row: Size) -> str:
    return format_bandwidth(row.rate) if row.found.operation in MOVING else format_flop_rate(row.rate)


COLUMNS: Sequence[Column[Size]] = (
    Column("device", lambda row: row.found.device),
    Column("operation", lambda row: row.found.operation, "operation"),
    Column("dtype", lambda row: row.found.dtype, "dtype"),
    Column("threads", lambda row: row.found.threads),
    Column("arithmetic", lambda row: row.arithmetic, "arithmetic", rare=True),
    Column("size", lambda row: row.size and row.size.size, "size"),
    Column("per_second", lambda row: row.rate, "attained", "FLOP/s", _rate_text),
    Column("to_fp32", lambda row: row.to_fp32, "to fp32", "ratio"),
    Column("datasheet_share", lambda row: row.share, "of peak", "share", rare=True),
    Column("ceiling", lambda row: row.best),
    Column("reason", lambda row: row.found.error or None, "reason", rare=True),
)


_LOOKS: Mapping[str, tuple[str, str]] = {
    "fp32": ("--fp32", "circle"),
    "tf32": ("--tf32", "cross"),
    "bf16": ("--bf16_autocast", "triangle-up"),
    "fp16": ("--fp16_autocast", "square"),
    "fp64": ("--dtype-fp64", "triangle-left"),
}
"""Colour and shape of each dtype: those of the precision that is named after it."""
NAMES = dict(zip(OPERATIONS, ("matrix products", "convolutions", "attention", "copies", "reads"), strict=True))


def _rows(device: "Subject[Ceilings]") -> dict[str, list[dict[str, Any]]]:
    """Return for each operation a row for each size of each dtype."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES.values()}
    for row in sorted((row for row in sizes(device.found) if row.size and row.rate), key=_work):
        size = row.size.size if row.size else ""
        kind = size.partition(" ")[0] if size[:1].isalpha() else ""
        drawn = {"series": row.found.dtype, "work": _work(row), "rate": row.rate, "said": _rate_text(row)}
        rows[NAMES[row.found.operation]].append({**drawn, "size": size, "kind": kind})
    return rows


def _work(row: Size) -> int:
    return row.size.work if row.size else 0


def _spec(rows: Rows) -> dict[str, Any]:
    looks = series_encoded([dtype for dtype in _LOOKS if any(row["series"] == dtype for row in rows)], _LOOKS)
    scale = {"type": "log", "padding": 12, "nice": False}
    axis = {"format": "~s", "tickCount": 5, "labelSeparation": 8}
    x = {"field": "work", "type": "quantitative", "title": "FLOP or bytes of one run (log scale)", "scale": scale}
    x["axis"] = axis
    y = {**x, "field": "rate", "title": "per second (log scale)"}
    told = tooltip(series="dtype", size="size", said="attained")
    points = {"type": "point", "size": 60, "opacity": 1}
    lines = {"x": x, "y": y, "color": looks["color"], "detail": {"field": "kind", "type": "nominal"}}
    return {
        "layer": [
            {"mark": points, "encoding": {"x": x, "y": y, **looks, "tooltip": told}},
            {"mark": {"type": "line", "strokeWidth": 1.5}, "encoding": lines},
        ]
    }


def device_ceilings(runs: "Iterable[StoredRun]") -> list[Ceilings]:
    """Return the devices with their ceilings that `runs` know, the oldest first; a CPU for each number of threads."""
    highest: dict[tuple[str, str, str, int | None], dict[tuple[str, str], Ceiling]] = {}
    devices: dict[tuple[str, str, str, int | None], DeviceDescription] = {}
    for run in runs:
        for one in run.every(Ceiling):
            key = (*place_of(run), one.device, one.threads if one.device == "cpu" else None)
            devices[key] = described(run.header.environment, one.device)
            own = highest.setdefault(key, {})
            known = own.get((one.operation, one.dtype))
            if known is None or (ceiling_rate(one) or 0.0) >= (ceiling_rate(known) or 0.0):
                own[one.operation, one.dtype] = one
    places = len({key[:2] for key in highest})
    counts = Counter(key[:3] for key in highest)
    found = []
    for key, own in highest.items():
        host, version, device, threads = key
        name = f"{device} of {host}, torch {version}" if places > 1 else device
        name += f", {counted(threads, 'thread')}" if counts[key[:3]] > 1 and threads is not None else ""
        ordered = sorted(own.values(), key=lambda one: (OPERATIONS.index(one.operation), DTYPES.index(one.dtype)))
        found.append(Ceilings(name=name, device=devices[key], ceilings=ordered))
    return found


def _heading(found: Ceilings) -> str:
    threads = [counted(each, "thread") for each in dict.fromkeys(each.threads for each in found.ceilings)]
    named = [found.device.type, found.device.name, ", ".join(threads) if found.device.type == "cpu" else ""]
    return " · ".join(filter(None, named))


TASK = Task(CEILINGS, CeilingAsked, Ceiling, "ampbench.studies.ceilings_measure:do_ceiling")
DEFAULT_DTYPES = tuple(dtype for dtype in DTYPES if dtype != "fp64")
"""What is measured where no dtype is asked for, if the device has it."""


class Wanted(NamedTuple):
    """One ceiling to measure."""

    device: str
    operation: str
    dtype: str

    @property
    def named(self) -> str:
        """What it is, in three words: "matmul bf16 cpu"."""
        return f"{self.operation} {self.dtype} {self.device}"


def _chosen(what: str, given: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the names given, each once; `UnknownNameError` for one that is not known."""
    for name in given:
        if name not in known:
            raise UnknownNameError(what, name, known)
    return list(dict.fromkeys(given))


def _devices(environment: Environment, names: Sequence[str]) -> list[DeviceDescription]:
    """Return the devices of these names, or the accelerator, else the CPU."""
    from ampbench.drive.planning import default_device

    chosen = dict.fromkeys(names or [default_device(environment)])
    unknown = partial(DeviceDescription, available=False, reason="unknown to torch")
    return [environment.device(name) or unknown(type=name) for name in chosen]


def wanted_of(environment: Environment, devices: Sequence[str], asked: CeilingsAsked) -> list[Wanted]:
    """Return the ceilings that are asked for and that the devices have.

    Copies in tf32 are those in fp32, and all that only reads is measured in fp32.
    """
    return [
        Wanted(device.type, operation, dtype)
        for device in _devices(environment, devices)
        for operation in asked.operations or OPERATIONS
        for dtype in asked.dtypes or DEFAULT_DTYPES
        if not _lacking(device, dtype) and (operation, dtype) != (COPY, TF32) and (operation != READ or dtype == FP32)
    ]


def unfinished(stored: "StoredRun") -> list[Wanted]:
    """Return the ceilings that a run was asked for and says nothing of; one with an error is not tried again."""
    done = {(found.device, found.operation, found.dtype) for found in stored.every(Ceiling)}
    header = stored.header
    wanted = wanted_of(header.environment, header.selection.devices, stored.asked or CeilingsAsked())
    return [each for each in wanted if each not in done]


def _lacking(device: DeviceDescription, dtype: str) -> str:
    """Return why a device cannot be measured in `dtype`, or nothing."""
    if not device.available:
        return f"{device.type} is not available: {device.reason}"
    if dtype == TF32 and not device.tf32:
        return f"{device.type} has no tf32"
    if device.arithmetic.get(dtype) == "unavailable" or (dtype == "fp64" and not device.float64):
        return f"{device.type} does not support {dtype}"
    return ""


def _require(selection: Selection, asked: CeilingsAsked, environment: Environment) -> None:
    """Raise `NothingToRunError`, with the reasons, where something that is named cannot be measured."""
    named = asked.dtypes or [FP32]
    lacking = [_lacking(device, dtype) for device in _devices(environment, selection.devices) for dtype in named]
    why = list(filter(None, dict.fromkeys(lacking)))
    if not why and not wanted_of(environment, selection.devices, asked):
        why = [f"what is only copied or read is measured in {FP32}"]
    if why:
        raise NothingToRunError(f"no ceiling can be measured here: {few(why, len(why))}")


def _pieces(session: Session[CeilingsAsked]) -> "list[Piece]":
    from ampbench.drive.pieces import Piece

    prepared, begun = session.prepared, session.begun
    all_of_it = partial(wanted_of, prepared.environment, prepared.selection.devices, session.asked)
    return [Piece(each.named, each) for each in (all_of_it() if begun is None else unfinished(begun))]


def _measure(session: Session[CeilingsAsked], channel: "Channel", piece: "Piece") -> Ceiling:
    """Return a ceiling; one without anything attained has the reason, as where no worker lived to answer."""
    from ampbench.studies.work import ask_device

    settings, wanted = session.prepared.settings, piece.part
    asked = CeilingAsked(operation=wanted.operation, dtype=wanted.dtype, seconds=session.asked.seconds)
    found = ask_device(channel, wanted.device, settings, TASK, asked)
    if isinstance(found, Ceiling):
        return found
    return Ceiling(
        device=wanted.device,
        operation=wanted.operation,
        dtype=wanted.dtype,
        threads=settings.threads or session.prepared.environment.threads or 0,
        error=found.said if isinstance(found, Failure) else found,
    )


_SAME = ("host", "cpu", "torch_version", "cuda_version", "xpu_version")


def ceilings_known(results: Path | str, here: Environment) -> list[Ceiling]:
    """Return the highest ceiling of each device, operation and dtype in a results folder that holds `here`.

    Whatever else runs on a machine only delays: the highest is the nearest to what it can do. All were measured on the
    same host, CPU or accelerator, with the same torch, and on a CPU with as many threads. Of copies that is one of the
    largest size, as smaller ones may be a cache's. Each names its run, of equals the newest; damaged runs have none.
    One that other work may have lowered is none: shares of it would be too high.
    """
    from ampbench import store

    def is_its(header: Header) -> bool:
        there = header.environment
        return header.explains == CEILINGS and all(getattr(there, name) == getattr(here, name) for name in _SAME)

    found: dict[tuple[str, str, str], tuple[tuple[int, float], Ceiling]] = {}
    for stored in store.runs_with(reversed(store.list_runs(results)), is_its):
        for one in stored.every(Ceiling):
            there, now = stored.header.environment.device(one.device), here.device(one.device)
            same = there is not None and now is not None and there.name == now.name
            attained = top(one)
            if not same or attained is None or disturbance(one) is not None:
                continue
            if one.device == "cpu" and one.threads != here.threads:
                continue
            key = one.device, one.operation, one.dtype
            height = attained.work if one.operation in MOVING else 0, ceiling_rate(one) or 0.0
            if key not in found or height > found[key][0]:
                found[key] = height, structs.replace(one, run=stored.header.run)
    return [one for _, one in found.values()]


def _made(given: Given) -> CeilingsAsked:
    return CeilingsAsked(
        seconds=given.values["seconds"],
        operations=_chosen("operation", given.values["operation"], OPERATIONS),
        dtypes=_chosen("dtype", given.values["dtype"], DTYPES),
    )


STUDY: Study[CeilingsAsked, Ceilings] = Study(
    kind=CEILINGS,
    help="""\
Measure what a device attains at best: FLOP/s of products, convolutions and attention, memory bandwidth.

In each dtype, over sizes from small to large, on random values. Says what half precision brings at most on this
machine and, where the device's datasheet is known, what share of its peaks is reached. The run is stored: ampbench
show RUN prints it again, with --all every size.

\b
Examples:
  ampbench study ceilings
  ampbench study ceilings --device cpu --threads 1 --dtype fp32 --dtype bf16
  ampbench study ceilings --operation copy --seconds 500ms --all
""",
    doing="measuring",
    asked=CeilingsAsked,
    record=Ceiling,
    task=TASK,
    options=(
        Option(name="operation", default=None, names=True, help="matmul, conv, attention, copy or read. Default: all."),
        Option(
            name="dtype",
            default=None,
            names=True,
            help="fp32, tf32, bf16, fp16 or fp64. Default: all the device has, but fp64.",
        ),
        Option(name="seconds", default="2", seconds=True, help="Timing of each operation in each dtype"),
    ),
    made=_made,
    require=_require,
    pieces=_pieces,
    left=lambda stored: [each.named for each in unfinished(stored)],
    work=lambda session: partial(_measure, session),
    failed=lambda stored: sum(bool(found.error) for found in stored.every(Ceiling)),
    title="Ceilings",
    caption="What each device attains at best",
    key="ceilings",
    subject="device",
    subjects=lambda runs, _: device_ceilings(runs),
    heading=_heading,
    tables=(
        Table(
            key="sizes",
            columns=COLUMNS,
            rows=sizes,
            views=[
                View(
                    title="Attained at best",
                    keys="operation dtype arithmetic size per_second to_fp32 datasheet_share reason",
                    note="of copies and reads, the largest, in main memory; of peak: of the vendor's datasheet",
                    only=lambda row: row.best,
                ),
                View(title="Every size", keys="operation dtype size per_second", shown=0, folded=True),
            ],
        ),
    ),
    conclusions=conclusions,
    charts=(
        Drawing(
            name="studies-ceilings",
            title="What the device attains by dtype and size",
            alt="Each point is one size at its fastest. Small copies run in a cache; the largest shows main memory.",
            rows=_rows,
            spec=_spec,
        ),
    ),
)
