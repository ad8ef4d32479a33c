"""Whole trainings: the same batches and weights in every precision, the same bits twice, and early ends."""

import copy
import math
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from ampbench.core.precisions import LOW, PRECISIONS, Precision
from ampbench.studies import training_measure as measure
from ampbench.studies.training import Training
from ampbench.studies.training_measure import LOWEST_SCALE, one_rounding_away, train
from ampbench.worker.machine import open_device
from ampbench.workload import Workload
from tests.planted_faults import Function
from tests.worker.conftest import make_case

STEPS = 12


def network(module: nn.Module | None = None, seed: int = 0, lr: float = 0.1, **changes: Any) -> Workload:
    """Return a classifier of four batches whose classes can be learnt, and as many rows that are held out."""
    torch.manual_seed(seed)
    made = module or nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
    rows = torch.randn(40, 8)
    classes = rows[:, :3].argmax(1)
    values: dict[str, Any] = {
        "module": made,
        "inputs": list(rows[:32].split(8)),
        "targets": list(classes[:32].split(8)),
        "held_out": (rows[32:], classes[32:]),
        "loss": nn.functional.cross_entropy,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    }
    return Workload(**(values | changes))


def trained(
    workload: Workload, precision: str = "fp32", arm: str = "", steps: int = STEPS, seed: int = 0, recipe: str = ""
) -> Training:
    """Return a training."""
    case = make_case(precision, "training", recipe=recipe)
    start = Training(case_id=case.case_id, seed=seed, arm=arm, steps=steps)
    found = train(workload, case, open_device("cpu"), start)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Training) == found
    return found


@pytest.mark.parametrize("precision", ["fp32", "fp16_autocast", "bf16_pure"])
def test_the_same_training_twice_is_the_same_to_the_last_bit(precision: str) -> None:
    assert trained(network(), precision) == trained(network(), precision)


class Watched(nn.Module):
    """Keeps the first feature of every row that it is trained on, and the first weights it was called with."""

    seen: list[list[float]] = []  # noqa: RUF012 - shared by the copies on purpose

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.seen.append([round(value, 1) for value in rows[:, 0].tolist()])
        return self.layer(rows)


def test_every_precision_and_arm_sees_the_same_batches_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.Readout, "gradients", lambda *_: {})
    monkeypatch.setattr(measure._Course, "_find_first", lambda *_: None)
    orders = []
    rows = (torch.randint(-8, 8, (40, 8)) / 2).float()
    for precision, arm in [("fp32", "reference"), ("fp32", ""), ("fp32", "control"), *((low, "") for low in LOW)]:
        Watched.seen.clear()
        trained(network(Watched(), inputs=list(rows[:32].split(8))), precision, steps=6, arm=arm)
        orders.append(list(Watched.seen))
    assert [len(order) for order in orders] == [6] * len(orders)
    assert all(order == orders[0] for order in orders)
    batches = [[round(value, 1) for value in batch[:, 0].tolist()] for batch in rows[:32].split(8)]
    assert orders[0] == [*batches, *batches[:2]]


def test_the_control_begins_one_rounding_away_in_every_weight_that_is_not_zero() -> None:
    workload = network(nn.Linear(8, 3))
    with torch.no_grad():
        workload.module.weight[0, 0] = 0.0
    moved, again = one_rounding_away(workload, 0), one_rounding_away(workload, 0)
    before, after = workload.module.weight, moved.module.weight
    assert torch.equal(after, again.module.weight)
    assert not torch.equal(after, one_rounding_away(workload, 1).module.weight)
    bits = (after.detach().view(torch.int32) - before.detach().view(torch.int32)).abs()
    assert bits[0, 0] == 0
    assert (bits.flatten()[1:] == 1).all()
    assert 0 < int((after > before).sum()) < before.numel() - 1


@pytest.mark.parametrize("precision", ["fp16_autocast", "fp16_pure", "fp16_master"])
def test_weights_are_evaluated_in_fp32_whatever_computes_the_losses(precision: str) -> None:
    """N1: a loss in fp16 has a spacing that swallowed the whole fall, and was read as exact."""
    found = trained(network(nn.Linear(8, 3), loss=tiny), precision, steps=8)
    assert len({score.loss for score in found.fits}) == len(found.fits)


def tiny(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return a loss that is rounded as its input is, and falls by less than fp16 can tell."""
    return output.square().mean() * 1e-3 + 1e-3 + 0 * targets.sum().to(output.dtype)


def test_a_loss_that_never_fits_into_fp16_is_given_up() -> None:
    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (output * 1e9).half().float().square().mean() + 0 * targets.sum()

    found = trained(network(nn.Linear(8, 3), loss=loss), "fp16_autocast", steps=40)
    assert (found.ended_at, found.skipped) == (30, list(range(31)))
    assert found.scales[-1] == (31, LOWEST_SCALE / 2)
    assert found.losses == [None] * 31
    assert found.first_nonfinite is not None
    assert (found.first_nonfinite.phase, found.first_nonfinite.step) == ("forward", 0)


def times(factor: float) -> Callable[..., torch.Tensor]:
    return lambda output, targets: factor * nn.functional.cross_entropy(output, targets)


def test_without_a_scaler_a_training_ends_where_the_weights_are_not_finite() -> None:
    found = trained(network(nn.Linear(8, 3), loss=times(1e8)), "fp16_autocast", arm="no scaling")
    assert (found.ended_at, len(found.losses), found.scales) == (0, 1, [])
    assert found.nonfinite == {"weight": 1, "bias": 1}


@pytest.mark.parametrize("setting", ["no scaling", "default"])
def test_looks_leave_no_trace_in_a_training(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Function(lambda x: x + torch.rand_like(x))

    def made() -> Workload:
        torch.manual_seed(0)
        return network(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), noise, nn.Linear(16, 3)))

    few = trained(made(), "fp16_autocast", arm=setting)
    monkeypatch.setattr(measure, "LOOKS", STEPS)
    many = trained(made(), "fp16_autocast", arm=setting)
    assert (len(few.looks), len(many.looks)) == (6, STEPS)
    assert (few.losses, few.scores) == (many.losses, many.scores)
    assert [look for look in many.looks if look.step in [each.step for each in few.looks]] == few.looks


def test_the_scale_comes_down_until_gradients_fit_and_grows_again() -> None:
    arm = "init_scale=16777216 growth_interval=3"
    found = trained(network(nn.Linear(8, 3)), "fp16_autocast", steps=20, arm=arm)
    first = next(step for step in range(20) if step not in found.skipped)
    scales = dict(found.scales)
    assert (scales[0], scales[first]) == (2.0**24, 2.0 ** (24 - first))
    assert any(after == 2 * before for before, after in pairwise(scales.values()))
    assert sum(found.nonfinite.values()) >= len(found.skipped) > 0
    assert found.looks[0].rel_l2 is None


class Refuses(nn.Module):
    """Raises in one dtype."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.layer, self.dtype = nn.Linear(8, 3), dtype

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.dtype is self.dtype:
            raise RuntimeError(f"no {self.dtype} here\nand more")
        return self.layer(rows)


def test_what_a_step_in_half_raises_is_a_finding_and_in_fp32_an_error() -> None:
    found = trained(network(Refuses(torch.float16)), "fp16_pure")
    assert found.error.startswith("RuntimeError: no torch.float16 here (test_training_measure.py, line ")
    assert (found.losses, found.ended_at) == ([], None)
    with pytest.raises(RuntimeError, match="float32"):
        trained(network(Refuses(torch.float32)))


def by_hand(workload: Workload, dtype: torch.dtype, rates: list[float]) -> tuple[list[float], list[list[torch.Tensor]]]:
    """Return the losses and the weights before and after each step of a plain loop of SGD at these learning rates."""
    module = copy.deepcopy(workload.module).to(dtype)
    weights, losses = [[p.detach().double().clone() for p in module.parameters()]], []
    for number, rate in enumerate(rates):
        place = number % len(workload.inputs)
        loss = nn.functional.cross_entropy(module(workload.inputs[place].to(dtype)), workload.targets[place])
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                parameter.add_(gradient, alpha=-rate)  # one rounding, as SGD has it
        weights.append([p.detach().double().clone() for p in module.parameters()])
    return losses, weights


def plain(lr: float = 0.1, **changes: Any) -> Workload:
    torch.manual_seed(3)
    return network(nn.Linear(8, 3), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr), **changes)


def test_a_training_under_a_recipe_follows_its_schedule() -> None:
    found = trained(plain(), recipe="sgd-vision,lr=0.2,weight_decay=0,momentum=0,nesterov=false")
    shares = [0.5 + 0.5 * math.cos(math.pi * step / STEPS) for step in range(STEPS)]
    losses, _ = by_hand(plain(), torch.float32, [0.2 * share for share in shares])
    assert found.losses == pytest.approx(losses, rel=1e-5)


def test_the_schedule_goes_on_where_gradscaler_skips_steps_and_nothing_is_warned_of() -> None:
    rates = []

    def halving(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
        def share(step: int) -> float:
            rates.append(0.5 ** (4 * step / steps))
            return rates[-1]

        return torch.optim.lr_scheduler.LambdaLR(optimizer, share)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = trained(plain(schedule=halving, loss=lambda *given: 1e3 * nn.functional.cross_entropy(*given)),
                        "fp16_autocast")  # fmt: skip
    assert found.skipped
    assert rates[-STEPS:] == [0.5 ** (4 * step / STEPS) for step in range(STEPS)]


def test_a_network_that_a_users_own_precision_prepares_is_evaluated_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Whole(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.inner(rows)

    mine = Precision(name="mine", storage="float32", rounding="bfloat16", prepare=lambda module, _: Whole(module))
    monkeypatch.setitem(PRECISIONS, "mine", mine)
    found, fp32 = trained(network(nn.Linear(8, 3)), "mine"), trained(network(nn.Linear(8, 3)))
    assert (found.error, found.looks) == ("", [])
    assert (found.fits, found.scores) == (fp32.fits, fp32.scores)
