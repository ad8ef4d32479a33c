"""The names that drivers give find the right datasheet, and no other."""

import pytest

from ampbench.instruments.ceilings.findings import DATASHEETS, datasheet_of


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
    ],
)
def test_a_driver_s_name_finds_the_datasheet(name: str, found: str) -> None:
    datasheet = datasheet_of(name)
    assert datasheet is not None
    assert datasheet.name == found


@pytest.mark.parametrize(
    "name",
    ["", "AMD EPYC", "NVIDIA A10G", "NVIDIA L40", "NVIDIA H200 NVL", "NVIDIA H100 NVL", "NVIDIA GB200",
     "NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 D", "Tesla V100-PCIE-16GB", "NVIDIA A100-SXM4-40GB MIG 1g",
     "Intel(R) Arc(TM) A770 Graphics"],
)  # fmt: skip
def test_a_device_without_a_checked_datasheet_has_none(name: str) -> None:
    assert datasheet_of(name) is None


def test_every_row_has_a_source_and_rates_that_can_be_true() -> None:
    assert len({row.name for row in DATASHEETS}) == len(DATASHEETS)
    for row in DATASHEETS:
        assert row.source
        assert row.flops["fp32"] <= row.flops.get("tf32", row.flops["fp32"]) < row.flops["fp16"]
        assert row.flops.get("bf16", row.flops["fp16"]) == row.flops["fp16"]
        assert 1e11 < row.bandwidth < 1e13
        assert 1e12 < row.flops["fp32"] < 1e14
