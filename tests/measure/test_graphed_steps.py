"""Steps that are recorded and launched again, on a scripted accelerator whose graphs do ops again on their tensors."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ampbench.errors import WorkloadError
from ampbench.measure.launches import WARM_CALLS, record
from ampbench.measure.machine import Accelerator, Cpu
from ampbench.measure.memory import peaks_of
from ampbench.measure.step import TrainingStep, build_step
from ampbench.records.case import GRAPHED, Case
from ampbench.workload import Workload

MakeCase = Callable[..., Case]
SYNCHRONISES = torch.ops.aten._local_scalar_dense.default


class Stream:
    """Stands in for a stream; nothing here runs beside anything else."""

    def wait_stream(self, other: object) -> None:
        """Do nothing."""


class CUDAGraph:
    """The ops of a call, done again on the tensors that they had, into the tensors that they made."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, Any, Any, Any]] = []
        self.replays = 0

    def pool(self) -> tuple[int, int]:
        return (0, 1)

    def replay(self) -> None:
        self.replays += 1
        with torch.no_grad():
            for op, args, kwargs, made in self.done:
                again = op(*args, **kwargs)
                for old, new in zip(pytree.tree_leaves(made), pytree.tree_leaves(again), strict=True):
                    if isinstance(old, torch.Tensor) and _start(old) != _start(new):
                        old.copy_(new)


def _start(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Recorder(TorchDispatchMode):
    """Writes ops down; those that wait for the device break a recording off, as on CUDA."""

    def __init__(self, graph: CUDAGraph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is SYNCHRONISES:
            raise RuntimeError("operation not permitted when stream is capturing")
        made = func(*args, **(kwargs or {}))
        self.graph.done.append((func, args, kwargs or {}, made))
        return made


class Api:
    """What a module of torch has for a device: streams and graphs."""

    Stream, CUDAGraph = Stream, CUDAGraph

    def __init__(self) -> None:
        self.pools: list[Any] = []

    def current_stream(self) -> Stream:
        return Stream()

    def stream(self, stream: Stream) -> Any:
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def graph(self, graph: CUDAGraph, pool: Any = None) -> Iterator[None]:
        self.pools.append(pool)
        try:
            with Recorder(graph):
                yield
        except RuntimeError:
            raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904 - as torch does


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    found = Api()
    monkeypatch.setattr(torch, "get_device_module", lambda device: found)
    return found


def classifier(batches: int = 1) -> Workload:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 4)]
    pairs = [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(batches)]
    return Workload(
        module=torch.nn.Sequential(*layers),
        inputs=[given for given, _ in pairs],
        targets=[targets for _, targets in pairs],
        loss=torch.nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    )


def test_calls_are_made_before_they_are_recorded_and_share_their_memory(api: Api) -> None:
    given, calls = torch.ones(3), [0, 0]

    def call(place: int) -> torch.Tensor:
        calls[place] += 1
        return given * (place + 2)

    first, second = record([lambda: call(0), lambda: call(1)], Accelerator("cuda"))
    assert calls == [WARM_CALLS + 1] * 2
    assert api.pools == [None, (0, 1)]
    given.fill_(5)
    assert first.run().tolist() == [10.0] * 3
    assert second.run().tolist() == [15.0] * 3
    assert calls == [WARM_CALLS + 1] * 2, "nothing of Python runs again"


def test_the_reason_is_what_broke_a_recording_off_and_not_that_it_broke(api: Api) -> None:
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        record([lambda: torch.ones(1).sum().item()], Accelerator("cuda"))


def test_a_torch_without_graphs_of_the_device_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: object())
    with pytest.raises(WorkloadError, match="this torch has no graphs of xpu"):
        record([], Accelerator("xpu"))


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("name", ["fp32", "bf16_autocast", "bf16_pure"])
def test_recorded_inference_gives_what_the_eager_step_gives(name: str, batches: int, api: Api, case: MakeCase) -> None:
    eager, graphed = (build_step(classifier(batches), case(name, path=path), Cpu()) for path in ("eager", GRAPHED))
    assert graphed.prepare_path(GRAPHED) > 0
    graphed.rewind()
    with torch.inference_mode():
        for _ in range(2 * batches):
            assert torch.equal(graphed.run(), eager.run())


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("name", ["fp32", "bf16_autocast", "bf16_pure", "bf16_master"])
def test_recorded_training_gives_what_eager_training_gives(name: str, batches: int, api: Api, case: MakeCase) -> None:
    states = []
    for path in ("eager", GRAPHED):
        step = build_step(classifier(batches), case(name, "training", path), Cpu())
        before = {key: value.clone() for key, value in step.module.state_dict().items()}
        step.prepare_path(path)
        assert all(torch.equal(value, before[key]) for key, value in step.module.state_dict().items())
        step.start(None)
        started = {key: value.clone() for key, value in step.module.state_dict().items()}
        losses = []
        for _ in range(2 * batches + 1):
            step.run()
            losses.append(step.loss.detach().clone())
        states.append((started, losses, {key: value.clone() for key, value in step.module.state_dict().items()}))
        step.restore()
        assert all(torch.equal(value, started[key]) for key, value in step.module.state_dict().items())
    torch.testing.assert_close(states[1], states[0], rtol=0, atol=0)
    assert not torch.equal(states[1][2]["0.weight"], states[1][0]["0.weight"])


def test_steps_of_several_batches_are_recorded_from_each_that_one_may_begin_with(api: Api, case: MakeCase) -> None:
    found = []
    for path in ("eager", GRAPHED):
        step = build_step(classifier(3), case("fp32", "training", path, recipe="accumulate=2,ema=0.5"), Cpu())
        step.prepare_path(path)
        step.start(None)
        weights = []
        for _ in range(5):
            step.run()
            weights.append(step.module[0].weight.detach().clone())
        found.append(weights)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_gradients_and_updates_that_are_compared_come_from_what_is_recorded(api: Api, case: MakeCase) -> None:
    found = []
    for path in ("eager", GRAPHED):
        step = build_step(classifier(), case("bf16_autocast", "training", path), Cpu())
        step.prepare_path(path)
        output, gradients = step.unscaled_gradients()
        assert step.apply_gradients()
        found.append((output.detach(), dict(gradients), dict(step.module.state_dict())))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    assert len(found[1][1]) == 6


def test_a_step_that_waits_for_the_device_is_a_failure_with_torchs_reason(api: Api, case: MakeCase) -> None:
    step = build_step(classifier(), case("fp16_autocast", "training", GRAPHED), Cpu())
    step.prepare_path(GRAPHED)
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        step.start(None)  # GradScaler asks whether any gradient is infinite


def test_what_changes_its_inputs_in_place_is_not_recorded(api: Api, case: MakeCase) -> None:
    workload = Workload(module=torch.nn.ReLU(inplace=True), inputs=torch.randn(4, 4))
    step = build_step(workload, case(path=GRAPHED), Cpu())
    with pytest.raises(WorkloadError, match="a graph would find input as the step before left it"):
        step.prepare_path(GRAPHED)


def test_an_optimizer_of_a_recorded_step_computes_in_tensors_where_it_can(case: MakeCase) -> None:
    workload = dataclasses.replace(classifier(), optimizer=torch.optim.AdamW)
    eager, graphed = (build_step(workload, case("fp32", "training", path), Cpu()) for path in ("eager", GRAPHED))
    assert isinstance(eager, TrainingStep)
    assert [eager.optimizer.param_groups[0]["capturable"], graphed.optimizer.param_groups[0]["capturable"]] == [
        False,
        True,
    ]


class Allocator(Accelerator):
    """Counts scripted allocations: building keeps 100 bytes, warming up takes 70 for a while, a launch nothing."""

    now = most = 0

    def take(self, count: int) -> None:
        self.now += count
        self.most = max(self.most, self.now)

    def synchronize(self) -> None:
        """Do nothing."""

    release = synchronize

    def allocated_bytes(self) -> int:
        return self.now

    def reset_peak(self) -> None:
        self.most = self.now

    def peak_bytes(self) -> int:
        return self.most

    def reserved_bytes(self) -> int:
        return self.most


@pytest.mark.parametrize(("recorded", "peak"), [(True, 170), (False, 100)])
def test_the_memory_that_a_recorded_step_had_as_it_was_recorded_is_in_its_peak(
    recorded: bool, peak: int, case: MakeCase
) -> None:
    device = Allocator("cuda")
    device.take(1000)  # of someone else

    def build() -> Any:
        device.take(500)
        device.take(-400)
        return build_step(classifier(), case(), Cpu())

    def warm(step: Any) -> None:
        device.take(70)
        device.take(-70)

    ((_, found),) = peaks_of([build], device, warm, recorded=recorded)
    assert found.peak == peak
