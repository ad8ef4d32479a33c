"""`ampbench study training`: trained, printed, stored and gone on with; mistakes are one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampbench.drive.servers import InProcess

Run = Callable[..., Any]

MODEL = """
import torch
import ampbench


def make():
    rows = torch.randn(40, 8)
    classes = rows[:, :3].argmax(1)
    return ampbench.Workload(
        module=torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)),
        inputs=list(rows[:32].split(8)),
        targets=list(classes[:32].split(8)),
        held_out=(rows[32:], classes[32:]),
        loss=torch.nn.functional.cross_entropy,
    )


def no_loss():
    return torch.nn.Linear(8, 3), torch.randn(4, 8)


def broken():
    rows = torch.randn(4, 8)
    return torch.nn.Linear(7, 3), rows, lambda output: output.sum()
"""


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file in the current folder; no server starts: what is trained is trained here."""
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.setattr("ampbench.studies.work.ServerChannel", lambda **_: InProcess())


def test_a_users_list_of_batches_is_trained_in_every_precision(ampbench: Run) -> None:
    arguments = ["model.py:make", "--steps", "2", "--seeds", "1", "--precision", "bf16_autocast", "--json"]
    said = ampbench("study", "training", *arguments)
    assert said.code == 0
    fp32, bf16 = json.loads(said.out)["cases"]
    assert [training["arm"] for training in fp32["trainings"]] == ["", "control", "reference"]
    (low,) = bf16["trainings"]
    assert (len(low["losses"]), low["scores"][-1]["decisions"]) == (2, 8)


def test_a_network_without_a_loss_cannot_be_studied(ampbench: Run) -> None:
    said = ampbench("study", "training", "model.py:no_loss", "--steps", "2")
    assert (said.code, said.out, said.err.count("\n")) == (5, "", 1)
    assert "no loss given: a workload that trains returns (module, inputs, loss) (model.py:no_loss)" in said.err


def test_a_network_that_does_not_run_in_fp32_fails_in_one_line_each(ampbench: Run) -> None:
    arguments = ["model.py:broken", "--steps", "2", "--seeds", "1", "--precision", "bf16_pure", "--format", "csv"]
    said = ampbench("study", "training", *arguments)
    assert said.code == 3
    failed = [line for line in said.err.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 2
    assert all("mat1 and mat2 shapes cannot be multiplied" in line for line in failed)
