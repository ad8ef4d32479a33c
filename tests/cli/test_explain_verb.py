"""`ampbench explain` and its verbs: how they are found and set, and what `rules` prints, stores and compares."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampbench.records.kinds import RULES
from ampbench.records.measured import Failure
from ampbench.records.rules import RuleProbe
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.store import list_runs, read_run
from tests.rule_probes import observation, probe
from tests.stored_runs import make_header

Run = Callable[..., Any]


class Worker:
    """Stand in for the workers: each device type has a made-up probe, but for those in `ending`, which end so."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.ending: dict[str, Failure | type[BaseException]] = {
            "xpu": Failure(case_id="", stage="rules", cause="crash", message="ended by signal SIGABRT")
        }

    def serve(self, request: Request) -> Reply:
        if request.task == "environment":
            return reply_with(make_header().environment)
        self.asked.append(request)
        ending = self.ending.get(request.device)
        if isinstance(ending, Failure):
            return Reply(failure=ending)
        if ending is not None:
            raise ending
        made = observation("aten::rms_norm", observed="float32", device=request.device)
        return reply_with(probe(made, device=request.device))

    def close(self) -> None:
        pass


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    channel = Worker()
    monkeypatch.setattr("ampbench.studies.work.ServerChannel", lambda **_: channel)
    return channel


def test_each_device_is_probed_by_its_own_process_and_stored(worker: Worker, tmp_path: Path, ampbench: Run) -> None:
    said = ampbench("explain", "rules", "--device", "cpu", "--device", "cuda", "--timeout", "9")
    (path,) = list_runs(tmp_path / "results")
    stored = read_run(path)
    assert said.code == 0
    assert [(one.device, one.threads, one.timeout_seconds, one.fresh) for one in worker.asked] == [
        (device, 1, 9.0, True) for device in ("cpu", "cuda")
    ]
    assert (stored.header.explains, stored.ended) == (RULES, "complete")
    assert list(stored.of(RuleProbe)) == stored.header.selection.devices == ["cpu", "cuda"]
    assert ampbench("show", path).out == said.out


MODEL = """
import torch

def make():
    return torch.nn.Linear(4, 4), torch.randn(2, 4)

class Log(torch.nn.Module):
    def forward(self, x):
        return torch.log(x - 1e9)

def nan():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), Log()), torch.randn(4, 8)
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(MODEL)
    return "model.py"


def test_lines_of_a_built_in_workload_are_its_own(ampbench: Run) -> None:
    said = ampbench("explain", "casts", "decoder_lm", "--preset", "tiny", "--sources", "-v")
    assert "Every op in order" in said.out
    assert "(workloads/" in said.out


def test_training_without_a_loss_names_the_workload_and_what_is_missing(model: str, ampbench: Run) -> None:
    said = ampbench("explain", "casts", f"{model}:make", "--phase", "training")
    assert said.code == 5
    assert "no loss given: a workload that trains returns (module, inputs, loss) (model.py:make)" in said.err


def test_values_that_are_not_finite_in_fp32_already_are_a_failure_of_one_line(model: str, ampbench: Run) -> None:
    said = ampbench("explain", "headroom", f"{model}:nan", "--precision", "fp16_pure", "--format", "csv")
    assert (said.code, said.out.count("\n")) == (3, 1)
    failed, stored = said.err.splitlines()
    assert failed.startswith("failed: model.py:nan/fp32/cpu/inference/eager/in-fp32: values are not finite in fp32 ")
    assert stored.startswith("run ")
