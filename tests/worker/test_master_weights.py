"""Training with fp32 master weights against a loop written out by hand: half gradients, an fp32 optimizer."""

from collections.abc import Callable

import pytest
import torch

from ampbench.records.case import Case
from ampbench.worker.machine import Cpu
from ampbench.worker.step import build_step
from ampbench.workload import Workload

MakeCase = Callable[..., Case]
DTYPES = {"bf16_master": torch.bfloat16, "fp16_master": torch.float16}
MASTERS = list(DTYPES)


@pytest.mark.parametrize("name", MASTERS)
def test_an_update_below_half_an_ulp_of_the_network_arrives_in_the_masters(name: str, case: MakeCase) -> None:
    module = torch.nn.Linear(8, 1, bias=False)
    torch.nn.init.constant_(module.weight, 1.0)
    workload = Workload(
        module=module,
        inputs=torch.ones(1, 8),
        loss=lambda output: output.sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=2.0**-14),
    )
    low, pure = (build_step(workload, case(one, "training"), Cpu()) for one in (name, name.replace("master", "pure")))
    for step in (low, pure):
        step.settle_scaler()
        step.run()
    assert torch.equal(low.stored()["weight"], torch.full((1, 8), 1 - 2.0**-14))
    assert torch.equal(low.module.weight, torch.ones(1, 8, dtype=DTYPES[name]))
    assert torch.equal(pure.stored()["weight"], torch.ones(1, 8, dtype=DTYPES[name]))


def test_a_gradient_that_overflows_skips_the_step_and_moves_nothing(case: MakeCase, classifier: Workload) -> None:
    step = build_step(classifier, case("fp16_master", "training"), Cpu())
    step.start(None)
    step.scaler.load_state_dict({**step.scaler.state_dict(), "scale": 2.0**40})
    step.save()
    before = {name: weight.detach().clone() for name, weight in step.stored().items()}
    halves = [parameter.detach().clone() for parameter in step.module.parameters()]
    step.run()
    assert step.scaler.get_scale() == 2.0**39
    assert all(torch.equal(weight, before[name]) for name, weight in step.stored().items())
    assert all(map(torch.equal, step.module.parameters(), halves))
    step.restore()
    assert step.skipped_steps == 1


def test_weights_that_need_no_gradient_or_stay_in_fp32_have_no_copy(case: MakeCase, classifier: Workload) -> None:
    classifier.module[3].bias.requires_grad_(False)
    step = build_step(classifier, case("bf16_master", "training"), Cpu(), kept=["0"])
    stored, own = step.stored(), dict(step.module.named_parameters())
    assert {name for name in stored if stored[name] is own[name]} == {"0.weight", "0.bias", "3.bias"}
    step.run()
    assert stored["3.bias"].grad is None
    assert stored["0.weight"].grad is not None


def test_a_sparse_gradient_stays_sparse_in_the_masters(case: MakeCase) -> None:
    workload = Workload(
        module=torch.nn.Embedding(5, 3, sparse=True), inputs=torch.tensor([1, 3]), loss=lambda output: output.sum()
    )
    step = build_step(workload, case("bf16_master", "training"), Cpu())
    step.run()
    gradient = step.stored()["weight"].grad
    assert gradient.layout is torch.sparse_coo
    assert gradient.dtype is torch.float32
    moved = workload.module.weight.detach().clone()
    moved[[1, 3]] -= 0.01
    assert torch.equal(step.stored()["weight"], moved)
