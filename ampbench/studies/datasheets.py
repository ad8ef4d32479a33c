"""What vendors promise: peak rates of devices by dtype, and what CPUs' instructions multiply beside fp32's.

Peak rates are of dense matrices: where a datasheet has only those with structured sparsity, half of these (as its own
footnote says). fp32 is without tensor cores, fp16 accumulates in fp32. What could not be checked against pages that
quote the vendor's figures is left out, as are CPUs' rates, of which vendors state none.
"""

import re
from collections.abc import Collection
from typing import NamedTuple

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
