"""What a device attains at best, what that says of half precision, and the datasheet of a name that drivers give."""

import pytest
from msgspec import structs

from ampbench.core import stats
from ampbench.core.units import format_bandwidth
from ampbench.instruments.ceilings.datasheets import datasheet_of
from ampbench.instruments.ceilings.findings import (
    bandwidth,
    bandwidth_of,
    best,
    by_library,
    ceilings_said,
    copy_ratio,
    described,
    libraries_said,
    rate,
    share,
    shown,
    top,
)
from ampbench.instruments.ceilings.records import COPY, READ, Attained
from ampbench.records.measured import CONV, MATMUL, Fitness
from tests.instruments.ceilings.ceiling_records import A100, CEILINGS, CPU, ceiling
from tests.scripted_channel import machine


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


def test_half_precision_is_told_against_fp32_and_nothing_is_promised_of_a_cpu_without_instructions_for_it() -> None:
    assert ceilings_said(CPU, CEILINGS) == [
        "at best 400 GFLOP/s in fp32; bf16 2.00x that, fp16 0.0100x that (emulated)",
        (
            "promises of bf16: none of throughput by this CPU's instructions: 2.00x; "
            "half the traffic: as many values are copied in 0.500x the time, held"
        ),
        (
            "promises of fp16: none of throughput by this CPU's instructions: 0.0100x; "
            "half the traffic: as many values are copied in 1.00x the time, not held"
        ),
        "main memory: copies, read and written, 50.0 GB/s",
        "no datasheet's peak is known for AMD EPYC",
    ]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["avx512_bf16", "avx2"], "up to 2x the multiply-adds of fp32 by AVX512-BF16: 2.00x, held"),
        (["avx512_bf16", "amx_bf16"], "up to 16x the multiply-adds of fp32 by AMX-BF16: 2.00x, not reached"),
        (["avx512_fp16"], "none of throughput by this CPU's instructions: 2.00x;"),
    ],
)
def test_a_cpu_promises_what_its_instructions_multiply(flags: list[str], said: str) -> None:
    device = described(structs.replace(machine(CPU), cpu_flags=flags), "cpu")
    assert f"promises of bf16: {said}" in ceilings_said(device, CEILINGS)[1]


def test_a_gpu_promises_what_its_datasheet_says() -> None:
    found = [
        ceiling(MATMUL, dtype, peak, device="cuda")
        for dtype, peak in (("fp32", 1.9e13), ("tf32", 7e13), ("fp16", 3e14))
    ]
    said = ceilings_said(A100, found)
    assert "promises of tf32: up to 8.00x the throughput of fp32 by the datasheet: 3.68x, not reached" in said
    assert "promises of fp16: up to 16.0x the throughput of fp32 by the datasheet: 15.8x, held" in said
    unknown = structs.replace(A100, name="another")
    assert "promises of fp16: none of throughput by a datasheet that is known: 15.8x" in ceilings_said(unknown, found)


def test_what_is_promised_in_fp8_is_told_and_not_measured() -> None:
    hopper = structs.replace(A100, name="NVIDIA H100 80GB HBM3")
    said = ceilings_said(hopper, [ceiling(MATMUL, "bf16", 7e14, device="cuda")])
    assert said[-1].endswith("of 990 TFLOP/s in bf16, fp8's 1979 TFLOP/s are not measured")


def test_a_ceiling_shows_what_is_emulated_and_flags_only_where_it_decides_nothing() -> None:
    flagged = structs.replace(CPU, arithmetic={"fp32": "native", "bf16": "emulated", "fp16": "native"})
    assert shown(flagged, CEILINGS).arithmetic == {"fp32": "native", "bf16": "native", "fp16": "emulated"}
    assert shown(flagged, []).arithmetic == flagged.arithmetic
    between = [ceiling(MATMUL, "fp32", 1e11), ceiling(MATMUL, "bf16", 7e10), ceiling(MATMUL, "fp16", 9e10)]
    assert shown(flagged, between).arithmetic == flagged.arithmetic
    busy = [structs.replace(one, fitness=Fitness(other_share=0.5)) for one in CEILINGS]
    assert shown(flagged, busy).arithmetic == flagged.arithmetic


LIBRARIES = [
    ceiling(
        MATMUL,
        "fp32",
        attained=[
            Attained(size="8x8x8", work=100, samples=[1.0], library="MKL"),
            Attained(size="9x9x9", work=80, samples=[1.0], library="MKL"),
            Attained(size="onednn 8x8x8", work=200, samples=[1.0], library="oneDNN"),
        ],
    ),
    ceiling(MATMUL, "bf16", attained=[Attained(size="8x8x8", work=500, samples=[1.0], library="oneDNN")]),
]


def test_a_speedup_that_is_another_library_s_is_told_apart_from_that_of_the_dtype() -> None:
    assert by_library(LIBRARIES, "cpu", "fp32") == {"MKL": 100, "oneDNN": 200}
    assert libraries_said(LIBRARIES, "cpu") == [
        "fp32 products: 100 FLOP/s in MKL, 200 FLOP/s in oneDNN; torch multiplies them in MKL",
        "bf16's products, in oneDNN, are 5.00x fp32's in MKL: 2.00x of that is the library's, 2.50x bf16's",
    ]
    slower = structs.replace(LIBRARIES[0].attained[2], work=100)
    alike = structs.replace(LIBRARIES[0], attained=[*LIBRARIES[0].attained[:2], slower])
    assert libraries_said([alike, LIBRARIES[1]], "cpu")[1].endswith("multiplies fp32 no faster, all of that is bf16's")
    assert libraries_said(CEILINGS, "cpu") == []


def test_what_fits_a_cache_moves_at_that_cache_s_speed() -> None:
    def moved(operation: str, *points: tuple[int, float]) -> object:
        sizes = [Attained(size=str(work), work=work, samples=[work / reached]) for work, reached in points]
        return ceiling(operation, "fp32", attained=sizes)

    copies, reads = moved(COPY, (100, 50.0), (1000, 20.0)), moved(READ, (50, 90.0), (400, 40.0), (800, 25.0))
    found = [copies, reads]
    for size, reached in ((40, None), (50, 90.0), (99, 90.0), (100, 50.0), (399, 50.0), (400, 40.0), (1000, 20.0)):
        assert bandwidth_of(found, "cpu", size) == (None if reached is None else pytest.approx(reached)), size  # type: ignore[arg-type]
    assert bandwidth_of([copies], "cpu", 1000) is None  # type: ignore[list-item]
    assert bandwidth_of(found, "cuda", 1000) is None  # type: ignore[arg-type]


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
    busy = structs.replace(CEILINGS[0], fitness=Fitness(other_share=0.5))
    said = ceilings_said(CPU, [busy, CEILINGS[1]])[-1]
    assert said == "other work used up to 50.0% of the CPU while matmul fp32 was timed: do not trust it, measure again"
    assert "all ceilings" in ceilings_said(CPU, [busy])[-1]


@pytest.mark.parametrize(
    ("value", "said"), [(None, "–"), (5e10, "50.0 GB/s"), (512, "512 B/s"), (3.35e12, "3.35 TB/s")]
)
def test_bandwidths_are_in_decimal_units_as_in_datasheets(value: float | None, said: str) -> None:
    assert format_bandwidth(value) == said
