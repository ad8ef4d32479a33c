"""A replayed step: the op that makes the first value that is not finite, from the workload's weights or a file's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ampbench.records.ranges import FirstNonfinite
from ampbench.store import list_runs, read_run
from ampbench.studies.nonfinite import Replay, Replayed, conclusions

Run = Callable[..., Any]
MODEL = """
import torch
from ampbench import Workload


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x) * 1e4


def make():
    torch.manual_seed(0)
    loss = lambda output: output.float().square().mean()
    return Workload(module=Net(), inputs=torch.randn(16, 8), loss=loss, optimizer=torch.optim.SGD)
"""


def replayed(ampbench: Run, *words: str) -> Replay:
    assert ampbench("explain", "nonfinite", "model.py:make", "--precision", "fp16_autocast", *words).code == 0
    (record,) = read_run(list_runs("results")[-1]).every(Replay)
    return record


@pytest.mark.slow
def test_a_checkpoint_is_replayed(ampbench: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    assert [row.code for row in conclusions(None, replayed(ampbench))] == [Replayed.FINITE]  # type: ignore[arg-type]
    state = {"layer.weight": torch.full((8, 8), 50.0), "layer.bias": torch.zeros(8)}
    torch.save({"model": state, "epoch": 3}, "checkpoint.pt")
    record = replayed(ampbench, "--state", "checkpoint.pt")
    (statement,) = conclusions(None, record)  # type: ignore[arg-type]
    assert statement.code is Replayed.FIRST
    assert str(statement.facts["line"]).endswith("in forward: return self.layer(x) * 1e4")
    assert record.state == str(tmp_path / "checkpoint.pt")
    failed = ampbench("explain", "nonfinite", "model.py:make", "--precision", "fp16_autocast", "--state", "none.pt")
    assert failed.code == 3
    assert "there is no such file" in failed.out


def test_a_result_without_a_culprit_is_a_problem() -> None:
    first = FirstNonfinite(operation="aten.mul", module="a", phase="forward", step=0)
    for record, code in (
        (Replay(case_id="a", steps=2, nonfinite=2), Replayed.RESULT),
        (Replay(case_id="a", steps=1, nonfinite=1, first=first), Replayed.FIRST),
    ):
        assert [row.code for row in conclusions(None, record)] == [code]  # type: ignore[arg-type]
