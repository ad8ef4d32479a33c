"""asv's result files: what is read, what is refused, by asv's own writer and by hand."""

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from asv_results import COMMIT, MACHINE, MEMORY, STARTED, STEP, row, suite, write

from ampbench.convert.asv import read_result_file, result_paths
from ampbench.errors import StoreError


def test_a_file_is_read_with_its_machine(tmp_path: Path) -> None:
    file = read_result_file(write(tmp_path, suite() | {"other.time_it": [{"odd": [1]}, None, 7], "other.short": []}))
    assert (file.results.commit_hash, file.results.python, file.machine.machine) == (COMMIT, "3.11", "bench")
    assert list(file.benchmarks) == list(suite())
    step = file.benchmarks[STEP]
    assert (step.values, step.low, step.high) == ([2e-3, 1e-3], [1.9e-3, None], [2.1e-3, None])
    assert (step.version, step.started_at) == ("1", STARTED)


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
    found = read_result_file(*result_paths(tmp_path)).benchmarks
    assert found[STEP].values[0] == pytest.approx(2.1e-3)
    assert math.isnan(found[STEP].values[1])
    assert found[STEP].started_at == STARTED
    assert len(found[STEP].low) == 2
    assert found[MEMORY].values == [None, None]


def test_a_folder_gives_all_its_result_files_in_order(tmp_path: Path) -> None:
    paths = [write(tmp_path, commit_hash=letter * 40) for letter in "cab"]
    assert result_paths(tmp_path) == sorted(paths)
    assert result_paths(tmp_path / "bench") == sorted(paths)
    assert result_paths(paths[0]) == [paths[0]]


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    write(tmp_path).unlink()
    with pytest.raises(StoreError, match="holds no results of asv: give its results_dir"):
        result_paths(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 1}, "not a result of asv .*Invalid enum value 1 .*; `asv update` rewrites older formats"),
        ({"version": ...}, "not a result of asv .*missing required field `version`"),
        ({"results": ...}, "not a result of asv .*missing required field `results`"),
        ({"requirements": ["torch"]}, "not a result of asv .*requirements"),
        ({"results": {STEP: row([1e-3])}}, f"the result of {STEP} is damaged: its parameters say 2 values"),
        ({"results": {STEP: row([1e-3, 2e-3], low=[1.0])}}, f"the result of {STEP} is damaged"),
        ({"results": {STEP: [[1e-3], "x"]}}, f"the result of {STEP} is damaged"),
    ],
)
def test_another_format_or_a_damaged_row_is_refused_by_the_files_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(StoreError, match=message) as caught:
        read_result_file(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_half_written_json_is_refused(length: int, tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(StoreError, match="no whole JSON, so it was cut"):
        read_result_file(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "there is no .*machine.json, which asv writes next to results"),
        (lambda path: path.write_text("{"), "machine.json: no whole JSON"),
        (
            lambda path: path.write_text('{"machine": "bench", "version": 2}'),
            "description of a machine .*Invalid enum value 2",
        ),
        (lambda path: path.write_text('{"version": 1}'), "not asv's description of a machine"),
    ],
)
def test_a_machine_that_is_missing_or_damaged_is_refused(
    damage: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path)
    damage(path.with_name("machine.json"))
    with pytest.raises(StoreError, match=message):
        read_result_file(path)
