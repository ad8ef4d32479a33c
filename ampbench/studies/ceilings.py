"""Ceilings: the peak rates of a device, against its datasheet, and in half precision against fp32.

A ceiling is the fastest sample of the best size, as other work on a machine only delays. A step takes at least
max(Σ FLOPs of an operation in a dtype / its ceiling, least bytes / bandwidth): a device does one operation after the
other. FLOPs are the minimum of any kernel, bytes the minimum that any step must move (`records.measured.MemoryPass`),
at the bandwidth of the cache that they fit (`bandwidth_of`).
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec import structs

from ampbench.core import by_key
from ampbench.core.statement import Statement
from ampbench.core.units import counted, format_quantity
from ampbench.errors import NothingToRunError
from ampbench.records import Count, Seconds, StepSeconds, one_of
from ampbench.records.case import DeviceDescription, Environment
from ampbench.records.kinds import CEILINGS
from ampbench.records.labels import arithmetic, few
from ampbench.records.measured import ATTENTION, CONV, MATMUL, MULTIPLYING, Fitness, MemoryPass
from ampbench.records.run import Header
from ampbench.records.wire import Task
from ampbench.show.document import Column
from ampbench.show.rows import place_of
from ampbench.studies.study import OnDevices, Study, Table, advise, asks, info, unfit

if TYPE_CHECKING:
    from ampbench.drive.session import Prepared
    from ampbench.store import StoredRun

COPY, READ = MOVING = "copy", "read"
OPERATIONS = (*MULTIPLYING, *MOVING)
"""The measured operations: products in FLOP/s, the others in bytes per second, read and written."""

FP32, TF32 = "fp32", "tf32"
"""Dtypes of ceilings that share a torch dtype: torch.float32, without and with tf32 allowed."""
DTYPES = (FP32, TF32, "bf16", "fp16", "fp64")
"""What ceilings are measured in, in the order of every table."""


class Attained(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What one `size` ("1024x1024x1024") attained: `work` FLOPs or bytes in each of `samples` seconds."""

    size: str
    work: Count
    samples: list[StepSeconds]

    @property
    def rate(self) -> float | None:
        """FLOP/s or bytes per second: its work in the time of its fastest sample."""
        fastest = min(self.samples, default=0.0)
        return self.work / fastest if fastest > 0 else None


class Ceiling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The rates of a device with one `operation`, one of `OPERATIONS`, in one dtype ("bf16"; "tf32"), over sizes.

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

    @property
    def top(self) -> Attained | None:
        """The size whose rate is the ceiling; None where nothing was attained.

        For products the fastest size; for copies and reads the largest, as smaller ones run at the speed of a cache.
        """
        if self.operation in MOVING:
            return max(self.attained, key=lambda size: size.work, default=None)
        return max(self.attained, key=lambda size: size.rate or 0.0, default=None)

    @property
    def rate(self) -> float | None:
        """FLOP/s or bytes per second of that size."""
        return None if self.top is None else self.top.rate

    @property
    def disturbance(self) -> float | None:
        """The share of CPU time that others took while it was measured, if it is enough to spoil it."""
        return unfit(self.fitness)


class CeilingAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a device attains with an `operation` in a `dtype`, as in `Ceiling`, measured for about `seconds`."""

    operation: str
    dtype: str
    seconds: Seconds


class CeilingsAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To measure each `operation` in each `dtype` (none: all that a device has) for about `seconds`."""

    operation: Annotated[
        list[str], asks("matmul, conv, attention, copy or read. Default: all.", names=True, among=OPERATIONS)
    ] = []
    dtype: Annotated[
        list[str],
        asks("fp32, tf32, bf16, fp16 or fp64. Default: all the device has, but fp64.", names=True, among=DTYPES),
    ] = []
    seconds: Annotated[Seconds, asks("Timing of each operation in each dtype", seconds=True)] = 2.0


def best(ceilings: Iterable[Ceiling], device: str, dtype: str, operation: str | None = None) -> float | None:
    """Return the peak rate of a type of device in `dtype`, in products or convolutions, or only in `operation`."""
    wanted = (MATMUL, CONV) if operation is None else (operation,)
    able = [
        ceiling
        for ceiling in ceilings
        if (ceiling.device, ceiling.dtype) == (device, dtype) and ceiling.operation in wanted
    ]
    return max(filter(None, (ceiling.rate for ceiling in able)), default=None)


def bandwidth_of(ceilings: Iterable[Ceiling], device: str, moved: int) -> float | None:
    """Return the most bytes per second at which a step can move `moved` bytes, in whichever cache they fit.

    That is the highest of copies and reads of as many bytes or more, beginning with the largest of no more: a working
    set in a cache runs at its speed, and a larger one is no faster. None where the smallest touched more, or no read
    was measured, as a copy counts less than it moves where a line is read before it is overwritten.
    """
    moving = [ceiling for ceiling in ceilings if ceiling.device == device and ceiling.operation in MOVING]
    if not any(ceiling.operation == READ and ceiling.attained for ceiling in moving):
        return None
    points = [(size.work, size.rate) for ceiling in moving for size in ceiling.attained if size.rate]
    within = [work for work, _ in points if work <= moved]
    return max(reached for work, reached in points if work >= max(within)) if within else None


class Datasheet(NamedTuple):
    """A vendor's TFLOP/s by dtype (None: not on the device) and GB/s of `memory`, by a `pattern` of device names."""

    pattern: str
    fp32: float
    tf32: float | None
    bf16: float | None
    fp16: float
    memory: float

    def peak(self, operation: str, dtype: str) -> float | None:
        """Return the rate in FLOP/s of a dtype, or in bytes per second of copies or reads; None where unknown."""
        if operation in MOVING:
            return self.memory * 1e9
        rates = {"fp32": self.fp32, "tf32": self.tf32, "bf16": self.bf16, "fp16": self.fp16}
        return (rates.get(dtype) or 0.0) * 1e12 or None


DATASHEETS = tuple(Datasheet(*row) for row in (
    (r"V100-SXM2", 15.7, None, None, 125, 900),
    (r"\bT4$", 8.1, None, None, 65, 320),
    (r"\bA10$", 31.2, None, 125, 125, 600),
    (r"A100-(SXM4|PCIE)-40GB$", 19.5, 156, 312, 312, 1555),
    (r"A100-SXM4-80GB$", 19.5, 156, 312, 312, 2039),
    (r"A100 80GB PCIe$", 19.5, 156, 312, 312, 1935),
    (r"\bL4$", 30.3, 60, 121, 121, 300),
    (r"\bL40S$", 91.6, 183, 362.05, 362.05, 864),
    (r"RTX 3090$", 35.6, None, 71, 71, 936),
    (r"RTX 4090$", 82.6, 82.6, 165.2, 165.2, 1008),
    (r"H100 80GB HBM3$", 67, 494.5, 989.5, 989.5, 3350),
    (r"H100 PCIe$", 51, 378, 756.5, 756.5, 2000),
    (r"\bH200$", 67, 494.5, 989.5, 989.5, 4800),
    (r"\bB200$", 75, 1100, 2250, 2250, 7700),
    (r"Data Center GPU Max 1550$", 26, None, 416, 416, 1638.4),
))  # fmt: skip
"""The devices with a checked datasheet, by their names in drivers.

Peaks of dense matrices, fp32 without tensor cores: where NVIDIA's datasheets have only rates with sparsity, half of
these. RTX are those of the whitepapers of GA102 and Ada. Of a Max 1550 it is one of two stacks, as its driver shows it:
half of Intel ARK 232873 and of what TACC's guide to Stampede3 says of a card.
"""


def datasheet_of(name: str) -> Datasheet | None:
    """Return the datasheet of a device by the name that its driver gives; None where none is known."""
    return next((row for row in DATASHEETS if re.search(row.pattern, name.strip())), None)


def share(ceiling: Ceiling, promised: Datasheet | None) -> float | None:
    """Return the share of the datasheet's peak that a ceiling attained; None where one of the two is not known."""
    peak = promised and promised.peak(ceiling.operation, ceiling.dtype)
    return ceiling.rate / peak if peak and ceiling.rate else None


HALVES = ("bf16", "fp16")


class Attains(StrEnum):
    """Conclusions on the ceilings of a device: half precision against fp32, and whether they can be trusted."""

    RATIO = "ceiling-ratio"
    TRAFFIC = "ceiling-traffic"
    DISTURBED = "ceiling-disturbed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The ceilings of a device of a machine: of several of one operation and dtype the highest."""

    name: str
    device: DeviceDescription
    ceilings: Sequence[Ceiling]


def conclusions(_: None, of_device: Ceilings) -> Iterator[Statement]:
    """Yield the rate of each dtype against fp32's, the time of copying equally many values, and spoilt results."""
    ceilings, device = of_device.ceilings, of_device.device.type
    kinds, fp32 = arithmetic(of_device.device), best(ceilings, device, FP32)
    copied = best(ceilings, device, FP32, COPY)
    for dtype in (TF32, *HALVES, "fp64"):
        rate, moved = best(ceilings, device, dtype), best(ceilings, device, dtype, COPY)
        if fp32 and rate:
            emulated = int(kinds.get(dtype) == "emulated") or None
            yield info(Attains.RATIO, dtype, ratio=rate / fp32, emulated=emulated)
        if dtype in HALVES and copied and moved:
            yield info(Attains.TRAFFIC, dtype, ratio=copied / moved / 2)
    disturbed = {f"{top.operation} {top.dtype}": top.disturbance for top in ceilings if top.disturbance}
    if disturbed:
        which = few(disturbed) if len(disturbed) < len(ceilings) else None
        yield advise(Attains.DISTURBED, share=max(disturbed.values()), which=which)


MEMORY = "memory"
BINDING = {MATMUL: "products", CONV: "convolutions", ATTENTION: "attention"}
"""The words for the limit of a step, by the operation that takes most of its time."""


class Bound(NamedTuple):
    """The `least` seconds of a step, and a word for what `binds` it; None where they are not known."""

    least: float | None = None
    binds: str | None = None


class Bounds:
    """The bounds of the cases of a run, of its `ceilings`: each is looked up once."""

    def __init__(self, ceilings: Iterable[Ceiling]):
        self._ceilings = list(ceilings)
        self._best = cache(partial(best, self._ceilings))

    def of(self, memory: MemoryPass | None, device: str) -> Bound:
        """Return the bounds of a step on a type of device, from its `memory` pass.

        An empty bound without counted work, and if one of its operations has no ceiling. Memory gives no bound where
        bytes were not counted, or bandwidth was not measured at this size.
        """
        if memory is None or memory.flops_by_operation is None:
            return Bound()
        seconds: dict[str, float] = {}
        for operation, counts in memory.flops_by_operation.items():
            for dtype, count in counts.items():
                if not (rate := self._best(device, dtype, operation)):
                    return Bound()
                seconds[operation] = seconds.get(operation, 0.0) + count / rate
        moved = memory.least_bytes
        bandwidth = bandwidth_of(self._ceilings, device, moved) if moved else None
        of_memory = moved / bandwidth if moved and bandwidth else 0.0
        least = max(sum(seconds.values()), of_memory)
        if not least:
            return Bound()
        return Bound(least, MEMORY if of_memory >= least else BINDING[max(seconds, key=seconds.__getitem__)])


class Size(NamedTuple):
    """A size of a ceiling, if any; the `best` also has its rate over fp32's and its `share` of the vendor's peak."""

    found: Ceiling
    size: Attained | None
    best: bool
    to_fp32: float | None = None
    share: float | None = None


def sizes(of_device: Ceilings) -> list[Size]:
    """Return a row for each size that was measured, and one for each operation and dtype without any."""
    promised = datasheet_of(of_device.device.name)
    full = {ceiling.operation: ceiling.rate for ceiling in of_device.ceilings if ceiling.dtype == FP32}
    rows = []
    for ceiling in of_device.ceilings:
        reached, fp32 = ceiling.rate, full.get(ceiling.operation)
        for size in ceiling.attained or (None,):
            is_best = size is ceiling.top
            to_fp32 = reached / fp32 if is_best and reached and fp32 else None
            rows.append(Size(ceiling, size, is_best, to_fp32, share(ceiling, promised) if is_best else None))
    return rows


COLUMNS: Sequence[Column[Size]] = (
    Column("device", lambda row: row.found.device),
    Column("operation", lambda row: row.found.operation, "operation"),
    Column("dtype", lambda row: row.found.dtype, "dtype"),
    Column("threads", lambda row: row.found.threads),
    Column("size", lambda row: row.size and row.size.size, "size"),
    Column(
        "per_second",
        lambda row: row.size.rate if row.size else None,
        "attained",
        "FLOP/s",
        lambda row: format_quantity(
            row.size.rate if row.size else None, "B/s" if row.found.operation in MOVING else "FLOP/s"
        ),
    ),
    Column("to_fp32", lambda row: row.to_fp32, "to fp32", "ratio"),
    Column("datasheet_share", lambda row: row.share, "of peak", "share", rare=True),
    Column("ceiling", lambda row: row.best),
    Column("reason", lambda row: row.found.error or None, "reason", rare=True),
)


def highest(ceilings: Iterable[Ceiling]) -> list[Ceiling]:
    """Return the highest ceiling of each device, operation and dtype, of equals the last.

    Of copies and reads that is one of the largest size, as smaller ones may be a cache's.
    """

    def height(ceiling: Ceiling) -> tuple[int, float]:
        moved = ceiling.top.work if ceiling.top is not None and ceiling.operation in MOVING else 0
        return moved, ceiling.rate or 0.0

    alike = by_key(ceilings, attrgetter("device", "operation", "dtype"))
    return [max(reversed(same), key=height) for same in alike.values()]


def device_ceilings(runs: "Iterable[StoredRun]") -> list[Ceilings]:
    """Return the devices with their ceilings that `runs` know, the oldest first; a CPU for each number of threads."""

    def place(pair: "tuple[StoredRun, Ceiling]") -> tuple[str, str, str, int]:
        run, ceiling = pair
        return (ceiling.device, *place_of(run.header), ceiling.threads if ceiling.device == "cpu" else 0)

    places = by_key(((run, ceiling) for run in runs for ceiling in run.every(Ceiling)), place)
    devices = Counter(device for device, *_ in places)
    known = []
    for (device, host, version, threads), pairs in places.items():
        among = [f"{device} of {host}", f"torch {version}", *([counted(threads, "thread")] if threads else [])]
        described = pairs[-1][0].header.environment.device(device)
        ceilings = highest(ceiling for _, ceiling in pairs)
        known.append(
            Ceilings(
                name=", ".join(among) if devices[device] > 1 else device,
                device=described or DeviceDescription(type=device, available=False),
                ceilings=sorted(
                    ceilings, key=lambda peak: (OPERATIONS.index(peak.operation), DTYPES.index(peak.dtype))
                ),
            )
        )
    return known


def _heading(measured: Ceilings) -> str:
    threads = [
        counted(ceiling, "thread") for ceiling in dict.fromkeys(ceiling.threads for ceiling in measured.ceilings)
    ]
    named = [measured.device.type, measured.device.name, ", ".join(threads) if measured.device.type == "cpu" else ""]
    return " · ".join(filter(None, named))


TASK = Task(CEILINGS, CeilingAsked, Ceiling, "ampbench.studies.devices_measure:do_ceiling")
DEFAULT_DTYPES = tuple(dtype for dtype in DTYPES if dtype != "fp64")
"""The dtypes measured where none is asked for, if the device has them."""


def _lacking(device: DeviceDescription, dtype: str) -> str:
    """Return why a device cannot be measured in `dtype`, or nothing."""
    if not device.available:
        return f"{device.type} is not available: {device.reason}"
    if dtype == TF32 and not device.tf32:
        return f"{device.type} has no tf32"
    if device.arithmetic.get(dtype) == "unavailable" or (dtype == "fp64" and not device.float64):
        return f"{device.type} does not support {dtype}"
    return ""


def _wanted(where: "Prepared | Header", _: object, asked: CeilingsAsked) -> list[Ceiling]:
    """Return the requested ceilings that the devices can measure; `NothingToRunError` where one cannot be."""
    from ampbench.drive.planning import default_device

    threads = where.settings.threads or where.environment.threads or 0
    names = dict.fromkeys(where.selection.devices or [default_device(where.environment)])
    unknown = partial(DeviceDescription, available=False, reason="unknown to torch")
    devices = [where.environment.device(name) or unknown(type=name) for name in names]
    lacking = [_lacking(device, dtype) for device in devices for dtype in asked.dtype or [FP32]]
    wanted = [
        Ceiling(device=device.type, operation=operation, dtype=dtype, threads=threads)
        for device in devices
        for operation in asked.operation or OPERATIONS
        for dtype in asked.dtype or DEFAULT_DTYPES
        if not _lacking(device, dtype) and (operation, dtype) != (COPY, TF32) and (operation != READ or dtype == FP32)
    ]
    why = list(filter(None, dict.fromkeys(lacking)))
    if not (why or wanted):
        why = [f"copies in {TF32} and all reads are measured in {FP32}"]
    if why:
        raise NothingToRunError(f"no ceiling can be measured here: {few(why, len(why))}")
    return wanted


_SAME = ("host", "cpu", "torch_version", "cuda_version", "xpu_version")


def ceilings_known(results: Path | str, environment: Environment) -> list[Ceiling]:
    """Return the highest ceiling of each device, operation and dtype in a results folder that holds in `environment`.

    That is one of the same host, device and torch, on a CPU with as many threads; each names its run. A ceiling that
    other work may have lowered does not count: shares of it would be too high.
    """
    from ampbench import store

    def is_its(header: Header) -> bool:
        same = (getattr(header.environment, name) == getattr(environment, name) for name in _SAME)
        return header.explains == CEILINGS and all(same)

    def holds(ceiling: Ceiling, measured: Environment) -> bool:
        was, now = measured.device(ceiling.device), environment.device(ceiling.device)
        same = was is not None and now is not None and was.name == now.name
        return same and (ceiling.device != "cpu" or ceiling.threads == environment.threads)

    return highest(
        structs.replace(ceiling, run=stored.header.run)
        for stored in store.runs_with(store.list_runs(results), is_its)
        for ceiling in stored.every(Ceiling)
        if ceiling.attained and ceiling.disturbance is None and holds(ceiling, stored.header.environment)
    )


STUDY: Study[CeilingsAsked, Ceilings] = Study(
    kind=CEILINGS,
    help="""\
Measure what a device attains at best: FLOP/s of products, convolutions and attention, memory bandwidth.

In each dtype, over sizes from small to large, on random values: the most that half precision brings on this machine
and, where the device's datasheet is known, the share of its peaks. The run is stored: ampbench show RUN prints it
again, with --all every size.

\b
Examples:
  ampbench study ceilings
  ampbench study ceilings --device cpu --threads 1 --dtype fp32 --dtype bf16
  ampbench study ceilings --operation copy --seconds 500ms --all
""",
    doing="measuring",
    asked=CeilingsAsked,
    task=TASK,
    on_devices=OnDevices(
        request=lambda asked, blank: CeilingAsked(operation=blank.operation, dtype=blank.dtype, seconds=asked.seconds)
    ),
    parts=_wanted,
    apart=("operation", "dtype", "device"),
    failed=lambda ceiling: bool(ceiling.error),
    title="Ceilings",
    key="ceilings",
    subject="device",
    subjects=lambda runs, _: device_ceilings(runs),
    heading=_heading,
    tables=(
        Table(
            "sizes", COLUMNS, sizes, "Attained at best",
            "of copies and reads, the largest, in main memory; of peak: of the vendor's datasheet",
            keys="operation dtype size per_second to_fp32 datasheet_share reason", only=lambda row: row.best,
        ),
        Table("", COLUMNS, sizes, "Every size", keys="operation dtype size per_second", folded=True),
    ),
    conclusions=conclusions,
)  # fmt: skip
