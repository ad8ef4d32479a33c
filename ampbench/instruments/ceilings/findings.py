"""What a device attains at best, beside its datasheet and in half precision against fp32, in sentences.

A ceiling is the fastest sample of the best size: whatever else runs on a machine only ever delays, and the time of a
case is that of its fastest samples, too (`stats.round_value`), so that both are told by the same measure.

Peak rates of datasheets are of dense matrices: where a datasheet has only those with structured sparsity, half of these
(as its own footnote says). fp32 is without tensor cores, fp16 accumulates in fp32. What could not be checked against
pages that quote the vendor's figures is left out, as are CPUs, whose vendors state none.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ampbench.base.units import format_bandwidth, format_flop_rate, format_ratio, format_share
from ampbench.instruments.ceilings.records import CONV, COPY, FP32, MATMUL, OPERATIONS, TF32, Attained, Ceiling
from ampbench.records.beside import BUSY, unfit
from ampbench.records.case import DeviceDescription, Environment
from ampbench.records.labels import few

TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Datasheet:
    """What the vendor's `source` says of devices with a name that `pattern` is found in.

    `flops` are FLOP/s by dtype ("tf32"), without those that it does not have or that are not known; `bandwidth` of the
    memory is in bytes per second.
    """

    name: str
    pattern: str
    flops: dict[str, float]
    bandwidth: float
    source: str


def _row(
    name: str, pattern: str, fp32: float, tf32: float | None, half: float, bandwidth: float, source: str, *,
    bf16: bool = True,
) -> Datasheet:  # fmt: skip
    """Return a row of the table; rates in TFLOP/s, `half` that of fp16 and, unless it has none, of bf16; GB/s."""
    rates = {"fp32": fp32, "tf32": tf32, "bf16": half if bf16 else None, "fp16": half}
    flops = {dtype: rate * TERA for dtype, rate in rates.items() if rate is not None}
    return Datasheet(name=name, pattern=pattern, flops=flops, bandwidth=bandwidth * GIGA, source=source)


_A100 = "NVIDIA A100 Tensor Core GPU datasheet, specifications"
_H100 = "NVIDIA H100 Tensor Core GPU datasheet, specifications (half of the rates with sparsity)"
DATASHEETS = (
    _row("V100 SXM2", r"V100-SXM2", 15.7, None, 125, 900, "NVIDIA Tesla V100 datasheet, specifications", bf16=False),
    _row("T4", r"\bT4$", 8.1, None, 65, 320, "NVIDIA T4 datasheet, specifications", bf16=False),
    _row("A10", r"\bA10$", 31.2, None, 125, 600, "NVIDIA A10 Tensor Core GPU datasheet, specifications"),
    _row("A100 SXM 40 GB", r"A100-SXM4-40GB$", 19.5, 156, 312, 1555, _A100),
    _row("A100 SXM 80 GB", r"A100-SXM4-80GB$", 19.5, 156, 312, 2039, _A100),
    _row("A100 PCIe 40 GB", r"A100-PCIE-40GB$", 19.5, 156, 312, 1555, _A100),
    _row("A100 PCIe 80 GB", r"A100 80GB PCIe$", 19.5, 156, 312, 1935, _A100),
    _row("L4", r"\bL4$", 30.3, 60, 121, 300,
         "NVIDIA L4 Tensor Core GPU datasheet, specifications (half of the rates with sparsity)"),
    _row("L40S", r"\bL40S$", 91.6, 183, 362.05, 864, "NVIDIA L40S datasheet, technical specifications"),
    _row("RTX 3090", r"RTX 3090$", 35.6, None, 71, 936, "NVIDIA Ampere GA102 GPU Architecture whitepaper, appendix A"),
    _row("RTX 4090", r"RTX 4090$", 82.6, 82.6, 165.2, 1008, "NVIDIA Ada GPU Architecture whitepaper, appendix A"),
    _row("H100 SXM", r"H100 80GB HBM3$", 67, 494.5, 989.5, 3350, _H100),
    _row("H100 PCIe", r"H100 PCIe$", 51, 378, 756.5, 2000, _H100),
    _row("H200 SXM", r"\bH200$", 67, 494.5, 989.5, 4800,
         "NVIDIA H200 Tensor Core GPU datasheet, specifications (half of the rates with sparsity)"),
    _row("B200 HGX", r"\bB200$", 75, 1100, 2250, 7700,
         "NVIDIA HGX B200 datasheet, individual Blackwell GPU specifications (half of the rates with sparsity)"),
)  # fmt: skip
"""The devices whose datasheets are known; `torch.cuda.get_device_name` has the names."""


def datasheet_of(name: str) -> Datasheet | None:
    """Return the datasheet of a device by the name that its driver gives; None where none is known."""
    return next((row for row in DATASHEETS if re.search(row.pattern, name.strip())), None)


DTYPES = (FP32, TF32, "bf16", "fp16", "fp64")
"""What ceilings are measured in, in the order of every table."""
BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


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


def share(found: Ceiling, promised: Datasheet | None) -> float | None:
    """Return the share of the datasheet's peak that a ceiling attained; None where no peak is known."""
    if promised is None:
        return None
    peak = promised.bandwidth if found.operation == COPY else promised.flops.get(found.dtype)
    reached = ceiling_rate(found)
    return reached / peak if peak and reached else None


def described(environment: Environment, type: str) -> DeviceDescription:
    """Return what is known of a type of device; without an environment that knows it, its type alone."""
    return environment.device(type) or DeviceDescription(type=type, available=False)


def ordered(ceilings: Sequence[Ceiling]) -> list[Ceiling]:
    """Return ceilings by operation and dtype, in the order of every table."""
    places = {dtype: place for place, dtype in enumerate(DTYPES)}
    return sorted(ceilings, key=lambda one: (OPERATIONS.index(one.operation), places.get(one.dtype, len(places))))


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
