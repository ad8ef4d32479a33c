"""`ampbench ab`: what it refuses, and real sessions with real servers."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ab.test_arms import git

Run = Callable[..., Any]
NETWORKS = Path(__file__).parents[2] / "benchmarks" / "self" / "networks.py"
MODEL = """
import torch

def make():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64) for _ in range({layers})]
    return torch.nn.Sequential(*layers), torch.randn(8, 64)
"""
EXACT = ("--metric", "memory,accuracy", "--phase", "inference", "--threads", "1", "--json")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose last commit has a layer more."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for layers in (2, 3):
        (folder / "model.py").write_text(MODEL.format(layers=layers))
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", f"{layers} layers")
    monkeypatch.chdir(folder)
    return folder


def test_two_commits_are_measured_with_their_own_files_and_gated(ampbench: Run, repository: Path) -> None:
    arms = ("--baseline", "git:HEAD~1", "--candidate", "here")
    found = ampbench("ab", "model.py:make", *arms, "--gate", "--precision", "fp32", *EXACT)
    document = json.loads(found.out)
    memory = next(one for one in document["findings"] if one["metric"] == "peak_memory_bytes")
    assert (found.code, memory["status"]) == (1, "regressed")
    assert memory["candidate"] - memory["baseline"] >= 64 * 65 * 4  # a layer's weights and bias
    assert document["interleaved"]
    (why,) = document["explained"].values()
    assert why[0].startswith("linear: 2 more ops in fp32 (aten.t, aten.addmm) in module 2")
    assert "tracing 1 regressed case on both sides" in found.err
    assert len(list((repository / "results" / "runs").iterdir())) == 2


@pytest.mark.slow
def test_injected_changes_of_accuracy_and_of_the_function_are_found(ampbench: Run) -> None:
    networks = {"half_softmax": "output_rel_l2", "relu_for_gelu": "reference_drift"}
    arms = ("--baseline", "changed=0", "--candidate", "changed=1", "--precision", "bf16_autocast")
    found = ampbench("ab", *(f"{NETWORKS}:{name}" for name in networks), *arms, *EXACT)
    rows = json.loads(found.out)["findings"]
    for name, metric in networks.items():
        assert [row["status"] for row in rows if name in row["case_id"] and row["metric"] == metric] == ["regressed"]


UPCAST = """
import torch

class Net(torch.nn.Module):
    def __init__(self, upcast):
        super().__init__()
        self.first, self.second, self.upcast = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64), upcast

    def forward(self, x):
        x = self.first(x)
        with torch.autocast("cpu", enabled=not self.upcast and torch.is_autocast_enabled("cpu")):
            return self.second(x.to(self.second.weight.dtype) if self.upcast else x)

def make(upcast: bool = False):
    torch.manual_seed(0)
    return Net(upcast), torch.randn(512, 64)
"""


@pytest.mark.slow
def test_a_layer_that_runs_in_fp32_in_one_arm_explains_what_it_costs_whenever_it_is_asked(
    ampbench: Run, tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(UPCAST)
    arms = ("--baseline", "upcast=false", "--candidate", "upcast=true", "--precision", "bf16_autocast")
    found = ampbench("ab", f"{tmp_path}/model.py:make", *arms, *EXACT)
    document = json.loads(found.out)
    assert next(one for one in document["findings"] if one["kind"] == "memory")["status"] == "regressed"
    ((case_id, why),) = document["explained"].items()
    assert "upcast=False" in case_id
    assert why[0].startswith("linear: bf16 → fp32 in second")
    assert any("activation bf16 → fp32 (explicit) for linear" in sentence for sentence in why)
    assert "-2 weight fp32 → bf16 (autocast) for linear" in why[-1]
    names = [document[side]["run"] for side in ("baseline", "candidate")]
    again = ampbench("compare", *names)
    assert "linear: bf16 → fp32" in again.out
    folded = ampbench("gate", *names, "--metric", "memory", "--format", "markdown")
    assert "linear: bf16 → fp32 in second" in folded.out


@pytest.mark.parametrize("judged", ["--candidate=here", "--candidate=X=1"])
def test_time_that_is_over_before_anything_can_be_compared_is_exit_5_and_how_to_see_it_is_said(
    ampbench: Run, judged: str
) -> None:
    measured = ("--precision", "fp32", "--phase", "inference", "--metric", "time")
    found = ampbench("ab", "mlp", "--preset", "tiny", judged, *measured, "--budget", "0")
    assert found.code == 5
    assert "without a time: 1 of 1 case: --budget was over before a first block" in found.err
    said = re.search(r"out of time: both arms are stored; ampbench (compare .*) shows", found.err)
    assert said
    assert said[1].endswith(" --metric time")
    assert ampbench(*said[1].split()).code == 0
