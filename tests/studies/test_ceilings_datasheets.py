"""Datasheets by the names that drivers give, and what CPUs' instructions multiply."""

import pytest

from ampbench.studies.ceilings import DATASHEETS, INSTRUCTIONS, datasheet_of, instruction_of


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40 GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80 GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40 GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80 GB"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2"),
        ("Tesla T4", "T4"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA B200", "B200 HGX"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
        ("Intel(R) Data Center GPU Max 1550", "Max 1550, one stack"),
    ],
)
def test_a_driver_s_name_finds_the_datasheet(name: str, found: str) -> None:
    datasheet = datasheet_of(name)
    assert datasheet is not None
    assert datasheet.name == found


@pytest.mark.parametrize(
    "name",
    ["", "AMD EPYC", "NVIDIA A10G", "NVIDIA L40", "NVIDIA GB200",
     "NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 D", "Tesla V100-PCIE-16GB", "NVIDIA A100-SXM4-40GB MIG 1g",
     "Intel(R) Arc(TM) A770 Graphics", "Intel(R) Data Center GPU Max 1100", "NVIDIA GeForce RTX 5090 D"],
)  # fmt: skip
def test_a_device_without_a_checked_datasheet_has_none(name: str) -> None:
    assert datasheet_of(name) is None


def test_every_row_has_a_source_and_rates_that_can_be_true() -> None:
    assert len({row.name for row in DATASHEETS}) == len(DATASHEETS)
    for row in DATASHEETS:
        assert row.source
        known = [row.flops[dtype] for dtype in ("fp32", "tf32", "fp16") if dtype in row.flops]
        assert known == sorted(known)
        assert row.flops.get("fp32", 0) < row.flops.get("fp16", 1e16)
        assert row.flops.get("bf16", row.flops.get("fp16")) == row.flops.get("fp16")
        assert 1e11 < row.bandwidth < 1e13
        assert 1e12 < row.flops.get("fp32", 1e13) < 1e15


def test_the_fastest_instruction_that_a_cpu_has_counts() -> None:
    assert {row.dtype for row in INSTRUCTIONS} == {"bf16", "fp16"}
    assert all(row.source and row.times > 1 for row in INSTRUCTIONS)
    both = instruction_of(["avx512_bf16", "amx_bf16"], "bf16")
    assert both is not None
    assert both.name == "AMX-BF16"
    assert instruction_of(["avx512_bf16", "avx512f"], "fp16") is instruction_of([], "bf16") is None
