"""`ampbench explain keep-fp32`: what it asks for, prints and stores, what it refuses, how a search goes on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ampbench.records.kinds import KEEP_FP32
from ampbench.records.measured import Failure
from ampbench.records.run import Footer
from ampbench.store import list_runs, read_run
from ampbench.studies.keep_fp32 import KeepSearch
from tests.stored_runs import RUN, make_case, write_run
from tests.studies.keep_searches import CASE, SPACE, TRIALS, ended, trial

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


def search(ampbench: Run, *arguments: object) -> Any:
    return ampbench("explain", "keep-fp32", *arguments)


def test_show_tells_what_is_kept_what_that_costs_and_what_to_paste(stored: Path, ampbench: Run) -> None:
    said = ampbench("show", RUN, "-v")
    assert said.code == 0
    text = " ".join(said.out.split())
    assert said.out.startswith("net · fp16_autocast · inference · cpu\n  Keep 1 of 4 modules in fp32: norm.\n")
    assert "Output error against fp64: 1.9e-03 (3.1e-02 with none kept); budget 2.0e-03." in text
    assert "No single module can be left out (4 trials)." in text
    assert "norm ← 1 1.9e-03 met 1.08 ms 1.04x 1.04–1.04 1.00 MiB" in text
    assert '    import ampbench\n\n    ampbench.keep_fp32(model, "norm")\n' in said.out
    assert "broken fp16_pure: failed: time-out: longer than 300 s" in said.out
    assert "The search is not finished: 1 trial made, the smallest set within the budget so far: norm." in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mlp", "--max-error", "-1"], "'--max-error': -1.0 is not in the range"),
        (["mlp", "--max-error", "nan"], "max_error=nan: Expected `float` >= 0.0"),
        (["mlp", "--max-error", "inf"], "'--max-error': inf is not in the range"),
        (
            ["mlp", "--max-gradient-error", "1e300"],
            "'--max-gradient-error': 1e+300 is not in the range",
        ),
        (
            ["mlp", "--phase", "inference", "--max-gradient-error", "0.2"],
            "--max-gradient-error bounds the gradients of training, and --phase inference has none",
        ),
        (["--resume", RUN, "--max-error", "1"], "leave --max-error out"),
    ],
)
def test_what_cannot_be_meant_is_one_line(arguments: list[str], message: str, ampbench: Run) -> None:
    said = search(ampbench, *arguments)
    assert (said.code, said.out) == (2, "")
    assert message in said.err
    assert said.err.startswith("ampbench: error: ")
    assert said.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["model.py:make", "--precision", "fp16_autocast"], {"body.0", "body"}),
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


def test_a_search_whose_worker_was_ended_from_outside_goes_on(model: Path, tmp_path: Path, ampbench: Run) -> None:
    ending = "    def forward(self, x):\n        os.path.exists('calm') or os.kill(os.getpid(), 15)\n"
    model.write_text("import os" + MODEL.replace("    def forward(self, x):\n", ending))
    ended = search(ampbench, f"{model}:make", "--precision", "fp16_autocast", "--max-trials", "8")
    (path,) = list_runs(tmp_path / "results")
    (failure,) = read_run(path).failures.values()
    assert (ended.code, failure.cause) == (3, "killed"), ended.err
    (tmp_path / "calm").touch()
    resumed = search(ampbench, "--resume", path.stem)
    assert resumed.code == 0, resumed.err
    assert read_run(path).of(KeepSearch).keys() == {failure.case_id}
