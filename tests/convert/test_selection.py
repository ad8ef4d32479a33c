"""Which cases of a run are converted, and which of their numbers."""

import math

import pytest
from converted_runs import BF16, CASE, mixed_run, stored_run

from ampbench.base.metrics import METRICS
from ampbench.convert import FORMATS, select
from ampbench.convert.formats import defined
from ampbench.errors import NothingToRunError


def test_a_keyword_selects_cases_by_their_id() -> None:
    stored = mixed_run().stored
    assert [row["case_id"] for row in select(stored, "bf16 or fp16").rows] == [
        case_id for case_id in stored.cases if "bf16" in case_id or "fp16" in case_id
    ]


def test_a_keyword_that_matches_nothing_is_refused() -> None:
    with pytest.raises(NothingToRunError, match="no case that matches -k 'lstm'"):
        select(mixed_run().stored, "lstm")


def test_measured_cases_are_those_that_are_ok() -> None:
    assert [row["case_id"] for row in mixed_run().measured] == [CASE.case_id, BF16.case_id]


def test_undefined_numbers_are_left_out_and_zeros_are_not() -> None:
    row = select(stored_run([(CASE, [1e-3])], peak_bytes=None)).rows[0]
    found = {column.name: value for column, value in defined(row, METRICS.values())}
    assert "peak_memory_bytes" not in found
    assert "seconds_low" not in found
    assert found["output_nonfinite"] == 0
    assert all(math.isfinite(value) for value in found.values())


def test_each_format_is_written_by_some_function_and_named_by_its_key() -> None:
    for name, format in FORMATS.items():
        assert format.name == name
        assert format.of_run or format.of_series
