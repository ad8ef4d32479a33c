"""What arrives of an optimizer's update, trainings that stall by what does not, and the late place of a training."""

import copy
import dataclasses
import math
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ampbench.core.recipes import OPTIMIZERS
from ampbench.core.statement import Refusal
from ampbench.errors import WorkloadError
from ampbench.records.case import Case
from ampbench.records.changes import Status
from ampbench.records.measured import BINS, LOWEST_BIN, Late, Stop, Update
from ampbench.worker import late, sources, updates
from ampbench.worker import network as network_module
from ampbench.worker.divergence import References, measure_late
from ampbench.worker.machine import Cpu
from ampbench.worker.network import COMPENSATION, default_optimizer
from ampbench.workload import Workload
from tests.judge.test_one_step import verdicts
from tests.worker.conftest import diverge, make_case, numpy_bf16, numpy_fp16

Floats = np.ndarray


def update_of(workload: Workload, case: Case, references: References | None = None) -> Update:
    found = diverge(workload, case, references).update
    assert found is not None
    return found


def exact_gradients(optimizer: Callable[..., Any], state: dict[str, Any] | None = None, size: int = 64) -> Workload:
    """Return Wx + b with gradients that are small whole numbers, the same in every dtype.

    The loss is linear, so the gradient of W is c xᵀ and that of b is c.
    """
    module = torch.nn.Linear(size, 16)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        module.weight.copy_(torch.randn(16, size, generator=generator))
        module.bias.copy_(torch.randn(16, generator=generator))
    x = torch.randint(-8, 9, (1, size), generator=generator).float()
    c = torch.randint(1, 9, (1, 16), generator=generator).float()
    return Workload(
        module=module, inputs=x, targets=c, loss=lambda output, target: (output * target).sum(), optimizer=optimizer,
        optimizer_state=state,
    )  # fmt: skip


def weights_and_gradients(workload: Workload) -> tuple[dict[str, Floats], dict[str, Floats]]:
    weights = {name: one.detach().double().numpy() for name, one in workload.module.named_parameters()}
    x, c = (one.double().numpy() for one in (workload.inputs, workload.targets))
    return weights, {"weight": c.T @ x, "bias": c[0]}


@pytest.mark.parametrize(
    ("precision", "rounded", "digits", "least"),
    [("bf16_pure", numpy_bf16, 8, -126), ("fp16_pure", numpy_fp16, 11, -14)],
)
def test_every_number_of_an_update_agrees_with_numpy(
    precision: str, rounded: Callable[[Floats], Floats], digits: int, least: int
) -> None:
    momentum = partial(torch.optim.SGD, lr=2**-9, momentum=0.875)  # exact in every dtype
    workload = exact_gradients(momentum)
    generator = np.random.default_rng(1)
    buffers = {"weight": generator.normal(size=(16, 64)), "bias": generator.normal(size=16)}
    optimizer = momentum(workload.module.parameters())
    state = optimizer.state_dict()
    buffers["weight"][:, workload.inputs[0].numpy() == 0] = 0  # such weights do not move
    buffers = {name: value.astype(np.float32).astype(np.float64) for name, value in buffers.items()}
    state["state"] = {place: {"momentum_buffer": torch.tensor(buffers[name], dtype=torch.float32)}
                      for place, name in enumerate(("weight", "bias"))}  # fmt: skip
    workload = exact_gradients(momentum, state)
    with torch.no_grad():
        workload.module.weight[:, ::3] *= torch.tensor([0.0, 1e-7] * 8)[:, None]
    found = update_of(workload, make_case(precision, "training"))

    weights, gradients = weights_and_gradients(workload)
    true, own, grid = {}, {}, {}
    for name, weight in weights.items():
        true[name] = -(2**-9) * (0.875 * buffers[name] + gradients[name])
        grid[name] = rounded(weight)
        buffer = rounded(rounded(0.875 * rounded(buffers[name])) + gradients[name])
        own[name] = rounded(grid[name] + -(2**-9) * buffer) - grid[name]
    moves, moved, stored = (np.concatenate([one[name].ravel() for name in weights]) for one in (true, own, grid))
    energy = (moves**2).sum()
    kept = (moved * moves).sum() / energy
    assert found.steps == 0
    assert found.storage == precision[:4]
    assert found.kept == pytest.approx(kept, rel=1e-6)
    assert found.rel_l2 == pytest.approx(np.sqrt(((moved - moves) ** 2).sum() / energy), rel=1e-6)
    assert found.noise == pytest.approx(np.sqrt(((moved - kept * moves) ** 2).sum() / energy), rel=1e-6)
    assert found.moving == (moves != 0).sum() < moves.size
    still = (moved == 0) & (moves != 0)
    assert found.swallowed == still.sum()
    assert found.swallowed_energy == pytest.approx((moves[still] ** 2).sum() / energy, rel=1e-9)
    each = {name: (own[name] * true[name]).sum() / (true[name] ** 2).sum() for name in weights}
    carrying = [name for name in weights if (true[name] ** 2).sum() >= 0.01 * energy]
    assert found.worst_parameter == min(carrying, key=lambda name: each[name])
    assert found.worst_kept == pytest.approx(each[found.worst_parameter], rel=1e-6)
    # half a unit in the last place is the power of two 2**-digits times that at or below the weight, if it is normal
    with np.errstate(divide="ignore"):
        half = 2.0 ** (np.maximum(np.floor(np.log2(np.abs(stored))), least) - digits)
        bins = np.clip(np.floor(np.log2(np.abs(moves) / half)) - LOWEST_BIN, 0, BINS - 1).astype(int)
    shares = np.bincount(bins, weights=moves**2 / energy, minlength=BINS)
    assert found.energies == pytest.approx(shares, rel=1e-3)
    by_storage = {name: rounded(grid[name] + true[name]) - grid[name] for name in weights}
    apart = sum(((by_storage[name] - true[name]) ** 2).sum() for name in weights)
    assert found.storage_rel_l2 == pytest.approx(np.sqrt(apart / energy), rel=1e-9)
    by_state = sum(((-(2**-9) * 0.875 * (rounded(buffers[name]) - buffers[name])) ** 2).sum() for name in weights)
    assert found.state_rel_l2 == pytest.approx(np.sqrt(by_state / energy), rel=1e-6)
    assert found.gradient_rel_l2 == 0


def test_an_update_of_fp32_weights_says_that_it_errs_by_its_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = exact_gradients(lambda parameters: torch.optim.AdamW(parameters, lr=1e-3))
    noisy = dataclasses.replace(workload, loss=lambda output, *_: (output.float() - 1e-3).tanh().square().sum())
    monkeypatch.setattr(updates, "BLAMED", 1e-3)
    found = update_of(noisy, make_case("bf16_autocast", "training"))
    assert found.storage == "fp32"
    assert found.gradient_rel_l2 == pytest.approx(found.rel_l2, rel=0.01)
    assert max(found.storage_rel_l2, found.state_rel_l2) < 1e-4
    assert found.energies is None


class Held(torch.optim.Optimizer):
    """SGD in fp32, which rounds weights stochastically, or holds their true value, or that minus them or negated."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], how: str):
        super().__init__(parameters, {"lr": 2e-6})
        self.how, self.sign = how, {"plus": 1, "minus": -1}.get(how, 0)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for p in self.param_groups[0]["params"]:
            move = -2e-6 * p.grad.float()
            if self.how == "stochastic":
                bits = (p.float() + move).view(torch.int32)
                bits += torch.randint_like(bits, 1 << 16) if p.dtype is torch.bfloat16 else 0
                p.copy_((bits & -65536 if p.dtype is torch.bfloat16 else bits).view(torch.float32))
                continue
            held = self.state[p].setdefault("held", torch.zeros_like(p) if self.sign else p.float())
            true = (p.float() + self.sign * held.float() if self.sign else held) + move
            p.copy_(true)
            if p.ndim > 1:  # what biases lack hardly counts
                held.copy_(self.sign * (true - p.float()) if self.sign else true)


@pytest.mark.parametrize(("how", "error"), [("stochastic", 0.03), ("plus", 0.01), ("minus", 0.01), ("copy", 1e-4)])
def test_rounding_at_random_and_state_keep_what_nearest_rounding_loses(how: str, error: float) -> None:
    workload = exact_gradients(lambda parameters: Held(parameters, how), size=2048)
    found = update_of(workload, make_case("bf16_pure", "training"))
    assert found.kept == pytest.approx(1, abs=error)
    assert (found.kept_error is not None) == (how == "stochastic")
    assert found.counted_state == ("" if how == "stochastic" else "held")


@pytest.mark.parametrize("precision", ["bf16_stochastic", "bf16_kahan"])
def test_updates_of_bf16_weights_err_as_much_as_numpy_rounds_them(precision: str) -> None:
    sgd = partial(torch.optim.SGD, lr=3e-4)
    workload = exact_gradients(
        sgd, sgd([torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))]).state_dict()
    )
    found = update_of(workload, make_case(precision, "training"))
    weights, gradients = weights_and_gradients(workload)
    moves = np.concatenate([-3e-4 * gradients[name].ravel() for name in weights])
    stored = np.concatenate([numpy_bf16(weight).ravel() for weight in weights.values()])
    energy = (moves**2).sum()
    if precision == "bf16_kahan":
        given = numpy_bf16(moves)
        after = numpy_bf16(stored + given)
        apart = after - stored + numpy_bf16(given + stored - after) - moves
        assert (found.counted_state, found.kept_error) == (COMPENSATION, None)
        assert found.rel_l2 == pytest.approx(math.sqrt((apart**2).sum() / energy), rel=0.02)
        assert found.kept == pytest.approx(1 + (apart * moves).sum() / energy, rel=1e-5)
        return
    spacing = 2.0 ** (np.floor(np.log2(np.abs(stored + moves))) - 7)
    share = (stored + moves) / spacing % 1  # the probability of the upper neighbour
    variance = spacing**2 * share * (1 - share)
    assert found.rel_l2 == pytest.approx(math.sqrt(variance.sum() / energy), rel=0.05)
    assert found.kept_error == pytest.approx(math.sqrt((variance * moves**2).sum() / updates.DRAWS) / energy, rel=0.5)
    assert abs(found.kept - 1) < 4 * found.kept_error
    assert found.counted_state == ""


@pytest.mark.parametrize("precision", ["bf16_autocast", "bf16_pure", "bf16_kahan", "fp16_master"])
@pytest.mark.parametrize("recipe", ["optimizer=adamw:foreach,lr=0.01", "optimizer=adamw:fused,lr=0.01,clip=0.1"])
def test_an_update_in_blocks_of_weights_is_that_of_all_together(
    precision: str, recipe: str, classifier: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, moved = torch.optim.AdamW.step, set()

    def watched(optimizer: torch.optim.AdamW) -> None:
        every = [weight for group in optimizer.param_groups for weight in group["params"]]
        given = [weight.numel() for weight in every if weight.grad is not None and weight.dtype is torch.float64]
        moved.add(sum(given))
        step(optimizer)

    watched.hooked = True  # else torch calls the hooks twice
    case = make_case(precision, "training", recipe=recipe)
    together = update_of(classifier, case)
    monkeypatch.setattr(network_module, "BLOCK", 1)
    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    assert update_of(classifier, case) == together
    assert together.undefined == ""
    assert moved - {0} == {4, 32, 4 * 32, 16 * 32}


def test_an_epsilon_that_fp16_does_not_have_leaves_parameters_that_are_not_finite() -> None:
    module = torch.nn.Sequential(torch.nn.Embedding(32, 8), torch.nn.Flatten(), torch.nn.Linear(32, 4))
    workload = Workload(
        module=module,
        inputs=torch.arange(8).reshape(2, 4),
        loss=lambda output: output.square().mean(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
    )
    found = diverge(workload, make_case("fp16_pure", "training"))
    assert found.param_nonfinite >= 24 * 8  # rows that no input asks for: 0 / (0 + 0)
    assert found.update.kept is None
    assert f"{found.update.nonfinite:,} parameter elements are not finite" in found.update.undefined
    assert diverge(workload, make_case("bf16_pure", "training")).param_nonfinite == 0


def groups(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    weight, bias = parameters
    return torch.optim.SGD([{"params": [weight], "lr": 1e-5}, {"params": [bias], "lr": 0.5}], lr=1e-5)


@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.SGD(p, lr=1e-3), lambda p: torch.optim.SparseAdam(list(p), lr=1e-3)]
)
@pytest.mark.parametrize("precision", ["bf16_autocast", "bf16_pure"])
def test_sparse_gradients_move_rows(precision: str, make: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    module = torch.nn.EmbeddingBag(40, 16, sparse=True)
    inputs = torch.arange(12).reshape(3, 4)
    workload = Workload(module=module, inputs=inputs, loss=lambda output: output.float().square().sum(), optimizer=make)
    found = update_of(workload, make_case(precision, "training"))
    assert found.undefined == ""
    assert found.moving == 12 * 16
    assert (found.kept > 0.99) == (precision == "bf16_autocast")


class Adapted(torch.nn.Module):
    """A frozen layer kept in bf16, and a small one in fp32 beside it that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = torch.nn.Linear(64, 64, dtype=torch.bfloat16).requires_grad_(False)
        self.adapter = torch.nn.Linear(64, 2)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        kept = torch.nn.functional.linear(given, self.kept.weight.to(given.dtype))
        return kept.mean(1, keepdim=True) + self.adapter(given.to(self.adapter.weight.dtype))


@pytest.mark.parametrize("precision", ["fp32", "bf16_autocast", "bf16_pure"])
def test_weights_that_are_frozen_in_half_do_not_stand_for_those_that_move(precision: str) -> None:
    """Of frozen ones there is no update to take apart: 0 / 0 could not be stored, and the case failed."""
    workload = Workload(module=Adapted(), inputs=torch.randn(4, 64), loss=lambda output: output.square().mean())
    found = update_of(workload, make_case(precision, "training", recipe="optimizer=sgd"))
    assert (found.storage, found.undefined) == ("bf16" if precision == "bf16_pure" else "fp32", "")
    assert all(map(math.isfinite, found.energies or [0.0]))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.0), "changes no parameter"),
        (lambda p: torch.optim.SGD(p, lr=1e38), "not finite after 2 fp32 steps"),
    ],
)
def test_a_step_that_changes_nothing_or_breaks_fp32_leaves_the_update_undefined_with_the_reason(
    make: Callable[..., Any], why: str
) -> None:
    workload = exact_gradients(make)
    workload.module.weight.data.mul_(1e20)
    found = update_of(workload, make_case("bf16_pure", "training"))
    assert why in found.undefined
    assert found.kept is found.rel_l2 is found.noise is None


class SingleOnly(torch.optim.SGD):
    """SGD with momentum that refuses fp64."""

    def step(self, closure: Any = None) -> Any:
        if any(p.dtype is torch.float64 for group in self.param_groups for p in group["params"]):
            raise RuntimeError("no fp64")
        return super().step(closure)


@pytest.mark.parametrize("precision", ["fp32", "bf16_autocast", "bf16_pure"])
def test_where_an_optimizer_refuses_fp64_the_intended_step_is_that_in_fp32(precision: str) -> None:
    refusing, plain = (
        update_of(
            exact_gradients(lambda p, kind=kind: kind(p, lr=1e-3, momentum=0.9)), make_case(precision, "training")
        )
        for kind in (SingleOnly, torch.optim.SGD)
    )
    assert (refusing.intended, plain.intended, refusing.undefined) == ("fp32", "fp64", "")
    assert refusing.kept == pytest.approx(plain.kept, rel=1e-5)
    assert refusing.swallowed == plain.swallowed
    assert refusing.rel_l2 == pytest.approx(plain.rel_l2, rel=1e-2 if precision == "bf16_pure" else 1)


LOW = ("bf16_autocast", "fp16_pure", "bf16_pure", "fp16_master")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_is_measured_in_every_precision_or_undefined_with_a_reason(
    name: str, classifier: Workload
) -> None:
    references = References()
    for precision in LOW:
        found = update_of(classifier, make_case(precision, "training", recipe=f"optimizer={name},lr=0.001"), references)
        assert found.intended == "fp64"
        if found.storage == "fp32":
            assert found.kept == pytest.approx(1, abs=0.01)
        else:  # an eps of 1e-8 is zero in fp16, and a step divides by zero
            broken = precision == "fp16_pure" and "not finite after the step" in found.undefined
            assert (found.kept is None) == bool(found.undefined) == broken


def test_an_optimizer_that_fails_from_given_state_leaves_the_update_undefined_with_what_it_says() -> None:
    class Once(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            if self.param_groups[0]["params"][0].dtype is torch.bfloat16 and len(self.param_groups[0]) and self.state:
                raise RuntimeError("no second step")
            return super().step(closure)

    workload = exact_gradients(lambda parameters: Once(parameters, lr=1e-3, momentum=0.9))
    found = update_of(workload, make_case("bf16_pure", "training"))
    assert "the optimizer's step fails: " in found.undefined
    assert "no second step" in found.undefined


@pytest.mark.parametrize("precision", ["fp32", "bf16_pure"])
def test_without_an_optimizer_gradients_are_measured_and_the_update_is_not(precision: str) -> None:
    named = exact_gradients(default_optimizer)
    found, known = (
        diverge(one, make_case(precision, "training")) for one in (dataclasses.replace(named, optimizer=None), named)
    )
    assert (found.recipe, found.update) == (None, None)
    assert known.recipe is not None
    assert (found.gradient.rel_l2, found.gradient.elements, found.loss) == (
        known.gradient.rel_l2,
        known.gradient.elements,
        known.loss,
    )
    chosen = diverge(
        dataclasses.replace(named, optimizer=None), make_case(precision, "training", recipe="optimizer=sgd,clip=0.01")
    )
    assert chosen.reference.grad_norm == known.reference.grad_norm
    assert chosen.recipe is not None
    assert chosen.update is not None


def test_a_state_that_the_optimizer_does_not_take_is_refused() -> None:
    workload = exact_gradients(groups)
    state = groups(workload.module.parameters()).state_dict()
    sources._check_state("net", exact_gradients(groups, state))
    with pytest.raises(WorkloadError, match="an optimizer_state without its optimizer"):
        sources._check_state("net", exact_gradients(None, state))
    for wrong, said in (({"lr": 1}, "state_dict"), (state | {"param_groups": state["param_groups"][:1]}, "groups")):
        with pytest.raises(WorkloadError, match=said):
            sources._check_state("net", exact_gradients(groups, wrong))


PASSES = """
import torch
from ampbench.worker import network
from ampbench.worker.divergence import References, measure_divergence, measure_late
from ampbench.worker.machine import Cpu
from ampbench.worker.memory import cpu_changes
from ampbench.workload import Workload
from tests.worker.conftest import make_case

torch.set_num_threads(1)
network.BLOCK = 1 << 15
layers = [layer for _ in range(20) for layer in (torch.nn.Linear(128, 128), torch.nn.GELU())]
workload = Workload(
    module=torch.nn.Sequential(*layers),
    inputs=[torch.randn(2, 128) for _ in range(BATCHES)],
    loss=lambda output: output.square().mean(),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
)
references = References()
cases = [make_case(name, "training", recipe="CLIP") for name in ("bf16_pure", "fp16_autocast", "bf16_master")]
passes = [(measure, case) for measure in (measure_divergence, measure_late) for case in cases]
held = weights = sum(parameter.nbytes for parameter in workload.module.parameters())
for change in cpu_changes([lambda ask=ask: ask[0](workload, ask[1], Cpu(), references) for ask in passes]):
    print((held + change.peak) / weights)
    held += change.net
"""


@pytest.mark.slow
@pytest.mark.parametrize(("batches", "clip"), [("1", ""), ("2", "clip=1.0")])
def test_a_pass_of_training_takes_at_most_twelve_times_its_weights_in_memory(batches: str, clip: str) -> None:
    """Issue 49: 86 million parameters took 10 GB. Bytes are counted, those of the workload's own weights included."""
    script = PASSES.replace("BATCHES", batches).replace("CLIP", clip)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    factors = [float(line) for line in done.stdout.split()]
    assert (len(factors), 8 < max(factors) <= 12) == (6, True), factors


def falls(workload: Workload, dtype: torch.dtype) -> float:
    """Return by how much the loss falls in 100 steps with weights stored in `dtype`; the loss itself in fp64."""
    module = copy.deepcopy(workload.module)

    def loss() -> float:
        with torch.no_grad():
            return float(workload.loss(copy.deepcopy(module).double()(workload.inputs.double()), workload.targets))

    module.to(dtype)
    optimizer, before = workload.optimizer(module.parameters()), loss()
    for _ in range(100):
        optimizer.zero_grad()
        workload.loss(module(workload.inputs.to(dtype)), workload.targets).backward()
        optimizer.step()
    return before - loss()


@pytest.mark.parametrize(
    ("scale", "make", "stalls"),
    [
        (1.0, lambda parameters: torch.optim.AdamW(parameters, lr=1e-5), True),
        (8.0, lambda parameters: torch.optim.SGD(parameters, lr=1e-3), True),
        (0.01, lambda parameters: torch.optim.SGD(parameters, lr=0.3, momentum=0.9), False),
    ],
)
def test_a_training_in_pure_bf16_is_refused_where_it_stalls(
    scale: float, make: Callable[..., Any], stalls: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(scale)
    rows = torch.randn(64, 16)
    classes, loss = (rows[:, :3] + rows[:, 3:6]).argmax(1), torch.nn.functional.cross_entropy
    workload = Workload(module=module, inputs=rows, targets=classes, loss=loss, optimizer=make)
    share = falls(workload, torch.bfloat16) / falls(workload, torch.float32)
    assert share < 0.5 if stalls else share > 0.95
    found = verdicts(tmp_path, workload, "bf16_autocast", "bf16_pure", "bf16_master")
    codes = {name: verdict.code for name, verdict in found.items() if verdict.status is Status.REFUSED}
    assert codes.keys() == ({"bf16_pure"} if stalls else set())
    assert {*codes.values()} <= {Refusal.UPDATE, Refusal.UPDATE_OF_TENSOR, Refusal.UNMOVED, Refusal.NO_ROOM}


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
def test_the_steps_end_after_two_passes_but_twenty_steps_at_least(batches: int, stop: Stop, steps: int) -> None:
    assert place(network(batches), make_case("fp32", "training")) == (stop, steps, batches)


def test_the_steps_end_at_half_of_the_first_loss() -> None:
    fast = network(1, lambda parameters: torch.optim.SGD(parameters, lr=0.5))
    fast = dataclasses.replace(fast, loss=lambda output, _: output.square().mean())
    stop, steps, _ = place(fast, make_case("fp32", "training"))
    assert (stop, 1 < steps < 20) == (Stop.HALVED, True)


def test_the_steps_end_at_a_count_of_flops(monkeypatch: pytest.MonkeyPatch) -> None:
    flops = 32 * 2 * (8 * 16 * 2 + 16 * 4 * 3)  # products of a step: the first layer has no gradient of its inputs
    monkeypatch.setattr(late, "WARM_FLOPS", {"cpu": 7.5 * flops})
    assert place(network(), make_case("fp32", "training")) == (Stop.FLOPS, 7, 3)


def test_a_training_without_an_optimizer_or_with_its_state_has_no_late_place() -> None:
    assert measured(network(optimizer=None), make_case("fp32", "training")).stop == Stop.NO_OPTIMIZER
    begun = network()
    begun = dataclasses.replace(begun, optimizer_state=adam(begun.module.parameters()).state_dict())
    found = measured(begun, make_case("fp32", "training"))
    assert (found.stop, found.steps, found.divergence) == (Stop.OWN_STATE, 0, None)
    other = measured(begun, make_case("fp32", "training", recipe="optimizer=sgd,lr=0.01"))
    assert other.divergence is not None


def test_steps_that_fail_leave_the_reason_instead_of_a_place() -> None:
    far = network(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e38))
    found = measured(far, make_case("fp32", "training"))
    assert (found.stop, found.divergence) == (Stop.FAILED, None)
    assert "not finite" in found.undefined
