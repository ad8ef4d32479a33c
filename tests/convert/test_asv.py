"""asv's results of ampbench's suite: which files are read, what they mean as runs, and how they are stored."""

import json
import math
import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from asv_results import COMMIT, DEVICE, ERROR, GRADIENT, MACHINE, MEMORY, NAN, STEP, row, suite, write

from ampbench import convert
from ampbench.convert import asv, read_source
from ampbench.core.precisions import PRECISIONS
from ampbench.drive.planning import make_plan
from ampbench.errors import StoreError
from ampbench.judge.frame import run_rows
from ampbench.records.case import DEVICES, DeviceDescription, Environment
from ampbench.records.run import Imported, Selection
from ampbench.store import StoredRun


def read(folder: Path, results: Any = None, **changes: Any) -> StoredRun:
    (stored,) = read_source(write(folder, results, **changes), Counter())
    return stored


def by_workload(name: str, **methods: Any) -> dict[str, Any]:
    """Return results of one class, as the suite has it: its parameters are phase and precision."""
    return {f"precisions.{name}.{method}": values for method, values in methods.items()}


def test_every_method_of_a_class_of_a_workload_is_known(tmp_path: Path) -> None:
    results = by_workload(
        "CrossEntropyHead",
        time_step=row([2e-3, 1e-3], low=[1.9e-3, None], high=[2.1e-3, None]),
        track_peak_memory=row([4096, 2048]),
        track_output_error=row([1.5, 2.5]),
        track_gradient_error=row([NAN, NAN]),
        track_other_share=row([0.0, 0.4]),
        track_fp64_result=row([16.1, 16.1]),
    )
    remarks = Counter[str]()
    (stored,) = read_source(write(tmp_path, results), remarks)
    fp32, bf16 = stored.cases
    assert stored.readings == {
        "seconds_median": {fp32: 2e-3, bf16: 1e-3},
        "seconds_low": {fp32: 1.9e-3},
        "seconds_high": {fp32: 2.1e-3},
        "peak_memory_bytes": {fp32: 4096, bf16: 2048},
        "output_floor_ratio": {fp32: 1.5, bf16: 2.5},
        "other_share": {fp32: 0.0, bf16: 0.4},
    }
    assert not remarks


@pytest.mark.parametrize(
    ("name", "workload", "version"),
    [
        ("precisions.Mlp", "mlp", 1),
        ("precisions.MlpV2", "mlp", 2),
        ("a.bench.MobilenetV3Large", "mobilenet_v3_large", 1),
        ("precisions.Mine", "Mine", 0),
        ("bench.Mine", "bench.Mine", 0),
    ],
)
def test_a_class_names_a_workload_and_its_version(name: str, workload: str, version: int, tmp_path: Path) -> None:
    results = {f"{name}.time_step": row([1e-3, 2e-3]), f"{name.rpartition('.')[0]}{asv.DEVICE}": [[1], [], "1"]}
    stored = read(tmp_path, results, env_vars={})
    assert {case.device for case in stored.cases.values()} == {"cuda"}
    assert {(case.workload, case.version) for case in stored.cases.values()} == {(workload, version)}


def test_the_cases_are_those_that_a_plan_of_the_same_selection_has(tmp_path: Path) -> None:
    phases = ("inference", "training")
    for device in ("cpu", "cuda"):
        precisions = tuple(name for name in PRECISIONS if (name, device) != ("default", "cpu"))  # there it is fp32
        times = row([1e-3] * 2 * len(precisions), phases=phases, precisions=precisions)
        results = by_workload("Resnet18", time_step=times) | by_workload("Mlp", time_step=times)
        stored = read(tmp_path / device, results, env_vars={"AMPBENCH_DEVICE": device})
        environment = Environment(
            host="", system="", cpu="", cpu_count=1, python_version="", torch_version="", numpy_version="", threads=1,
            devices=[DeviceDescription(type=device, available=True, tf32=True)],
        )  # fmt: skip
        selection = Selection(workloads=["resnet18", "mlp"], devices=[device], precisions=list(precisions))
        planned = make_plan(selection, environment, pytest.fail)
        assert stored.cases == {one.case.case_id: one.case for one in planned}


def test_a_run_knows_commit_times_and_environment(tmp_path: Path) -> None:
    header = read(tmp_path).header
    assert (header.commit, header.committed_at) == (COMMIT, "2026-09-10T00:26:40+00:00")
    assert (header.started_at, header.label) == ("2026-09-21T14:13:20.000+00:00", "asv virtualenv")
    assert header.run.startswith("20260921T141320Z-bench-")
    assert header.imported == Imported(
        program="asv", file="01234567-virtualenv-py3.11-AMPBENCH_DEVICEcpu-torch2.13.0.json"
    )
    environment = header.environment
    assert (environment.host, environment.cpu) == ("bench", "AMD EPYC")
    assert (environment.system, environment.python_version) == ("Linux 6.1", "3.11")
    assert (environment.torch_version, environment.torchvision_version) == ("2.13.0", "0.28.0")
    assert (environment.numpy_version, environment.threads, environment.devices) == ("", None, [])


def test_null_is_a_failure_and_nan_a_skip(tmp_path: Path) -> None:
    precisions = ("fp32", "tf32", "bf16_pure", "fp16_pure")
    results = {
        STEP: row([1e-3, NAN, None, NAN], precisions=precisions),
        MEMORY: row([1024, NAN, 512, 2048], precisions=precisions),
        GRADIENT: row([NAN] * 4, precisions=precisions),
        ERROR: row(None, precisions=("bf16_autocast",)),
    }
    rows = {one["precision"]: one for one in run_rows(read(tmp_path, results))}
    outcomes = {precision: one["outcome"] for precision, one in rows.items()}
    assert outcomes == {
        "fp32": "ok", "tf32": "skipped", "bf16_pure": "failed", "fp16_pure": "ok", "bf16_autocast": "failed"
    }  # fmt: skip
    assert rows["tf32"]["reason"] == asv.SKIPPED
    assert rows["bf16_pure"]["reason"].startswith(f"unknown: {STEP} has no value: it raised an error, timed out")
    assert rows["bf16_pure"]["peak_memory_bytes"] == 512
    assert rows["fp16_pure"]["seconds_median"] is None


@pytest.mark.parametrize(
    ("variable", "recorded", "device"),
    [("cpu", 1, "cpu"), ("", 1, "cuda"), ("", 2, "xpu"), ("", 0, "cpu"), ("", NAN, "cpu"), ("", None, "cpu")],
)
def test_the_device_is_the_variables_then_what_the_suite_recorded(
    variable: str, recorded: Any, device: str, tmp_path: Path
) -> None:
    results = suite() | {DEVICE: [[recorded], [], "1"]}
    stored = read(tmp_path, results, env_vars={"AMPBENCH_DEVICE": variable} if variable else {})
    assert {case.device for case in stored.cases.values()} == {device}


def test_another_suites_benchmarks_are_left_out_and_counted(tmp_path: Path) -> None:
    others = {
        "suite.time_it": [[1.0], [], "abc"],
        "suite.track_text": [["odd"], [["1"]], "abc"],
        # other parameters or another version under a name of ours
        GRADIENT: [[1.0, 2.0], [["1", "2"]], "1"],
        MEMORY: row([1, 2], precisions=["int8", "int4"], version="abc"),
    }
    remarks = Counter[str]()
    (stored,) = read_source(write(tmp_path, suite() | others), remarks)
    assert stored.readings.keys() == {"seconds_median", "seconds_low", "seconds_high", "output_floor_ratio"}
    assert remarks == {f"left out 4 of another suite: {MEMORY}, {GRADIENT}, suite.time_it, suite.track_text": 1}


@pytest.mark.parametrize(
    ("results", "message"),
    [
        (
            {"suite.time_it": [[1.0], [], "x"]},
            "holds no benchmark of ampbench's suite: its benchmarks are suite.time_it$",
        ),
        ({}, "its benchmarks are none$"),
        ({f"suite.time_{number}": [] for number in range(99)}, "suite.time_0, .* and 91 more$"),
        ({STEP: row([1e-3, 2e-3], version="2")}, f"{STEP} has version 2, not 1"),
        ({STEP: [[1e-3, 2e-3], row(None)[1]]}, f"its benchmarks are {STEP}$"),
        ({STEP: row(["fast", 2e-3])}, r"Expected `float \| null`, got `str`"),
        ({STEP: row([1e-3, 2e-3], precisions=["fp32", "int8"])}, f"unknown precision int8 in {STEP}: upgrade ampbench"),
        ({STEP: row([1e-3, 2e-3], phases=["tuning"])}, f"unknown phase tuning in {STEP}: upgrade ampbench"),
        (
            suite() | {DEVICE: [[99], [], "1"]},
            f"{asv.DEVICE[1:]} is 99, and this ampbench knows {len(DEVICES)} devices: upgrade it",
        ),
        (suite() | {DEVICE: [[0.5], [], "1"]}, f"{asv.DEVICE[1:]} is 0.5, and this ampbench knows"),
        (suite() | {DEVICE: [[0], [], "2"]}, f"{DEVICE} has version 2, not 1"),
    ],
)
def test_results_that_are_not_ours_or_mean_something_else_are_refused(
    results: Any, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, results, env_vars={})
    with pytest.raises(StoreError, match=message) as caught:
        list(read_source(path, Counter()))
    assert str(caught.value).startswith(f"{path}: ")


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


def stored_runs(folder: Path, count: int = 2) -> list[StoredRun]:
    for number in range(count):
        write(folder, commit_hash=f"{number}" * 40)
    return list(convert.read_source(folder, Counter()))


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "damaged"), ("[]", "no results of asv"), ('{"header":{"schema":3}}', "no results of asv")],
)
def test_foreign_files_are_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text(content)
    for source in (tmp_path / "odd.json", tmp_path):
        with pytest.raises(StoreError, match=message):
            list(convert.read_source(source, Counter()))


def test_importing_twice_writes_once(tmp_path: Path) -> None:
    runs = stored_runs(tmp_path / "asv")
    (first,), _ = convert.write_runs(runs[:1], tmp_path / "results")
    before = first.stat()
    (second,), known = convert.write_runs([*runs, *runs], tmp_path / "results")
    assert (second.stem, known) == (runs[1].header.run, 1)
    after = first.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("whole", [0, 2])
def test_a_disk_that_fills_up_leaves_nothing(whole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = stored_runs(tmp_path / "asv", count=3)
    calls = []
    sync = os.fsync

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > whole:  # each file is synchronised once
            raise OSError(28, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr("ampbench.store.run_file.os.fsync", full)
    with pytest.raises(StoreError, match=r"cannot write .*: No space left on device; choose another"):
        convert.write_runs(runs, tmp_path / "results")
    assert list((tmp_path / "results").rglob("*.jsonl")) == []
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["runs"]
