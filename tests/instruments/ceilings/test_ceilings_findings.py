"""What a device attains at best, what that says of half precision, and the datasheet of a name that drivers give."""

import dataclasses

import pytest

from ampbench.base import stats
from ampbench.base.units import format_bandwidth
from ampbench.instruments.ceilings.findings import (
    DATASHEETS,
    bandwidth,
    best,
    ceilings_said,
    copy_ratio,
    datasheet_of,
    rate,
    share,
    top,
)
from ampbench.instruments.ceilings.records import CONV, COPY, MATMUL, Attained
from ampbench.records.measured import Fitness
from tests.instruments.ceilings.ceiling_records import A100, CEILINGS, CPU, ceiling


def test_a_rate_is_that_of_the_fastest_sample_as_the_time_of_a_case_is() -> None:
    one = Attained(size="8x8x8", work=1024, samples=[2.0, 0.5, 1.0])
    assert rate(one) == 1024 / stats.round_value([one.samples]) == 2048
    assert rate(Attained(size="8x8x8", work=1024, samples=[])) is None
    assert rate(Attained(size="8x8x8", work=1024, samples=[0.0])) is None


def test_the_ceiling_is_that_of_the_best_size_of_matrix_products_and_convolutions() -> None:
    assert best(CEILINGS, "cpu", "fp32") == pytest.approx(4e11)
    assert best(CEILINGS, "cpu", "fp32", MATMUL) == pytest.approx(2e11)
    assert best(CEILINGS, "cpu", "bf16") == pytest.approx(8e11)
    assert best(CEILINGS, "cpu", "fp16") == pytest.approx(4e9)
    assert best(CEILINGS, "cpu", "fp16", CONV) is None
    assert best(CEILINGS, "cuda", "fp32") is best(CEILINGS, "cpu", "tf32") is None


def test_the_bandwidth_is_that_of_the_largest_copy_which_no_cache_holds() -> None:
    assert bandwidth(CEILINGS, "cpu", "fp32") == pytest.approx(5e10)
    assert bandwidth(CEILINGS, "cpu", "fp16") == pytest.approx(2.5e10)
    assert bandwidth(CEILINGS, "cpu") == pytest.approx(5e10)
    assert bandwidth(CEILINGS, "cuda") is None
    copied = top(CEILINGS[2])
    assert copied is not None
    assert copied.size == "size 1"
    assert top(ceiling(COPY, "fp32")) is None


def test_traffic_is_halved_where_as_many_values_take_half_the_time() -> None:
    assert copy_ratio(CEILINGS, "cpu", "bf16") == pytest.approx(0.5)
    assert copy_ratio(CEILINGS, "cpu", "fp16") == pytest.approx(1.0)
    assert copy_ratio(CEILINGS[3:], "cpu", "bf16") is None


def test_half_precision_is_told_against_fp32_and_against_its_promises() -> None:
    assert ceilings_said(CPU, CEILINGS) == [
        "at best 400 GFLOP/s in fp32; bf16 2.00x that, fp16 0.0100x that (emulated)",
        (
            "promises of bf16: up to 8x the matrix throughput: 2.00x, not reached; "
            "half the traffic: as many values are copied in 0.500x the time, held"
        ),
        (
            "promises of fp16: up to 8x the matrix throughput: 0.0100x, not reached; "
            "half the traffic: as many values are copied in 1.00x the time, not held"
        ),
        "copies in main memory: 50.0 GB/s, read and written",
        "no datasheet's peak is known for AMD EPYC",
    ]


def test_a_promise_that_is_reached_is_held() -> None:
    found = [ceiling(MATMUL, "fp32", 1e13), ceiling(MATMUL, "fp16", 8e13)]
    assert "promises of fp16: up to 8x the matrix throughput: 8.00x, held" in ceilings_said(CPU, found)


def test_what_was_not_measured_is_not_told_of() -> None:
    assert ceilings_said(CPU, []) == ["no datasheet's peak is known for AMD EPYC"]
    only_half = ceilings_said(CPU, [ceiling(MATMUL, "bf16", 1e11)])
    assert only_half == ["no datasheet's peak is known for AMD EPYC"]


def test_a_known_device_is_held_against_its_datasheet() -> None:
    found = [
        ceiling(MATMUL, "fp32", 1.95e13, device="cuda"),
        ceiling(MATMUL, "tf32", 7.8e13, device="cuda"),
        ceiling(MATMUL, "bf16", 2.34e14, device="cuda"),
        ceiling(COPY, "fp32", 1.244e12, device="cuda"),
    ]
    said = ceilings_said(A100, found)
    assert said[-1] == (
        "of the datasheet's peaks (A100 SXM 40 GB): 100% of 19.5 TFLOP/s in fp32, 50.0% of 156 TFLOP/s in tf32, "
        "75.0% of 312 TFLOP/s in bf16, 80.0% of 1.55 TB/s from memory"
    )
    promised = datasheet_of(A100.name)
    assert share(found[1], promised) == pytest.approx(0.5)
    assert share(found[3], promised) == pytest.approx(0.8)
    assert share(ceiling(MATMUL, "fp64", 1e13), promised) is share(found[1], None) is None


def test_other_work_on_the_machine_is_told_of() -> None:
    busy = dataclasses.replace(CEILINGS[0], fitness=Fitness(other_share=0.5))
    said = ceilings_said(CPU, [busy, CEILINGS[1]])[-1]
    assert said == "other work used up to 50.0% of the CPU while matmul fp32 was timed: do not trust it, measure again"
    assert "all ceilings" in ceilings_said(CPU, [busy])[-1]


@pytest.mark.parametrize(
    ("value", "said"), [(None, "–"), (5e10, "50.0 GB/s"), (512, "512 B/s"), (3.35e12, "3.35 TB/s")]
)
def test_bandwidths_are_in_decimal_units_as_in_datasheets(value: float | None, said: str) -> None:
    assert format_bandwidth(value) == said


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
