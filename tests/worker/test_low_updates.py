"""bf16 weights whose updates are rounded stochastically or compensated, with optimizers of torch and of a user."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch

from ampbench.worker.network import COMPENSATION, SavedState, clipping, low_updates, round_stochastically
from tests.trace.test_low_formats import of_torchao

Make = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
stochastic, kahan = partial(low_updates, "stochastic"), partial(low_updates, "kahan")


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


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=4e-4, momentum=0.9),
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


@pytest.mark.parametrize(("name", "steps"), [("sgd", 10_000), ("momentum", 1_000), ("adamw", 1_000), ("lion", 1_000)])
def test_thousands_of_tiny_updates_arrive(name: str, steps: int) -> None:
    moved = {}
    for rounding, wrap in {"fp32": None, "nearest": None, "stochastic": stochastic, "kahan": kahan}.items():
        weight = weight_of(64, 64, dtype=torch.float32 if rounding == "fp32" else torch.bfloat16)
        place, state = weight.data_ptr(), torch.get_rng_state()
        optimizer = (wrap(OPTIMIZERS[name]) if wrap else OPTIMIZERS[name])([weight])
        train(optimizer, weight, 100 if rounding == "nearest" else steps)
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
        make, weights = stochastic(OPTIMIZERS["sgd"]), [weight_of(4096) for _ in range(optimizers)]
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


def test_state_is_rounded_as_torchaos_optimizer_rounds_it() -> None:
    adam = of_torchao("torchao.optim.adam")
    weight, generator = weight_of(64, 64), torch.Generator().manual_seed(0)
    optimizer = stochastic(lambda weights: torch.optim.AdamW(weights, lr=1e-3, foreach=False))([weight])
    mean, square, count = torch.zeros_like(weight), torch.zeros_like(weight), torch.tensor(0.0)
    for _ in range(5):
        weight.grad = torch.randn(weight.shape, generator=generator).bfloat16()
        count += 1
        settings = (torch.tensor(1e-3), 0.9, 0.999, 0.01, 1e-8, True, False)
        adam.single_param_adam(weight.detach().clone(), weight.grad, count, mean, square, None, *settings)
        optimizer.step()
    torch.testing.assert_close(optimizer.state[weight]["exp_avg"], mean, rtol=2.0**-7, atol=0)
    assert (optimizer.state[weight]["exp_avg"] == mean).float().mean() > 0.999
    assert (optimizer.state[weight]["exp_avg_sq"] == square).float().mean() > 0.999


def test_kahans_compensation_is_optimis() -> None:
    optimi, start = pytest.importorskip("optimi"), torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    ours, theirs = (torch.nn.Parameter(start.bfloat16()) for _ in range(2))
    optimizers = (
        (kahan(lambda weights: torch.optim.SGD(weights, lr=1e-3))([ours]), ours),
        (optimi.SGD([theirs], lr=1e-3, kahan_sum=True, foreach=False, triton=False), theirs),
    )
    for optimizer, weight in optimizers:
        generator = torch.Generator().manual_seed(1)
        for _ in range(100):
            weight.grad = torch.randn(weight.shape, generator=generator).bfloat16()
            optimizer.step()
    true = [weight.detach().double() + made.state[weight][COMPENSATION].double() for made, weight in optimizers]
    assert (ours == theirs).float().mean() > 0.95  # torch's optimizer rounds its step to fp32 first
    torch.testing.assert_close(*true, rtol=0, atol=0.01 * float((true[0] - start).abs().max()))
    assert not torch.equal(ours, start.bfloat16())
