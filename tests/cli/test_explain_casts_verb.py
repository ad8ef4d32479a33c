"""`ampbench explain casts`: what it asks for, prints and stores, and what other verbs make of such a run."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

import ampbench as library
from ampbench.errors import UsageError
from ampbench.records.casts import COMPILED, CastPass, GraphTrace, Tracing
from ampbench.records.measured import Failure, Skip
from ampbench.store import list_runs
from tests.stored_runs import COMPLETE, RUN, make_case, write_run
from tests.traced_programs import trace

Run = Callable[..., Any]

MODEL = """
import torch

def make():
    return torch.nn.Linear(16, 16), torch.randn(4, 16)

def broken():
    return torch.nn.Linear(16, 16), torch.randn(4, 8)
"""
LINEAR = make_case("bf16_autocast", workload="model.py:make", parameters={}, batch_size=None)
DEEP = make_case("fp16_autocast", workload="deep", parameters={}, device="cuda", phase="training")
BROKEN = make_case("bf16_autocast", workload="broken", parameters={})
SKIPPED = make_case("bf16_autocast", workload="no_loss", parameters={}, phase="training")


@pytest.fixture(scope="module")
def passes() -> tuple[CastPass, CastPass]:
    """What was seen of a Linear on the device, and of a deep network on fake tensors (here: in no time)."""
    linear, deep = torch.nn.Linear(16, 16), torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(60)))
    with torch.inference_mode():
        first = trace(functools.partial(linear, torch.randn(4, 16)), linear, time=True).trace
    first = structs.replace(
        first,
        ops=[structs.replace(op, seconds=1e-4) for op in first.ops],
        casts=[structs.replace(cast, seconds=1e-4) for cast in first.casts],
    )
    second = trace(functools.partial(deep, torch.randn(4, 8)), deep).trace
    graph = GraphTrace(graph=COMPILED, error="RuntimeError: no")
    return (
        CastPass(
            case_id=LINEAR.case_id, how="device", trace=first, traced_steps=20,
            step_samples=[[9e-3, 1e-3], [1.01e-3], [1.02e-3]], graphs=[graph],
        ),
        CastPass(case_id=DEEP.case_id, how="fake tensors", trace=second, notes=["the optimizer did not run"]),
    )  # fmt: skip


@pytest.fixture
def stored(passes: tuple[CastPass, CastPass], tmp_path: Path) -> Path:
    """A results folder with one run that explains casts: two cases, a failure and a skip."""
    failure = Failure(case_id=BROKEN.case_id, stage="casts", cause="exception", message="RuntimeError: shapes")
    skip = Skip(case_id=SKIPPED.case_id, reason="no loss given")
    cases = [LINEAR, DEEP, BROKEN, SKIPPED]
    write_run(tmp_path / "results", cases, *passes, failure, skip, COMPLETE, explains="casts")
    return tmp_path / "results"


def words(line: str) -> list[str]:
    return line.split()


def test_a_summary_says_what_one_linear_casts_and_which_cast_could_be_saved(stored: Path, ampbench: Run) -> None:
    said = ampbench("show", RUN, "-k", LINEAR.case_id, "-v")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0] == "model.py:make · bf16_autocast · inference · cpu"
    assert lines[1].startswith("  3 casts a step, 1.97 KiB, ")
    head = " ".join(said.out.partition("Where they come from")[0].split())
    assert "3 casts could be saved." in head
    assert "compiled: not made: RuntimeError: no." in head
    weights, inputs = [words(line) for line in lines if "store in bf16" in line]
    assert inputs[:5] == ["input", "input", "1", "384", "B"]
    assert weights[:6] == ["weight", "bias,", "weight", "2", "1.59", "KiB"]
    order = said.out.partition("Every op in order")[2]
    assert [words(line)[2] for line in order.splitlines()[2:7]] == ["_to_copy", "_to_copy", "_to_copy", "t", "addmm"]
    assert [line.partition("cast of ")[2] for line in order.splitlines()[2:5]] == ["weight bias", "weight", "input"]


def test_a_list_of_runs_says_what_each_explains(stored: Path, ampbench: Run) -> None:
    said = " ".join(ampbench("list", "runs", "--results", stored).out.split())
    assert "explains casts of model.py:make, deep, broken and 1 more " in said
    assert "2 ok, 1 failed, 1 skipped" in said
    (row,) = json.loads(ampbench("list", "runs", "--results", stored, "--json").out)
    assert (row["explains"], row["device"]) == ("casts", "cpu cuda")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", RUN, "--to", "junit"], f"run {RUN} explains casts and measured nothing: ampbench show {RUN}"),
        (["run", "--resume", RUN], f"run {RUN} explains casts: do it anew with ampbench explain casts"),
    ],
)
def test_what_needs_measurements_refuses_such_a_run(
    arguments: list[str], message: str, stored: Path, ampbench: Run
) -> None:
    said = ampbench(*arguments)
    assert (said.code, said.out) == (2, "")
    assert message in said.err
    assert said.err.count("\n") == 1


def test_such_a_run_is_not_the_latest(stored: Path, ampbench: Run) -> None:
    said = ampbench("show", "latest")
    assert (said.code, said.out) == (5, "")
    assert "has measured: do so with `ampbench run`" in said.err


def test_a_frame_of_such_a_run_is_refused_and_a_folder_leaves_it_out(stored: Path) -> None:
    (file,) = list_runs(stored)
    with pytest.raises(UsageError, match="explains casts and measured nothing"):
        library.load(file)
    write_run(stored, [LINEAR], COMPLETE, run="20260201T120000Z-bench-2")
    assert set(library.load(stored)["run"]) == {"20260201T120000Z-bench-2"}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's file; steps are timed for a moment only."""
    monkeypatch.setattr("ampbench.studies.casts.Tracing", functools.partial(Tracing, seconds=0.02))
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_a_case_that_fails_is_a_line_an_entry_and_exit_3(model: Path, ampbench: Run) -> None:
    said = ampbench("explain", "casts", f"{model}:broken", f"{model}:make", "--phase", "inference")
    assert said.code == 3
    assert said.err.startswith("run ")
    assert "Where they come from" in said.out
    assert "broken bf16_autocast: failed: RuntimeError" in said.out
