"""A training never dies of being watched, whatever it does meanwhile."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ampbench
from ampbench.errors import UsageError
from ampbench.studies.watch import Watching
from ampbench.watching import Watch
from tests.watching.loops import Net, data, same_bits, sgd, take_step, trained


def codes(watch: Watch) -> set[str]:
    return {str(statement.code) for statement in watch.statements}


def looped(
    module: nn.Module, optimizers: Any, given: Any = None, steps: int = 4, each: Any = None, **how: Any
) -> Watch:
    with ampbench.watch(module, given, every=2, **how) as watch:
        for place, (x, y) in enumerate(data(steps)):
            F.cross_entropy(module(x), y).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            if each is not None:
                each(place)
    return watch


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ampbench.watch(torch.zeros(1)), "model is Tensor, no torch.nn.Module"),
        (lambda: ampbench.watch(Net(), every=0), "every=0"),
        (lambda: ampbench.watch(Net(), every=True), "every=True"),
        (lambda: ampbench.watch(Net()).log_to(object()), "is no logger"),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


def test_a_watch_is_for_one_block() -> None:
    module = Net()
    watch = looped(module, [sgd(module.parameters())])
    with pytest.raises(UsageError, match="has been used"), watch:
        pass
    assert watch.record.steps == 4


def test_models_without_steps_or_parameters_are_said() -> None:
    with ampbench.watch(nn.ReLU()) as watch:
        nn.ReLU()(torch.ones(2))
    assert codes(watch) == {Watching.NOTHING}
    with ampbench.watch(Net()) as watch, torch.no_grad():
        Net()(torch.ones(2, 16))
    assert codes(watch) == {Watching.NOTHING}
    assert str(watch)


def test_optimizers_are_found_where_none_is_given() -> None:
    module, other = Net(), nn.Linear(2, 2)
    other.weight.grad = torch.ones(2, 2)
    optimizers = [torch.optim.SGD(other.parameters(), lr=1.0), sgd(module.parameters())]
    assert looped(module, optimizers).record.steps == 4


def test_several_optimizers_are_seen_in_one_step() -> None:
    module = Net()
    optimizers = [
        sgd([*module.first.parameters(), *module.norm.parameters()]),
        torch.optim.Adam(module.last.parameters()),
    ]
    optimizers.append(sgd(module.middle.parameters()))
    watch = looped(module, optimizers, optimizers)
    assert watch.record.steps == 4
    arrived = {row.parameter for row in watch.record.arrivals}
    assert arrived >= {"first.weight", "middle.0.weight", "last.weight"}
    assert Watching.HEALTHY in codes(watch)


def test_an_optimizer_that_torch_does_not_know_is_said() -> None:
    class Own:
        def __init__(self, parameters: Any):
            self.parameters = list(parameters)

        def step(self) -> None:
            with torch.no_grad():
                for parameter in self.parameters:
                    parameter.sub_(parameter.grad, alpha=0.01)

        def zero_grad(self) -> None:
            for parameter in self.parameters:
                parameter.grad = None

    module = Net()
    optimizer = Own(module.parameters())
    watch = looped(module, [optimizer], optimizer)
    assert codes(watch) >= {Watching.NOTHING, Watching.UNKNOWN}


def test_a_step_in_half_that_cannot_be_repeated_is_not_judged() -> None:
    class Signs(torch.optim.Optimizer):
        def __init__(self, parameters: Any):
            super().__init__(parameters, {})

        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                parameter.data -= 0.01 * parameter.grad.sign()

    module = nn.Linear(16, 4).bfloat16()
    optimizer = Signs(module.parameters())
    with ampbench.watch(module, optimizer) as watch:
        module(torch.randn(2, 16).bfloat16()).float().sum().backward()
        optimizer.step()
    assert watch.record.unseen == {Watching.UNJUDGED: "Signs"}
    assert watch.record.looks[0].lr is None


def test_parameters_come_and_freeze_meanwhile() -> None:
    module = Net()
    optimizer = sgd(module.parameters())

    def each(place: int) -> None:
        if place == 1:
            module.middle.append(nn.Linear(32, 32))
            optimizer.add_param_group({"params": module.middle[-1].parameters()})
            module.first.requires_grad_(False)
            module.first.weight.grad = module.first.bias.grad = None

    watch = looped(module, [optimizer], optimizer, steps=6, each=each)
    assert Watching.FAILED not in codes(watch)
    assert {row.parameter for row in watch.record.arrivals} >= {"middle.3.weight", "last.bias"}
    assert "first.weight" not in {row.parameter for row in watch.record.arrivals}
    assert "middle.3" in {row.module for row in watch.record.magnitudes}


@pytest.mark.parametrize("crossed", [False, True])
def test_two_watches_at_once(crossed: bool) -> None:
    module, backward = Net(), torch.Tensor.backward
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer = sgd(module.parameters())
    watches = [ampbench.watch(module, optimizer, scaler=scaler, every=every) for every in (2, 3)]
    for watch in watches:
        watch.__enter__()
    for x, y in data(6):
        take_step(F.cross_entropy(module(x), y), optimizer, scaler)
        optimizer.zero_grad()
    for watch in watches if crossed else reversed(watches):
        watch.__exit__(None, None, None)
    assert [watch.record.steps for watch in watches] == [6, 6]
    assert [[look.step for look in watch.record.looks] for watch in watches] == [[1, 2, 4, 6], [1, 3, 6]]
    assert torch.Tensor.backward is backward
    assert "step" not in vars(scaler)
    assert not module._forward_pre_hooks


def test_an_error_of_the_watch_ends_the_looks_and_not_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = trained("fp32", 30, watched=False)
    for place in ("updates.Updates.before", "updates.Updates.after", "Ranges.gradient", "Ranges.after"):
        with monkeypatch.context() as patch:
            patch.setattr(f"ampbench.watching.{place}", lambda *_: 1 / 0)
            seen, watch = trained("fp32", 30, watched=True)
        assert watch is not None
        assert same_bits(plain, seen)
        assert watch.record.steps == 30
        assert watch.record.unseen == {Watching.FAILED: "ZeroDivisionError: division by zero"}


def test_a_logger_is_written_to_by_its_own_method() -> None:
    first, *others = rows = [[], [], []]  # type: ignore[var-annotated]

    def singly(into: list[Any]) -> Callable[..., None]:
        return lambda name, value, step: into.append((name, value, step))

    def together(values: dict[str, float], step: int) -> None:
        rows[1] += [(name, value, step) for name, value in values.items()]

    module = Net()
    optimizer = sgd(module.parameters())
    watch = ampbench.watch(module, every=2).log_to(SimpleNamespace(add_scalar=singly(first)))
    watch.log_to(SimpleNamespace(log=together)).log_to(SimpleNamespace(log_metric=singly(rows[2]), log=None))
    with watch:
        for x, y in data(4):
            take_step(F.cross_entropy(module(x), y), optimizer)
    assert all(first == other for other in others)
    assert {name for name, _, _ in first} >= {"ampbench/loss", "ampbench/bf16", "ampbench/grad_norm"}
    assert [step for name, _, step in first if name == "ampbench/loss"] == [1, 2, 4]
