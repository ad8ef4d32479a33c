"""What a device attains at best, beside what is promised of it and in half precision against fp32, in sentences.

A ceiling is the fastest sample of the best size: whatever else runs on a machine only ever delays, and the time of a
case is that of its fastest samples, too (`stats.round_value`), so that both are told by the same measure.

A step takes at least max(Σ FLOPs of an operation in a dtype / its ceiling, least bytes / bandwidth): a device does one
operation after the other. FLOPs are those that no kernel can leave out, bytes those that any step must move
(`records.measured.MemoryPass`), at the bandwidth of the cache that they fit (`bandwidth_of`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from ampbench.core.units import format_bandwidth, format_flop_rate, format_ratio, format_share
from ampbench.instruments.ceilings.datasheets import INSTRUCTIONS, Datasheet, datasheet_of, instruction_of
from ampbench.instruments.ceilings.records import COPY, FP32, MOVING, OPERATIONS, READ, TF32, Attained, Ceiling
from ampbench.records.case import DeviceDescription, Environment
from ampbench.records.labels import arithmetic, few
from ampbench.records.measured import ATTENTION, CONV, MATMUL, MemoryPass
from ampbench.studies.paired import BUSY, unfit

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


_MOVED = {"copies, read and written,": COPY, "reads": READ}


def ceilings_said(device: DeviceDescription, ceilings: Sequence[Ceiling]) -> list[str]:
    """Return what the ceilings of a device say, in sentences: half precision against fp32, memory, the datasheet."""
    own = [one for one in ceilings if one.device == device.type]
    promised = datasheet_of(device.name)
    device = shown(device, own)
    said = [_speed_said(device, own), *(_promises_said(own, device, dtype) for dtype in (TF32, *HALVES))]
    said += libraries_said(own, device.type)
    moved = [(name, bandwidth(own, device.type, operation=operation)) for name, operation in _MOVED.items()]
    told = [f"{name} {format_bandwidth(value)}" for name, value in moved if value is not None]
    said.append(f"main memory: {', '.join(told)}" if told else "")
    said.append(_datasheet_said(device, own, promised))
    said.append(_quiet_said(own))
    return [sentence for sentence in said if sentence]


def disturbance(found: Ceiling) -> float | None:
    """Return the share of CPU time that others took while a ceiling was measured, if it is enough to spoil that."""
    seen = found.fitness
    return max(seen.other_share or 0.0, seen.steal_share or 0.0) if unfit(seen) else None


def _speed_said(device: DeviceDescription, own: Sequence[Ceiling]) -> str:
    """Return how much fp32 attains and how many times as much the other dtypes do."""
    full = best(own, device.type, FP32)
    if full is None:
        return ""
    said = []
    for dtype in (name for name in DTYPES if name != FP32):
        found = best(own, device.type, dtype)
        if found is not None:
            how = device.arithmetic.get(dtype, "")
            said.append(f"{dtype} {format_ratio(found / full)} that{' (emulated)' if how == 'emulated' else ''}")
    return f"at best {format_flop_rate(full)} in fp32" + (f"; {', '.join(said)}" if said else "")


def _promises_said(own: Sequence[Ceiling], device: DeviceDescription, dtype: str) -> str:
    """Return whether what is promised of a dtype holds: its throughput, and in half precision the traffic halved.

    Numbers that other work on the machine may have spoilt are told without a verdict.
    """
    pair = [one for one in own if one.dtype in (FP32, dtype)]
    full, low = best(own, device.type, FP32), best(own, device.type, dtype)
    said = []
    if full and low:
        promise, by = _promised(device, dtype)
        fit = not any(map(disturbance, (one for one in pair if one.operation not in MOVING)))
        verdict = f", {'held' if low >= REACHED * promise * full else 'not reached'}" if promise else ""
        verdict = verdict if fit else f", {BUSY}"
        said.append(f"{by}: {format_ratio(low / full)}{verdict}")
    moved = copy_ratio(own, device.type, dtype) if dtype != TF32 else None
    if moved is not None:
        verdict = "held" if moved <= HALVED else "not held"
        fit = not any(map(disturbance, (one for one in pair if one.operation == COPY)))
        times = f"as many values are copied in {format_ratio(moved)} the time"
        said.append(f"half the traffic: {times}, {verdict if fit else BUSY}")
    return f"promises of {dtype}: {'; '.join(said)}" if said else ""


def _promised(device: DeviceDescription, dtype: str) -> tuple[float | None, str]:
    """Return how many times fp32's throughput is promised of a dtype, None where nothing is, and by what in words."""
    sheet = datasheet_of(device.name)
    peaks = sheet.flops if sheet is not None else {}
    if dtype in peaks and FP32 in peaks:
        times = peaks[dtype] / peaks[FP32]
        return times, f"up to {format_ratio(times)} the throughput of fp32 by the datasheet"
    row = instruction_of(device.details.get(_FLAGS, "").split(), dtype) if device.type == "cpu" else None
    if row is not None:
        return row.times, f"up to {row.times:g}x the multiply-adds of fp32 by {row.name}"
    lacking = "this CPU's instructions" if device.type == "cpu" else "a datasheet that is known"
    return None, f"none of throughput by {lacking}"


ALIKE = 1.05
"""Libraries whose rates differ by a smaller factor multiply alike."""


def libraries_said(ceilings: Iterable[Ceiling], device: str) -> list[str]:
    """Return what of half precision's speed is owed to another library than the one that torch multiplies fp32 in."""
    own = [one for one in ceilings if disturbance(one) is None]
    full = by_library(own, device, FP32)
    if len(full) < 2:
        return []
    taken, reached = next(iter(full.items()))
    said = [f"fp32 products: {', '.join(f'{format_flop_rate(each)} in {name}' for name, each in full.items())}"]
    said[0] += f"; torch multiplies them in {taken}"
    for dtype in HALVES:
        for library, half in by_library(own, device, dtype).items():
            other = full.get(library)
            if library == taken or other is None:
                continue
            apart = f"{dtype}'s products, in {library}, are {format_ratio(half / reached)} fp32's in {taken}"
            owed = f"{format_ratio(other / reached)} of that is the library's, {format_ratio(half / other)} {dtype}'s"
            alike = f"as {library} multiplies fp32 no faster, all of that is {dtype}'s"
            said.append(f"{apart}: {owed if other >= ALIKE * reached else alike}")
    return said


def _datasheet_said(device: DeviceDescription, own: Sequence[Ceiling], promised: Datasheet | None) -> str:
    if promised is None:
        return f"no datasheet's peak is known for {device.name or device.type}"
    said = []
    for dtype in (dtype for dtype in DTYPES if dtype in promised.flops):
        reached = best(own, device.type, dtype)
        if reached is not None:
            peak = promised.flops[dtype]
            said.append(f"{format_share(reached / peak)} of {format_flop_rate(peak)} in {dtype}")
    moved = bandwidth(own, device.type)
    if moved is not None:
        said.append(f"{format_share(moved / promised.bandwidth)} of {format_bandwidth(promised.bandwidth)} from memory")
    if said and "fp8" in promised.flops:
        said.append(f"fp8's {format_flop_rate(promised.flops['fp8'])} are not measured")
    return f"of the datasheet's peaks ({promised.name}): {', '.join(said)}" if said else ""


def _quiet_said(own: Sequence[Ceiling]) -> str:
    """Return which ceilings others on the machine may have lowered."""
    disturbed = {f"{one.operation} {one.dtype}": taken for one in own if (taken := disturbance(one))}
    if not disturbed:
        return ""
    lowered = "all ceilings" if len(disturbed) == len(own) else few(disturbed)
    worst = format_share(max(disturbed.values()))
    was, them = ("was", "it") if len(disturbed) == 1 else ("were", "them")
    return f"other work used up to {worst} of the CPU while {lowered} {was} timed: do not trust {them}, measure again"


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
