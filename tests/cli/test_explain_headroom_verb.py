"""`ampbench explain headroom`: what it asks for, prints, stores and refuses, and how a session may end."""

import csv
import errno
import io
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ampbench.records.measured import Failure, Skip
from ampbench.records.ranges import RangePass
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.store import list_runs, read_run
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


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


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


def test_csv_has_a_row_for_what_was_counted(stored: Path, ampbench: Run) -> None:
    found = rows(ampbench("show", RUN, "--format", "csv").out)
    assert {row["case_id"] for row in found} == {CASE.case_id}
    assert [(row["module"], row["what"], row["elements"]) for row in found] == [
        ("first", "weight", "8"), ("first", "activation", "8"), ("big", "activation", "8"),
        ("last", "activation", "8"), ("first", "gradient", "8"), ("first", "update", "8"),
    ]  # fmt: skip
    assert (found[2]["fp16_overflow"], found[2]["bf16_overflow"], found[2]["fp16_swallowed"]) == ("1.0", "0.0", "")
    assert found[-1]["fp16_swallowed"] == "0.75"


def test_json_is_the_pass_with_what_is_derived_from_it(stored: Path, ampbench: Run) -> None:
    document = json.loads(ampbench("show", RUN, "--json").out)
    assert (document["run"], document["ended"]) == (RUN, "complete")
    case, failed, skipped = document["cases"]
    assert (case["outcome"], case["reason"], case["case"]["workload"]) == ("ok", None, "net")
    assert case["headroom"]["low_runs"][0]["precision"] == "fp16_pure"
    assert any("would overflow" in sentence for sentence in case["sentences"])
    assert [row["what"] for row in case["tables"]["values"]][:2] == ["weight", "activation"]
    assert [row["module"] for row in case["tables"]["seen"]] == ["first", "big", "last"]
    assert (failed["outcome"], failed["reason"]) == ("failed", "RuntimeError: shapes")
    assert (skipped["outcome"], skipped["reason"]) == ("skipped", "cuda is not available: no driver")


@pytest.mark.parametrize("steps", ["-1", "x", "1.5", "100000000"])
def test_a_number_of_steps_that_cannot_be_is_refused(steps: str, ampbench: Run) -> None:
    said = ampbench("explain", "headroom", "mlp", "--steps", steps)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert "--steps: give a whole number of at least 0" in said.err


def test_a_device_that_is_absent_is_said_with_the_workload(ends: Ends, ampbench: Run) -> None:
    said = ampbench("explain", "headroom", "mlp", "--device", "cuda")
    assert (said.code, said.out) == (5, "")
    assert said.err == "ampbench: error: nothing can run here: cuda is not available: no driver (mlp)\n"


@pytest.mark.parametrize("verb", ["headroom", "origin"])
def test_a_run_is_printed_stored_labelled_and_listed(verb: str, ends: Ends, tmp_path: Path, ampbench: Run) -> None:
    said = ampbench("explain", verb, "mlp", "--label", "before")
    (run,) = list_runs(tmp_path / "results")
    assert (said.code, said.err) == (0, f"run {run.stem}: results/runs/{run.name}\n")
    assert ampbench("show", run.stem).out == said.out
    assert read_run(run).header.explains == verb
    (row,) = json.loads(ampbench("list", "runs", "--json").out)
    of = {"headroom": "fp32 training", "origin": "bf16_autocast training"}[verb]
    assert (row["label"], row["explains"]) == ("before", verb)
    assert row["outcome"] == f"explains {verb} of mlp {of}: 1 ok"


@pytest.mark.parametrize("verb", ["headroom", "origin"])
def test_a_case_that_fails_is_told_on_stderr_where_the_data_has_no_place_for_it(
    verb: str, ends: Ends, tmp_path: Path, ampbench: Run
) -> None:
    stage = {"headroom": "ranges"}.get(verb, verb)
    ends["training"] = Failure(case_id="", stage=stage, cause="time-out", message="took longer than 300 s")
    said = ampbench("explain", verb, "mlp", "--phase", "inference", "--phase", "training", "--format", "csv")
    assert said.code == 3
    assert {row["case_id"].split("/")[4] for row in rows(said.out)} == {"inference"}
    failed, _ = said.err.splitlines()
    assert failed.startswith("failed: mlp")
    assert failed.endswith(": time-out: took longer than 300 s")
    (run,) = list_runs(tmp_path / "results")
    assert ", 1 failed" in json.loads(ampbench("list", "runs", "--json").out)[0]["outcome"]
    assert ": failed: time-out: took longer than 300 s" in " ".join(ampbench("show", run.stem).out.split())


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full once something was seen."""
    write = os.write

    def refuse(descriptor: int, data: bytes) -> int:
        if bytes(data).startswith((b'{"ranges":', b'{"origin":')):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr("os.write", refuse)


@pytest.mark.usefixtures("full")
def test_json_has_no_nan_even_of_a_pass_that_no_file_has_cleaned(ends: Ends, ampbench: Run) -> None:
    ends["training"] = range_pass(CASE, big_own=math.nan)
    said = ampbench("explain", "headroom", "mlp", "--json")
    assert said.code == 2
    (case,) = json.loads(said.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["cases"]
    assert case["headroom"]["low_runs"][0]["modules"][1]["own_rel_l2"] is None


def test_a_users_network_that_overflows_is_predicted_and_seen_in_every_batch(tmp_path: Path, ampbench: Run) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "model.py").write_text(MODEL)
    given = ("elsewhere/model.py:make", "--phase", "training", "--precision", "fp16_pure")
    said = ampbench("explain", "headroom", *given, "--json")
    (run,) = list_runs(tmp_path / "results")
    assert (said.code, said.err) == (0, f"run {run.stem}: results/runs/{run.name}\n")
    (case,) = json.loads(said.out)["cases"]
    assert (case["case"]["phase"], case["headroom"]["steps"]) == ("training", 2)
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
