"""What vendors promise of their devices: peak rates from datasheets, to hold against what is attained.

Rates are of dense matrices: where a datasheet has only those with structured sparsity, half of these (as its own
footnote says). fp32 is without tensor cores, fp16 accumulates in fp32. What could not be checked against pages that
quote the vendor's figures is left out, as are CPUs, whose vendors state none.
"""

import re
from dataclasses import dataclass

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
