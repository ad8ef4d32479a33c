"""pytest-benchmark's JSON, read by pytest-benchmark itself."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from converted_runs import BF16, CASE, HOSTILE, TEXT, mixed_run, named_run, stored_run
from hypothesis import given
from hypothesis import strategies as st
from pytest_benchmark.logger import Logger
from pytest_benchmark.stats import Stats
from pytest_benchmark.storage.file import FileStorage

from ampbench.convert import pytest_benchmark, select


def compare(folder: Path, *arguments: str) -> str:
    """Run the real `pytest-benchmark compare`."""
    command = [sys.executable, "-m", "pytest_benchmark", "compare", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Failed to load" not in done.stderr
    return done.stdout


def test_pytest_benchmark_compares_two_of_our_files(tmp_path: Path) -> None:
    (tmp_path / "first.json").write_text(pytest_benchmark.run_json(mixed_run()))
    slower = stored_run([(CASE, [2e-3, 2.2e-3, 2.4e-3])])
    (tmp_path / "second.json").write_text(pytest_benchmark.run_json(select(slower)))
    said = compare(tmp_path, "first.json", "second.json", "--csv=table.csv")
    for shown in (f"{CASE.case_id} (first)", f"{CASE.case_id} (second)", f"{BF16.case_id} (first)"):
        assert shown in said
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(float(row["median"]) for row in rows) == pytest.approx([5.5e-4, 1.1e-3, 2.2e-3])
    assert {row["param:precision"] for row in rows} == {"fp32", "bf16_pure"}


def test_its_own_storage_loads_every_benchmark(tmp_path: Path) -> None:
    (tmp_path / "0001_ampbench.json").write_text(pytest_benchmark.run_json(mixed_run()))
    found = list(FileStorage(tmp_path, Logger(Logger.QUIET)).load_benchmarks("0001"))
    assert [one["fullname"] for one in found] == [CASE.case_id, BF16.case_id]
    assert {one["group"] for one in found} == {"linear_chain[depth=4,width=512]/b8/cpu/inference/eager"}
    assert found[0]["params"]["precision"] == "fp32"
    assert found[0]["extra_info"]["peak_memory_bytes"] == 4096


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=12))
def test_the_statistics_are_those_that_pytest_benchmark_computes(values: list[float]) -> None:
    written = json.loads(pytest_benchmark.run_json(select(stored_run([(CASE, values)]))))["benchmarks"][0]["stats"]
    theirs = Stats()
    for value in values:
        theirs.update(value)
    assert written.pop("data") == values
    assert written.pop("iterations") == 1
    assert written.keys() == theirs.as_dict().keys()
    fences = {"outliers", "iqr_outliers", "stddev_outliers", "ld15iqr", "hd15iqr"}  # jump where rounding differs
    for name, value in theirs.as_dict().items():
        if name not in fences:
            assert written[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


@pytest.mark.parametrize(
    "values", [[1.0], [1.0, 1.0], [1.0, 2.0, 3.0, 100.0], [1.0, 1.1, 1.2, 1.3, 9.0, 0.1], [3.0, 1.0, 2.0, 50.0, 2.5]]
)
def test_outliers_are_counted_as_pytest_benchmark_does(values: list[float]) -> None:
    written = json.loads(pytest_benchmark.run_json(select(stored_run([(CASE, values)]))))["benchmarks"][0]["stats"]
    theirs = Stats()
    for value in values:
        theirs.update(value)
    for name in ("outliers", "ld15iqr", "hd15iqr"):
        assert written[name] == getattr(theirs, name), name


def test_the_commit_is_told_apart_from_its_dirt() -> None:
    commit = json.loads(pytest_benchmark.run_json(mixed_run()))["commit_info"]
    assert (commit["id"], commit["dirty"]) == ("0123abc", True)
    commit = json.loads(pytest_benchmark.run_json(named_run("mlp")))["commit_info"]
    assert (commit["id"], commit["dirty"]) == ("unversioned", False)


@given(TEXT)
def test_any_name_comes_back(name: str) -> None:
    written = json.loads(pytest_benchmark.run_json(named_run(name)))["benchmarks"][0]
    assert written["name"].startswith(f"{name}[")


def test_a_hostile_name_can_be_compared(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(pytest_benchmark.run_json(named_run(HOSTILE)))
    assert "Name (time in" in compare(tmp_path, "run.json")
