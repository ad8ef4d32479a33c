import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ampbench.measure.data import carried
from ampbench.measure.machine import Cpu
from ampbench.measure.memory import measure_memory
from ampbench.measure.step import Step
from ampbench.records.case import Case
from ampbench.workload import Workload

MakeCase = Callable[..., Case]
CRITIC = nn.Linear(4, 1)


def by_closure() -> object:
    critic, target = nn.Linear(4, 1), torch.ones(8, 1)
    return lambda output: F.mse_loss(critic(output), target)


def by_nested_closure() -> object:
    held = {"critics": [nn.Linear(4, 1)]}

    def score(output: torch.Tensor) -> torch.Tensor:
        return held["critics"][0](output)

    return lambda output: score(output).square().mean()


def by_global(output: torch.Tensor) -> torch.Tensor:
    return CRITIC(output).square().mean()


class Criterion:
    def __init__(self) -> None:
        self.critic = nn.Linear(4, 1)

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        return self.critic(output).square().mean()

    def method(self, output: torch.Tensor) -> torch.Tensor:
        return self(output)


def by_default(output: torch.Tensor, *, critic: nn.Module = nn.Linear(4, 1)) -> torch.Tensor:  # noqa: B008
    return critic(output).square().mean()


def weighted(output: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, torch.zeros(8, dtype=torch.int64), weight=weight)


LOSSES = {
    "closure": by_closure(),
    "nested": by_nested_closure(),
    "global": by_global,
    "object": Criterion(),
    "method": Criterion().method,
    "default": by_default,
    "partial": functools.partial(weighted, weight=torch.rand(4)),
}


def workload(loss: object, **fields: object) -> Workload:
    torch.manual_seed(0)
    return Workload(**{"module": nn.Linear(16, 4), "inputs": torch.randn(8, 16), "loss": loss} | fields)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("storage", ["fp64", "bf16_pure", "fp32"])
def test_what_a_loss_holds_is_cast_as_targets_are(name: str, storage: str, case: MakeCase) -> None:
    precision = "fp32" if storage == "fp64" else storage
    step = Step(workload(LOSSES[name]), case(precision, "training"), Cpu(), reference=storage == "fp64")
    step.run()
    wanted = {"fp64": torch.float64, "bf16_pure": torch.bfloat16, "fp32": torch.float32}[storage]
    assert {tensor.dtype for tensor in step.held if tensor.is_floating_point()} == {wanted}


def test_a_loss_that_is_a_module_is_cast_with_its_weights(case: MakeCase) -> None:
    made = workload(nn.CrossEntropyLoss(weight=torch.rand(4)), targets=torch.zeros(8, dtype=torch.int64))
    Step(made, case("bf16_pure", "training"), Cpu()).run()
    assert made.loss.weight.dtype is torch.float32


def test_what_the_user_holds_stays_as_it_is(case: MakeCase) -> None:
    critic = nn.Linear(4, 1).eval()
    step = Step(workload(lambda output: critic(output).mean()), case("bf16_pure", "training"), Cpu())
    step.run()
    assert critic.weight.dtype is torch.float32
    assert critic.weight.grad is None


def test_a_penalty_on_the_networks_weights_is_one_on_those_that_are_trained(case: MakeCase) -> None:
    network = nn.Linear(16, 4)
    made = workload(lambda output: 0 * output.sum() + network.weight.square().sum(), module=network)
    step = Step(made, case("fp32", "training"), Cpu())
    _, gradients = step.unscaled_gradients()
    assert torch.equal(gradients["weight"], 2 * step.module.weight)


def test_a_loss_that_holds_nothing_is_the_very_same() -> None:
    def plain(output: torch.Tensor) -> torch.Tensor:
        return output.mean()

    for loss in (plain, F.cross_entropy, len, functools.partial(F.mse_loss, reduction="sum")):
        assert carried(loss, {}, torch.Tensor.double, nn.Module.double) == (loss, [])


def test_what_holds_itself_comes_to_an_end() -> None:
    holder = Criterion()
    holder.itself, holder.long = holder, [0] * 20_000
    found, held = carried(holder, {}, torch.Tensor.double, nn.Module.double)
    assert found is not holder
    assert {tensor.dtype for tensor in held} == {torch.float64}


def test_what_a_loss_holds_is_part_of_the_memory_of_its_inputs(case: MakeCase) -> None:
    critic = nn.Linear(4, 1)
    bare = measure_memory(workload(lambda output: output.mean()), case("fp32", "training"), Cpu())
    held = measure_memory(workload(lambda output: critic(output).mean()), case("fp32", "training"), Cpu())
    assert held.input_bytes - bare.input_bytes == 4 * 5
