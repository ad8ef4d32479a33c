"""`ampbench explain headroom`: what it asks for, prints, stores and refuses, and how a session may end."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ampbench.records.measured import Failure, Skip
from ampbench.records.ranges import RangePass
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.store import list_runs
from tests.range_passes import origin_pass, range_pass
from tests.scripted_channel import Scripted
from tests.stored_runs import COMPLETE, RUN, make_case, write_run

Run = Callable[..., Any]
Ends = dict[str, Failure | RangePass | type[BaseException]]

CASE = make_case(workload="net", parameters={}, phase="training", batch_size=None)
FAILED = make_case(workload="broken", parameters={})
SKIPPED = make_case(workload="elsewhere", parameters={}, device="cuda")

MODEL = """
import torch

class Big(torch.nn.Module):
    def forward(self, x):
        return x * 3e4

def make():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), Big(), torch.nn.LayerNorm(8))
    return model, [torch.randn(4, 8) * 10 for _ in range(2)], lambda output: output.square().mean()

def nan():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), Log()), torch.randn(4, 8)

class Log(torch.nn.Module):
    def forward(self, x):
        return torch.log(x - 1e9)
"""


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A results folder with one run that explains headroom: a case, a failure and a skip."""
    failure = Failure(case_id=FAILED.case_id, stage="ranges", cause="exception", message="RuntimeError: shapes")
    skip = Skip(case_id=SKIPPED.case_id, reason="cuda is not available: no driver")
    write_run(
        tmp_path / "results", [CASE, FAILED, SKIPPED], range_pass(CASE), failure, skip, COMPLETE, explains="headroom"
    )
    return tmp_path / "results"


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    """What becomes of a case in a phase, instead of what `tests.range_passes` has; nothing asks a worker."""
    ends: Ends = {}

    def answer(request: Request) -> Reply:
        case = request.case
        assert case is not None
        found = ends.get(case.phase)
        if isinstance(found, type):
            raise found
        if isinstance(found, Failure):
            return Reply(failure=structs.replace(found, case_id=case.case_id))
        if request.task == "origin":
            return reply_with(origin_pass(case))
        return reply_with(structs.replace(found or range_pass(case), case_id=case.case_id))

    channel = Scripted(answer)
    monkeypatch.setattr("ampbench.studies.work.ServerChannel", lambda **_: channel)
    return ends


def test_a_case_is_a_section_and_what_was_not_seen_is_a_line(stored: Path, ampbench: Run) -> None:
    said = ampbench("show", RUN)
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0].startswith("net · fp32 · training · cpu")
    assert max(map(len, lines)) <= 100
    told = " ".join(said.out.split())
    assert "fp16: 1 of 3 modules would overflow" in told
    assert "bf16_pure: skipped: cpu does not support bf16" in told
    assert "broken fp32 cpu inference: failed: RuntimeError: shapes" in lines
    assert ": skipped: cuda is not available: no driver" in said.out


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full once something was seen."""
    write = os.write

    def refuse(descriptor: int, data: bytes) -> int:
        if bytes(data).startswith((b'{"ranges":', b'{"origin":')):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr("os.write", refuse)


def test_a_users_network_that_overflows_is_predicted_and_seen_in_every_batch(tmp_path: Path, ampbench: Run) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "model.py").write_text(MODEL)
    given = ("elsewhere/model.py:make", "--optimizer", "adamw:lr=1e-3", "--precision", "fp16_pure")
    said = ampbench("explain", "headroom", *given, "--json")
    (run,) = list_runs(tmp_path / "results")
    assert (said.code, said.err) == (0, f"run {run.stem}: results/runs/{run.name}\n")
    (case,) = json.loads(said.out)["cases"]
    assert (case["case"]["phase"], case["headroom"]["steps"]) == ("training", 2)
    assert case["case"]["recipe"] == "optimizer=adamw,lr=0.001"
    (low,) = case["headroom"]["low_runs"]
    assert low["first_nonfinite"]["module"] == "1"
    overflowing = {row["module"] for row in case["tables"]["seen"] if row["overflow_seen"]}
    assert overflowing == {row["module"] for row in case["tables"]["seen"] if row["overflow_predicted"]} == {"1", "2"}


def test_values_that_are_not_finite_in_fp32_already_are_a_failure_of_one_line(tmp_path: Path, ampbench: Run) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    said = ampbench("explain", "headroom", "model.py:nan", "--precision", "fp16_pure", "--format", "csv")
    assert (said.code, said.out.count("\n")) == (3, 1)
    assert said.out.startswith("case_id,module,kind,what,")
    failed, stored = said.err.splitlines()
    assert failed.startswith("failed: model.py:nan/fp32/cpu/inference/eager/in-fp32: values are not finite in fp32 ")
    assert stored.startswith("run ")
