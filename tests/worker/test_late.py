"""The late place of a training: where its fp32 steps end, and the divergence there."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from ampbench.records.case import Case
from ampbench.records.measured import Late, Stop
from ampbench.worker import late
from ampbench.worker.divergence import References, measure_late
from ampbench.worker.machine import Cpu
from ampbench.workload import Workload

MakeCase = Callable[..., Case]


def adam(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def network(batches: int = 3, optimizer: Any = adam, **changes: Any) -> Workload:
    """Return a small network with a buffer, whose loss does not halve within two passes."""
    torch.manual_seed(0)
    return Workload(
        module=torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4)),
        inputs=[torch.randn(32, 8) for _ in range(batches)],
        targets=[torch.randint(0, 4, (32,)) for _ in range(batches)],
        loss=torch.nn.functional.cross_entropy,
        optimizer=optimizer,
        **changes,
    )


def measured(workload: Workload, case: Case, references: References | None = None) -> Late:
    return measure_late(workload, case, Cpu(), references or References())


def place(workload: Workload, case: Case) -> tuple[Stop, int, int]:
    found = late.late_place(workload, case, Cpu())
    return found.stop, found.snapshot.steps, found.batches


@pytest.mark.parametrize(("batches", "stop", "steps"), [(1, Stop.PASSES, 20), (16, Stop.PASSES, 32)])
def test_the_steps_end_after_two_passes_but_twenty_steps_at_least(
    case: MakeCase, batches: int, stop: Stop, steps: int
) -> None:
    assert place(network(batches), case("fp32", "training")) == (stop, steps, batches)


def test_the_steps_end_at_half_of_the_first_loss(case: MakeCase) -> None:
    fast = network(1, lambda parameters: torch.optim.SGD(parameters, lr=0.5))
    fast = dataclasses.replace(fast, loss=lambda output, _: output.square().mean())
    stop, steps, _ = place(fast, case("fp32", "training"))
    assert (stop, 1 < steps < 20) == (Stop.HALVED, True)


def test_the_steps_end_at_a_count_of_flops(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    flops = 32 * 2 * (8 * 16 * 2 + 16 * 4 * 3)  # products of a step: the first layer has no gradient of its inputs
    monkeypatch.setattr(late, "WARM_FLOPS", {"cpu": 7.5 * flops})
    assert place(network(), case("fp32", "training")) == (Stop.FLOPS, 7, 3)


def test_a_training_without_an_optimizer_or_with_its_state_has_no_late_place(case: MakeCase) -> None:
    assert measured(network(optimizer=None), case("fp32", "training")).stop == Stop.NO_OPTIMIZER
    begun = network()
    begun = dataclasses.replace(begun, optimizer_state=adam(begun.module.parameters()).state_dict())
    found = measured(begun, case("fp32", "training"))
    assert (found.stop, found.steps, found.divergence) == (Stop.OWN_STATE, 0, None)
    other = measured(begun, case("fp32", "training", recipe="optimizer=sgd,lr=0.01"))
    assert other.divergence is not None


def test_steps_that_fail_leave_the_reason_instead_of_a_place(case: MakeCase) -> None:
    far = network(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e38))
    found = measured(far, case("fp32", "training"))
    assert (found.stop, found.divergence) == (Stop.FAILED, None)
    assert "not finite" in found.undefined
