"""Networks whose training stalls in pure bf16 are refused after one step, with the reason; one that trains is not.

That they stall, or train, is seen in a plain loop beside: what the loss falls by in bf16, of what it falls by in fp32.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ampbench.core.budget import Budget
from ampbench.core.statement import Refusal
from ampbench.judge.verdict import verdicts_of
from ampbench.records.changes import Status
from ampbench.store import read_run
from ampbench.worker.divergence import References, measure_divergence
from ampbench.worker.machine import open_device
from ampbench.workload import Workload
from tests.stored_runs import make_round, write_run
from tests.worker.conftest import make_case

STEPS = 100
PRECISIONS = ("fp32", "bf16_autocast", "bf16_pure", "bf16_master")


class Normalised(nn.Module):
    """Learns by the scales of its normalisation alone: they begin at 1, where bf16 is coarse."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.LayerNorm(16)
        self.register_buffer("frozen", torch.randn(3, 16))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.scales(rows), self.frozen)


def layers(scale: float = 1.0) -> nn.Module:
    """Return two layers with weights that are so many times PyTorch's."""
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(scale)
    return module


def network(module: nn.Module, optimizer: Callable[[Any], torch.optim.Optimizer]) -> Workload:
    rows = torch.randn(64, 16)
    classes = (rows[:, :3] + rows[:, 3:6]).argmax(1)
    return Workload(module=module, inputs=rows, targets=classes, loss=nn.functional.cross_entropy, optimizer=optimizer)


def fine_tuning() -> Workload:
    """AdamW at the learning rate of fine-tuning: each weight moves by 1e-5 a step."""
    return network(layers(), lambda parameters: torch.optim.AdamW(parameters, lr=1e-5))


def large_weights() -> Workload:
    """SGD at 1e-3 with weights eight times as large: what moves them is far below their last place."""
    return network(layers(8.0), lambda parameters: torch.optim.SGD(parameters, lr=1e-3))


def scales() -> Workload:
    """Adam at its usual 1e-3 on scales about 1, whose half unit in the last place is 2e-3 below and 4e-3 above."""
    return network(Normalised(), lambda parameters: torch.optim.Adam(parameters, lr=1e-3))


def small_weights() -> Workload:
    """SGD with momentum at a large rate on weights a hundredth as large: updates are far above their last place."""
    return network(layers(0.01), lambda parameters: torch.optim.SGD(parameters, lr=0.3, momentum=0.9))


def falls(workload: Workload, dtype: torch.dtype) -> float:
    """Return by how much the loss falls in `STEPS` steps with weights stored in `dtype`; the loss itself in fp64."""
    module = copy.deepcopy(workload.module)

    def loss() -> float:
        with torch.no_grad():
            exact = copy.deepcopy(module).double()
            return float(nn.functional.cross_entropy(exact(workload.inputs.double()), workload.targets))

    module.to(dtype)
    optimizer, before = workload.optimizer(module.parameters()), loss()
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(workload.inputs.to(dtype)), workload.targets).backward()
        optimizer.step()
    return before - loss()


def objected(workload: Workload, folder: Path) -> dict[str, str]:
    """Return by precision the code that one training step is refused for, "" where it is not."""
    references, device = References(), open_device("cpu")
    cases = {name: make_case(name, "training") for name in PRECISIONS}
    found = [measure_divergence(workload, case, device, references) for case in cases.values()]
    rounds = [make_round(case, weights_digest=found[0].weights_digest) for case in cases.values()]
    stored = read_run(write_run(folder, list(cases.values()), *rounds, *found))
    verdicts = {name: verdicts_of(stored, Budget())[case.case_id] for name, case in cases.items()}
    return {
        name: one.code if one.status is Status.REFUSED else ""
        for name, one in verdicts.items()
        if one.status is not Status.BASELINE
    }


def made(make: Callable[[], Workload]) -> Workload:
    torch.manual_seed(0)
    return make()


@pytest.mark.parametrize("make", [fine_tuning, large_weights, scales])
def test_a_network_whose_training_stalls_in_pure_bf16_is_refused_with_the_reason(
    make: Callable[[], Workload], tmp_path: Path
) -> None:
    assert falls(made(make), torch.bfloat16) < 0.5 * falls(made(make), torch.float32)
    said = objected(made(make), tmp_path)
    assert said.pop("bf16_pure") in (Refusal.UPDATE, Refusal.UPDATE_OF_TENSOR, Refusal.UNMOVED, Refusal.NO_ROOM)
    assert said == {"bf16_autocast": "", "bf16_master": ""}


def test_a_network_that_trains_in_pure_bf16_is_not_refused(tmp_path: Path) -> None:
    assert falls(made(small_weights), torch.bfloat16) > 0.95 * falls(made(small_weights), torch.float32)
    assert set(objected(made(small_weights), tmp_path).values()) == {""}
