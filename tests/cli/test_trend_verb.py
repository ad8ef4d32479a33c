import csv
import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampbench.cli.series_tables import curve
from ampbench.records.measurements import Failure
from tests.stored_runs import COMPLETE, make_case, make_divergence, make_header, make_memory, make_round, write_run

pytest.importorskip("asv.step_detect")

VERSIONS = ("2.9.1", "2.11.0", "2.12.0", "2.13.0")
CASES = [make_case(precision, workload=name) for name in ("mlp", "resnet18") for precision in ("fp32", "bf16_autocast")]
SLOWED, GROWN, WORSE, LOST = CASES


def entries(version: str) -> list[Any]:
    """Return a run's entries: one case each becomes slower, bigger and less accurate, and one fails in the end."""
    number = VERSIONS.index(version)
    generator = np.random.default_rng(number)
    found: list[Any] = []
    for case in CASES:
        seconds = 1e-3 * (1.2 if case is SLOWED and number >= 2 else 1)
        found += [make_round(case, seconds * math.exp(generator.normal(0, 0.003)), n) for n in range(4)]
        if case is GROWN:
            found += [make_round(case, seconds, n, control=True) for n in range(4)]
        found.append(make_memory(case, 2_000_000 if case is GROWN and number >= 3 else 1_000_000))
        error = 2e-3 if case is WORSE and number == 1 else 4e-3
        found.append(make_divergence(case, output_rel_l2=error, output_floor_rel_l2=1e-3))
    if number == 3:
        found.append(Failure(case_id=LOST.case_id, stage="round", cause="crash", message="signal 11"))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, version in enumerate(VERSIONS):
        environment = replace(make_header().environment, torch_version=version)
        write_run(tmp_path / "results", CASES, *entries(version), COMPLETE, run=f"r{number}", environment=environment,
                  commit=f"{number}" * 40, started_at=f"2026-01-{number + 1:02}T12:00:00Z")  # fmt: skip
    return tmp_path / "results"


def test_changes_come_first_with_what_else_changed_and_the_rest_is_counted(ampbench: Callable, folder: Path) -> None:
    found = ampbench("trend", "--results", folder)
    assert (found.code, found.err) == (0, "")
    head, changes, table, foot = found.out.split("\n\n")
    assert "over torch version: 2.9.1 → 2.13.0" in head
    assert "4 runs, 4 points" in head
    lines = changes.splitlines()
    assert lines[0] == "4 changes in 3 series: 3 regressed (time 1, memory 1, error 1), 1 improved (error 1)"
    assert lines[1].startswith("at 2.11.0: torch 2.9.1 → 2.11.0; commit 0000000 → 1111111")
    slowed = next(line for line in lines if line.startswith("  mlp fp32 ") and "time" in line)
    assert " +20 % (" in slowed
    assert "not measured in turns" in changes
    header, *rows = table.splitlines()
    assert header.split() == ["case", "metric", *VERSIONS, "total"]
    grown = next(line for line in rows if "memory" in line)
    assert grown.split()[-6:] == ["977", "KiB", "1.91", "MiB!", "+100", "%"]
    assert "signal 11" in foot
    assert "without a change: time 3, memory 3, error 3 (--all lists them)" in foot


def test_all_lists_every_series_and_says_where_one_has_gaps(ampbench: Callable, folder: Path) -> None:
    found = ampbench("trend", "--results", folder, "--all", "--metric", "memory")
    rows = found.out.split("\n\n")[2].splitlines()
    assert len(rows) == 1 + 4 + 1
    assert next(line for line in rows if line.startswith("resnet18 bf16_autocast")).split()[-3:-1] == ["failed", "0"]


def test_many_points_become_a_curve_that_fits_the_terminal(
    ampbench: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        factor = 1.2 if number >= 40 else 1.0
        rounds = [make_round(SLOWED, 1e-3 * factor, n) for n in range(3)]
        write_run(tmp_path, [SLOWED], *rounds, COMPLETE, run=f"r{number:03}", commit=f"{number:040x}",
                  started_at=f"2026-01-01T12:{number:02}:00Z")  # fmt: skip
    for width in (80, 100, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        found = ampbench("trend", "--x", "commit", "--results", tmp_path)
        assert max(map(len, found.out.splitlines())) <= width
        assert "▁▁▁▁" in found.out
        assert found.out.count("███") > 0


def document(found: Any) -> Any:
    assert (found.code, found.err) == (0, "")
    return json.loads(found.out)


def test_json_has_every_point_with_its_runs_and_every_change(ampbench: Callable, folder: Path) -> None:
    data = document(ampbench("trend", "--results", folder, "--json", "--metric", "time", "-k", "mlp and /fp32/"))
    assert [x["value"] for x in data["x"]] == list(VERSIONS)
    (series,) = data["series"]
    assert series["case_id"] == SLOWED.case_id
    assert [point["run_ids"] for point in series["points"]] == [["r0"], ["r1"], ["r2"], ["r3"]]
    assert all(point["low"] < point["value"] < point["high"] for point in series["points"])
    (change,) = series["changes"]
    assert (change["x"], change["last"], change["direction"]) == ("2.12.0", "2.11.0", "regressed")
    assert series["rule"] == "neighbours"
    assert data["places"][series["place"]]["runs"] == 4


def test_a_gap_is_null_in_json_with_its_reason(ampbench: Callable, folder: Path) -> None:
    data = document(ampbench("trend", "--results", folder, "--json", "--metric", "time", "-k", "resnet18 and bf16"))
    last = data["series"][0]["points"][-1]
    assert (last["value"], last["missing"]) == (None, "failed: crash: signal 11")


def test_csv_has_a_row_a_point(ampbench: Callable, folder: Path) -> None:
    found = ampbench("trend", "--results", folder, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(found.out)))
    assert len(rows) == 4 * 3 * len(VERSIONS)
    changed = [(row["case_id"], row["metric"], row["x"]) for row in rows if row["change"] == "regressed"]
    assert (SLOWED.case_id, "time", "2.12.0") in changed
    assert next(row for row in rows if row["missing"])["value"] == ""


def test_markdown_has_the_changes_and_the_table(ampbench: Callable, folder: Path) -> None:
    found = ampbench("trend", "--results", folder, "--format", "markdown")
    assert found.out.startswith("**4 changes in 3 series")
    assert "| 2.12.0 | mlp fp32 | time | " in found.out
    assert "| case | metric | 2.9.1 | 2.11.0 | 2.12.0 | 2.13.0 | total |" in found.out


def test_runs_without_the_x_are_counted_on_stderr(ampbench: Callable, folder: Path) -> None:
    write_run(folder, CASES, *entries("2.9.1"), COMPLETE, run="r9")
    found = ampbench("trend", "--x", "commit", "--results", folder)
    assert (found.code, found.err) == (0, "left out 1 run with no commit\n")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--x", "torch"), 2, "unknown axis in --x 'torch': did you mean torch_version?"),
        (("--metric", "speed"), 2, "unknown metric 'speed'"),
        (("--metric", "gradients"), 5, "no case has a number of these metrics"),
        (("-k", "vit"), 5, "no case of 4 runs matches -k 'vit'"),
        (("-k", "and"), 2, "is not an expression"),
        (("r7",), 2, "unknown run 'r7'"),
        (("--results", "nowhere"), 5, "there is no run in nowhere"),
        (("--json", "--format", "csv"), 2, "contradict each other"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(
    ampbench: Callable, folder: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    found = ampbench("trend", "--results", folder, *arguments)
    assert (found.code, found.out) == (code, "")
    assert said in found.err
    assert found.err.count("\n") == 1


def test_a_terminal_without_unicode_gets_another_curve(folder: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "60"}
    command = [sys.executable, "-m", "ampbench", "trend", "--results", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "__++" not in done.stdout
    assert "__##" in done.stdout
    assert "█" not in done.stdout


def test_a_curve_has_gaps_and_no_more_blocks_than_there_is_room() -> None:
    assert curve([1.0, None, 2.0], 40) == "▁·█"
    assert curve([1.0, 2.0], 40, only_ascii=True) == "_#"
    assert curve([1.0] * 50 + [2.0] * 50, 10) == "▁▁▁▁▁█████"
    assert curve([None, None], 5) == "··"


def test_noise_is_not_stretched_over_the_whole_height() -> None:
    assert set(curve([1.0, 1.01, 0.99, 1.0], 40)) <= set("▄▅")
    assert set(curve([0.0, 0.0], 40)) == {"▅"}


def test_a_trend_imports_no_torch(folder: Path) -> None:
    code = (
        "import sys; from ampbench.cli.main import main\n"
        f"main(['trend', '--results', {str(folder)!r}])\n"
        "sys.exit('torch' if 'torch' in sys.modules else '')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "\n"
