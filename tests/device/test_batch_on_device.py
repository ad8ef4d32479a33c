"""The largest batch on the accelerator; skipped where there is none."""

from pathlib import Path

import pytest
import torch

from ampbench.cli.main import main
from ampbench.instruments.batch.records import TOO_LARGE, BatchPoint
from ampbench.instruments.batch.search import reached
from ampbench.store import list_runs, read_run

FOUND = torch.accelerator.current_accelerator(check_available=True)

pytestmark = [pytest.mark.device, pytest.mark.skipif(FOUND is None, reason="there is no accelerator here")]
GREEDY = """
import torch


class Greedy(torch.nn.Module):
    def forward(self, x):
        return torch.zeros(x.shape[0], 1 << 30, device=x.device).add(x[:, :1]).sum(1)


def make(batch_size=1):
    return Greedy(), torch.ones(batch_size, 4)
"""


def test_a_batch_that_runs_out_of_memory_does_not_fit_and_the_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(GREEDY)  # 8 GiB of temporaries for each example
    arguments = ["--precision", "fp32", "--phase", "inference", "--rounds", "1", "--seconds", "10ms"]
    assert main(["study", "batch", "model.py:make", *arguments, "--device", FOUND.type, "--max-batch", "64"]) == 0
    (points,) = read_run(list_runs(tmp_path / "results")[0]).several_of(BatchPoint).values()
    found = reached(points)
    assert found.over is not None
    assert (found.over.outcome, "out of memory" in found.over.reason) == (TOO_LARGE, True)
    assert all(point.source == "allocator" for point in points if point.samples)
    assert found.largest is None or found.largest.batch < found.over.batch


def test_within_a_limit_half_takes_a_larger_batch(tmp_path: Path) -> None:
    arguments = ["--phase", "training", "--precision", "fp32,bf16_pure", "--rounds", "3", "--seconds", "50ms"]
    given = ["--memory-limit", "512MiB", "--device", FOUND.type, "--results", str(tmp_path)]
    assert main(["study", "batch", "resnet18", "--preset", "tiny", *arguments, *given]) == 0
    run = read_run(list_runs(tmp_path)[0])
    largest = {
        run.cases[case_id].precision: reached(points).largest for case_id, points in run.several_of(BatchPoint).items()
    }
    assert largest["bf16_pure"] is not None
    assert largest["fp32"] is not None
    assert largest["bf16_pure"].batch > largest["fp32"].batch
