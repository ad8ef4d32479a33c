"""Ceilings of a CPU with native bf16 and emulated fp16, as round numbers."""

from ampbench.records.case import DeviceDescription
from ampbench.records.measured import CONV, MATMUL
from ampbench.studies.ceilings import COPY, Attained, Ceiling

CPU = DeviceDescription(
    type="cpu", available=True, name="AMD EPYC", arithmetic={"fp32": "native", "bf16": "native", "fp16": "emulated"}
)
A100 = DeviceDescription(type="cuda", available=True, name="NVIDIA A100-SXM4-40GB", tf32=True)


def attained(size: str, per_second: float, seconds: float = 1e-3) -> Attained:
    """Return what attained a rate in the fastest of three samples."""
    return Attained(size=size, work=round(per_second * seconds), samples=[1.5 * seconds, seconds, 1.1 * seconds])


def ceiling(operation: str, dtype: str, *rates: float, device: str = "cpu", **changes: object) -> Ceiling:
    """Return a ceiling with a size for each of `rates`, each ten times as much work as the one before."""
    sizes = [attained(f"size {place}", rate, 1e-3 * 10**place) for place, rate in enumerate(rates)]
    known = {"device": device, "operation": operation, "dtype": dtype, "threads": 2, "attained": sizes}
    return Ceiling(**(known | changes))  # type: ignore[arg-type]


CEILINGS = [
    ceiling(MATMUL, "fp32", 1.5e11, 2e11, 1e11),
    ceiling(CONV, "fp32", 4e11, 3e11),
    ceiling(COPY, "fp32", 2e11, 5e10),
    ceiling(MATMUL, "bf16", 8e11),
    ceiling(CONV, "bf16", 7e11),
    ceiling(COPY, "bf16", 2e11, 5e10),
    ceiling(MATMUL, "fp16", 4e9, 2e9, notes=["size 2 and larger left out: one run would take about 7.00 s"]),
    ceiling(CONV, "fp16", error="no kernel for Half"),
    ceiling(COPY, "fp16", 2e11, 2.5e10),
]
