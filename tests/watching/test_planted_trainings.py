"""Each planted fault gives its statement, with the line of the culprit; a healthy training has no problem."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ampbench
from ampbench.core.statement import Arithmetic, Severity, Statement
from ampbench.records.ranges import IN_LOSS
from ampbench.studies.watch import ARITHMETIC, GRADIENTS, LOSS, STORAGE, WEIGHTS, Watching
from ampbench.watching import Watch
from tests.watching.loops import Net, data, sgd, take_step, trained

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


def looped(
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
    watch = looped(Overflowing(steps), F.cross_entropy, 5)
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
    watch = looped(Overflowing(3), F.cross_entropy, 10, scaler=torch.amp.GradScaler("cpu"))
    assert problems(watch)[Watching.BROKEN].facts == {"what": LOSS, "step": 4}
    assert watch.record.first is not None
    assert (watch.record.first.operation, watch.record.first.phase) == ("aten.mul", "forward")


def test_an_overflow_in_the_loss_is_found_in_the_next_step_where_the_scaler_saved_the_weights() -> None:
    def loss_of(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        chances = output.half().softmax(-1).gather(1, y[:, None])
        return -torch.log(chances * 0 + 1e-8).mean()  # the culprit

    watch = looped(Net(), loss_of, 4, scaler=torch.amp.GradScaler("cpu"))
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
    watch = looped(nn.Linear(16, 4), loss_of, 3)
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

    found = problems(looped(module, loss_of, 6))
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
    watch = looped(Steep(), lambda output, y: output.mean(), 21, scaler=torch.amp.GradScaler("cpu"))
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
    watch = looped(module, lambda output, y: F.cross_entropy(output.float(), y), 20, optimizer)
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
    watch = looped(module, lambda output, y: F.cross_entropy(output.float() * 1e-4, y), 2, optimizer)
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
    watch = looped(module, lambda output, y: output.float().square().sum(), 4, optimizer, every=2)
    assert watch.record.arrivals
    assert not watch.record.unseen
    assert 0.5 < (watch.record.looks[-1].kept or 0) < 1.1
