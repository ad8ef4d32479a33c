"""How long a step takes at least, and what binds it, against the same computed by hand."""

from typing import Any

import pytest

from ampbench.records.measured import ATTENTION, CONV, MATMUL, MemoryPass
from ampbench.studies.ceilings import COPY, READ, Bound, Bounds
from tests.studies.ceiling_records import ceiling

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
