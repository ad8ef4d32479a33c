"""Datasheets by the names that drivers give."""

import pytest

from ampbench.records.measured import MATMUL
from ampbench.studies.ceilings import COPY, DATASHEETS, datasheet_of


@pytest.mark.parametrize(
    ("name", "fp16", "memory"),
    [
        ("NVIDIA A100-SXM4-40GB", 312e12, 1555e9),
        ("NVIDIA A100-SXM4-80GB", 312e12, 2039e9),
        ("NVIDIA A100 80GB PCIe", 312e12, 1935e9),
        ("NVIDIA A10", 125e12, 600e9),
        ("NVIDIA L40S", 362.05e12, 864e9),
        ("NVIDIA GeForce RTX 4090", 165.2e12, 1008e9),
        ("NVIDIA H100 PCIe", 756.5e12, 2000e9),
        ("NVIDIA H200", 989.5e12, 4800e9),
        ("Intel(R) Data Center GPU Max 1550", 416e12, 1638.4e9),
    ],
)
def test_a_driver_s_name_finds_the_datasheet(name: str, fp16: float, memory: float) -> None:
    found = datasheet_of(name)
    assert found is not None
    assert (found.peak(MATMUL, "fp16"), found.peak(COPY, "fp16")) == pytest.approx((fp16, memory))
    assert found.peak(MATMUL, "fp64") is None


@pytest.mark.parametrize(
    "name",
    ["", "AMD EPYC", "NVIDIA A10G", "NVIDIA L40", "NVIDIA GB200", "NVIDIA H100 NVL", "NVIDIA H200 NVL",
     "NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 D", "Tesla V100-PCIE-16GB", "NVIDIA A100-SXM4-40GB MIG 1g",
     "Intel(R) Arc(TM) A770 Graphics", "Intel(R) Data Center GPU Max 1100", "NVIDIA GeForce RTX 5090"],
)  # fmt: skip
def test_a_device_without_a_checked_datasheet_has_none(name: str) -> None:
    assert datasheet_of(name) is None


def test_rates_can_be_true() -> None:
    for row in DATASHEETS:
        known = [rate for rate in (row.fp32, row.tf32, row.fp16) if rate]
        assert known == sorted(known)
        assert row.bf16 in (None, row.fp16)
