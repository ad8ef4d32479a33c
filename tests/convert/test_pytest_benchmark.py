"""pytest-benchmark's JSON, read by pytest-benchmark itself."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from converted_runs import BF16, CASE, mixed_run, stored_run

from ampbench.convert import written


def compare(folder: Path, *arguments: str) -> str:
    """Run the real `pytest-benchmark compare`."""
    command = [sys.executable, "-m", "pytest_benchmark", "compare", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Failed to load" not in done.stderr
    return done.stdout


def test_pytest_benchmark_compares_two_of_our_files(tmp_path: Path) -> None:
    (tmp_path / "first.json").write_text(written(mixed_run(), "pytest-benchmark")[0])
    slower = stored_run([(CASE, [2e-3, 2.2e-3, 2.4e-3])])
    (tmp_path / "second.json").write_text(written(slower, "pytest-benchmark")[0])
    said = compare(tmp_path, "first.json", "second.json", "--csv=table.csv")
    for shown in (f"{CASE.case_id} (first)", f"{CASE.case_id} (second)", f"{BF16.case_id} (first)"):
        assert shown in said
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(float(row["median"]) for row in rows) == pytest.approx([5.5e-4, 1.1e-3, 2.2e-3])
    assert {row["param:precision"] for row in rows} == {"fp32", "bf16_pure"}
