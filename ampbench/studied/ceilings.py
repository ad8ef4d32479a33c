"""What a device attains at best, reckoned from its ceilings, and what that says in words.

A ceiling is the fastest sample of the best size: whatever else runs on a machine only ever delays, and the time of a
case is that of its fastest samples, too (`stats.round_value`), so that both are told by the same measure.
"""

from collections.abc import Iterable, Sequence

from ampbench.labels import few
from ampbench.records.environments import DeviceDescription
from ampbench.records.measurements import OTHER_SHARE, STEAL_SHARE
from ampbench.records.studies import CONV, COPY, FP32, MATMUL, TF32, Attained, Ceiling
from ampbench.studied.datasheets import Datasheet, datasheet_of
from ampbench.units import UNDEFINED, format_count, format_flop_rate, format_ratio, format_share

DTYPES = (FP32, TF32, "bf16", "fp16", "fp64")
"""What ceilings are measured in, in the order of every table."""
BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
HALVES = ("bf16", "fp16")
PROMISED = 8.0
"""How many times the matrix throughput of fp32 half precision is said to reach."""
HALVED = 0.55
"""Copying as many values in at most this share of fp32's time counts as traffic halved."""
BUSY = "not judged, as the machine was busy"
"""Instead of a verdict."""


def rate(attained: Attained) -> float | None:
    """Return FLOP/s or bytes per second of one size: its work in the time of its fastest sample."""
    fastest = min(attained.samples, default=0.0)
    return attained.work / fastest if fastest > 0 else None


def top(found: Ceiling) -> Attained | None:
    """Return the size that a ceiling stands for; None where nothing was attained.

    For matrix products and convolutions that is the fastest; for copies the largest, as only it is sure to go to main
    memory: smaller ones run at the speed of a cache.
    """
    if found.operation == COPY:
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


def bandwidth(ceilings: Iterable[Ceiling], device: str, dtype: str | None = None) -> float | None:
    """Return the most bytes per second that copies in main memory read and wrote, in `dtype` or whichever is fastest.

    None where that was not measured.
    """
    copies = [one for one in ceilings if one.device == device and one.operation == COPY and dtype in (None, one.dtype)]
    return max((value for one in copies if (value := ceiling_rate(one)) is not None), default=None)


def copy_ratio(ceilings: Sequence[Ceiling], device: str, dtype: str) -> float | None:
    """Return how long copying as many values takes in `dtype`, over the time it takes in fp32; None: not known."""
    here, full = bandwidth(ceilings, device, dtype), bandwidth(ceilings, device, FP32)
    return (BYTES[dtype] / here) / (BYTES[FP32] / full) if here and full else None


def ceilings_said(device: DeviceDescription, ceilings: Sequence[Ceiling]) -> list[str]:
    """Return what the ceilings of a device say, in sentences: half precision against fp32, memory, the datasheet."""
    own = [one for one in ceilings if one.device == device.type]
    promised = datasheet_of(device.name)
    said = [_speed_said(device, own), *(_promises_said(own, device.type, dtype) for dtype in HALVES)]
    moved = bandwidth(own, device.type)
    if moved is not None:
        said.append(f"copies in main memory: {format_bandwidth(moved)}, read and written")
    said.append(_datasheet_said(device, own, promised))
    said.append(_quiet_said(own))
    return [sentence for sentence in said if sentence]


def disturbance(found: Ceiling) -> float | None:
    """Return the share of CPU time that others took while a ceiling was measured, if it is enough to spoil that."""
    others, steal = found.fitness.other_share or 0.0, found.fitness.steal_share or 0.0
    return max(others, steal) if others > OTHER_SHARE or steal > STEAL_SHARE else None


def share(found: Ceiling, promised: Datasheet | None) -> float | None:
    """Return the share of the datasheet's peak that a ceiling attained; None where no peak is known."""
    if promised is None:
        return None
    peak = promised.bandwidth if found.operation == COPY else promised.flops.get(found.dtype)
    reached = ceiling_rate(found)
    return reached / peak if peak and reached else None


def format_bandwidth(value: float | None) -> str:
    """Return bytes per second as "21.3 GB/s", in decimal units as datasheets do; "–" for None."""
    text = format_count(value)
    return text if text == UNDEFINED else f"{text}{'' if text[-1].isalpha() else ' '}B/s"


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


def _promises_said(own: Sequence[Ceiling], device: str, dtype: str) -> str:
    """Return whether the promises of half precision hold: matrix throughput up to `PROMISED` times, traffic halved.

    Numbers that other work on the machine may have spoilt are told without a verdict.
    """
    pair = [one for one in own if one.dtype in (FP32, dtype)]
    full, low = best(own, device, FP32), best(own, device, dtype)
    said = []
    if full and low:
        verdict = "held" if low >= PROMISED * full else "not reached"
        fit = not any(map(disturbance, (one for one in pair if one.operation != COPY)))
        said.append(
            f"up to {PROMISED:g}x the matrix throughput: {format_ratio(low / full)}, {verdict if fit else BUSY}"
        )
    moved = copy_ratio(own, device, dtype)
    if moved is not None:
        verdict = "held" if moved <= HALVED else "not held"
        fit = not any(map(disturbance, (one for one in pair if one.operation == COPY)))
        times = f"as many values are copied in {format_ratio(moved)} the time"
        said.append(f"half the traffic: {times}, {verdict if fit else BUSY}")
    return f"promises of {dtype}: {'; '.join(said)}" if said else ""


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
    return f"of the datasheet's peaks ({promised.name}): {', '.join(said)}" if said else ""


def _quiet_said(own: Sequence[Ceiling]) -> str:
    """Return which ceilings others on the machine may have lowered."""
    disturbed = {f"{one.operation} {one.dtype}": taken for one in own if (taken := disturbance(one))}
    if not disturbed:
        return ""
    lowered = "all ceilings" if len(disturbed) == len(own) else few(disturbed)
    worst = format_share(max(disturbed.values()))
    return f"other work took up to {worst} of the CPU's time, which may have lowered {lowered}: measure again"
