"""The series for Apache Otava: what the CSV and its configuration hold, and that Otava finds a planted step in it."""

import csv
import io
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from converted_runs import BF16, CASE, HOSTILE, TEXT, mixed_run, named_run, stored_run
from hypothesis import given

from ampbench.base.metrics import GATED, METRICS
from ampbench.cli.main import main
from ampbench.convert import Selected, formats, select
from tests.stored_runs import COMPLETE, make_memory, make_round, write_run

OTAVA = "apache-otava==0.8.0"
RUNS, STEP_AT, STEP = 40, 25, 1.10


def rows(series: Sequence[Selected]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(formats.series_csv(series))))


def settings(series: Sequence[Selected], path: str = "out/series.csv") -> dict[str, Any]:
    document = yaml.safe_load(formats.settings_yaml(series, Path(path)))
    assert list(document) == ["tests"]
    (test,) = document["tests"].values()
    return test


def series_of(*times: str) -> list[Selected]:
    return [
        select(stored_run([(CASE, [1e-3 * number])], run=f"run-{number}", started_at=time))
        for number, time in enumerate(times, start=1)
    ]


def test_runs_are_rows_in_the_order_of_time_in_utc() -> None:
    found = rows(series_of("2026-01-31T12:00:00Z", "2026-01-31T12:30:00.5+02:00", "2026-01-30T00:00:00Z"))
    assert [row["run"] for row in found] == ["run-3", "run-2", "run-1"]
    assert [row["time"] for row in found] == [
        "2026-01-30T00:00:00+00:00",
        "2026-01-31T10:30:00+00:00",
        "2026-01-31T12:00:00+00:00",
    ]


def test_a_row_has_the_attributes_otava_can_select_by_and_values_in_base_units() -> None:
    (row,) = rows([mixed_run()])
    assert {name: row[name] for name in formats.ATTRIBUTES} == {
        "run": "20260131T120000Z-bench-1f9a3c",
        "commit": "0123abc-dirty",
        "version": "2.15.0",
        "host": "bench",
    }
    assert row[f"{CASE.case_id} seconds_median"] == "0.0011"
    assert row[f"{BF16.case_id} peak_memory_bytes"] == "4096"


def test_the_settings_name_the_file_and_each_complete_column_with_its_direction() -> None:
    series = [mixed_run()]
    found = settings(series)
    assert (found["type"], found["file"], found["time_column"]) == ("csv", "out/series.csv", "time")
    assert found["attributes"] == list(formats.ATTRIBUTES)
    assert list(found["metrics"]) == [name for name in rows(series)[0] if name not in ("time", *formats.ATTRIBUTES)]
    for name, metric in found["metrics"].items():
        better = METRICS[name.rpartition(" ")[2]].better
        assert metric == {"direction": 1 if better == "higher" else -1, "scale": 1}
    assert {name.rpartition(" ")[2] for name in found["metrics"]} <= set(GATED)


def test_what_a_run_lacks_is_an_empty_cell_and_no_metric_of_the_settings() -> None:
    both = select(stored_run([(CASE, [1e-3]), (BF16, [5e-4])], run="both", started_at="2026-01-31T12:00:00Z"))
    one = select(stored_run([(CASE, [1e-3])], run="one", started_at="2026-01-31T13:00:00Z"))
    column = f"{BF16.case_id} seconds_median"
    assert [row[column] for row in rows([both, one])] == ["0.0005", ""]
    assert column in formats.gapped([both, one])
    assert f"{CASE.case_id} seconds_median" not in formats.gapped([both, one])
    assert all(name.startswith(CASE.case_id) for name in settings([both, one])["metrics"])


@given(TEXT)
def test_any_name_is_the_same_in_both_files(name: str) -> None:
    series = [named_run(name)]
    header = next(csv.reader(io.StringIO(formats.series_csv(series), newline="")))
    metrics = list(settings(series, f"{name.replace('/', '')}.csv")["metrics"])
    assert metrics == [column for column in header if column not in ("time", *formats.ATTRIBUTES)]
    assert all(metric.startswith(f"{name}[") for metric in metrics)


def test_a_hostile_name_is_the_same_in_both_files() -> None:
    series = [named_run(HOSTILE)]
    assert (
        f"{HOSTILE}[depth=4,width=512]/b8/fp32/cpu/inference/eager/in-fp32 seconds_median"
        in (settings(series)["metrics"])
    )
    assert formats.settings_yaml(series, Path("series.csv")).isascii()


@pytest.fixture(scope="session")
def otava_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real Otava, in an environment of its own: it pins an old numpy and brings clients of clouds."""
    folder = tmp_path_factory.mktemp("otava")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", OTAVA]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{OTAVA} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return folder / "bin" / "otava"


def write_series(results: Path) -> None:
    """Write runs with noise of 0.5%; from run `STEP_AT` on one case takes a tenth longer, the other stays."""
    # Otava's defaults also see changes where there are none, in about one series of fifteen: so the noise is fixed
    noise = random.Random(1)
    start = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for number in range(RUNS):
        entries = []
        for case, seconds in ((CASE, 1e-3 * (STEP if number >= STEP_AT else 1)), (BF16, 5e-4)):
            values = [seconds * noise.gauss(1, 0.005) for _ in range(4)]
            entries += [make_round(case, seconds=value, number=place) for place, value in enumerate(values)]
            entries.append(make_memory(case, 4096))
        started = (start + timedelta(hours=number)).isoformat()
        write_run(
            results, [CASE, BF16], *entries, COMPLETE, run=f"run-{number:03}", started_at=started, commit=f"c{number}"
        )


@pytest.mark.slow
def test_otava_finds_the_planted_step_at_the_right_run_and_no_other(otava_program: Path, tmp_path: Path) -> None:
    write_series(tmp_path / "results")
    runs = [str(path) for path in sorted((tmp_path / "results" / "runs").glob("*.jsonl"))]
    assert main(["convert", *runs, "--to", "otava", "-o", str(tmp_path / "series.csv")]) == 0
    command = [otava_program, "analyze", "--config-file", tmp_path / "series.yaml", "series", "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["series"]
    assert found["attributes"]["commit"] == f"c{STEP_AT}"
    assert found["attributes"]["run"] == f"run-{STEP_AT:03}"
    (change,) = found["changes"]
    assert change["metric"] == f"{CASE.case_id} seconds_median"
    assert float(change["forward_change_percent"]) == pytest.approx(100 * (STEP - 1), abs=1)
