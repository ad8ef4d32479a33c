"""`ampbench run` from the outside, with real processes on tiny workloads."""

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ampbench
from ampbench.cli.main import main
from ampbench.drive.servers import ServerChannel
from ampbench.drive.session import opened_first
from ampbench.errors import NothingToRunError
from ampbench.store import read_run
from ampbench.studies.ceilings import Attained, Ceiling
from tests import stored_runs
from tests.odd_networks import ODD

QUICK = ["--rounds", "2", "--min-run-time", "0.001", "--threads", "1"]
NAMED = ["--precision", "fp32,tf32,fp16_autocast,bf16_autocast,fp16_pure,bf16_pure"]
"""The precisions of a CPU that emulates none."""


@pytest.fixture
def odd(tmp_path: Path) -> str:
    path = tmp_path / "odd.py"
    path.write_text(ODD)
    return str(path)


def rows_of(results: Path) -> dict[str, dict[str, object]]:
    frame = ampbench.load(results)
    return {row["case_id"]: row for row in frame.to_dict("records")}


def test_a_run_takes_over_the_ceilings_measured_here_and_says_how_far_off_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened_first(ServerChannel, threads=1) as first:
        here = first.environment
    attained = [Attained(size="64x64x64", work=10**15, samples=[1.0])]
    ceiling = Ceiling(device="cpu", operation="matmul", dtype="fp32", threads=1, attained=attained)
    study = stored_runs.write_run(tmp_path, [], ceiling, environment=here, explains="ceilings")
    selected = ["mlp", "--preset", "tiny", "--phase", "inference", "--precision", "fp32", "--precision", "bf16_pure"]
    assert main(["run", *selected, *QUICK, "--rounds", "1", "-v", "--results", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    (file,) = (path for path in (tmp_path / "runs").iterdir() if path != study)
    assert [one.run for one in read_run(file).every(Ceiling)] == [stored_runs.RUN]
    rows = {row["precision"]: row for row in rows_of(file).values()}
    assert rows["fp32"]["ceiling_share"] == pytest.approx(rows["fp32"]["flops_per_second"] / 1e15)
    assert rows["bf16_pure"]["flops_per_step"] == rows["fp32"]["flops_per_step"] > 0
    assert pd.isna(rows["bf16_pure"]["ceiling_share"])
    assert "\nof ceiling" in out


def test_a_server_that_starts_no_more_leaves_the_table_and_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[ServerChannel] = []

    def starting(**given: Any) -> ServerChannel:
        if started:
            raise NothingToRunError("no worker could start with python: no more processes")
        started.append(ServerChannel(**given))
        return started[0]

    monkeypatch.setattr("ampbench.drive.session.ServerChannel", starting)
    results = tmp_path / "else where"
    selected = ["mlp", "--preset", "tiny", "--phase", "inference", "--precision", "fp32", *QUICK]
    assert main(["run", *selected, "--results", str(results)]) == 5
    out, err = capsys.readouterr()
    (file,) = (results / "runs").iterdir()
    assert "fp32" in out
    how = f"ampbench run --resume {file.stem} --results '{results}'"
    assert err.splitlines()[-2:] == [
        f"interrupted: 1 of 1 case measured so far, not yet in all rounds; {how} goes on",
        "ampbench: error: no worker could start with python: no more processes",
    ]
    assert [footer.ended for footer in read_run(file).footers] == ["interrupted"]


def test_a_run_ends_with_the_table_the_advice_and_the_path_of_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    named = ["--precision", "fp32,tf32,bf16_autocast"]
    selected = ["mlp", "--preset", "tiny", "--phase", "training", *named]
    code = main(["run", *selected, *QUICK, "--rounds", "3", "--results", str(results), "-v"])
    out, err = capsys.readouterr()
    assert code == 0
    assert "→" in out
    (file,) = (results / "runs").iterdir()
    assert str(file) in err
    assert "Evidence: " in out
    assert "control" in out
    rows = rows_of(results)
    assert {row["outcome"] for row in rows.values()} == {"ok", "skipped"}
    ok = [row for row in rows.values() if row["outcome"] == "ok"]
    assert len(ok) == 2
    for row in ok:
        assert row["rounds"] == 3
        assert row["seconds_low"] <= row["seconds_median"] <= row["seconds_high"]
        assert row["output_rel_l2"] > 0
        assert row["peak_memory_bytes"] > 0
        assert row["items_per_second"] > 0


def test_workloads_that_go_wrong_are_failed_rows_beside_a_good_one(odd: str, tmp_path: Path) -> None:
    results = tmp_path / "results"
    code = main(
        ["run", f"{odd}:net", "--sweep", "kind=good,abort,hog,raise", "--precision", "fp32",
         "--phase", "inference",
         *QUICK, "--rounds", "1", "--memory-limit", "1200MiB", "--results", str(results)]
    )  # fmt: skip
    assert code == 3
    outcomes = {case_id.split("kind=")[1].split(",")[0]: row for case_id, row in rows_of(results).items()}
    assert {kind: row["outcome"] for kind, row in outcomes.items()} == {
        "good": "ok", "abort": "failed", "hog": "failed", "raise": "failed",
    }  # fmt: skip
    assert "SIGABRT" in outcomes["abort"]["reason"]
    assert "memory limit" in outcomes["hog"]["reason"]
    assert "no luck today" in outcomes["raise"]["reason"]


def test_a_case_whose_worker_was_killed_is_measured_when_the_run_is_resumed(
    odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, there = tmp_path / "results", tmp_path / "there"
    selected = ["--set", "kind=kill", "--set", f"told={there}", "--precision", "fp32", "--phase", "inference"]
    assert main(["run", f"{odd}:net", *selected, *QUICK, "--rounds", "1", "--results", str(results)]) == 3
    (file,) = (results / "runs").iterdir()
    said = capsys.readouterr().err
    assert "1 case not measured: the worker was killed twice" in said
    assert f"ampbench run --resume {file.stem} --results {results} tries again" in said.replace("\n", " ")
    there.touch()
    assert main(["run", "--resume", "latest", "--results", str(results)]) == 0
    assert "nothing is left to do" not in capsys.readouterr().err
    assert [row["outcome"] for row in rows_of(results).values()] == ["ok"]


def test_a_run_whose_reading_ctrl_c_ended_is_finished_and_resumed_measures_nothing_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "random.py").write_text("raise SystemExit('not the library')")  # in the current folder: does no harm
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "results"
    arguments = ["--preset", "tiny", "--precision", "fp32", "--phase", "inference", *QUICK, "--results", str(results)]
    arguments += ["--rounds", "1"]
    with monkeypatch.context() as patch:
        patch.setattr("ampbench.result.Result.document", pressed)
        assert main(["run", "mlp", *arguments]) == 130
    (file,) = (results / "runs").iterdir()
    written = file.read_bytes()
    how = f"the result is stored, and ampbench show {file.stem} --results {results} shows it"
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"interrupted: {how}")
    assert main(["run", "--resume", "latest", "--results", str(results)]) == 0
    assert file.read_bytes() == written
    said = capsys.readouterr()
    assert said.out.startswith("mlp · ")
    assert said.err == f"run {file.stem} is complete: nothing is left to do\nrun {file.stem}: {file}\n"


def late_of(text: str) -> list[Any]:
    """Return the late places of a run file, without further batches, whose number depends on time."""
    places = [json.loads(line)["late"] for line in text.splitlines() if line.startswith('{"late"')]
    for place in places:
        place["divergence"]["output"].pop("further", None)
    return places


@pytest.mark.slow
def test_a_run_that_ended_before_a_late_pass_measures_it_on_resume_with_the_same_numbers(tmp_path: Path) -> None:
    results = tmp_path / "results"
    arguments = ["--preset", "tiny", "--precision", "bf16_autocast", "--phase", "training", *QUICK, "--rounds", "1"]
    assert main(["run", "mlp", *arguments, "--results", str(results)]) == 0
    (file,) = (results / "runs").iterdir()
    before = file.read_text()
    begun, late = before[: before.index('{"late"')], late_of(before)
    assert len(late) == 1
    file.write_text(begun)
    assert main(["run", "--resume", "latest", "--results", str(results)]) == 0
    after = file.read_text()
    assert after.startswith(begun)
    assert late_of(after) == late


def test_a_dry_run_shows_the_plan_and_the_time_and_measures_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    assert main(["run", "mlp", "--preset", "tiny", *NAMED, "--dry-run", "--json", "--results", str(results)]) == 0
    captured = capsys.readouterr()
    plan = json.loads(captured.out)
    assert len(plan) == 12
    assert captured.err.startswith("tf32 not run: ")
    assert "1 network, 10 cases, 30 s each: about 33 s" in captured.err
    assert main(["run", "mlp", "--rounds", "4", "--dry-run", "--precision", "fp32", "--results", str(results)]) == 0
    captured = capsys.readouterr()
    header, *cases = captured.out.splitlines()
    assert (header, len(cases)) == ("case", 2)
    assert "1 network, 2 cases, 4 rounds: at least " in captured.err
    assert not results.exists()
    long = ["transformer_encoder", "--precision", "fp16_autocast", "--phase", "inference"]
    assert main(["run", *long, "--dry-run", "--results", str(results)]) == 0
    _, case = capsys.readouterr().out.splitlines()
    assert len(case) > 100, "an id is on one line, whatever its length"


@pytest.mark.parametrize(
    "arguments", [["run"], ["explain", "casts"], ["study", "scope"], ["ab", "--baseline", "A=1", "--candidate", "here"]]
)
def test_an_unwritable_results_folder_is_one_line_before_a_server_is_started(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ampbench.drive.servers.start_server", None)
    blocked = tmp_path / "results"
    blocked.write_text("a file where the folder should be")
    assert main([*arguments, "mlp", "--results", str(blocked)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"ampbench: error: cannot write {blocked / 'runs'}: {blocked} is no folder; choose another")
    assert len(err.strip().splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_keeps_what_was_measured_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    written = os.write
    full = {"after": 3}

    def write(descriptor: int, data: bytes) -> int:
        if bytes(data[:9]) in (b'{"round":', b'{"memory"'):
            full["after"] -= 1
            if full["after"] < 0:
                raise OSError(28, "No space left on device")
        return written(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    asked = ["run", "mlp", "--preset", "tiny", "--phase", "inference", "--precision", "fp32,bf16_pure", *QUICK]
    code = main([*asked, "--results", str(results)])
    monkeypatch.setattr(os, "write", written)
    err = capsys.readouterr().err
    assert code == 2
    assert "No space left on device" in err
    assert "--resume" in err
    assert main(["run", "--resume", "latest", "--results", str(results)]) == 0
    assert [row["outcome"] for row in rows_of(results).values()].count("ok") == 2
