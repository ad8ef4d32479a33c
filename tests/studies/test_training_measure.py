"""Whole trainings: the same batches and weights in every precision, the same bits twice, and early ends."""

import copy
import functools
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from ampbench.core.precisions import LOW, PRECISIONS, Precision
from ampbench.store import gathered
from ampbench.studies import training_measure as measure
from ampbench.studies.training import SETTINGS, Training, TrainingAsked, learned, trainings_of
from ampbench.studies.training_measure import (
    LOWEST_SCALE,
    ONE_BATCH,
    UNNAMED,
    one_rounding_away,
    train,
)
from ampbench.worker.machine import open_device
from ampbench.workload import Workload
from tests.planted_faults import Function
from tests.stored_runs import make_header
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


def test_digests_are_the_workloads_in_every_arm_and_others_for_another_seed() -> None:
    found = [trained(network(), precision, arm) for precision, arm in [("fp32", "control"), ("bf16_pure", "")]]
    assert found[0].weights_digest == found[1].weights_digest
    assert found[0].inputs_digest == found[1].inputs_digest
    assert trained(network(seed=1), seed=1).weights_digest != found[0].weights_digest


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


def test_scores_are_of_held_out_data_and_improve() -> None:
    found = trained(network(nn.Linear(8, 3)), steps=60)
    assert [score.step for score in found.scores] == [0, 15, 30, 45, 49, 52, 56, 60]
    assert all(score.decisions == 8 for score in found.scores)
    assert found.scores[-1].loss < found.scores[0].loss
    assert found.scores[-1].correct > found.scores[0].correct


def test_a_network_is_scored_with_the_statistics_that_it_gathered_and_fits_with_those_of_its_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workload = network()
    found = trained(workload, "fp16_autocast")
    monkeypatch.setattr(measure, "SCORED", (1.0,))
    assert trained(network(), "fp16_autocast").losses == found.losses
    module = copy.deepcopy(workload.module)
    module[3].p = 0.0
    pairs = zip(workload.inputs, workload.targets, strict=True)
    losses = [nn.functional.cross_entropy(module(rows), classes).item() for rows, classes in pairs]
    assert found.fits[0].loss == pytest.approx(sum(losses) / 4)
    expected = nn.functional.cross_entropy(workload.module.eval()(workload.held_out[0]), workload.held_out[1])
    assert found.scores[0].loss == pytest.approx(expected.item())


@pytest.mark.parametrize("precision", ["fp16_autocast", "fp16_pure", "fp16_master"])
def test_weights_are_evaluated_in_fp32_whatever_computes_the_losses(precision: str) -> None:
    """N1: a loss in fp16 has a spacing that swallowed the whole fall, and was read as exact."""
    found = trained(network(nn.Linear(8, 3), loss=tiny), precision, steps=8)
    assert len({score.loss for score in found.fits}) == len(found.fits)


def tiny(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return a loss that is rounded as its input is, and falls by less than fp16 can tell."""
    return output.square().mean() * 1e-3 + 1e-3 + 0 * targets.sum().to(output.dtype)


def faint(seed: int) -> Workload:
    """Return a network with large gradients whose loss falls by less than two spacings of fp16 in all."""
    torch.manual_seed(seed)

    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (output - 0.04 * targets[:, None].to(output.dtype)).square().mean()

    module = nn.Linear(8, 3)
    for parameter in module.parameters():
        parameter.data *= 0.05
    rate = functools.partial(torch.optim.SGD, lr=1e-5)
    return network(module, seed, loss=loss, held_out=None, optimizer=rate)


@pytest.mark.slow
def test_a_fall_below_the_spacing_of_fp16_is_judged_by_weights_and_only_a_high_start_is_behind() -> None:
    asked = TrainingAsked(steps=40, seeds=3, setting=[*SETTINGS][:4])
    fp32, fp16 = make_case("fp32", "training"), make_case("fp16_autocast", "training")
    entries: list[Any] = [fp32, fp16]
    for start in trainings_of([fp32, fp16], 0, asked):
        case = fp32 if start.case_id == fp32.case_id else fp16
        entries.append(train(faint(start.seed), case, open_device("cpu"), start))
    stored = gathered(Path("run"), make_header(explains="training", asked=asked), entries)
    (found,) = learned([stored])
    before, after = found.fit.before, found.fit.after
    assert before is not None
    assert after is not None
    assert 0 < before - after < 2 * np.spacing(np.float16(after))
    assert {row.name: row.trains for row in found.judged} == {
        "no scaling": True, "default": True, "low start": True, "high start": False,
    }  # fmt: skip


def test_dropout_is_switched_off_and_stays_so_after_a_score() -> None:
    found = trained(network())
    assert any("dropout layers were switched off" in note for note in found.notes)
    never = [trained(network(nn.Sequential(nn.Dropout(share), nn.Linear(8, 3)))).losses for share in (0.9, 0.0)]
    torch.testing.assert_close(never[0], never[1])


class Rounds(nn.Module):
    """Adds a large number and takes it away: fp32 keeps a few digits of its input, half none."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return (rows + 3000.0) - 3000.0


def test_a_network_that_loses_its_input_in_half_is_seen_to_learn_nothing_there() -> None:
    def make() -> Workload:
        return network(nn.Sequential(Rounds(), nn.Linear(8, 3)))

    full, half = trained(make(), steps=60), trained(make(), "bf16_pure", steps=60)
    assert full.scores[-1].correct >= half.scores[-1].correct + 2
    assert half.losses[-1] > 2 * full.losses[-1]


def test_a_training_that_explodes_ends_there_with_what_it_had() -> None:
    exploding = {"lr": 1e30, "loss": nn.functional.mse_loss, "targets": [torch.ones(8, 3)] * 4, "held_out": None}
    found = trained(network(nn.Linear(8, 3), **exploding), "bf16_pure")
    assert found.ended_at is not None
    assert found.ended_at < STEPS - 1
    assert len(found.losses) == found.ended_at + 1
    assert found.fits[-1].step <= found.ended_at
    assert found.error == ""


def test_a_loss_that_never_fits_into_fp16_is_given_up() -> None:
    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (output * 1e9).half().float().square().mean() + 0 * targets.sum()

    found = trained(network(nn.Linear(8, 3), loss=loss), "fp16_autocast", steps=40)
    assert (found.ended_at, found.skipped) == (30, list(range(31)))
    assert found.scales[-1] == (31, LOWEST_SCALE / 2)
    assert found.losses == [None] * 31
    assert found.first_nonfinite is not None
    assert (found.first_nonfinite.phase, found.first_nonfinite.step) == ("forward", 0)


def test_gradients_that_overflow_at_every_scale_end_a_training() -> None:
    found = trained(network(nn.Linear(8, 3), loss=times(1e12)), "fp16_autocast", steps=100)
    assert None not in found.losses
    assert found.scales[-1][1] == LOWEST_SCALE / 2
    assert found.first_nonfinite is not None
    assert found.first_nonfinite.phase == "backward"


def times(factor: float) -> Callable[..., torch.Tensor]:
    return lambda output, targets: factor * nn.functional.cross_entropy(output, targets)


def test_without_a_scaler_a_training_ends_where_the_weights_are_not_finite() -> None:
    found = trained(network(nn.Linear(8, 3), loss=times(1e8)), "fp16_autocast", arm="no scaling")
    assert (found.ended_at, len(found.losses), found.scales) == (0, 1, [])
    assert found.nonfinite == {"weight": 1, "bias": 1}


def test_a_single_overflow_goes_on_where_the_weights_stay_finite() -> None:
    class Zeroing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
            return super().step(closure)

    clipped = network(nn.Linear(8, 3), loss=times(1e8), optimizer=lambda parameters: Zeroing(parameters, lr=1e-2))
    assert len(trained(clipped, "fp16_autocast", arm="no scaling").losses) == STEPS


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


def test_the_first_look_is_at_equal_weights_and_errs_by_fp16s_rounding() -> None:
    (first, *_) = trained(network(nn.Linear(8, 3)), "fp16_autocast").looks
    assert (first.step, first.nonzero) == (0, 27)
    assert 1e-5 < (first.rel_l2 or 0) < 5e-3


def test_gradients_that_underflow_are_counted_and_scaling_saves_them() -> None:
    without, with_one = (
        trained(network(nn.Linear(8, 3), loss=times(2e-7)), "fp16_autocast", arm=arm)
        for arm in ("no scaling", "default")
    )
    assert sum(look.flushed for look in without.looks) > 0.3 * sum(look.nonzero for look in without.looks)
    assert sum(look.flushed for look in with_one.looks) < 0.05 * sum(look.nonzero for look in with_one.looks)


def test_sparse_gradients_are_looked_at_too() -> None:
    module = nn.Sequential(nn.Embedding(10, 16, sparse=True), nn.Flatten(), nn.Linear(64, 4))
    workload = Workload(
        module=module, inputs=torch.randint(0, 10, (8, 4)), targets=torch.randint(0, 4, (8,)),
        loss=nn.functional.cross_entropy,
    )  # fmt: skip
    found = trained(workload, "fp16_autocast", steps=3)
    assert (found.error, found.looks[0].nonzero > 260) == ("", True)


def test_the_scale_comes_down_until_gradients_fit_and_grows_again() -> None:
    arm = "init_scale=16777216 growth_interval=3"
    found = trained(network(nn.Linear(8, 3)), "fp16_autocast", steps=20, arm=arm)
    first = next(step for step in range(20) if step not in found.skipped)
    scales = dict(found.scales)
    assert (scales[0], scales[first], scales[first + 3]) == (2.0**24, 2.0 ** (24 - first), 2.0 ** (25 - first))
    assert sum(found.nonfinite.values()) >= len(found.skipped) > 0
    assert found.looks[0].rel_l2 is None


def test_skipped_steps_of_the_scalers_start_are_counted_and_training_goes_on() -> None:
    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, targets) * 64

    found = trained(network(nn.Linear(8, 3), loss=loss, lr=0.001), "fp16_autocast", steps=30)
    assert found.ended_at is None
    assert len(found.skipped) > 0
    assert found.scales[-1][1] == 2.0 ** (16 - len(found.skipped))
    assert len(found.losses) == 30


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


def test_that_memory_ran_out_in_half_is_raised() -> None:
    class Large(nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            if rows.dtype is torch.bfloat16:
                raise torch.OutOfMemoryError("too much")
            return super().forward(rows)

    with pytest.raises(torch.OutOfMemoryError):
        trained(network(Large(8, 3)), "bf16_pure")


def test_one_batch_is_trained_on_over_and_over_which_is_said() -> None:
    one = network(inputs=torch.randn(8, 8), targets=torch.randint(0, 3, (8,)), held_out=None, optimizer=None)
    found = trained(one, steps=5)
    assert found.notes[:2] == [ONE_BATCH, UNNAMED]
    assert found.losses[-1] < found.losses[0]


def test_losses_of_long_trainings_are_means_of_at_most_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    each = trained(network(), steps=10).losses
    monkeypatch.setattr(measure, "MOST_LOSSES", 4)
    found = trained(network(), steps=10)
    assert found.every == 3
    expected = [sum(each[:3]) / 3, sum(each[3:6]) / 3, sum(each[6:9]) / 3, each[9]]
    assert found.losses == pytest.approx(expected)


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


def test_a_workload_may_bring_its_own_schedule() -> None:
    def halving(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** (4 * step / steps))

    found = trained(plain(schedule=halving))
    losses, _ = by_hand(plain(), torch.float32, [0.1 * 0.5 ** (4 * step / STEPS) for step in range(STEPS)])
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


def test_an_optimizer_without_a_learning_rate_trains() -> None:
    class Fixed(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                parameter.sub_(0.1 * parameter.grad)

    found = trained(network(nn.Linear(8, 3), optimizer=Fixed))
    assert found.fits[-1].loss < found.fits[0].loss


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
