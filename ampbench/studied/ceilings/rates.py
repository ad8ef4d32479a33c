"""What a device attains at best, reckoned from its ceilings.

A ceiling is the fastest sample of the best size: whatever else runs on a machine only ever delays, and the time of a
case is that of its fastest samples, too (`stats.round_value`), so that both are told by the same measure.
"""

from collections.abc import Iterable, Sequence

from ampbench.records.environments import DeviceDescription, Environment
from ampbench.records.studies import CONV, COPY, FP32, MATMUL, OPERATIONS, TF32, Attained, Ceiling
from ampbench.studied.ceilings.datasheets import Datasheet

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
