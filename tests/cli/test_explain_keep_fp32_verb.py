"""`ampbench explain keep-fp32`: what it asks for, prints and stores, what it refuses, how a search goes on."""

import csv
import errno
import io
import json
import os
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ampbench.cli.progress import piece_progress
from ampbench.drive import servers as channels
from ampbench.drive.planning import PlannedCase
from ampbench.records.case import WorkloadSource
from ampbench.records.kinds import KEEP_FP32
from ampbench.records.measured import Failure
from ampbench.records.run import Footer
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.store import list_runs, read_run
from ampbench.studies.keep_fp32 import (
    STUDY,
    KeepAsked,
    Limits,
    SearchSpace,
    TimedSet,
    Timing,
    Trial,
    Unit,
    trial_said,
    units_of,
)
from ampbench.studies.work import Piece
from tests.scripted_channel import asked_in
from tests.stored_runs import COMPLETE, RUN, make_case, write_run
from tests.studies.keep_searches import CASE, SPACE, TRIALS, ended, timed, trial

Run = Callable[..., Any]

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
        self.norm = torch.nn.LayerNorm(16)
        self.head = torch.nn.Linear(16, 4)
        with torch.no_grad():
            self.body[0].weight.mul_(3e5)
            self.body[2].weight.div_(3e5)

    def forward(self, x):
        return self.head(self.norm(x + self.body(x)))

def make():
    torch.manual_seed(0)
    return Net(), torch.randn(4, 16)

def train():
    return (*make(), lambda output: output.square().mean())

def infinite():
    network, inputs = make()
    return network, inputs / 0.0
"""
FAILED = make_case("fp16_pure", workload="broken", parameters={})
UNSEARCHED = make_case("fp16_pure", workload="unsearched", parameters={})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A results folder with a run of searches: one that ended, one that failed, one that only began."""
    failure = Failure(case_id=FAILED.case_id, stage="trial", cause="time-out", message="longer than 300 s")
    begun = structs.replace(SPACE, case_id=UNSEARCHED.case_id)
    interrupted = Footer(ended="interrupted", finished_at="2026-01-31T12:05:00Z")
    write_run(
        tmp_path / "results", [CASE, FAILED, UNSEARCHED], SPACE, *TRIALS, ended("norm"), failure, begun,
        structs.replace(trial(0, "norm", error=1e-3), case_id=UNSEARCHED.case_id), interrupted,
        explains=KEEP_FP32,
    )  # fmt: skip
    return tmp_path / "results"


@pytest.fixture
def worker(model: Path, monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """What workers say of the passes of a search, instead of real ones: only module `b` must be kept.

    The request numbered `ends` is interrupted.
    """
    state = types.SimpleNamespace(asked=[], ends=None)
    serve = channels.ServerChannel.serve
    units = [Unit(modules=[name], kind="Linear") for name in "abc"]

    def stand_in(self: channels.ServerChannel, request: Request) -> Reply:
        if request.case is None:
            return serve(self, request)
        if len(state.asked) == state.ends:
            raise KeyboardInterrupt
        state.asked.append(request)
        case_id = request.case.case_id
        if request.task == "timing":
            return reply_with(Timing(sets=[timed(kept, 1e-3, 6) for kept in asked_in(request).kept]))
        space = SearchSpace(case_id=case_id, units=units, containers=[""], limits=Limits(max_error=0.0))
        if request.task == "space":
            return reply_with(structs.replace(space, limits=asked_in(request)))
        kept = units_of(space, asked_in(request).kept)
        error = 1e-4 if 1 in kept else 0.5
        return reply_with(Trial(case_id=case_id, kept=asked_in(request).kept, output_rel_l2=error, grad_rel_l2=error))

    monkeypatch.setattr(channels.ServerChannel, "serve", stand_in)
    return state


def search(ampbench: Run, *arguments: object) -> Any:
    return ampbench("explain", "keep-fp32", *arguments)


def test_show_tells_what_is_kept_what_that_costs_and_what_to_paste(stored: Path, ampbench: Run) -> None:
    said = ampbench("show", RUN, "-v")
    assert said.code == 0
    text = " ".join(said.out.split())
    assert said.out.startswith("net · fp16_autocast · inference · cpu\n  Keep 1 of 4 modules in fp32: norm.\n")
    assert "Output error against fp64: 1.9e-03 (3.1e-02 with none kept); budget 2.0e-03." in text
    assert "No single module can be left out (4 trials)." in text
    assert "norm LayerNorm 2.0e-03" in text
    assert "norm ← 1 1.9e-03 met 1.08 ms 1.04x 1.04–1.04 1.00 MiB" in text
    assert '    import ampbench\n\n    ampbench.keep_fp32(model, "norm")\n' in said.out
    assert "broken fp16_pure: failed: time-out: longer than 300 s" in said.out
    assert "The search did not end: 1 trial made, the smallest set so far that meets the budget: norm." in text


@pytest.mark.parametrize("training", [False, True])
def test_what_is_told_fits_a_hundred_columns(training: bool, tmp_path: Path, ampbench: Run) -> None:
    names = [f"encoder.layers.{place}.self_attention.out_proj" for place in range(40)]
    limits = Limits(max_error=2e-3, max_gradient_error=1.0 if training else None)
    units = [Unit(modules=[name], kind="NonDynamicallyQuantizable") for name in names]
    space = structs.replace(SPACE, units=units, limits=limits)
    tried = [trial(0, error=1.0), trial(1, *names, error=1e-3), trial(2, "", error=1e-4)]
    trials = [structs.replace(each, grad_rel_l2=0.5) for each in tried]
    sets = [
        TimedSet(kept=kept, samples=[[9.99e-3 * (1 + len(kept))]] * 8, peak_bytes=1_048_000)
        for kept in ([], names, [""])
    ]
    search = ended(*names, timing=Timing(sets=sets))
    write_run(tmp_path / "results", [CASE], space, *trials, search, COMPLETE, explains=KEEP_FP32)
    said = ampbench("show", RUN, "-v")
    assert max(map(len, said.out.splitlines())) <= 100
    row = next(line for line in said.out.splitlines() if line.strip().startswith("none "))
    assert "9.99 ms" in row
    assert "1023 KiB" in row


def test_csv_has_a_row_for_each_set_that_was_tried(stored: Path, ampbench: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(ampbench("show", RUN, "--format", "csv").out)))
    own = [row for row in rows if row["case_id"] == CASE.case_id]
    assert [row["kept"] for row in own] == ["", "norm", "body norm", "(all)"]
    assert (own[1]["found"], own[1]["grad_rel_l2"]) == ("True", "")
    assert float(own[1]["ratio"]) == pytest.approx(1.04)


def test_json_has_the_search_its_trials_and_what_is_derived_from_them(stored: Path, ampbench: Run) -> None:
    document = json.loads(ampbench("show", RUN, "--json").out, parse_constant=pytest.fail)
    told, failed, unsearched = document["cases"]
    assert told["search"]["ended"]["kept"] == ["norm"]
    assert len(told["search"]["trials"]) == len(TRIALS)
    assert [row["kept"] for row in told["tables"]["sets"]] == ["", "norm", "body norm", "(all)"]
    assert told["code"].startswith("import ampbench\n")
    assert told["statements"][0]["code"] == "keep-found"
    assert failed["outcome"] == "failed"
    assert unsearched["search"]["ended"] is None
    assert document["ended"] == "interrupted"


def test_markdown_fences_the_code(stored: Path, ampbench: Run) -> None:
    said = ampbench("show", RUN, "-v", "--format", "markdown")
    assert "### Error, time and memory" in said.out
    fenced = said.out.partition("```python\n")[2].partition("```")[0]
    compile(fenced, "pasted", "exec")
    assert 'ampbench.keep_fp32(model, "norm")' in fenced


def test_a_search_is_stored_and_told(worker: types.SimpleNamespace, tmp_path: Path, ampbench: Run) -> None:
    said = search(ampbench, "model.py:make", "--max-error", "1e-3", "--max-trials", "9")
    assert said.code == 0
    assert "Keep 1 of 3 modules in fp32: b." in said.out
    (file,) = list_runs(tmp_path / "results")
    run = read_run(file)
    (space,) = run.of(SearchSpace).values()
    assert space.limits == Limits(max_error=1e-3)
    assert run.asked == KeepAsked(max_error=1e-3, max_trials=9)
    assert run.header.explains == KEEP_FP32
    assert said.err == f"run {run.header.run}: {file.relative_to(tmp_path)}\n"
    assert ampbench("show", run.header.run).out == said.out


def test_an_interrupted_search_says_how_to_go_on_and_does(
    worker: types.SimpleNamespace, tmp_path: Path, ampbench: Run
) -> None:
    worker.ends = 3
    said = search(ampbench, "model.py:make", "--max-error", "1e-3")
    (file,) = list_runs(tmp_path / "results")
    name = file.stem
    assert said.code == 130
    how = f"ampbench explain keep-fp32 --resume {name}"
    told = ["interrupted: what was seen until then is kept", f"1 piece left; {how} goes on"]
    assert said.err.splitlines()[-2:] == told
    worker.ends = None
    again = ampbench(*how.split()[1:])
    assert again.code == 0
    assert "Keep 1 of 3 modules in fp32: b." in again.out
    asked = [(request.task, str(asked_in(request))) for request in worker.asked]
    assert [task for task, _ in asked].count("space") == 2, "the second time to see that the network is the same"
    assert len(set(asked)) == len(asked) - 1, "nothing else is asked twice"
    done = search(ampbench, "--resume", name)
    assert (done.code, done.out) == (0, again.out)
    assert done.err == f"run {name} is complete: nothing is left to do\n"


def test_an_interruption_before_the_first_trial_leaves_no_run(
    worker: types.SimpleNamespace, tmp_path: Path, ampbench: Run
) -> None:
    worker.ends = 1
    said = search(ampbench, "model.py:make")
    assert (said.code, said.out, said.err) == (130, "", "interrupted: nothing was seen\n")
    assert list_runs(tmp_path / "results") == []


def test_an_interruption_of_a_resumed_search_before_it_does_anything_leaves_it_as_it_was(
    worker: types.SimpleNamespace, tmp_path: Path, ampbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.ends = 3
    search(ampbench, "model.py:make", "--max-error", "1e-3")
    (file,) = list_runs(tmp_path / "results")
    before = file.read_bytes()

    def plan(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ampbench.studies.work.check_selection", plan)
    said = search(ampbench, "--resume", file.stem)
    assert (said.code, said.out) == (130, "")
    how = f"1 piece left; ampbench explain keep-fp32 --resume {file.stem} goes on\n"
    imports = f"going on with run {file.stem} imports what it names: {tmp_path / 'model.py'}:make\n"
    assert said.err == f"{imports}interrupted: nothing was added to what was seen before\n{how}"
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs a workload: name one, as in `ampbench explain keep-fp32 mlp`"),
        (["mlpp"], "unknown workload 'mlpp': did you mean mlp"),
        (["mlp", "--precision", "fp32"], "explain keep-fp32 is not for fp32: give "),
        (["mlp", "--precision", "fp61"], "unknown precision 'fp61': did you mean"),
        (["mlp", "--max-error", "-1"], "--max-error is a relative error from 0 to 1e+150, not -1"),
        (["mlp", "--max-error", "nan"], "--max-error is a relative error from 0 to 1e+150, not nan"),
        (["mlp", "--max-error", "inf"], "--max-error is a relative error from 0 to 1e+150, not inf"),
        (["mlp", "--max-gradient-error", "1e300"], "--max-gradient-error is a relative error from 0 to 1e+150"),
        (["mlp", "--max-error", "little"], "--max-error: give a number"),
        (["mlp", "--max-trials", "0"], "--max-trials: give a whole number of at least 1"),
        (
            ["mlp", "--phase", "inference", "--max-gradient-error", "0.1"],
            "--max-gradient-error bounds the gradients of training, and --phase inference has none",
        ),
        (["mlp", "--max-eror", "0.1"], "unknown option --max-eror: did you mean --max-error"),
        (["mlp", "--resume", RUN], "--resume takes the selection and the settings from the run: leave workloads out"),
        (["--resume", RUN, "--max-error", "1"], "leave --max-error out"),
        (
            ["--resume", "latest"],
            "--resume needs the id of a run of ampbench explain keep-fp32: latest is one that measured",
        ),
        (["--resume", "none.jsonl"], "there is no run file none.jsonl"),
    ],
)
def test_what_cannot_be_meant_is_one_line(arguments: list[str], message: str, ampbench: Run) -> None:
    said = search(ampbench, *arguments)
    assert (said.code, said.out) == (2, "")
    assert message in said.err
    assert said.err.startswith("ampbench: error: ")
    assert said.err.count("\n") == 1


def test_a_verb_with_a_dash_is_suggested(ampbench: Run) -> None:
    assert "unknown explain verb 'keep-fp23': did you mean keep-fp32?" in ampbench("explain", "keep-fp23").err


@pytest.mark.parametrize(("explains", "did"), [("", "measures"), ("casts", "explains casts")])
def test_only_a_search_is_gone_on_with(explains: str, did: str, tmp_path: Path, ampbench: Run) -> None:
    write_run(tmp_path / "results", [CASE], COMPLETE, explains=explains)
    said = search(ampbench, "--resume", RUN)
    assert said.code == 2
    assert f"run {RUN} {did}: --resume goes on with a run of ampbench explain keep-fp32" in said.err


def test_a_settings_file_has_a_table_for_it(worker: types.SimpleNamespace, tmp_path: Path, ampbench: Run) -> None:
    (tmp_path / "ampbench.toml").write_text('["explain keep-fp32"]\nmax_error = 1e-3\nmax-gradient-error = 0.2\n')
    assert search(ampbench, "model.py:make").code == 0
    (file,) = list_runs(tmp_path / "results")
    assert read_run(file).asked == KeepAsked(max_error=1e-3, max_gradient_error=0.2)


def test_progress_tells_each_trial_with_what_is_kept_and_what_it_errs() -> None:
    assert trial_said(trial(11, "body", "norm", error=3.1e-3)) == "trial 12: body, norm kept, error 3.1e-03"
    assert trial_said(trial(12, nonfinite=5)) == "trial 13: none kept, 5 values not finite"
    assert trial_said(SPACE) == trial_said(None) == ""


def test_progress_of_trials_is_shown_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = WorkloadSource(name="net", family="user", module="model.py", function="net", builtin=False)
    piece = Piece(PlannedCase(case=CASE, source=source))
    with piece_progress("searching", [piece], STUDY.progress) as watch:
        watch(piece, None)
        watch(piece, TRIALS[0])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with piece_progress("searching", [piece], STUDY.progress) as watch:
        watch(piece, None)
        watch(piece, TRIALS[0])


def test_a_failed_write_in_a_resumed_search_tells_of_all_that_was_seen_before_too(
    worker: types.SimpleNamespace, tmp_path: Path, ampbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.ends = 4
    broken = search(ampbench, "model.py:make", "--max-error", "1e-3")
    assert broken.code == 130
    (file,) = list_runs(tmp_path / "results")
    before = file.read_bytes()
    worker.ends = None
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if bytes(data).startswith((b'{"search":', b'{"footer":')):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr("os.write", full)
    said = search(ampbench, "--resume", file.stem)
    assert said.code == 2
    assert "No space left on device" in said.err
    assert f"continue with ampbench explain keep-fp32 --resume {file.stem}" in said.err
    assert "Keep 1 of 3 modules in fp32: b." in said.out
    assert file.read_bytes().startswith(before)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("lost", [b'{"space":', b'{"case":'])
def test_a_search_that_lost_its_space_is_refused_by_line(lost: bytes, stored: Path, ampbench: Run) -> None:
    (file,) = list_runs(stored)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(line for line in lines if not line.startswith(lost)))
    for said in (ampbench("show", RUN), ampbench("show", RUN, "--json")):
        assert (said.code, said.out) == (2, "")
        assert re.search(r"line \d+: a ", said.err)
        assert said.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["model.py:make", "--precision", "fp16_autocast"], {"body.0", "body"}),
        (["model.py:train", "--precision", "fp16_pure", "--phase", "training", "--max-error", "5e-3"], {"body"}),
    ],
)
def test_a_module_that_overflows_is_found_by_real_workers(
    arguments: list[str], kept: set[str], model: Path, ampbench: Run
) -> None:
    said = search(ampbench, *arguments, "--threads", "1", "--json")
    assert said.code == 0, said.err
    (case,) = json.loads(said.out, parse_constant=pytest.fail)["cases"]
    assert kept & set(case["search"]["ended"]["kept"])
    space = case["search"]["space"]
    assert space["inputs_digest"] != space["weights_digest"] != ""
    assert case["tables"]["sets"][0]["output_rel_l2"] is None
    (row,) = [row for row in case["tables"]["sets"] if row["found"]]
    assert row["meets_budget"]
    assert row["seconds"] is None or row["seconds"] > 0  # None: the machine was too busy to tell


@pytest.mark.slow
def test_a_network_that_is_not_finite_in_fp32_is_told_in_a_line(model: Path, ampbench: Run) -> None:
    said = search(ampbench, "model.py:infinite", "--threads", "1")
    assert said.code == 3
    assert "not finite in fp32" in " ".join(said.out.split())
