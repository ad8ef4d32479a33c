"""pytest-benchmark's JSON, read by pytest-benchmark itself and read back: what comes back whole, is lost or refused."""

import csv
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from converted_runs import BF16, CASE, mixed_run, named_run, stored_run
from msgspec.structs import replace
from pytest_benchmark.logger import Logger
from pytest_benchmark.storage.file import FileStorage

from ampbench.convert import read_source, written
from ampbench.convert.pytest_benchmark import case_info
from ampbench.errors import StoreError
from ampbench.judge.frame import run_rows
from ampbench.records.case import DeviceDescription, Environment
from ampbench.records.run import Imported
from ampbench.store import StoredRun
from tests.stored_runs import make_case, make_divergence, make_header, make_memory


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


def test_its_own_storage_loads_every_benchmark(tmp_path: Path) -> None:
    (tmp_path / "0001_ampbench.json").write_text(written(mixed_run(), "pytest-benchmark")[0])
    found = list(FileStorage(tmp_path, Logger(Logger.QUIET)).load_benchmarks("0001"))
    assert [one["fullname"] for one in found] == [CASE.case_id, BF16.case_id]
    assert {one["group"] for one in found} == {"linear_chain[depth=4,width=512]/b8/cpu/inference/eager"}
    assert found[0]["params"]["precision"] == "fp32"
    assert found[0]["extra_info"]["peak_memory_bytes"] == 4096


def test_the_commit_is_told_apart_from_its_dirt() -> None:
    commit = json.loads(written(mixed_run(), "pytest-benchmark")[0])["commit_info"]
    assert (commit["id"], commit["dirty"]) == ("0123abc", True)
    commit = json.loads(written(named_run("mlp"), "pytest-benchmark")[0])["commit_info"]
    assert (commit["id"], commit["dirty"]) == ("unversioned", False)


Damage = Callable[[dict[str, Any]], object]
LOST = ("run",)


def exported(stored: StoredRun) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(written(stored, "pytest-benchmark")[0])
    return document


def read(folder: Path, document: dict[str, Any], remarks: Counter[str] | None = None) -> StoredRun:
    path = folder / "0001_run.json"
    path.write_text(json.dumps(document))
    (stored,) = read_source(path, Counter() if remarks is None else remarks)
    return stored


def measured(stored: StoredRun) -> list[dict[str, Any]]:
    rows = [row for row in run_rows(stored) if row["outcome"] == "ok"]
    return [{name: value for name, value in row.items() if name not in LOST} for row in rows]


def rich_run() -> StoredRun:
    """Return a run of cases with every field of a case, and every number there is."""
    cases = [
        make_case("fp32", phase="training"),
        make_case("fp16_autocast", phase="training", scaler=False),
        make_case("bf16_pure", phase="training", input_dtype="bf16", memory_format="channels_last", version=3),
        make_case("fp32", workload="m.py:make", family="user", parameters={"rate": 0.5, "deep": True}, batch_size=None),
    ]
    numbers = {
        "output_rel_l2": 2e-3, "output_max_abs": 0.1, "output_cosine": 0.999, "output_nonfinite": 2,
        "output_floor_rel_l2": 1e-3, "output_fp32_rel_l2": 1e-7, "argmax_agreeing": 7, "argmax_decisions": 8,
        "loss": 2.5, "reference_loss": 2.4, "grad_rel_l2": 0.01, "grad_worst_parameter": "layer.weight",
        "grad_flushed": 3, "grad_elements": 100, "grad_nonfinite": 0, "param_rel_l2": 1e-4,
        "scaler_scale": 65536.0, "skipped_steps": 0, "repeatable": True, "notes": ["dropout was off"],
    }  # fmt: skip
    environment = Environment(
        host="bench", system="Linux", cpu="AMD EPYC", cpu_count=2, cpu_flags=["avx2"], memory_bytes=2**33,
        python_version="3.11.7", ampbench_version="0.1.0", torch_version="2.15.0+cpu", torch_commit="abc",
        torchvision_version="0.29.2", numpy_version="2.4.6", threads=2, unavailable={"x": "y"}, variables={"A": "1"},
        devices=[DeviceDescription(type="cpu", available=True, arithmetic={"float16": "emulated"}, details={"a": "b"})],
    )  # fmt: skip
    stored = stored_run(
        [(case, [1e-3 * place, 1.1e-3 * place, 1.3e-3 * place]) for place, case in enumerate(cases, start=1)],
        commit="0123abc-dirty",
        committed_at="2026-01-30T10:00:00+00:00",
        environment=environment,
    )
    for case in cases:
        stored.divergence[case.case_id] = make_divergence(case, **numbers)
        stored.memory[case.case_id] = make_memory(case, 12_345)
    return stored


def test_a_run_comes_back_with_every_column_of_its_measured_cases(tmp_path: Path) -> None:
    stored = rich_run()
    found = read(tmp_path, exported(stored))
    assert measured(found) == measured(stored)
    assert (found.cases, found.memory, found.divergence) == (stored.cases, stored.memory, stored.divergence)
    assert found.header.environment == stored.header.environment
    assert (found.header.commit, found.header.committed_at) == ("0123abc-dirty", "2026-01-30T10:00:00+00:00")
    assert found.header.started_at == stored.header.started_at
    assert found.header.label == "pytest-benchmark"
    assert found.header.imported == Imported(program="pytest-benchmark", file="0001_run.json")
    again, first = exported(found), exported(stored)
    for document in (again, first):
        assert [one["extra_info"]["ampbench"]["lines"].pop(0).keys() for one in document["benchmarks"]]
    assert again == first


def test_without_data_every_round_and_its_samples_come_back(tmp_path: Path) -> None:
    stored = rich_run()
    stored.rounds[0] = replace(stored.rounds[0], samples=[[3e-3, 1e-3], [2e-3]], steps_per_sample=[3, 4])
    document = exported(stored)
    for benchmark in document["benchmarks"]:
        del benchmark["stats"]["data"]
    found = read(tmp_path, document)
    assert found.rounds == stored.rounds
    assert measured(found) == measured(stored)


def test_others_benchmarks_and_repeated_cases_are_left_out_and_counted(tmp_path: Path) -> None:
    document = exported(mixed_run())
    again = json.loads(json.dumps(document["benchmarks"][0])) | {"fullname": "test_again.py::test_it"}
    other = {"fullname": "test_other.py::test_it", "stats": {"min": 1.0, "median": 1.0}, "extra_info": {"note": 1}}
    document["benchmarks"] += [again, other]
    remarks = Counter[str]()
    assert len(read(tmp_path, document, remarks=remarks).cases) == 2
    assert remarks == {
        "left out 1 without ampbench's numbers: test_other.py::test_it": 1,
        "left out 1 that measured a case once more: test_again.py::test_it": 1,
    }


def test_a_run_is_the_same_whenever_its_file_is_read(tmp_path: Path) -> None:
    document = exported(rich_run())
    first = read(tmp_path, document).header
    assert first.run.startswith("20260131T120000Z-bench-")
    assert read(tmp_path, document).header == first
    assert read(tmp_path, document | {"datetime": "2026-01-31T12:00:00.5"}).header.run != first.run


def set_item(*keys: Any) -> Damage:
    """Return what sets the item under all keys but the last to the last."""

    def damage(document: dict[str, Any]) -> None:
        *path, name, value = keys
        target: Any = document
        for key in path:
            target = target[key]
        target[name] = value

    return damage


LINES = ("benchmarks", 0, "extra_info", "ampbench", "lines")
CASE_LINE, ROUND, MEMORY, DIVERGENCE = 1, 2, 4, 5
"""The lines behind the header, of two rounds."""


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            set_item(*LINES, CASE_LINE, "case", "colour", "red"),
            r"newer ampbench \(upgrade this one\): .*`colour`",
        ),
        (set_item(*LINES, MEMORY, "memory", "later_bytes", 1), "unknown field `later_bytes`"),
        (set_item(*LINES, MEMORY, "memory", "case_id", "other"), "it has not the header and the lines of one case"),
        (set_item(*LINES, ROUND, "round", "samples", [[-1.0]]), "Expected `float` >= 1e-09"),
        (set_item(*LINES, ROUND, "round", "finished_at", "later"), "finished_at is no time: 'later'"),
        (set_item(*LINES, DIVERGENCE, "divergence", "output", "nonfinite", math.nan), "Expected `int`, got `null`"),
        (set_item(*LINES, DIVERGENCE, {"later": 12}), "no line is called later"),
        (set_item(*LINES, []), "it has not the header and the lines of one case"),
        (set_item(*LINES, 12), "it has no lines of a run"),
        (set_item(*LINES[:-1], {}), "it has no lines of a run"),
        (set_item(*LINES, 0, "header", "environment", "later", 1), "damaged, or .*unknown field `later`"),
        (set_item(*LINES, 0, "header", "started_at", "yesterday"), "started_at is no time: 'yesterday'"),
        (
            set_item(*LINES, 0, "header", "committed_at", "gpg: Good\n2026"),
            r"committed_at is no time: 'gpg: Good\\n2026'",
        ),
        (set_item("benchmarks", []), "holds no benchmark of ampbench's: its benchmarks are none"),
        (set_item("benchmarks", 3), "damaged, or of a format"),
    ],
)
def test_what_is_damaged_or_newer_is_refused_by_the_files_name(damage: Damage, message: str, tmp_path: Path) -> None:
    document = exported(stored_run([(CASE, [1e-3, 2e-3])]))
    damage(document)
    with pytest.raises(StoreError, match=message) as caught:
        read(tmp_path, document)
    assert str(caught.value).startswith(f"{tmp_path / '0001_run.json'}: ")
    assert "\n" not in str(caught.value)


def test_half_written_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(exported(mixed_run()))[:-20])
    with pytest.raises(StoreError, match=r"run\.json: damaged"):
        list(read_source(path, Counter()))


def test_numbers_that_are_not_finite_are_undefined_in_the_json() -> None:
    records = [make_divergence(CASE, output_rel_l2=math.nan, loss=math.inf), None]
    numbers = {"seconds_median": 1e-3, "output_rel_l2": math.nan}
    info = case_info(make_header(), CASE, records, ["short"], numbers)
    assert json.loads(json.dumps(info, allow_nan=False)) == info
    assert (info["seconds_median"], info["output_rel_l2"]) == (1e-3, None)
    _, case, divergence = info["ampbench"]["lines"]
    assert (list(case), divergence["divergence"]["loss"], info["ampbench"]["notes"]) == (["case"], None, ["short"])
