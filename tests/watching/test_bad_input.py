"""A training never dies of being watched; each planted fault gives its statement; a watch shows and saves itself."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ampbench
from ampbench.core.statement import Arithmetic, Severity, Statement
from ampbench.errors import UsageError
from ampbench.records.ranges import IN_LOSS
from ampbench.report.material import material_of
from ampbench.studies.watch import ARITHMETIC, GRADIENTS, LOSS, STORAGE, WEIGHTS, Watched, Watching
from ampbench.watching import Watch
from tests.report.materials import part_of
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


Run = Callable[..., Any]


@pytest.fixture(scope="module")
def watch() -> Watch:
    _, watch = trained("fp16", 60, watched=True)
    assert watch is not None
    return watch


def test_a_watch_prints_its_statements_and_tables(watch: Watch) -> None:
    text = str(watch)
    assert "Net, 60 steps" in text
    assert "weights would lose" in text
    assert watch._repr_html_().startswith("<pre")
    assert repr(watch) == "<ampbench.watch: Net, 60 steps>"
    assert list(watch.frame["step"]) == [1, 20, 40, 60]
    assert watch.frame["scale"].notna().all()


def test_a_watch_draws_the_updates_that_arrive(watch: Watch) -> None:
    rows = watch.plot().spec["data"]["values"]
    assert {row["series"] for row in rows} == {"in bf16", "in fp16"}
    assert "var(--" not in str(watch.plot().spec)
    assert "updates that arrive" in repr(watch.plot())


def test_a_saved_watch_is_a_run_that_show_and_the_page_have(watch: Watch, tmp_path: Path) -> None:
    from ampbench.cli.main import main
    from ampbench.store import read_run

    path = watch.save(tmp_path)
    stored = read_run(path)
    assert stored.every(Watched) == [watch.record]
    assert stored.asked.every == 20
    assert str(ampbench.open(path)) == str(watch)
    assert main(["show", str(path)]) == 0
    part = part_of("watch", material_of([], explanations=[stored]))
    assert part is not None
    assert part.charts
    assert "Net, 60 steps" in part.finding


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def problems(watch: Watch) -> dict[str, Statement]:
    return {str(row.code): row for row in watch.statements if row.severity is Severity.PROBLEM}


@pytest.mark.parametrize("form", ["fp32", "autocast", "fp16", "fused", "accumulation", "clipping", "checkpointing"])
def test_a_healthy_training_has_no_problem(form: str) -> None:
    _, watch = trained(form, 120, watched=True)
    assert watch is not None
    assert not problems(watch)
    assert bool(watch.record.skipped) == (form in ("fp16", "fused"))
    assert watch.record.taken + watch.record.skipped == watch.record.steps
    healthy, *others = watch.statements
    assert healthy.code is Watching.HEALTHY
    assert healthy.facts == {"steps": watch.record.steps, "looks": len(watch.record.looks)}
    assert {row.facts["dtype"] for row in others if row.code is Watching.WOULD} == {"bf16", "fp16"}
    assert any(row.code is Watching.SCALED for row in others) == (form in ("fp16", "fused"))


def planted(
    module: nn.Module, loss_of: Loss, steps: int, optimizer: Any = None, scaler: Any = None, every: int = 10
) -> Watch:
    """A loop in fp16 autocast where there is a scaler."""
    optimizer = optimizer or sgd(module.parameters())
    with ampbench.watch(module, optimizer, scaler=scaler, every=every) as watch:
        for x, y in data(steps):
            with torch.autocast("cpu", dtype=torch.float16, enabled=scaler is not None):
                loss = loss_of(module(x.to(next(module.parameters()).dtype)), y)
            take_step(loss, optimizer, scaler)
            optimizer.zero_grad()
    return watch


class Overflowing(nn.Module):
    def __init__(self, steps: int):
        super().__init__()
        self.layer = nn.Linear(16, 4)
        self.calls = 0
        self.steps = steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.layer(x).half()
        return (y * (6e4 if self.calls > self.steps else 1.0) * 8).float()  # the culprit


@pytest.mark.parametrize("steps", [0, 3])
def test_a_planted_overflow_is_found_at_once_with_its_line(steps: int) -> None:
    watch = planted(Overflowing(steps), F.cross_entropy, 5)
    found = problems(watch)
    assert found[Watching.BROKEN].facts["step"] == steps + 1
    assert found[Watching.BROKEN].facts["what"] in (LOSS, GRADIENTS)
    first = watch.record.first
    assert first is not None
    assert (first.operation, first.module, first.phase, first.step) == ("aten.mul", "", "forward", steps)
    assert first.inputs_largest is not None
    assert first.inputs_largest < 65504
    assert "# the culprit" in str(found[Watching.FIRST].facts["line"])


def test_a_loss_that_broke_on_a_device_is_found_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ampbench.watching.Watch._waits", lambda *_: True)
    watch = planted(Overflowing(3), F.cross_entropy, 10, scaler=torch.amp.GradScaler("cpu"))
    assert problems(watch)[Watching.BROKEN].facts == {"what": LOSS, "step": 4}
    assert watch.record.first is not None
    assert (watch.record.first.operation, watch.record.first.phase) == ("aten.mul", "forward")


def test_an_overflow_in_the_loss_is_found_in_the_next_step_where_the_scaler_saved_the_weights() -> None:
    def loss_of(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        chances = output.half().softmax(-1).gather(1, y[:, None])
        return -torch.log(chances * 0 + 1e-8).mean()  # the culprit

    watch = planted(Net(), loss_of, 4, scaler=torch.amp.GradScaler("cpu"))
    found = problems(watch)
    assert found[Watching.BROKEN].facts == {"what": LOSS, "step": 1}
    assert watch.record.first is not None
    assert watch.record.first.step == 1
    assert "# the culprit" in str(found[Watching.FIRST].facts["line"])


@pytest.mark.parametrize(
    ("loss_of", "operation", "largest"),
    [
        (lambda output, y: -torch.log(output.softmax(-1) * 0).mean(), "aten.log", 0.0),
        (lambda output, y: (output.mean() - 9).sqrt(), "aten.sqrt", None),
        (lambda output, y: output.mean() / torch.zeros(()), "aten.div", 0.0),
        (lambda output, y: (output * 0 + 1e3).exp().sum(), "aten.exp", None),
        (lambda output, y: (output * 0 + 1e20).pow(2.5).mean(), "aten.pow", 1e20),
        (lambda output, y: F.cross_entropy(output + torch.eye(4)[0].log(), y * 0 + 1), "aten.nll_loss", ...),
        (lambda output, y: F.cross_entropy((output.softmax(-1) * 0).log(), y), "aten.log", 0.0),
        (lambda output, y: F.mse_loss(output, output * torch.nan), "", None),
        (lambda output, y: (output.half() * 6e4 * 8).sum().sqrt().float(), "", None),
    ],
)
def test_the_op_of_a_loss_function_is_read_from_the_graph(loss_of: Loss, operation: str, largest: Any) -> None:
    watch = planted(nn.Linear(16, 4), loss_of, 3)
    found = problems(watch)
    assert found[Watching.BROKEN].facts == {"what": LOSS, "step": 1}
    told = found[Watching.FIRST if operation else Watching.AFTER]
    assert "loss.backward()" in str(told.facts["line"])
    assert 0 < (watch.record.outputs or 0) < 100
    if operation:
        first = watch.record.first
        assert first is not None
        assert (first.operation, first.module, first.phase, first.step) == (operation, "", IN_LOSS, 0)
        assert largest is ... or first.inputs_largest == pytest.approx(largest)


@pytest.mark.parametrize("step", [1, 4])
def test_a_gradient_that_is_not_finite_is_named_with_its_step(step: int) -> None:
    module = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 4))
    calls = iter(range(1, 9))

    def loss_of(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        bias = module[1].bias * (0 if next(calls) == step else 1)
        return F.cross_entropy(output, y) + bias.square().sqrt().sum()

    found = problems(planted(module, loss_of, 6))
    what = GRADIENTS if step == 1 else WEIGHTS  # step 1 is looked at, step 4 shows in the loss of step 5
    assert found[Watching.BROKEN].facts == {"what": what, "step": step, "names": "1.bias"}
    assert Watching.FIRST not in found


class Steep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x) * 1e-3
        return (y * 1e4).float() * 1e6  # the culprit


def test_a_falling_scale_is_a_problem_with_the_op_that_overflows() -> None:
    watch = planted(Steep(), lambda output, y: output.mean(), 21, scaler=torch.amp.GradScaler("cpu"))
    found = problems(watch)
    assert found[Watching.SCALE].facts == {"skipped": 21, "steps": 21, "scale": "2^-3"}
    assert watch.record.first is not None
    assert watch.record.first.phase == "backward"
    assert "# the culprit" in str(found[Watching.FIRST].facts["line"])
    assert watch.record.taken == 0


def test_a_planted_stall_is_a_problem_with_what_stands_still() -> None:
    module = Net().bfloat16()
    with torch.no_grad():
        module.norm.bias.zero_()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-6)
    watch = planted(module, lambda output, y: F.cross_entropy(output.float(), y), 20, optimizer)
    found = problems(watch)
    assert set(found) == {Watching.UPDATE, Watching.STILL}
    facts = found[Watching.UPDATE].facts
    assert facts["dtype"] == "bf16"
    assert facts["cause"] == STORAGE != ARITHMETIC
    assert float(facts["share"]) > 0.5
    assert facts["lr"] == 1e-6
    assert "norm.weight" in watch.record.still
    assert "norm.bias" not in watch.record.still, "from zero every step arrives"


def test_fp16_without_eps_is_explained_by_arithmetic() -> None:
    module = nn.Linear(16, 4).half()
    optimizer = torch.optim.Adam(module.parameters())
    watch = planted(module, lambda output, y: F.cross_entropy(output.float() * 1e-4, y), 2, optimizer)
    found = problems(watch)
    assert found[Watching.BROKEN].facts == {"what": WEIGHTS, "step": 1, "names": "weight, bias"}
    assert Arithmetic.INFINITE in {row.code for row in watch.statements}


@pytest.mark.parametrize(("momentum", "stalls"), [(0.1, False), (0.01, True)])
def test_running_statistics_that_stall_are_a_problem(momentum: float, stalls: bool) -> None:
    module = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8, momentum=momentum)).bfloat16()
    watch = ampbench.watch(module)
    found = problems(watch)
    assert (Watching.STALL in found) == stalls
    if stalls:
        assert found[Watching.STALL].facts["names"] == "1"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shares_are_those_of_the_weights_themselves(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = nn.Linear(8, 8, bias=False).to(dtype)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)
    before = module.weight.detach().double()
    with ampbench.watch(module, optimizer) as watch:
        module(torch.randn(4, 8, dtype=dtype)).square().sum().backward()
        gradient = module.weight.grad.double()  # type: ignore[union-attr]
        optimizer.step()
    rows = {row.dtype: row for row in watch.record.arrivals}
    moved = module.weight.detach().double() - before
    lows = {"bf16": torch.bfloat16, "fp16": torch.float16} if dtype is torch.float32 else {"bf16": dtype}
    for name, low in lows.items():
        stored = before.to(low).double()
        intended = -1e-2 * gradient if dtype is low else moved
        change = moved if dtype is low else (stored + intended).to(low).double() - stored
        energy = float((intended**2).sum())
        assert rows[name].kept == pytest.approx(float((change * intended).sum()) / energy)
        assert rows[name].swallowed == pytest.approx(float((intended[change == 0] ** 2).sum()) / energy)
        assert rows[name].stored == (dtype is low)
        assert rows[name].part == pytest.approx(1)


@pytest.mark.parametrize(
    "name", ["SGD", "Adam", "AdamW", "RAdam", "NAdam", "Adamax", "Adagrad", "RMSprop", "Adadelta", "ASGD", "Rprop"]
)
def test_each_optimizer_of_torch_is_judged_in_half(name: str) -> None:
    module = nn.Linear(16, 8).bfloat16()
    optimizer = getattr(torch.optim, name)(module.parameters(), lr=0.1)
    watch = planted(module, lambda output, y: output.float().square().sum(), 4, optimizer, every=2)
    assert watch.record.arrivals
    assert not watch.record.unseen
    assert 0.5 < (watch.record.looks[-1].kept or 0) < 1.1
