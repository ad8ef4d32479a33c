"""`ampbench study scaler`: what it trains, prints, stores and refuses, and how a session may end and go on."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampbench.records.kinds import SCALER
from ampbench.records.measured import Failure
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.store import list_runs, read_run
from ampbench.studies.scaler import SETTINGS, ScalerAsked
from tests.scripted_channel import Scripted, asked_in
from tests.stored_runs import COMPLETE, RUN, write_run
from tests.studies.scaled_trainings import CASE, collapsed, run, runs

Run = Callable[..., Any]

MODEL = """
import torch
from torch import nn

class Large(nn.Module):
    def forward(self, x):
        return x * 1e5

class Back(nn.Module):
    def forward(self, x):
        return x * 1e-5

def network(*layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), *layers, nn.Linear(32, 4))

def data(factor=1.0):
    targets = torch.randint(0, 4, (64,))
    inputs = torch.randn(64, 16) + targets[:, None]
    return inputs, lambda output: factor * nn.functional.cross_entropy(output, targets)

def small():                  # a loss that another term was to be added to
    return (network(), *data(1e-8))

def large():
    return (network(Large(), Back()), *data())

def plain():
    return (network(), *data())

def no_loss():
    return network(), torch.randn(4, 16)
"""


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A results folder with one study, of which two settings are missing."""
    asked = ScalerAsked(steps=40, settings=list(SETTINGS[:4]))
    entries = runs(run("no scaling", 0.6, flushed=62), run("default"))
    write_run(tmp_path / "results", [CASE], *entries, COMPLETE, explains="scaler", asked=asked)
    return tmp_path / "results"


@pytest.fixture
def model(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)


def test_a_study_is_shown_again_with_what_it_lacks(stored: Path, ampbench: Run) -> None:
    said = ampbench("show", RUN)
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0] == "net · fp16_autocast · training · cpu · 40 steps"
    assert max(map(len, lines)) <= 100
    told = " ".join(said.out.split())
    assert "No scaling: the loss lacks 50.0% of its fall in fp32" in told
    assert "low start: not reached before the run ended." in told


def test_a_study_that_does_not_say_what_it_was_asked_for_cannot_go_on(tmp_path: Path, ampbench: Run) -> None:
    write_run(tmp_path / "results", [CASE], run("fp32"), COMPLETE, explains="scaler")
    said = ampbench("study", "scaler", "--resume", RUN)
    assert (said.code, said.out) == (2, "")
    assert f"run {RUN} does not say what it was asked for" in said.err
    assert said.err.count("\n") == 1
    assert ampbench("show", RUN).code == 0


def test_csv_has_a_row_for_each_setting_and_json_the_trainings_too(stored: Path, ampbench: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(ampbench("show", RUN, "--format", "csv").out)))
    assert [(row["setting"], row["state"], row["skipped_steps"]) for row in rows] == [
        ("fp32", "as fp32", ""), ("no scaling", "behind", ""), ("default", "as fp32", "0"),
    ]  # fmt: skip
    (case,) = json.loads(ampbench("show", RUN, "--json").out)["cases"]
    assert case["outcome"] == "ok"
    assert [one["setting"]["name"] for one in case["scalings"]] == ["fp32", "no scaling", "default"]
    assert case["tables"]["settings"][1]["flushed_share"] == 0.62
    assert any("needs loss scaling" in line for line in case["sentences"])


def test_markdown_has_the_same_tables(stored: Path, ampbench: Run) -> None:
    said = ampbench("show", RUN, "--format", "markdown").out
    assert said.startswith("## net · fp16")
    assert "### Settings of GradScaler" in said


def test_a_failure_of_one_setting_is_told_beside_the_others(tmp_path: Path, ampbench: Run) -> None:
    failure = Failure(case_id=CASE.case_id, stage="scaler", cause="time-out", message="took longer than 300 s")
    entries = [run("fp32"), collapsed("default", None), failure, COMPLETE]
    asked = ScalerAsked(steps=40, settings=list(SETTINGS))
    write_run(tmp_path / "results", [CASE], *entries, explains="scaler", asked=asked)
    told = " ".join(ampbench("show", RUN).out.split())
    assert "The rest was not measured: time-out: took longer than 300 s." in told
    assert "No loss scale helps: the loss itself is not finite" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "study the loss scaling of which workload?"),
        (["mlpp"], "unknown workload 'mlpp': did you mean mlp?"),
        (["mlp", "--precision", "bf16_autocast"], "bf16_autocast needs no loss scaling: it has fp32's range"),
        (["mlp", "--precision", "fp16_pure"], "GradScaler refuses fp16 parameters"),
        (["mlp", "--steps", "0"], "'--steps': give at least 1;"),
        (["mlp", "--setting", "defualt"], "unknown setting 'defualt': did you mean default"),
        (["mlp", "--init-scale", "0"], "--init-scale 0: must be a finite number above 0"),
        (["mlp", "--init-scale", "inf"], "--init-scale inf: must be a finite number above 0"),
        (["mlp", "--growth-factor", "1"], "--growth-factor 1: must be a number above 1"),
        (["mlp", "--backoff-factor", "1.5"], "--backoff-factor 1.5: must be between 0 and 1"),
        (["mlp", "--growth-interval", "0"], "--growth-interval 0: must be at least 1"),
        (["mlp", "--no-scaler", "--setting", "default"], "--no-scaler leaves no setting"),
        (["--resume", "1f9a3c", "--steps", "3"], "leave --steps out"),
    ],
)
def test_a_usage_error_is_one_line(arguments: list[str], message: str, tmp_path: Path, ampbench: Run) -> None:
    said = ampbench("study", "scaler", *arguments)
    assert (said.code, said.out) == (2, "")
    assert message in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_a_setting_of_the_users_own_is_added(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ampbench: Run) -> None:
    def answer(request: Request) -> Reply:
        assert request.case is not None
        setting = asked_in(request).setting
        made = run(setting.name if setting else "fp32", case_id=request.case.case_id)
        return reply_with(made)

    channel = Scripted(answer)
    monkeypatch.setattr("ampbench.studies.work.ServerChannel", lambda **_: channel)
    said = ampbench("study", "scaler", "mlp", "--setting", "default", "--init-scale", "1024")
    assert said.code == 0
    asked = [asked_in(request).setting for request in channel.asked]
    assert [one.name if one else "" for one in asked] == ["", "default", "yours"]
    assert (asked[2].init_scale, asked[2].growth_interval) == (1024, 2000)  # type: ignore[union-attr]
    (file,) = list_runs(tmp_path / "results")
    assert read_run(file).asked == ScalerAsked(steps=100, settings=asked[1:])  # type: ignore[arg-type]
    again = ampbench("study", "scaler", "--resume", file.stem)
    assert (again.code, again.out) == (0, said.out)
    assert "nothing is left to do" in again.err


@pytest.mark.slow
@pytest.mark.usefixtures("model")
def test_a_loss_that_underflows_needs_scaling_and_an_interrupted_study_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ampbench: Run
) -> None:
    from ampbench.drive import servers

    serve = servers.ServerChannel.serve

    def interrupt(self: servers.ServerChannel, request: Request) -> Reply:
        if request.task == SCALER and asked_in(request).setting == SETTINGS[1]:
            raise KeyboardInterrupt
        return serve(self, request)

    with monkeypatch.context() as patch:
        patch.setattr(servers.ServerChannel, "serve", interrupt)
        first = ampbench(
            "study", "scaler", "model.py:small", "--steps", "8", "--setting", "no scaling", "--setting", "default"
        )
    assert first.code == 130
    (file,) = list_runs(tmp_path / "results")
    assert "default: not reached before the run ended." in first.out
    assert f"1 piece left; ampbench study scaler --resume {file.stem} goes on" in first.err
    said = ampbench("study", "scaler", "--resume", file.stem, "--json")
    assert said.code == 0
    (case,) = json.loads(said.out)["cases"]
    shares = {row["setting"]: row["flushed_share"] for row in case["tables"]["settings"]}
    assert shares["no scaling"] > 0.9
    assert shares["default"] < 0.1


@pytest.mark.slow
@pytest.mark.usefixtures("model")
def test_a_loss_that_overflows_collapses_every_scale_and_no_loss_is_a_skip(ampbench: Run) -> None:
    said = ampbench("study", "scaler", "model.py:large", "--steps", "30", "--setting", "default")
    told = " ".join(said.out.split())
    assert said.code == 0
    assert "No loss scale helps: the loss itself is not finite: aten." in told
    assert "forward, step 1 makes the first value that is not finite" in told
    said = ampbench("study", "scaler", "model.py:no_loss")
    assert (said.code, said.out) == (5, "")
    assert "no loss given" in said.err


@pytest.mark.slow
@pytest.mark.usefixtures("model")
def test_a_plain_classifier_needs_no_scaling(ampbench: Run) -> None:
    said = ampbench("study", "scaler", "model.py:plain", "--steps", "8", "--setting", "no scaling")
    assert said.code == 0
    assert "fp16 needs no loss scaling here" in " ".join(said.out.split())
