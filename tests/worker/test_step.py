"""Steps: their dtypes, what they draw, restore and change, master weights, users' own steps and precisions."""

import dataclasses
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._inductor.config
from msgspec import structs

import ampbench
from ampbench.core.precisions import FP64, PRECISIONS, Precision, meet
from ampbench.core.recipes import no_own_step
from ampbench.errors import UnknownNameError, UsageError, WorkloadError
from ampbench.records.case import COMPILE_MODES, compiled_path
from ampbench.trace.keep_fp32 import is_kept
from ampbench.worker.divergence import References, measure_divergence
from ampbench.worker.machine import Cpu
from ampbench.worker.sources import describe_workload, meet_precisions
from ampbench.worker.step import build_step, build_training, seed_all
from ampbench.workload import Workload
from tests.scripted_channel import user_source
from tests.watching.loops import take_step
from tests.worker.conftest import diverge, make_case


class Dtypes(torch.nn.Module):
    """Remembers the dtypes that a linear layer sees and makes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.seen: list[tuple[torch.dtype, torch.dtype, torch.dtype]] = []

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        assert ids.dtype == torch.int64
        y: torch.Tensor = self.linear(x)
        self.seen.append((x.dtype, self.linear.weight.dtype, y.dtype))
        return y


@pytest.mark.parametrize("name", PRECISIONS)
def test_inputs_weights_and_outputs_have_the_dtypes_of_the_precision(name: str) -> None:
    row = PRECISIONS[name]
    workload = Workload(module=Dtypes(), inputs=(torch.randn(2, 4), torch.arange(2)))
    step = build_step(workload, make_case(name), Cpu())
    step.run()
    storage = getattr(torch, row.storage)
    result = getattr(torch, row.autocast or row.storage)
    assert step.module.seen == [(storage, storage, result)]
    assert workload.module.linear.weight.dtype == torch.float32


@pytest.mark.parametrize("kept", ["linear", ""])
@pytest.mark.parametrize("name", ["fp16_autocast", "bf16_autocast", "fp16_pure", "bf16_pure"])
def test_kept_modules_stay_fp32_and_give_pure_networks_half(name: str, kept: str) -> None:
    workload = Workload(module=Dtypes(), inputs=(torch.randn(2, 4), torch.arange(2)))
    step = build_step(workload, make_case(name), Cpu(), kept=[kept])
    output = step.run()
    storage = getattr(torch, PRECISIONS[name].storage)
    inside = storage if kept else torch.float32
    assert step.module.seen == [(inside, torch.float32, inside)]
    assert output.dtype == (storage if kept else torch.float32)  # what a whole network gives is not the next one's
    assert torch.equal(step.module.linear.weight, workload.module.linear.weight)
    assert not any(map(is_kept, workload.module.modules()))


def test_a_name_to_keep_that_no_module_has_is_refused() -> None:
    workload = Workload(module=Dtypes(), inputs=(torch.randn(2, 4), torch.arange(2)))
    with pytest.raises(UnknownNameError, match="did you mean linear"):
        build_step(workload, make_case("bf16_pure"), Cpu(), kept=["linea*"])


def test_autocast_is_off_again_when_forward_raises() -> None:
    class Raises(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("within")

    step = build_step(Workload(module=Raises(), inputs=torch.ones(1)), make_case("bf16_autocast"), Cpu())
    with pytest.raises(RuntimeError, match="within"):
        step.run()
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("name", [name for name, row in PRECISIONS.items() if row.updates != "stochastic"])
def test_restoring_makes_the_next_training_step_the_same_again(name: str, classifier: Workload) -> None:
    step = build_step(classifier, make_case(name, "training"), Cpu())
    step.start(None)

    def three_steps() -> list[torch.Tensor]:
        step.restore()
        for _ in range(3):
            step.run()
        state = [value for entry in step.optimizer.state.values() for value in entry.values() if value is not None]
        live = [*step.stored().values(), *step.module.parameters(), *step.module.buffers(), *state]
        return [tensor.detach().clone() for tensor in live]

    first, second = three_steps(), three_steps()
    initial = list(classifier.module.parameters())
    assert any(not torch.equal(now.float(), then) for now, then in zip(first, initial, strict=False))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_scale_settles_where_gradients_are_finite_and_leaves_weights_alone(classifier: Workload) -> None:
    large = dataclasses.replace(
        classifier, loss=lambda out, target: 1e3 * torch.nn.functional.cross_entropy(out, target)
    )
    step = build_step(large, make_case("fp16_autocast", "training"), Cpu())
    before = {name: tensor.clone() for name, tensor in step.module.state_dict().items()}
    refused = step.settle_scaler()
    assert refused > 0
    assert step.scaler.get_scale() == 65536.0 / 2**refused
    assert all(torch.equal(tensor, before[name]) for name, tensor in step.module.state_dict().items())
    _, gradients = step.unscaled_gradients()
    assert all(torch.isfinite(gradient).all() for gradient in gradients.values())
    assert step.apply_gradients()


def test_batches_take_turns() -> None:
    batches = [torch.full((2, 3), float(n)) for n in range(3)]
    step = build_step(Workload(module=torch.nn.Identity(), inputs=batches), make_case(), Cpu())
    seen = []
    for _ in range(4):
        output = step.run()
        seen.append(float(output[0, 0]))
    assert seen == [0.0, 1.0, 2.0, 0.0]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("name", PRECISIONS)
def test_what_is_cached_has_the_dtype_that_the_precision_computes_in(name: str, named: bool) -> None:
    cache = [torch.randn(2, 3), {"seen": torch.arange(2)}]
    inputs = {"input": torch.randn(2, 4), "past": cache} if named else (torch.randn(2, 4), cache)
    workload = Workload(module=torch.nn.Linear(4, 4), inputs=inputs, cached=["past"] if named else (1,))
    row = PRECISIONS[name]
    for precision, computed, stored in ((None, row.autocast or row.storage, row.storage), (FP64, "float64", "float64")):
        (given,) = build_step(workload, make_case(name), Cpu(), precision=precision).data.batches
        own, past = given.values() if named else given
        assert (own.dtype, past[0].dtype) == (getattr(torch, stored), getattr(torch, computed))
        assert past[1]["seen"].dtype == torch.int64


def test_channels_last_reaches_weights_and_images() -> None:
    workload = Workload(module=torch.nn.Conv2d(3, 8, 3), inputs=torch.randn(2, 3, 8, 8))
    step = build_step(workload, make_case(memory_format="channels_last"), Cpu())
    step.run()
    assert step.module.weight.is_contiguous(memory_format=torch.channels_last)
    assert step.data.batches[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["fp32", "bf16_autocast", "bf16_pure"])
def test_a_traced_network_gives_what_the_eager_one_gives(name: str, classifier: Workload) -> None:
    eager, traced = (build_step(classifier, make_case(name, path=path), Cpu()) for path in ("eager", "traced"))
    seconds = traced.prepare_path("traced")
    assert seconds > 0
    assert torch.is_autocast_cache_enabled()
    with torch.inference_mode():
        torch.testing.assert_close(traced.run(), eager.run())


def test_modes_of_torch_compile_reach_it(classifier: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, object]] = []

    def compiling(module: torch.nn.Module, **given: object) -> Callable[..., object]:
        def run(*args: object) -> object:
            seen.append(given)
            return module(*args)

        return run

    monkeypatch.setattr(torch, "compile", compiling)
    for mode in COMPILE_MODES:
        step = build_step(classifier, make_case(path=compiled_path(mode)), Cpu())
        step.prepare_path(compiled_path(mode))
        step.run()
    assert seen[::2] == [{}, *({"mode": mode} for mode in COMPILE_MODES[1:])]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp32", "fp16_autocast"])
def test_compiled_training_gives_what_eager_training_gives_and_compiling_leaves_no_trace(
    name: str, classifier: Workload
) -> None:
    eager, compiled = (
        build_step(classifier, make_case(name, "training", path), Cpu()) for path in ("eager", "compiled")
    )
    before = {key: value.clone() for key, value in compiled.module.state_dict().items()}
    assert compiled.prepare_path("compiled") > 0
    assert all(torch.equal(value, before[key]) for key, value in compiled.module.state_dict().items())
    assert all(parameter.grad is None for parameter in compiled.module.parameters())
    assert compiled.loss is None
    states = []
    for step in (eager, compiled):
        step.start(None)
        for _ in range(3):
            step.run()
        states.append(step.module.state_dict())
    assert compiled.network.forward is not compiled.module
    tolerance = 1e-5 if name == "fp32" else 2e-2
    torch.testing.assert_close(states[1], states[0], rtol=tolerance, atol=tolerance)
    assert not torch.equal(states[1]["0.weight"], before["0.weight"])


def test_a_trial_that_raises_leaves_no_trace(classifier: Workload) -> None:
    broken = dataclasses.replace(classifier, loss=lambda *_: 1 / 0)
    step = build_step(broken, make_case("fp16_autocast", "training"), Cpu())
    before = {key: value.clone() for key, value in step.module.state_dict().items()}
    with pytest.raises(ZeroDivisionError):
        step.settle_scaler()
    assert all(torch.equal(value, before[key]) for key, value in step.module.state_dict().items())


class ByItsInput(torch.nn.Linear):
    """A linear layer whose output is its own derivative, as in a network that solves an equation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (slope,) = torch.autograd.grad(super().forward(x).square().sum(), x, create_graph=True)
        return slope


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_a_network_may_differentiate_by_an_input_that_requires_grad(phase: str) -> None:
    inputs = torch.randn(2, 4, requires_grad=True)
    workload = Workload(module=ByItsInput(4, 3), inputs=inputs, loss=lambda output: output.square().mean())
    step = build_step(workload, make_case("bf16_autocast", phase), Cpu())
    with step.mode():
        step.run()
        once = None if step.data.batches[0].grad is None else step.data.batches[0].grad.clone()
        step.restore()
        step.run()
    assert inputs.grad is None
    assert (once is None) == (phase == "inference")
    if once is not None:
        assert step.data.batches[0].grad.abs().sum() < 1.5 * once.abs().sum()  # not added up over steps


class InPlace(torch.nn.Module):
    """Writes into what it is given: its input, and in evaluation its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.seen: list[float] = []

    def forward(self, x: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
        self.seen.append(float(x.detach()[0, 0]))
        if not self.training:
            with torch.no_grad():
                self.linear.weight.mul_(2)
        return self.linear(x.div_(255.0))


def in_place() -> Workload:
    inputs = (torch.full((2, 4), 255.0), torch.ones(3))
    return Workload(module=InPlace(), inputs=inputs, loss=lambda output: output.square().mean())


def test_what_a_step_changes_in_place_is_named_and_put_back() -> None:
    step = build_step(in_place(), make_case(), Cpu())
    with step.mode():
        first = step.run().clone()
        assert step.changed() == ["input[0]", "weight linear.weight"]
        assert torch.equal(step.run(), first)
        assert not torch.equal(step.run(), first)
        step.restore()
        assert torch.equal(step.run(), first)


class Table(torch.nn.Module):
    """Makes its buffer anew: in the size of its inputs, where it has another, or `always`."""

    def __init__(self, size: int, *, always: bool) -> None:
        super().__init__()
        self.always = always
        self.register_buffer("places", torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.always or len(self.places) != len(x):
            self.places = self.places.sum() + torch.arange(1.0, len(x) + 1)
        return x * self.places


@pytest.mark.parametrize(("size", "changed"), [(1, []), (3, ["buffer places"])])
def test_a_buffer_that_inference_makes_anew_is_kept_in_a_new_size_and_else_put_back(
    size: int, changed: list[str]
) -> None:
    step = build_step(Workload(module=Table(size, always=bool(changed)), inputs=torch.ones(3)), make_case(), Cpu())
    for _ in range(3):
        with step.mode():
            assert step.run().tolist() == [1.0, 2.0, 3.0]
        assert step.changed() == changed
        step.restore()


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_a_network_that_changes_nothing_is_told_so_even_of_nan(phase: str) -> None:
    inputs = torch.tensor([[1.0, float("nan")]])
    step = build_step(
        Workload(module=torch.nn.Linear(2, 2), inputs=inputs, loss=torch.sum), make_case("bf16_pure", phase), Cpu()
    )
    step.run()
    assert step.changed() == []


class Kept(torch.nn.Module):
    """Has what no precision in fp32 may touch: an fp64 buffer, a frozen half weight, a complex weight."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("wide", torch.ones(2, dtype=torch.float64))
        self.frozen = torch.nn.Parameter(torch.ones(2, dtype=torch.float16), requires_grad=False)
        self.rotated = torch.nn.Parameter(torch.tensor([1 + 2j]))
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


@pytest.mark.parametrize(
    ("precision", "reference", "stored"),
    [
        ("fp32", False, ("float64", "float16", "complex64", "float32")),
        ("bf16_autocast", False, ("float64", "float16", "complex64", "float32")),
        ("bf16_pure", False, ("bfloat16", "bfloat16", "complex64", "bfloat16")),
        ("fp32", True, ("float64", "float64", "complex128", "float64")),
    ],
)
def test_dtypes_that_are_not_fp32_stay_but_in_half_and_the_reference(
    precision: str, reference: bool, stored: tuple[str, ...]
) -> None:
    inputs = {"x": torch.ones(2), "phase": torch.ones(2, dtype=torch.complex64)}
    step = build_step(
        Workload(module=Kept(), inputs=inputs), make_case(precision), Cpu(), precision=FP64 if reference else None
    )
    module = step.module
    tensors = (module.wide, module.frozen, module.rotated, module.weight)
    assert tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors) == stored
    assert module.rotated.imag == 2
    assert step.data.batches[0]["phase"].dtype is (torch.complex128 if reference else torch.complex64)


def test_a_network_loaded_in_half_is_upcast_for_fp32() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).half()
    step = build_step(Workload(module=module, inputs=torch.ones(2, 4)), make_case("bf16_autocast"), Cpu())
    assert {tensor.dtype for tensor in step.module.state_dict().values()} == {torch.float32, torch.int64}


def test_optimizer_state_that_is_no_tensor_is_restored_too(classifier: Workload) -> None:
    workload = dataclasses.replace(classifier, optimizer=torch.optim.LBFGS)
    step = build_step(workload, make_case("fp32", "training"), Cpu())
    step.optimizer.state["counter"] = {"steps": 1, "history": [torch.ones(2)]}
    step.save()
    step.optimizer.state["counter"]["steps"] = 9
    step.optimizer.state["counter"]["history"][0].zero_()
    step.restore()
    assert step.optimizer.state["counter"]["steps"] == 1
    assert step.optimizer.state["counter"]["history"][0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("precision", ["fp32", "fp16_autocast"])
@pytest.mark.parametrize(
    ("loss", "returned"),
    [
        (lambda output: 3, "int"),
        (lambda output: None, "None"),
        (lambda output: output, "a tensor of shape (2, 3)"),
        (lambda output: output.detach().mean(), "a number that depends on no parameter"),
    ],
)
def test_a_loss_that_is_none_is_told_by_what_it_returned(loss, returned, precision) -> None:
    workload = Workload(module=torch.nn.Linear(4, 3), inputs=torch.ones(2, 4), loss=loss)
    step = build_step(workload, make_case(precision, "training"), Cpu())
    with pytest.raises(WorkloadError) as caught:
        step.run()
    assert str(caught.value) == (
        f"the loss returned {returned}, and a step needs one number that depends on the parameters: a 0-d tensor"
    )


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the seeds that torch was given for all of its generators."""
    seeds: list[int] = []
    seed = torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda given: (seeds.append(given), seed(given)))
    return seeds


def test_what_is_drawn_is_what_torch_draws_from_that_seed(told: list[int]) -> None:
    for seed in (3, 0, 2**40, 3):
        drawn = torch.rand(4, generator=torch.Generator().manual_seed(seed))
        seed_all(seed)
        assert torch.equal(torch.rand(4), drawn)
        assert np.random.rand() == np.random.RandomState(seed % 2**32).rand()


def test_without_an_accelerator_torch_notes_no_seed_for_one(told: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    for seed in (1, 2, 3):
        seed_all(seed)
    assert told == []


def test_an_accelerator_is_told_every_seed_whether_it_is_in_use_yet_or_not(
    told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins with the last one that it was told: with an earlier one, dropout would depend on what ran before."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    for seed in (1, 2, 3):
        seed_all(seed)
    assert told == [1, 2, 3]


DTYPES = {"bf16_master": torch.bfloat16, "fp16_master": torch.float16}
MASTERS = list(DTYPES)


@pytest.mark.parametrize("name", MASTERS)
def test_an_update_below_half_an_ulp_of_the_network_arrives_in_the_masters(name: str) -> None:
    module = torch.nn.Linear(8, 1, bias=False)
    torch.nn.init.constant_(module.weight, 1.0)
    workload = Workload(
        module=module,
        inputs=torch.ones(1, 8),
        loss=lambda output: output.sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=2.0**-14),
    )
    low, pure = (
        build_step(workload, make_case(one, "training"), Cpu()) for one in (name, name.replace("master", "pure"))
    )
    for step in (low, pure):
        step.settle_scaler()
        step.run()
    assert torch.equal(low.stored()["weight"], torch.full((1, 8), 1 - 2.0**-14))
    assert torch.equal(low.module.weight, torch.ones(1, 8, dtype=DTYPES[name]))
    assert torch.equal(pure.stored()["weight"], torch.ones(1, 8, dtype=DTYPES[name]))


def test_a_gradient_that_overflows_skips_the_step_and_moves_nothing(classifier: Workload) -> None:
    step = build_step(classifier, make_case("fp16_master", "training"), Cpu())
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


def test_weights_that_need_no_gradient_or_stay_in_fp32_have_no_copy(classifier: Workload) -> None:
    classifier.module[3].bias.requires_grad_(False)
    step = build_step(classifier, make_case("bf16_master", "training"), Cpu(), kept=["0"])
    stored, own = step.stored(), dict(step.module.named_parameters())
    assert {name for name in stored if stored[name] is own[name]} == {"0.weight", "0.bias", "3.bias"}
    step.run()
    assert stored["3.bias"].grad is None
    assert stored["0.weight"].grad is not None


def test_a_sparse_gradient_stays_sparse_in_the_masters() -> None:
    workload = Workload(
        module=torch.nn.Embedding(5, 3, sparse=True), inputs=torch.tensor([1, 3]), loss=lambda output: output.sum()
    )
    step = build_step(workload, make_case("bf16_master", "training"), Cpu())
    step.run()
    gradient = step.stored()["weight"].grad
    assert gradient.layout is torch.sparse_coo
    assert gradient.dtype is torch.float32
    moved = workload.module.weight.detach().clone()
    moved[[1, 3]] -= 0.01
    assert torch.equal(step.stored()["weight"], moved)


def usual(network: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
    inputs, targets = batch
    optimizer.zero_grad(set_to_none=True)
    output = network(inputs)
    loss = torch.nn.functional.cross_entropy(output, targets)
    take_step(loss, optimizer, scaler)
    return output, loss


@pytest.mark.parametrize("precision", ["fp32", "bf16_pure", "fp16_autocast"])
def test_the_usual_step_written_by_hand_gives_the_numbers_of_the_usual_step(
    precision: str, classifier: Workload
) -> None:
    own = dataclasses.replace(classifier, step=usual, loss=None)
    found, expected = (diverge(one, make_case(precision, "training", recipe="clip=0.1")) for one in (own, classifier))
    same = attrgetter(
        "loss", "reference.loss", "output.rel_l2", "scaler_scale", "skipped_steps", "param_rel_l2",
        "output.argmax_decisions",
    )  # fmt: skip
    # the step clips the gradients that it leaves
    assert same(found) == same(expected)
    assert found.reference.grad_norm == pytest.approx(0.1, rel=1e-4)
    assert found.update is not None
    assert expected.update is not None
    assert found.update.kept == pytest.approx(expected.update.kept, rel=1e-4)
    assert found.update.steps == expected.update.steps == 20


@pytest.mark.parametrize("optimizer", ["adamw:fused", "adamw:foreach"])
def test_the_gradients_of_a_step_that_scales_its_loss_are_those_of_one_that_does_not(
    optimizer: str, classifier: Workload
) -> None:
    own = dataclasses.replace(classifier, step=usual, loss=None)
    found = diverge(own, make_case("fp16_autocast", "training", recipe=f"optimizer={optimizer},lr=0.001"))
    assert found.gradient.rel_l2 is not None
    assert found.gradient.rel_l2 < 0.01
    unscaled = diverge(
        own, make_case("fp16_autocast", "training", recipe=f"optimizer={optimizer},lr=0.001", scaler=False)
    )
    assert found.reference.grad_norm == unscaled.reference.grad_norm


def test_what_a_step_holds_moves_with_the_network(classifier: Workload) -> None:
    teacher = torch.nn.Linear(16, 4)

    def distilled(network: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        assert teacher.weight.dtype is batch[0].dtype
        loss = (network(batch[0]) - teacher(batch[0])).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    found = diverge(dataclasses.replace(classifier, step=distilled), make_case("bf16_pure", "training"))
    assert found.reference.dtype == "fp64"


def test_a_step_that_cannot_be_taken_apart_says_so(classifier: Workload) -> None:
    own = dataclasses.replace(classifier, step=usual, loss=None)
    step = build_training(own, make_case("fp32", "training"), Cpu())
    with pytest.raises(WorkloadError, match="cannot be split"):
        step.forward_and_backward()
    with pytest.raises(WorkloadError, match="this measurement needs a loss"):
        step.network.forward_and_loss()
    said = "bf16_master has others beside them"
    assert said in no_own_step(PRECISIONS["bf16_master"])
    with pytest.raises(WorkloadError, match=said):
        build_training(own, make_case("bf16_master", "training"), Cpu())
    wrong = dataclasses.replace(classifier, step=lambda *_: "done")
    with pytest.raises(WorkloadError, match=r"step returned str; expected the loss, or \(output, loss\)"):
        build_training(wrong, make_case("fp32", "training"), Cpu()).run()


def test_a_step_of_other_arguments_is_refused_and_one_of_four_trains_without_a_loss(tmp_path: Any) -> None:
    text = """
import torch, ampbench

def take(network, batch, optimizer, scaler):
    optimizer.zero_grad()
    loss = network(batch).sum()
    loss.backward()
    optimizer.step()
    return loss

def make():
    return ampbench.Workload(module=torch.nn.Linear(2, 2), inputs=torch.ones(1, 2), step=take)

def wrong():
    return ampbench.Workload(module=torch.nn.Linear(2, 2), inputs=torch.ones(1, 2), step=lambda network, batch: None)
"""
    source = user_source(tmp_path, text, "make", "own_step_model.py")
    found = describe_workload(source, {}, 0)
    assert (found.has_loss, found.own_step) == (True, True)
    with pytest.raises(WorkloadError, match="step is function of 2 arguments; expected"):
        describe_workload(structs.replace(source, function="wrong"), {}, 0)


FILE = """
import torch
import ampbench
mine = ampbench.Precision(name="bf16_pure", storage="bfloat16")
def make():
    return torch.nn.Linear(4, 4), torch.ones(2, 4)
"""


@pytest.fixture(autouse=True)
def _own_precisions_forgotten() -> Iterator[None]:
    before = dict(PRECISIONS)
    yield
    PRECISIONS.clear()
    PRECISIONS.update(before)


def own(**fields: Any) -> Precision:
    row = ampbench.Precision(**{"name": "mine"} | fields)
    meet(row)
    return row


def test_a_file_that_takes_a_name_of_ampbenchs_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="precision bf16_pure is ampbench's own"):
        meet_precisions(user_source(tmp_path, FILE, "make", "taking.py"))


def test_prepare_is_given_the_network_on_its_device_in_its_dtype_and_the_optimizer(classifier: Workload) -> None:
    seen: list[Any] = []

    def prepare(module: torch.nn.Module, optimizer: Any) -> Any:
        seen.append((next(module.parameters()).dtype, optimizer))
        return torch.nn.Sequential(module, torch.nn.Identity()), lambda parameters: torch.optim.SGD(parameters, lr=0.5)

    own(storage="bfloat16", prepare=prepare)
    step = build_step(classifier, make_case("mine", "training"), Cpu())
    assert seen == [(torch.bfloat16, classifier.optimizer)]
    assert isinstance(step.module[1], torch.nn.Identity)
    assert step.optimizer.param_groups[0]["lr"] == 0.5
    step.run()
    build_step(classifier, make_case("mine", "inference"), Cpu()).run()
    assert seen[1] == (torch.bfloat16, None)
    build_step(classifier, make_case("mine", "training"), Cpu(), precision=FP64)
    assert len(seen) == 2


def test_a_prepared_network_may_hold_other_weights_and_nothing_is_put_back() -> None:
    class Whole(torch.nn.Module):
        def __init__(self, linear: torch.nn.Linear) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter((linear.weight * 100).round().to(torch.int8), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ (self.weight.float() / 100).T

    own(prepare=lambda module, optimizer: Whole(module))
    workload = Workload(module=torch.nn.Linear(4, 4, bias=False), inputs=torch.randn(2, 4))
    step = build_step(workload, make_case("mine"), Cpu())
    first = step.run()
    assert step.changed() == []
    assert torch.equal(step.run(), first)
    assert step.module.weight.dtype is torch.int8
    found = measure_divergence(workload, make_case("mine"), Cpu(), References())
    assert 1e-4 < found.output.rel_l2 < 0.1


def test_what_prepare_must_not_return_is_said(classifier: Workload) -> None:
    own(prepare=lambda module, optimizer: None)
    with pytest.raises(UsageError, match="precision mine: prepare returned NoneType; expected the module, or"):
        build_step(classifier, make_case("mine"), Cpu())
