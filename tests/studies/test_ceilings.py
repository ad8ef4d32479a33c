"""What a device attains at best, how long a step takes at least for it, what is concluded, and datasheets."""

from collections.abc import Sequence
from typing import Any

import pytest

from ampbench.core.statement import Statement
from ampbench.records.case import DeviceDescription
from ampbench.records.measured import ATTENTION, CONV, MATMUL, MemoryPass
from ampbench.studies.ceilings import (
    COPY,
    DATASHEETS,
    READ,
    Attained,
    Attains,
    Bound,
    Bounds,
    Ceiling,
    Ceilings,
    bandwidth_of,
    best,
    conclusions,
    datasheet_of,
    share,
    sizes,
)
from tests.studies.ceiling_records import A100, CEILINGS, CPU, ceiling


def test_the_ceiling_is_that_of_the_best_size_of_matrix_products_and_convolutions() -> None:
    assert best(CEILINGS, "cpu", "fp32") == pytest.approx(4e11)
    assert best(CEILINGS, "cpu", "fp32", MATMUL) == pytest.approx(2e11)
    assert best(CEILINGS, "cpu", "bf16") == pytest.approx(8e11)
    assert best(CEILINGS, "cpu", "fp16") == pytest.approx(4e9)
    assert best(CEILINGS, "cpu", "fp16", CONV) is None
    assert best(CEILINGS, "cuda", "fp32") is best(CEILINGS, "cpu", "tf32") is None


def test_the_bandwidth_is_that_of_the_largest_copy_which_no_cache_holds() -> None:
    assert best(CEILINGS, "cpu", "fp32", "copy") == pytest.approx(5e10)
    assert best(CEILINGS, "cpu", "fp16", "copy") == pytest.approx(2.5e10)
    assert best(CEILINGS, "cuda", "fp32", "copy") is None
    copied = CEILINGS[2].top
    assert copied is not None
    assert copied.size == "size 1"
    assert ceiling(COPY, "fp32").top is None


def told(device: DeviceDescription, ceilings: Sequence[Ceiling]) -> dict[tuple[str, str], Statement]:
    """The conclusions by code and subject."""
    found = Ceilings(name=device.type, device=device, ceilings=ceilings)
    return {(each.code, each.subject): each for each in conclusions(None, found)}


def test_half_precision_has_its_rate_and_the_time_of_copies_against_fp32() -> None:
    assert {key: statement.facts for key, statement in told(CPU, CEILINGS).items()} == {
        (Attains.RATIO, "bf16"): {"ratio": pytest.approx(2)},
        (Attains.TRAFFIC, "bf16"): {"ratio": pytest.approx(0.5)},
        (Attains.RATIO, "fp16"): {"ratio": pytest.approx(0.01), "emulated": 1},
        (Attains.TRAFFIC, "fp16"): {"ratio": pytest.approx(1)},
    }


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


def test_a_known_device_is_held_against_its_datasheet() -> None:
    found = [
        ceiling(MATMUL, "fp32", 1.95e13, device="cuda"),
        ceiling(MATMUL, "tf32", 7.8e13, device="cuda"),
        ceiling(MATMUL, "bf16", 2.34e14, device="cuda"),
        ceiling(COPY, "fp32", 1.244e12, device="cuda"),
    ]
    rows = sizes(Ceilings(name="cuda", device=A100, ceilings=found))
    assert [row.share for row in rows] == pytest.approx([1.0, 0.5, 0.75, 0.8])
    promised = datasheet_of(A100.name)
    assert share(found[1], promised) == pytest.approx(0.5)
    assert share(found[3], promised) == pytest.approx(0.8)
    assert share(ceiling(MATMUL, "fp64", 1e13), promised) is share(found[1], None) is None


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


FOUND = [
    ceiling(MATMUL, "fp32", 2e11),
    ceiling(MATMUL, "bf16", 8e11),
    ceiling(CONV, "fp32", 4e11),
    ceiling(ATTENTION, "bf16", 1e11),
    ceiling(COPY, "fp32", 4e10),
    ceiling(READ, "fp32", 5e10),
]
"""A copy touches 4e7 bytes, a read 5e7."""


Counts = dict[str, dict[str, int]] | None


def memory(by_operation: Counts, least_bytes: int | None = None, **changes: Any) -> MemoryPass:
    totals: dict[str, int] = {}
    for counts in (by_operation or {}).values():
        for dtype, count in counts.items():
            totals[dtype] = totals.get(dtype, 0) + count
    known = {"case_id": "", "source": "profiler", "peak_bytes": 1, "parameter_bytes": 1, "buffer_bytes": 0}
    known |= {"input_bytes": 0, "flops": totals, "flops_by_operation": by_operation, "least_bytes": least_bytes}
    return MemoryPass(**(known | changes))  # type: ignore[arg-type]


def bound(by_operation: Counts, least_bytes: int | None = None, **changes: Any) -> Bound:
    return Bounds(FOUND).of(memory(by_operation, least_bytes, **changes), "cpu")


def test_each_operation_takes_its_flops_over_its_own_ceiling_and_the_longest_is_what_binds() -> None:
    found = bound({"matmul": {"fp32": 10**9, "bf16": 4 * 10**9}, "conv": {"fp32": 10**9}})
    assert found.least == pytest.approx(1 / 200 + 4 / 800 + 1 / 400)
    assert found.binds == "products"
    found = bound({"matmul": {"fp32": 10**9}, "conv": {"fp32": 3 * 10**9}})
    assert (found.least, found.binds) == (pytest.approx(1 / 200 + 3 / 400), "convolutions")
    found = bound({"matmul": {"bf16": 10**9}, "attention": {"bf16": 10**9}})
    assert (found.least, found.binds) == (pytest.approx(1 / 800 + 1 / 100), "attention")


def test_memory_binds_where_its_bytes_take_longer_than_all_operations_together() -> None:
    # 1e9 bytes at 5e10 a second take 20 ms
    found = bound({"matmul": {"fp32": 3 * 10**9}}, 10**9)
    assert (found.least, found.binds) == (pytest.approx(0.02), "memory")
    found = bound({"matmul": {"fp32": 3 * 10**9}, "conv": {"fp32": 3 * 10**9}}, 10**9)
    assert (found.least, found.binds) == (pytest.approx(3 / 200 + 3 / 400), "products")
    found = bound({}, 10**9)
    assert (found.least, found.binds) == (pytest.approx(0.02), "memory")


def test_nothing_is_claimed_of_memory_where_fewer_bytes_move_than_any_copy_touched_or_none_were_counted() -> None:
    for least_bytes in (None, 10**7):
        found = bound({"matmul": {"fp32": 10**6}}, least_bytes)
        assert (found.least, found.binds) == (pytest.approx(10**6 / 2e11), "products")
        assert bound({}, least_bytes).least is bound({}, least_bytes).binds is None


def test_an_operation_without_a_ceiling_leaves_the_bound_unknown() -> None:
    found = bound({"matmul": {"fp32": 10**9}, "attention": {"fp32": 10**9}}, 10**9)
    assert (found.least, found.binds) == (None, None)
