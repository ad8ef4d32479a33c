"""What is trained under a recipe, and bf16 weights whose updates are rounded stochastically or compensated."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ampbench.core.precisions import FP64
from ampbench.core.recipes import OPTIMIZERS, find_recipe, parse_optimizer
from ampbench.errors import UsageError, WorkloadError
from ampbench.records.case import Case
from ampbench.worker.divergence import References, measure_divergence
from ampbench.worker.machine import Cpu
from ampbench.worker.network import (
    COMPENSATION,
    SavedState,
    check_class,
    clipping,
    low_updates,
    optimizer_of,
    round_stochastically,
)
from ampbench.worker.step import TrainingStep, build_training
from ampbench.workload import Workload
from tests.worker.conftest import make_case, numpy_bf16, numpy_fp32
from tests.worker.test_updates import exact_gradients, update_of

stochastic, kahan = partial(low_updates, "stochastic"), partial(low_updates, "kahan")
Make = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


class Lion(torch.optim.Optimizer):
    """A user's own: steps of equal size, state that is replaced rather than changed."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], lr: float = 4e-5):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                mean = self.state[weight].get("mean", torch.zeros_like(weight))
                weight.sub_((0.9 * mean + 0.1 * weight.grad).sign(), alpha=group["lr"])
                self.state[weight]["mean"] = 0.99 * mean + 0.01 * weight.grad


LOW_OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=4e-5, betas=(0.9, 0.95), weight_decay=0.0),
    "lion": Lion,
}


def weight_of(*shape: int, value: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.full(shape, value, dtype=dtype))


def train(optimizer: torch.optim.Optimizer, weight: torch.nn.Parameter, steps: int, gradient: float = 2.0**-7) -> None:
    for _ in range(steps):
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()


def test_stochastic_rounding_returns_neighbours_with_the_exact_mean() -> None:
    generator, draws = torch.Generator().manual_seed(0), 100_000
    values = torch.tensor([1 + 2.0**-9, 1 + 2.0**-23, -3.1415927, 1e-40, -1e-3, 2.0 - 2.0**-23, 6.0, 0.0])
    below = (values.view(torch.int32) & -(1 << 16)).view(torch.float32)
    spacing = (below.view(torch.int32) + (1 << 16)).view(torch.float32) - below
    rounded = round_stochastically(values.repeat(draws, 1), generator).float()
    assert ((rounded == below) | (rounded == below + spacing)).all()
    share = ((values - below) / spacing).double()
    sd = spacing.abs().double() * (share * (1 - share) / draws).sqrt()
    assert ((rounded.double().mean(0) - values).abs() <= 4 * sd).all()
    assert (rounded[:, share == 0] == values[share == 0]).all()
    others = torch.tensor([torch.inf, -torch.inf, torch.nan])
    assert torch.equal(round_stochastically(others, generator).float().nan_to_num(7), others.nan_to_num(7))


@pytest.mark.parametrize("name", LOW_OPTIMIZERS)
def test_a_thousand_tiny_updates_arrive(name: str) -> None:
    moved = {}
    for rounding, wrap in {"fp32": None, "nearest": None, "stochastic": stochastic, "kahan": kahan}.items():
        weight = weight_of(64, 64, dtype=torch.float32 if rounding == "fp32" else torch.bfloat16)
        place, state = weight.data_ptr(), torch.get_rng_state()
        optimizer = (wrap(LOW_OPTIMIZERS[name]) if wrap else LOW_OPTIMIZERS[name])([weight])
        train(optimizer, weight, 100 if rounding == "nearest" else 1_000)
        assert torch.equal(state, torch.get_rng_state())
        assert (weight.data_ptr(), weight.grad.dtype) == (place, weight.dtype)  # type: ignore[union-attr]
        kept = optimizer.state[weight]
        low = [value for value in kept.values() if isinstance(value, torch.Tensor) and value.ndim]
        assert all(value.dtype is weight.dtype for value in low)
        true = weight.detach().double() + (kept[COMPENSATION].double() if rounding == "kahan" else 0.0)
        moved[rounding] = 1 - float(true.mean())
    assert moved["nearest"] == 0
    assert moved["stochastic"] == pytest.approx(moved["fp32"], rel=0.02 if name == "sgd" else 0.05)  # state rounds
    assert moved["kahan"] == pytest.approx(moved["fp32"], rel=0.05)  # the compensation rounds, too


def test_one_seed_draws_one_sequence_and_optimizers_of_one_function_go_on_with_it() -> None:
    def drawn(seed: int, optimizers: int = 1) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        make, weights = stochastic(LOW_OPTIMIZERS["sgd"]), [weight_of(4096) for _ in range(optimizers)]
        for weight in weights:
            train(make([weight]), weight, 1, gradient=1.0)
        return weights

    first, second = drawn(0, optimizers=2)
    assert torch.equal(first, drawn(0)[0])
    assert not torch.equal(first, second)
    assert not torch.equal(first, drawn(1)[0])


@pytest.mark.parametrize("wrap", [stochastic, kahan])
def test_groups_scaler_clipping_schedule_and_saved_state_work(wrap: Callable[[Make], Make]) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).bfloat16()
    module[1].bias.data = module[1].bias.data.float()
    module[0].bias.requires_grad_(False)

    def make(parameters: Any) -> torch.optim.Optimizer:
        low, *rest = parameters
        return torch.optim.AdamW([{"params": [low], "lr": 0.0}, {"params": rest}], lr=1e-3)

    optimizer = clipping(wrap(make), 1e-3)(module.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = [weight.detach().clone() for weight in module.parameters()]

    scaler.scale(torch.zeros(()))  # makes its scale

    def step(factor: float = 1.0) -> None:
        optimizer.zero_grad()
        for weight in module.parameters():
            weight.grad = torch.full_like(weight, 8.0 * factor) if weight.requires_grad else None
        scaler.step(optimizer)
        scaler.update()

    step(torch.inf)
    assert all(map(torch.equal, module.parameters(), before))
    step()
    schedule.step()
    changed = [not torch.equal(weight, old) for weight, old in zip(module.parameters(), before, strict=True)]
    assert changed == [False, False, True, True]
    saved = SavedState(module, optimizer, scaler, [])
    held = [value for state in optimizer.state.values() for value in state.values()]
    kept = [value.clone() for value in held]
    step()
    saved.put_back()
    assert all(map(torch.equal, [value for state in optimizer.state.values() for value in state.values()], kept))
    optimizer.load_state_dict(optimizer.state_dict())
    step()
    assert [weight.dtype for weight in module.parameters()] == [torch.bfloat16] * 3 + [torch.float32]


def test_compensated_weights_and_their_state_are_those_of_numpy_to_the_last_bit() -> None:
    draw = np.random.default_rng(0)
    start = numpy_bf16(draw.normal(size=(64, 64)))
    weight = torch.nn.Parameter(torch.from_numpy(start).bfloat16())
    optimizer = kahan(lambda weights: torch.optim.SGD(weights, lr=2.0**-10, momentum=0.875))([weight])  # exact products
    expected, mean, lost = start, np.zeros_like(start), np.zeros_like(start)
    for _ in range(50):
        given = numpy_bf16(draw.normal(size=(64, 64)))
        weight.grad = torch.from_numpy(given).bfloat16()
        optimizer.step()
        step = numpy_fp32(0.875 * mean + given)
        moved = numpy_fp32(expected - 2.0**-10 * step)
        mean, before = numpy_bf16(step), expected
        lost = numpy_bf16(numpy_fp32(lost + numpy_fp32(moved - before)))
        expected = numpy_bf16(numpy_fp32(before + lost))
        lost = numpy_bf16(numpy_fp32(lost + numpy_fp32(before - expected)))
    state = optimizer.state[weight]
    for found, value in ((weight.detach(), expected), (state["momentum_buffer"], mean), (state[COMPENSATION], lost)):
        assert np.array_equal(found.double().numpy(), value)
    assert not np.array_equal(expected, start)


Floats = np.ndarray


def linear(batches: int = 3) -> Workload:
    """Return a linear layer with a squared error on so many batches of four rows: its gradient is easy by hand."""
    torch.manual_seed(0)
    rows, targets = torch.randn(4 * batches, 6), torch.randn(4 * batches, 2)
    return Workload(
        module=torch.nn.Linear(6, 2, bias=False),
        inputs=list(rows.split(4)),
        targets=list(targets.split(4)),
        loss=torch.nn.functional.mse_loss,
    )


def gradient(weight: Floats, workload: Workload, batch: int) -> Floats:
    """Return the gradient of the squared error of one batch."""
    place = batch % len(workload.inputs)
    x, y = (one[place].double().numpy() for one in (workload.inputs, workload.targets))
    return 2 / y.size * (x @ weight.T - y).T @ x


def clipped(gradient: Floats, norm: float) -> Floats:
    return gradient * min(1.0, norm / (np.sqrt((gradient**2).sum()) + 1e-6))


def built(workload: Workload, case: Case, **given: Any) -> TrainingStep:
    return build_training(workload, case, Cpu(), **given)


def test_steps_of_a_recipe_are_those_of_a_loop_by_hand() -> None:
    workload = linear()
    recipe = "adamw-lm,lr=0.01,clip=0.5"
    step = built(workload, make_case("fp32", "training", recipe=recipe), precision=FP64)
    weight = workload.module.weight.detach().double().numpy()
    first, second = np.zeros_like(weight), np.zeros_like(weight)
    for number in range(1, 5):
        output = step.run()
        batch = (number - 1) % 3
        assert output.detach().numpy() == pytest.approx(workload.inputs[batch].double().numpy() @ weight.T)
        taken = clipped(gradient(weight, workload, batch), 0.5)
        first, second = 0.9 * first + 0.1 * taken, 0.95 * second + 0.05 * taken**2
        weight = weight * (1 - 0.01 * 0.1)
        weight = weight - 0.01 * first / (1 - 0.9**number) / (np.sqrt(second / (1 - 0.95**number)) + 1e-8)
        assert step.module.weight.detach().numpy() == pytest.approx(weight, rel=1e-10)


@pytest.mark.parametrize("implementation", OPTIMIZERS["sgd"].implementations)
def test_gradients_are_clipped_after_the_scale_is_divided_out(implementation: str) -> None:
    workload = linear(1)
    recipe = f"optimizer=sgd:{implementation},lr=0.5,clip=0.01"
    step = built(workload, make_case("fp16_autocast", "training", recipe=recipe))
    step.settle_scaler()
    plain = built(workload, make_case("fp16_autocast", "training"))
    plain.settle_scaler()
    came = plain.unscaled_gradients()[1]["weight"].double().numpy()
    step.run()
    assert step.scaler.get_scale() > 1
    expected = workload.module.weight.detach().double().numpy() - 0.5 * clipped(came, 0.01)
    assert step.module.weight.detach().double().numpy() == pytest.approx(expected, rel=1e-6)


def two_groups(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Make an optimizer as people do who decay no bias and train a head faster."""
    weight, bias = parameters
    return torch.optim.AdamW([{"params": [weight], "lr": 1e-2}, {"params": [bias], "lr": 2e-3, "weight_decay": 0.0}])


def test_settings_of_the_workloads_own_optimizer_are_changed_group_by_group() -> None:
    module = torch.nn.Linear(2, 2)
    make = optimizer_of(find_recipe("lr=1e-3,weight_decay=0.3,beta2=0.95"), two_groups)
    groups = make(module.parameters()).param_groups
    assert [group["lr"] for group in groups] == pytest.approx([1e-3, 2e-4])
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]
    assert [group["betas"] for group in groups] == [(0.9, 0.95)] * 2
    with pytest.raises(WorkloadError, match=r"own optimizer, AdamW, has no momentum .*--optimizer"):
        optimizer_of(find_recipe("momentum=0.9"), two_groups)(module.parameters())
    assert optimizer_of(find_recipe("clip=1"), two_groups) is two_groups


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_the_table_is_made_with_all_of_its_settings(name: str) -> None:
    row = OPTIMIZERS[name]
    values = {"weight_decay": 0.25, "momentum": 0.5, "nesterov": True, "beta1": 0.75, "beta2": 0.875, "eps": 0.125}
    said = ",".join(f"{key}={str(values[key]).lower()}" for key in row.settings)
    for implementation in row.implementations:
        module = torch.nn.Linear(3, 2)
        make = optimizer_of(find_recipe(f"optimizer={name}:{implementation},lr=0.0625,{said}"), two_groups)
        optimizer = make(module.parameters())
        assert type(optimizer) is getattr(torch.optim, row.kind)
        group = optimizer.param_groups[0]
        read = dict(zip(("beta1", "beta2"), group.get("betas", (None, group.get("alpha"))), strict=True))
        assert group["lr"] == 0.0625
        assert {key: read.get(key, group.get(key)) for key in row.settings} == {
            key: values[key] for key in row.settings
        }
        assert (bool(group.get("foreach")), bool(group.get("fused"))) == (
            implementation == "foreach",
            implementation == "fused",
        )
        module(torch.ones(1, 3)).sum().backward()
        before = module.weight.detach().clone()
        optimizer.step()
        assert not torch.equal(module.weight, before)


OWN = """
import torch

class Quick(torch.optim.SGD):
    def __init__(self, parameters, lr, betas=(0.5, 0.6), rho=1.0):
        super().__init__(parameters, lr=lr * rho, momentum=betas[0])
        self.betas = betas

Late = torch.optim.LBFGS

def number(parameters):
    return 3
"""


def test_a_class_by_its_place_trains_with_what_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "quick.py").write_text(OWN)
    recipe = parse_optimizer(f"{tmp_path}/quick.py:Quick:lr=0.5,betas=0.25/0.75,rho=0.5,clip=1").spelling
    step = built(linear(), make_case("fp32", "training", recipe=recipe))
    assert type(step.optimizer).__name__ == "Quick"
    assert step.optimizer.betas == (0.25, 0.75)
    assert (step.optimizer.param_groups[0]["lr"], step.optimizer.param_groups[0]["momentum"]) == (0.25, 0.25)
    check_class(find_recipe(recipe))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("none.py:Quick", "none.py:Quick cannot be imported: FileNotFoundError: there is no file"),
        ("nowhere.optim:Quick", "optimizer nowhere.optim:Quick cannot be imported: ModuleNotFoundError"),
        ("quick.py:Quik", r"unknown class of .*quick.py 'Quik': did you mean Quick\?"),
        ("quick.py:Quick", "cannot be made: TypeError: .*missing 1 required positional argument: 'lr'"),
        ("quick.py:Quick:lr=1,speed=2", "cannot be made: TypeError: .*unexpected keyword argument 'speed'"),
        ("quick.py:number", "makes int; expected a torch.optim.Optimizer"),
        ("quick.py:Late", "needs a closure, which ampbench's steps do not pass"),
    ],
)
def test_a_class_that_cannot_train_is_refused_in_one_line(typed: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "quick.py").write_text(OWN)
    place = typed if typed.startswith("nowhere") else f"{tmp_path}/{typed}"
    with pytest.raises(UsageError, match=said) as raised:
        check_class(parse_optimizer(place))
    assert "\n" not in str(raised.value)


def test_what_a_recipe_trains_by_is_recorded(classifier: Workload) -> None:
    found = measure_divergence(classifier, make_case("bf16_pure", "training", recipe="finetune"), Cpu(), References())
    assert found.recipe is not None
    group = found.recipe.groups[0]
    assert (found.recipe.optimizer, group.lr, group.weight_decay) == ("torch.optim.AdamW", 1e-5, 0.01)


def test_a_state_that_is_given_has_the_settings_of_the_recipe() -> None:
    module = torch.nn.Linear(64, 16)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.5)
    module(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    make = lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.5)  # noqa: E731
    workload = exact_gradients(make, optimizer.state_dict())
    own = update_of(workload, make_case("fp32", "training"))
    changed = update_of(workload, make_case("fp32", "training", recipe="lr=0.25"))
    another = update_of(workload, make_case("fp32", "training", recipe="optimizer=sgd,lr=0.125"))
    assert (own.steps, changed.steps, another.steps) == (0, 0, 2)
