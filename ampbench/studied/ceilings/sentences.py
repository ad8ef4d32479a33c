"""What the ceilings of a device say in words: half precision against fp32, memory, the datasheet."""

from collections.abc import Sequence

from ampbench.beside import BUSY, unfit
from ampbench.labels import few
from ampbench.records.environments import DeviceDescription
from ampbench.records.studies import COPY, FP32, Ceiling
from ampbench.studied.ceilings.datasheets import Datasheet, datasheet_of
from ampbench.studied.ceilings.rates import DTYPES, bandwidth, best, copy_ratio
from ampbench.units import format_bandwidth, format_flop_rate, format_ratio, format_share

HALVES = ("bf16", "fp16")
PROMISED = 8.0
"""How many times the matrix throughput of fp32 half precision is said to reach."""
HALVED = 0.55
"""Copying as many values in at most this share of fp32's time counts as traffic halved."""


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
    was, them = ("was", "it") if len(disturbed) == 1 else ("were", "them")
    return f"other work used up to {worst} of the CPU while {lowered} {was} timed: do not trust {them}, measure again"
