from functools import partial
from pathlib import Path

import pytest
import torch

from ampbench import cells
from ampbench.drive.planning import PlannedCase
from ampbench.errors import AmpbenchError, UsageError
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import DIVERGENCE, MEMORY, ROUND
from ampbench.worker import machine

BROKEN = """
import torch

class Broken(torch.nn.Module):
    def forward(self, x):
        raise RuntimeError("no such luck")

def broken():
    return Broken(), torch.randn(2, 3)
"""


def plan(precision: str = "fp32", phase: str = "inference", workload: str = "mlp") -> PlannedCase:
    selection = Selection(
        workloads=[workload],
        precisions=[precision],
        phases=[phase],
        devices=["cpu"],
        preset="tiny" if workload == "mlp" else "",
    )
    [planned] = cells.plan_cells(selection)
    return planned


def test_a_cell_runs_the_case_with_its_switches_and_in_inference_mode_until_it_is_closed() -> None:
    before = torch.backends.cudnn.allow_tf32
    with cells.opened(plan("bf16_autocast")) as cell:
        assert torch.is_inference_mode_enabled()
        assert not torch.backends.cudnn.allow_tf32
        cell.step()
        cell.restore()
    assert not torch.is_inference_mode_enabled()
    assert torch.backends.cudnn.allow_tf32 == before
    assert cell.case.precision == "bf16_autocast"
    assert cell.items_per_step == cell.case.batch_size
    assert len(cell.weights_digest) == 16


def test_a_step_on_an_accelerator_ends_when_the_device_has_done_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Device(machine.Cpu):
        type = "meta"

        def synchronize(self) -> None:
            done.append("synchronized")

    class Step:
        def run(self) -> None:
            done.append("ran")

        def changed(self) -> list[str]:
            return []

    cells.Cell(plan().case, Step(), Device(), 1.0, "").step()  # type: ignore[arg-type]
    assert done == ["ran", "synchronized"]


def test_the_passes_of_a_cell_are_those_of_a_run() -> None:
    planned = plan("bf16_autocast", "training")
    memory = cells.measured(planned, MEMORY)
    divergence = cells.measured(planned, DIVERGENCE)
    found = cells.measured(planned, ROUND, Settings(builds=2, min_run_seconds=0.01))
    assert memory.case_id == divergence.case_id == found.case_id == planned.case.case_id
    assert memory.source == "profiler"
    assert memory.peak_bytes > memory.parameter_bytes > 0
    assert 0 < divergence.output.rel_l2 < 0.1
    assert 0 < divergence.gradient.rel_l2 < 0.5
    assert len(found.samples) == 2
    assert found.weights_digest == divergence.weights_digest


@pytest.mark.parametrize("use", [partial(cells.measured, task=MEMORY), lambda one: cells.opened(one).__enter__()])
def test_a_case_to_skip_is_refused_with_the_reason(use: object) -> None:
    planned = plan("tf32")
    with pytest.raises(UsageError, match="cannot run here: cpu has no tf32"):
        use(planned)  # type: ignore[operator]


def test_a_workload_that_fails_in_its_first_step_says_so(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(BROKEN)
    planned = plan(workload=f"{path}:broken")
    with pytest.raises(AmpbenchError, match=r"broken.*exception \(memory\): RuntimeError: no such luck"):
        cells.measured(planned, MEMORY)
