"""Ceilings: what a device attains at best, beside what is promised of it, and in half precision against fp32.

A ceiling is the fastest sample of the best size: whatever else runs on a machine only ever delays, and the time of a
case is that of its fastest samples, too (`stats.round_value`), so that both are told by the same measure.

A step takes at least max(Σ FLOPs of an operation in a dtype / its ceiling, least bytes / bandwidth): a device does one
operation after the other. FLOPs are those that no kernel can leave out, bytes those that any step must move
(`records.measured.MemoryPass`), at the bandwidth of the cache that they fit (`bandwidth_of`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import structs

from ampbench.core.precisions import SHORT_DTYPES
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
from ampbench.studies.datasheets import INSTRUCTIONS, Datasheet, datasheet_of, instruction_of
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


class Attained(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What one `size` ("1024x1024x1024") attained: `work` FLOPs or bytes in each of `samples` seconds.

    `library` multiplied ("MKL", "oneDNN"), where that is known; "" elsewhere.
    """

    size: str
    work: Count
    samples: list[StepSeconds]
    library: str = ""


class Ceiling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a device attains with one `operation`, one of `OPERATIONS`, in one dtype ("bf16"; "tf32"), over sizes.

    `run` is the id of the run that measured it, where another has taken it over, else "". `threads` are torch's.
    `error` says why there is nothing attained.
    """

    device: str
    operation: Annotated[str, one_of(*OPERATIONS)]
    dtype: str
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


DTYPES = (FP32, TF32, "bf16", "fp16", "fp64")
"""What ceilings are measured in, in the order of every table."""
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


def highest(ceilings: Iterable[Ceiling], device: str, dtype: str, operation: str | None = None) -> Ceiling | None:
    """Return the ceiling of most FLOP/s that a type of device has in `dtype`, of matrix products or convolutions.

    Only of `operation`, where it is given. None where nothing was attained.
    """
    wanted = (MATMUL, CONV) if operation is None else (operation,)
    able = [one for one in ceilings if (one.device, one.dtype) == (device, dtype) and one.operation in wanted]
    return max((one for one in able if ceiling_rate(one)), key=lambda one: ceiling_rate(one) or 0.0, default=None)


def best(ceilings: Iterable[Ceiling], device: str, dtype: str, operation: str | None = None) -> float | None:
    """Return the FLOP/s of the `highest` ceiling; None where there is none."""
    found = highest(ceilings, device, dtype, operation)
    return None if found is None else ceiling_rate(found)


def bandwidth(
    ceilings: Iterable[Ceiling], device: str, dtype: str | None = None, operation: str = COPY
) -> float | None:
    """Return the most bytes per second that copies (or reads) in main memory moved, in `dtype` or whichever is fastest.

    None where that was not measured.
    """
    copies = [
        one for one in ceilings if (one.device, one.operation) == (device, operation) and dtype in (None, one.dtype)
    ]
    return max((value for one in copies if (value := ceiling_rate(one)) is not None), default=None)


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


def by_library(ceilings: Iterable[Ceiling], device: str, dtype: str) -> dict[str, float]:
    """Return the most FLOP/s of matrix products by the library that multiplied, the one that torch takes first."""
    found: dict[str, float] = {}
    for one in ceilings:
        if (one.device, one.operation, one.dtype) == (device, MATMUL, dtype):
            for each in one.attained:
                if each.library and (reached := rate(each)):
                    found[each.library] = max(found.get(each.library, 0.0), reached)
    return found


def copy_ratio(ceilings: Sequence[Ceiling], device: str, dtype: str) -> float | None:
    """Return how long copying as many values takes in `dtype`, over the time it takes in fp32; None: not known."""
    here, full = bandwidth(ceilings, device, dtype), bandwidth(ceilings, device, FP32)
    return (BYTES[dtype] / here) / (BYTES[FP32] / full) if here and full else None


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


def ordered(ceilings: Sequence[Ceiling]) -> list[Ceiling]:
    """Return ceilings by operation and dtype, in the order of every table."""
    places = {dtype: place for place, dtype in enumerate(DTYPES)}
    return sorted(ceilings, key=lambda one: (OPERATIONS.index(one.operation), places.get(one.dtype, len(places))))


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
    """What the ceilings of a device say."""

    BEST = "ceiling-best"
    RATIO = "ceiling-ratio"
    """How many times fp32's FLOP/s a dtype attains: nothing is promised, or other work may have spoilt it."""
    HELD = "ceiling-held"
    MISSED = "ceiling-missed"
    TRAFFIC = "ceiling-traffic"
    TRAFFIC_HALVED = "ceiling-traffic-halved"
    TRAFFIC_NOT_HALVED = "ceiling-traffic-not-halved"
    LIBRARIES = "ceiling-libraries"
    LIBRARY = "ceiling-library"
    """A dtype's products run through another library than fp32's, to which some of the speed is owed."""
    MEMORY = "ceiling-memory"
    NO_DATASHEET = "ceiling-no-datasheet"
    DATASHEET = "ceiling-datasheet"
    DATASHEET_MEMORY = "ceiling-datasheet-memory"
    DATASHEET_FP8 = "ceiling-datasheet-fp8"
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
    """Yield what ceilings say: half precision against fp32, by which library, memory, the datasheet, other work."""
    own, inform = found.ceilings, partial(_inform, "")
    device = shown(found.device, own)
    full = best(own, device.type, FP32)
    if full is not None:
        yield inform(Attains.BEST, rate=full)
    for dtype in (TF32, *HALVES, "fp64"):
        yield from _of_dtype(own, device, dtype)
    yield from of_libraries(own, device.type)
    moved = {operation: bandwidth(own, device.type, operation=operation) for operation in MOVING}
    if any(value is not None for value in moved.values()):
        yield inform(Attains.MEMORY, **moved)
    yield from _of_datasheet(found.device, own)
    disturbed = {f"{each.operation} {each.dtype}": taken for each in own if (taken := disturbance(each))}
    if disturbed:
        which = few(disturbed) if len(disturbed) < len(own) else None
        yield state(Attains.DISTURBED, "", Severity.ADVICE, share=max(disturbed.values()), which=which)


def _inform(subject: str, code: Attains, **facts: float | str | None) -> Statement:
    return state(code, subject, Severity.INFO, **facts)


def _of_dtype(own: Sequence[Ceiling], device: DeviceDescription, dtype: str) -> Iterator[Statement]:
    """Yield whether what is promised of a dtype holds: its throughput, and in half precision the traffic halved.

    Numbers that other work on the machine may have spoilt are told without a verdict.
    """
    inform = partial(_inform, dtype)
    pair = [each for each in own if each.dtype in (FP32, dtype)]
    full, low = best(own, device.type, FP32), best(own, device.type, dtype)
    if full and low:
        promise, by = _promised(device, dtype)
        facts: dict[str, float | str | None] = {"ratio": low / full, "promise": promise, "by": by}
        facts["emulated"] = int(device.arithmetic.get(dtype) == "emulated") or None
        fit = promise is not None and not any(disturbance(each) for each in pair if each.operation not in MOVING)
        held = Attains.HELD if low >= REACHED * (promise or 0.0) * full else Attains.MISSED
        yield inform(held if fit else Attains.RATIO, **facts)
    moved = copy_ratio(own, device.type, dtype) if dtype in HALVES else None
    if moved is not None:
        fit = not any(disturbance(each) for each in pair if each.operation == COPY)
        verdict = Attains.TRAFFIC_HALVED if moved <= HALVED else Attains.TRAFFIC_NOT_HALVED
        yield inform(verdict if fit else Attains.TRAFFIC, ratio=moved)


def _promised(device: DeviceDescription, dtype: str) -> tuple[float | None, str | None]:
    """Return how many times fp32's throughput is promised of a dtype, and by what; None where nothing is."""
    sheet = datasheet_of(device.name)
    peaks = sheet.flops if sheet is not None else {}
    if dtype in peaks and FP32 in peaks:
        return peaks[dtype] / peaks[FP32], "the datasheet"
    row = instruction_of(device.details.get(_FLAGS, "").split(), dtype) if device.type == "cpu" else None
    return (row.times, row.name) if row is not None else (None, None)


ALIKE = 1.05
"""Libraries whose rates differ by a smaller factor multiply alike."""


def of_libraries(ceilings: Iterable[Ceiling], device: str) -> Iterator[Statement]:
    """Yield what of half precision's speed is owed to another library than the one that torch multiplies fp32 in."""
    own = [each for each in ceilings if disturbance(each) is None]
    full = by_library(own, device, FP32)
    if len(full) < 2:
        return
    taken, reached = next(iter(full.items()))
    other, elsewhere = max(((name, value) for name, value in full.items() if name != taken), key=lambda pair: pair[1])
    yield _inform("", Attains.LIBRARIES, taken=taken, rate=reached, other=other, other_rate=elsewhere)
    for dtype in HALVES:
        for library, half in by_library(own, device, dtype).items():
            same = full.get(library)
            if library != taken and same is not None:
                facts: dict[str, float | str | None] = {"library": library, "taken": taken}
                facts |= {"ratio": half / reached, "own": half / same}
                facts["owed"] = same / reached if same >= ALIKE * reached else None
                yield _inform(dtype, Attains.LIBRARY, **facts)


def _of_datasheet(device: DeviceDescription, own: Sequence[Ceiling]) -> Iterator[Statement]:
    promised = datasheet_of(device.name)
    if promised is None:
        yield _inform("", Attains.NO_DATASHEET, device=device.name or device.type)
        return
    inform = partial(_inform, f"datasheet of {promised.name}")
    told = False
    for dtype in (dtype for dtype in DTYPES if dtype in promised.flops):
        reached = best(own, device.type, dtype)
        if reached is not None:
            told = True
            yield inform(
                Attains.DATASHEET, share=reached / promised.flops[dtype], peak=promised.flops[dtype], dtype=dtype
            )
    moved = bandwidth(own, device.type)
    if moved is not None:
        told = True
        yield inform(Attains.DATASHEET_MEMORY, share=moved / promised.bandwidth, peak=promised.bandwidth)
    if told and "fp8" in promised.flops:
        yield inform(Attains.DATASHEET_FP8, peak=promised.flops["fp8"])


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
    used: list[Ceiling] = field(default_factory=list)

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
        self._highest: dict[tuple[str, str, str], Ceiling | None] = {}

    def of(self, memory: MemoryPass | None, device: str) -> Bound:
        """Return what bounds a step of which `memory` was measured on a type of device; nothing without work."""
        if memory is None or memory.flops_by_operation is None:
            return Bound()
        seconds: dict[tuple[str, str], float] = {}
        lacking, used = list[tuple[str, str]](), list[Ceiling]()
        for (operation, dtype), flops in work_of(memory).items():
            found = self._ceiling(device, dtype, operation)
            rate = None if found is None else ceiling_rate(found)
            if found is None or not rate:
                lacking.append((operation, dtype))
            else:
                seconds[operation, dtype] = flops / rate
                used.append(found)
        moved = memory.least_bytes
        bandwidth = bandwidth_of(self._ceilings, device, moved) if moved else None
        return Bound(
            seconds=seconds,
            memory_seconds=moved / bandwidth if moved and bandwidth else None,
            lacking=lacking,
            used=used,
        )

    def _ceiling(self, device: str, dtype: str, operation: str) -> Ceiling | None:
        key = device, dtype, operation
        if key not in self._highest:
            self._highest[key] = highest(self._ceilings, device, dtype, operation)
        return self._highest[key]


def work_of(memory: MemoryPass) -> dict[tuple[str, str], int]:
    """Return the FLOPs that a step must do by operation and dtype."""
    by_operation = (memory.flops_by_operation or {}).items()
    return {(operation, dtype): count for operation, counts in by_operation for dtype, count in counts.items()}


class Size(NamedTuple):
    """A size of a ceiling, None where there is none, on a device."""

    device: DeviceDescription
    found: Ceiling
    size: Attained | None = None

    @property
    def rate(self) -> float | None:
        """What it attained."""
        return None if self.size is None else rate(self.size)

    @property
    def counts(self) -> bool:
        """Whether it is the size that the ceiling stands for."""
        return self.size is not None and self.size is top(self.found)

    @property
    def share(self) -> float | None:
        """The share of the vendor's peak that the size that counts attained."""
        return share(self.found, datasheet_of(self.device.name)) if self.counts else None


def _of(get: Callable[[Attained], Any]) -> Callable[[Size], Any]:
    return lambda row: None if row.size is None else get(row.size)


def _to_fp32(row: "Best") -> float | None:
    return row.rate / row.full if row.full and row.rate else None


def _rate_text(row: Size) -> str:
    return format_bandwidth(row.rate) if row.found.operation in MOVING else format_flop_rate(row.rate)


COLUMNS: Sequence[Column[Size]] = (
    Column("device", lambda row: row.found.device),
    Column("operation", lambda row: row.found.operation, "operation"),
    Column("dtype", lambda row: row.found.dtype, "dtype"),
    Column("threads", lambda row: row.found.threads),
    Column("size", _of(lambda each: each.size), "size"),
    Column("library", _of(lambda each: each.library), "library"),
    Column("work", _of(lambda each: each.work)),
    Column("unit", lambda row: "B" if row.found.operation in MOVING else "FLOP"),
    Column("samples", lambda row: len(row.size.samples) if row.size else 0, "samples", "whole"),
    Column("seconds", _of(lambda each: min(each.samples, default=None)), "fastest", "s"),
    Column("per_second", lambda row: row.rate, "attained", "FLOP/s", _rate_text),
    Column("ceiling", lambda row: row.counts),
    Column("datasheet_share", lambda row: row.share),
    Column("reason", lambda row: None if row.found.attained else row.found.error),
)
"""Of a size: the library where it is known, the work of one run and its unit, how many samples, the fastest, the rate.

`ceiling` is whether it is the size that counts, `datasheet_share` that one's share of the vendor's peak, `reason` why
there is no size.
"""


def sizes(found: Ceilings) -> list[Size]:
    """Return a row for each size that was measured, and one for each operation and dtype without any."""
    return [Size(found.device, one, size) for one in found.ceilings for size in (one.attained or (None,))]


class Best(NamedTuple):
    """What a device attains in an operation and dtype, and in fp32."""

    size: Size
    arithmetic: str
    full: float | None

    @property
    def rate(self) -> float | None:
        """What the best size attained."""
        return self.size.rate


BEST: Sequence[Column[Best]] = (
    Column("device", lambda row: row.size.found.device),
    Column("operation", lambda row: row.size.found.operation, "operation"),
    Column("dtype", lambda row: row.size.found.dtype, "dtype"),
    Column("arithmetic", lambda row: row.arithmetic, "arithmetic", rare=True),
    Column("size", lambda row: row.size.size and row.size.size.size, "best size"),
    Column("per_second", lambda row: row.rate, "attained", "FLOP/s", lambda row: _rate_text(row.size)),
    Column("to_fp32", _to_fp32, "to fp32", "ratio"),
    Column("datasheet_share", lambda row: row.size.share, "of peak", "share", rare=True),
    Column("reason", lambda row: row.size.found.error or None, "reason", rare=True),
)


def bests(found: Ceilings) -> list[Best]:
    """Return a row for each operation and dtype: the size that counts, beside fp32's."""
    kinds = shown(found.device, found.ceilings).arithmetic
    full = {each.operation: ceiling_rate(each) for each in found.ceilings if each.dtype == FP32}
    return [
        Best(
            Size(found.device, each, top(each)),
            kinds.get(each.dtype, "") if each.operation not in MOVING else "",
            full.get(each.operation),
        )
        for each in ordered(found.ceilings)
    ]


_LOOKS: Mapping[str, tuple[str, str]] = {
    "fp32": ("--fp32", "circle"),
    "tf32": ("--tf32", "cross"),
    "bf16": ("--bf16_autocast", "triangle-up"),
    "fp16": ("--fp16_autocast", "square"),
    "fp64": ("--dtype-fp64", "triangle-left"),
}
"""Colour and shape of each dtype: those of the precision that is named after it."""
NAMES = dict(zip(OPERATIONS, ("matrix products", "convolutions", "attention", "copies", "reads"), strict=True))


def _rows(device: "Subject[Ceilings]", operations: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return for each operation a row for each size of each dtype."""
    return {
        NAMES[operation]: [
            {"series": row.found.dtype, "work": row.size.work, "rate": row.rate, "said": _rate_text(row),
             "size": row.size.size, "kind": row.size.size.partition(" ")[0] if row.size.size[:1].isalpha() else ""}
            for row in sorted(sizes(device.found), key=lambda row: row.size.work if row.size else 0)
            if row.found.operation == operation and row.size and row.rate
        ]
        for operation in operations
    }  # fmt: skip


def _spec(rows: Rows, work: str, reached: str) -> dict[str, Any]:
    looks = series_encoded([dtype for dtype in _LOOKS if any(row["series"] == dtype for row in rows)], _LOOKS)
    scale = {"type": "log", "padding": 12, "nice": False}
    axis = {"format": "~s", "tickCount": 5, "labelSeparation": 8}
    x = {"field": "work", "type": "quantitative", "title": f"{work} (log scale)", "scale": scale, "axis": axis}
    y = {**x, "field": "rate", "title": f"{reached} (log scale)"}
    told = tooltip(series="dtype", size="size", said="attained")
    points = {"type": "point", "size": 60, "opacity": 1}
    detail = {"field": "kind", "type": "nominal"}
    lines = {"x": x, "y": y, "color": looks["color"], "detail": detail}
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
        found.append(Ceilings(name=name, device=devices[key], ceilings=ordered(list(own.values()))))
    return found


def _heading(found: Ceilings) -> str:
    threads = [counted(each, "thread") for each in dict.fromkeys(each.threads for each in found.ceilings)]
    named = [found.device.type, found.device.name, ", ".join(threads) if found.device.type == "cpu" else ""]
    return " · ".join(filter(None, named))


TASK = Task(CEILINGS, CeilingAsked, Ceiling, "ampbench.studies.ceilings_measure:do_ceiling")
DEFAULT_DTYPES = tuple(dtype for dtype in DTYPES if dtype != "fp64")
"""What is measured where no dtype is asked for, if the device has it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One ceiling to measure; `lacking` says why the device cannot."""

    device: str
    operation: str
    dtype: str
    lacking: str = ""

    @property
    def named(self) -> str:
        """What it is, in a word or three: "matmul bf16 cpu"."""
        return f"{self.operation} {self.dtype} {self.device}"


def chosen_operations(given: Sequence[str]) -> list[str]:
    """Return the operations named, each once, all if none is; `UnknownNameError` for another."""
    for name in given:
        if name not in OPERATIONS:
            raise UnknownNameError("operation", name, OPERATIONS)
    return list(dict.fromkeys(given or OPERATIONS))


def chosen_ceiling_dtypes(given: Sequence[str]) -> list[str]:
    """Return the dtypes named by their short or long names ("bf16", "bfloat16"), each once; none if none is.

    `UnknownNameError` for another.
    """
    names = {dtype: dtype for dtype in DTYPES} | SHORT_DTYPES
    for name in given:
        if name not in names:
            raise UnknownNameError("dtype", name, names)
    return list(dict.fromkeys(names[name] for name in given))


def wanted_of(environment: Environment, devices: Sequence[str], asked: CeilingsAsked) -> list[Wanted]:
    """Return the ceilings that are asked for, those that the devices lack among them if they were named.

    Without `devices`, those of the accelerator, else of the CPU.
    """
    from ampbench.drive.planning import default_device

    wanted = []
    for type in dict.fromkeys(devices or [default_device(environment)]):
        device = environment.device(type) or DeviceDescription(type=type, available=False, reason="unknown to torch")
        for operation in chosen_operations(asked.operations):
            for dtype in asked.dtypes or DEFAULT_DTYPES:
                lacking = _lacking(device, dtype)
                named = asked.dtypes or not device.available
                if not _same_as_fp32(operation, dtype) and (named or not lacking):
                    wanted.append(Wanted(type, operation, dtype, lacking))
    return wanted


def _same_as_fp32(operation: str, dtype: str) -> bool:
    """Return whether an operation in `dtype` says no more than in fp32: copies in tf32, and all that only reads."""
    return (operation, dtype) == (COPY, TF32) or (operation == READ and dtype != FP32)


def unfinished(stored: "StoredRun") -> list[Wanted]:
    """Return the ceilings that a run was asked for and says nothing of; one with an error is not tried again."""
    done = {(found.device, found.operation, found.dtype) for found in stored.every(Ceiling)}
    return [piece for piece in _wanted(stored) if (piece.device, piece.operation, piece.dtype) not in done]


def failed(stored: "StoredRun") -> list[Ceiling]:
    """Return the ceilings of a run that could not be measured although their device has the dtype."""
    wrong = [found for found in stored.every(Ceiling) if found.error]
    pieces = _wanted(stored) if wrong else []
    lacking = {(piece.device, piece.operation, piece.dtype) for piece in pieces if piece.lacking}
    return [found for found in wrong if (found.device, found.operation, found.dtype) not in lacking]


def _wanted(stored: "StoredRun") -> list[Wanted]:
    header = stored.header
    return wanted_of(header.environment, header.selection.devices, stored.asked or CeilingsAsked())


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
    """Raise `NothingToRunError`, with the reasons, where nothing can be measured."""
    wanted = wanted_of(environment, selection.devices, asked)
    if all(one.lacking for one in wanted):
        why = few((one.lacking for one in wanted), len(wanted)) or f"what is only copied or read is measured in {FP32}"
        raise NothingToRunError(f"no ceiling can be measured here: {why}")


def pieces(session: Session[CeilingsAsked]) -> "list[Piece]":
    """Return the ceilings to measure, or those that a run begun before lacks."""
    from ampbench.drive.pieces import Piece

    prepared = session.prepared
    found = (
        wanted_of(prepared.environment, prepared.selection.devices, session.asked)
        if session.begun is None
        else unfinished(session.begun)
    )
    return [Piece(one.named, one) for one in found]


def _measure(session: Session[CeilingsAsked], channel: "Channel", piece: "Piece") -> Ceiling:
    """Return a ceiling; one without anything attained has the reason, as where no worker lived to answer."""
    from ampbench.studies.work import ask_device

    settings, wanted = session.prepared.settings, piece.part
    asked = CeilingAsked(operation=wanted.operation, dtype=wanted.dtype, seconds=session.asked.seconds)
    found = wanted.lacking or ask_device(channel, wanted.device, settings, TASK, asked)
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
    found: dict[tuple[str, str, str], tuple[tuple[int, float], Ceiling]] = {}
    for stored in _studies(results, here):
        for one in stored.every(Ceiling):
            attained = top(one)
            if attained is None or disturbance(one) is not None or not _holds(one, stored.header, here):
                continue
            key = one.device, one.operation, one.dtype
            height = attained.work if one.operation in MOVING else 0, ceiling_rate(one) or 0.0
            if key not in found or height > found[key][0]:
                found[key] = height, structs.replace(one, run=stored.header.run)
    return [one for _, one in found.values()]


def _studies(results: Path | str, here: Environment) -> "Iterator[StoredRun]":
    """Return the stored studies of ceilings on this machine, the newest first."""

    from ampbench import store

    def is_its(header: Header) -> bool:
        there = header.environment
        return header.explains == CEILINGS and all(getattr(there, name) == getattr(here, name) for name in _SAME)

    return store.runs_with(reversed(store.list_runs(results)), is_its)


def _holds(ceiling: Ceiling, header: Header, here: Environment) -> bool:
    """Return whether a ceiling is that of the device that is here now, and on a CPU of as many threads."""
    there, now = header.environment.device(ceiling.device), here.device(ceiling.device)
    if there is None or now is None or there.name != now.name:
        return False
    return ceiling.device != "cpu" or ceiling.threads == here.threads


def _made(given: Given) -> CeilingsAsked:
    return CeilingsAsked(
        seconds=given.values["seconds"],
        operations=chosen_operations(given.values["operation"]),
        dtypes=chosen_ceiling_dtypes(given.values["dtype"]),
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
    pieces=pieces,
    left=lambda stored: [each.named for each in unfinished(stored)],
    work=lambda session: partial(_measure, session),
    failed=lambda stored: len(failed(stored)),
    title="Ceilings",
    caption="What each device attains at best",
    key="ceilings",
    subject="device",
    subjects=lambda runs, _: device_ceilings(runs),
    heading=_heading,
    remarks=lambda found: [f"{each.dtype} {each.operation}: {each.error}" for each in found.ceilings if each.error],
    tables=(
        Table(
            key="sizes",
            columns=COLUMNS,
            rows=sizes,
            views=[View(title="Every size", shown=0, folded=True)],
        ),
        Table(
            key="best",
            columns=BEST,
            rows=bests,
            views=[View(title="Attained at best", note="of copies and reads, the largest, in main memory")],
        ),
    ),
    conclusions=conclusions,
    charts=(
        Drawing(
            name="studies-flops",
            title="What the device attains by dtype and size",
            alt="Each point is one size at its fastest.",
            rows=partial(_rows, operations=MULTIPLYING),
            spec=partial(_spec, work="FLOP of one run", reached="FLOP/s"),
        ),
        Drawing(
            name="studies-copies",
            title="Copies by dtype and size",
            alt="Read and written. What is small runs in a cache; the largest tells what main memory attains.",
            rows=partial(_rows, operations=MOVING),
            spec=partial(_spec, work="bytes read and written by one run", reached="bytes/s"),
        ),
    ),
)
