"""asv's result files: what is read, what is refused, by asv's own writer and by hand."""

import json
import math
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from asv_results import COMMIT, MACHINE, MEMORY, STEP, row, write

from ampbench.convert import read_source
from ampbench.errors import StoreError


def test_what_asv_itself_writes_is_read(tmp_path: Path) -> None:
    results = pytest.importorskip("asv.results")
    runner = pytest.importorskip("asv.runner")
    asv = results.Results(
        {**MACHINE, "python": "3.11"}, {"torch": "2.13.0"}, COMMIT, 1_789_000_000_000, "3.11", "virtualenv-py3.11", {}
    )
    names = row(None)[1]
    timed = {"name": STEP, "version": "1", "params": names}
    samples = [[2e-3, 2.1e-3, 2.2e-3], None]
    asv.add_result(
        timed,
        runner.BenchmarkResult(
            result=[True, math.nan], samples=samples, number=[1, None], errcode=0, stderr="", profile=None
        ),
        started_at=datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC),
        duration=1.0,
    )
    failed = runner.BenchmarkResult(
        result=[None, None], samples=[None, None], number=[None, None], errcode=1, stderr="", profile=None
    )
    asv.add_result({"name": MEMORY, "version": "1", "params": names}, failed)
    asv.save(str(tmp_path))
    (tmp_path / "bench" / "machine.json").write_text(json.dumps(MACHINE))
    (stored,) = read_source(tmp_path, Counter())
    fp32, bf16 = stored.cases
    assert stored.readings["seconds_median"] == {fp32: pytest.approx(2.1e-3)}
    assert stored.readings.keys() == {"seconds_median", "seconds_low", "seconds_high"}
    assert (stored.header.started_at, [*stored.failures]) == ("2026-09-21T14:13:20.000+00:00", [fp32, bf16])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 1}, "of a format that this ampbench does not read: Invalid enum value 1"),
        ({"version": ...}, "missing required field `version`"),
        ({"results": ...}, "missing required field `results`"),
        ({"requirements": ["torch"]}, "requirements"),
        ({"results": {STEP: row([1e-3])}}, "damaged"),
        ({"results": {STEP: row([1e-3, 2e-3], low=[1.0])}}, "damaged"),
    ],
)
def test_another_format_or_a_damaged_row_is_refused_by_the_files_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(StoreError, match=message) as caught:
        list(read_source(path, Counter()))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
