import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest
import torch
from msgspec import structs

import ampbench
from ampbench.core import stats
from ampbench.records.case import Case, WorkloadSource
from ampbench.records.measured import Skip
from ampbench.records.wire import Request, RoundAsked
from ampbench.worker import timing
from ampbench.worker import worker as rounds
from ampbench.worker.divergence import measure_divergence
from ampbench.worker.machine import Cpu
from ampbench.worker.step import TrainingStep, build_step
from ampbench.workload import Workload
from ampbench.workloads.index import WORKLOADS
from ampbench.workloads.index import source as builtin_source
from tests.scripted_accelerator import Script, ScriptedAccelerator, falling
from tests.scripted_channel import TASKS, got, make_request, user_source
from tests.worker.conftest import make_case

SPEC = WORKLOADS["mlp"]

BROKEN = """
import torch

class Broken(torch.nn.Linear):
    def forward(self, x):
        raise RuntimeError('mine')

def make():
    return Broken(3, 3), torch.ones(2, 3), lambda output: output.sum()
"""


def linear_case(precision: str = "bf16_pure", phase: str = "inference", **changes: object) -> Case:
    parameters = {name: value for name, value in SPEC.preset("tiny").items() if name != "batch_size"}
    values = {"workload": SPEC.name, "family": SPEC.family, "parameters": parameters, "batch_size": 8, **changes}
    return make_case(precision, phase, **values)


def ask(kind: str, planned: Case, source: WorkloadSource | None = None, **changes: object) -> Request:
    return make_request(kind, source=source or builtin_source(SPEC), case=planned, min_run_seconds=0.01, **changes)


def test_the_frames_of_a_study_that_failed_are_the_users(tmp_path: Path) -> None:
    planned = make_case("bf16_autocast", "training", workload="make", batch_size=None)
    source = user_source(tmp_path, BROKEN, "make", "broken.py")
    found = rounds.Worker().serve(ask("scope", planned, source, steps=2, seconds=0.1)).failure
    assert found.message == "RuntimeError: mine (broken.py, line 6)"
    assert found.frames[-1] == f"{source.module}:6 in forward: raise RuntimeError('mine')"
    assert not any(frame.startswith(str(Path(ampbench.__file__).parent)) for frame in found.frames)


IN_PARTS = """
import ampbench, torch

class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError('mine')

class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        raise RuntimeError('mine')

def made(loss, optimizer=torch.optim.SGD):
    return ampbench.Workload(
        module=torch.nn.Linear(3, 3), inputs=torch.ones(2, 3), loss=loss,
        optimizer=lambda weights: optimizer(weights, lr=0.1),
    )

def forward():
    return torch.nn.Linear(4, 3), torch.ones(2, 3), lambda output: output.sum()

def loss():
    return made(lambda output: output['missing'])

def backward():
    return made(lambda output: Failing.apply(output).sum())

def optimizer():
    return made(lambda output: output.sum(), Optimizer)
"""


@pytest.mark.parametrize(
    ("function", "place"),
    [
        ("forward", ""),
        ("loss", " (in the loss, parts.py, line 27)"),
        ("backward", " (in the backward pass, parts.py, line 11)"),
        ("optimizer", " (in the optimizer's step, parts.py, line 15)"),
    ],
)
def test_a_failure_names_the_part_of_the_step(function: str, place: str, tmp_path: Path) -> None:
    source = user_source(tmp_path, IN_PARTS, function, "parts.py")
    planned = make_case("fp32", "training", workload=function, batch_size=None)
    message = rounds.Worker().serve(ask("round", planned, source)).failure.message
    assert message.endswith(place)
    assert ("(in the " in message) == bool(place)


@pytest.mark.parametrize("does", ["ampbench.studies.fantasy_measure:do", "ampbench.worker.worker:do_fantasy"])
def test_a_task_that_a_worker_does_not_know_is_refused_and_measures_nothing(does: str) -> None:
    request = msgspec.structs.replace(ask("round", linear_case()), task="fantasy", does=does)
    reply = rounds.Worker().serve(request)
    assert reply.failure.message.endswith("a worker of this ampbench does not know the task 'fantasy'")
    assert reply == type(reply)(failure=reply.failure)


@pytest.mark.parametrize("name", TASKS)
def test_what_a_worker_does_takes_what_its_task_asks_and_gives_what_that_gives(name: str) -> None:
    task = TASKS[name]
    module, _, function = task.does.partition(":")
    hints = get_type_hints(getattr(importlib.import_module(module), function))
    assert hints["asked"] is task.asked
    assert hints["return"] in (task.gives, task.gives | Skip)


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device whose memory holds the fp64 reference of two rows; returns the batch sizes that were tried."""
    tried: list[int] = []

    def measure(workload: Workload, *arguments: object) -> object:
        tried.append(len(workload.inputs))
        if tried[-1] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return measure_divergence(workload, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rounds, "measure_divergence", measure)
    return tried


def test_a_reference_that_does_not_fit_is_made_on_a_smaller_batch_and_said_so(small_memory: list[int]) -> None:
    worker = rounds.Worker()
    found = got("divergence", worker.serve(ask("divergence", linear_case())))
    assert small_memory == [8, 2]
    assert found.output.rel_l2 > 0
    assert found.notes == ["compared on a batch of 2: in fp64, 8 do not fit into the memory"]
    worker.serve(ask("divergence", linear_case("fp16_pure")))
    assert small_memory == [8, 2, 2]


class MadeStep:
    """A step without a network, for a device without one."""

    skipped_steps = 0

    def run(self) -> None:
        pass

    def mode(self) -> AbstractContextManager[None]:
        return nullcontext()

    def prepare_path(self, path: str) -> None:
        pass

    def changed(self, known: object = None) -> list[str]:
        return []


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Script], ScriptedAccelerator]:
    """Return what lets rounds be measured on the accelerator of a script."""

    def use(script: Script) -> ScriptedAccelerator:
        device = ScriptedAccelerator(script)
        monkeypatch.setattr(rounds, "build_step", lambda *_: MadeStep())
        monkeypatch.setattr(rounds, "open_device", lambda type: device)
        monkeypatch.setattr(rounds, "sampler_of", lambda type: device.watched())
        monkeypatch.setattr(rounds, "time_sustained", partial(timing.time_sustained, clock=device.clock))
        monkeypatch.setattr(rounds, "fp32_products", lambda *_: None)
        return device

    return use


def test_a_round_on_an_accelerator_has_windows_a_burst_and_what_the_device_told(
    scripted: Callable[[Script], ScriptedAccelerator],
) -> None:
    scripted(Script(clock_hz=falling(2e9, 1.6e9, 0.0, 3.0), limits=lambda now: frozenset({"power limit"})))
    found = got("round", rounds.Worker().serve(ask("round", linear_case("fp32"))))
    assert [len(build) for build in found.windows] == [1, 1, 1]
    assert stats.round_value(found.samples, None, found.windows) == pytest.approx(2e6 / 1.6e9)
    assert found.burst_seconds < 1.05 * 2e6 / 2e9
    assert found.steady
    assert found.telemetry.limited == {"power limit": 1.0}
    assert found.telemetry.power_watts == pytest.approx(400.0)
    assert (found.telemetry.clock_hz, found.fitness.accelerator_clock_hz) == (1.6e9, None)
    assert found.cpu_samples is None


def test_an_accelerator_that_vanishes_amid_a_round_is_a_failed_row_with_what_it_said_and_so_is_what_follows(
    scripted: Callable[[Script], ScriptedAccelerator], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(Script(gone=2.5))
    worker = rounds.Worker()
    reply = worker.serve(ask("round", linear_case("fp32")))
    assert reply.failure is not None
    assert reply.failure.cause == "exception"
    assert "CUDA error: unspecified launch failure" in reply.failure.message
    monkeypatch.undo()
    following = worker.serve(ask("round", linear_case("fp32", device="cuda")))
    if not torch.cuda.is_available():
        assert following.failure is not None
        assert "device cuda is not available here" in following.failure.message


class FullDevice(Cpu):
    """A device whose memory is full: a step finds no room beside a copy of the state that lies on it."""

    type = "fake"

    def __init__(self) -> None:
        self.steps: list[TrainingStep] = []

    def seconds(self, step: Callable[[], object], count: int) -> float:
        training = step.__self__  # type: ignore[attr-defined]
        self.steps.append(training)
        if not training.on_host:
            raise torch.OutOfMemoryError("no room for a step")
        step()
        return 1.0


def test_where_a_step_finds_no_room_beside_it_the_saved_state_is_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FullDevice()
    monkeypatch.setattr(rounds, "build_step", lambda workload, case, _: build_step(workload, case, Cpu()))
    monkeypatch.setattr(rounds, "fp32_products", lambda *_: None)
    workload = Workload(
        module=torch.nn.Linear(4, 4), inputs=torch.ones(2, 4), loss=lambda output: output.square().mean()
    )
    found = rounds.measure_round(
        workload, make_case("fp32", "training"), RoundAsked(builds=2, min_run_seconds=0.01), device, rounds.Timed()
    )
    assert [len(build) for build in found.windows or []] == [1, 1]
    assert [step.on_host for step in dict.fromkeys(device.steps)] == [False, True, True]
    monkeypatch.setattr(rounds, "build_step", lambda *_: MadeStep())
    monkeypatch.setattr(MadeStep, "on_host", False, raising=False)
    with pytest.raises(torch.OutOfMemoryError):  # in inference there is nothing to put on the host
        rounds.measure_round(workload, make_case("fp32"), RoundAsked(), device, rounds.Timed())


@pytest.mark.slow
def test_compiled_training_has_a_round_with_its_compile_time_memory_and_divergence() -> None:
    compiled = linear_case("bf16_autocast", "training", path="compiled")
    worker = rounds.Worker()
    memory = got("memory", worker.serve(ask("memory", compiled)))
    found = got("round", worker.serve(ask("round", compiled)))
    assert found.compile_seconds > max(max(build) for build in found.samples)
    assert memory.peak_bytes > memory.parameter_bytes + memory.gradient_bytes
    ours = got("divergence", worker.serve(ask("divergence", compiled)))
    eager = got("divergence", worker.serve(ask("divergence", structs.replace(compiled, path="eager"))))
    assert 0 < ours.gradient.rel_l2 < 3 * eager.gradient.rel_l2
    assert ours.loss == pytest.approx(ours.reference.loss, rel=0.05)


def test_training_that_cannot_be_compiled_is_the_cases_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("backend fell over")

    monkeypatch.setattr(rounds, "cannot_run", lambda case: "")
    monkeypatch.setattr(torch, "compile", lambda module: broken)
    for kind in ("round", "memory", "divergence"):
        failure = rounds.Worker().serve(ask(kind, linear_case(phase="training", path="compiled"))).failure
        assert failure.stage == kind
        assert re.fullmatch(r"RuntimeError: backend fell over \(test_worker.py, line \d+\)", failure.message)


@pytest.mark.parametrize(("rate", "nonfinite"), [(1e-4, 0), (float("inf"), 20)])
def test_parameters_that_the_timed_steps_leave_not_finite_are_counted(rate: float, nonfinite: int) -> None:
    workload = Workload(
        module=torch.nn.Linear(4, 4),
        inputs=torch.ones(2, 4),
        loss=lambda output: output.square().square().sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
    )
    asked = RoundAsked(min_run_seconds=0.02, builds=1, max_samples=5)
    found = rounds.measure_round(workload, make_case("fp32", "training"), asked, Cpu(), rounds.Timed())
    assert found.param_nonfinite == nonfinite


@pytest.mark.slow
def test_no_worker_waits_for_pandas_or_scipy_whatever_it_explains_or_studies() -> None:
    root = Path(ampbench.__file__).parents[1]
    package = root / "ampbench"
    work = sorted(package.glob("studies/*_measure.py"))
    modules = [".".join(path.relative_to(root).with_suffix("").parts) for path in work]
    modules += ["ampbench.worker.worker", "ampbench.worker.origins"]
    assert len(modules) > 8
    code = (
        "import sys; sys.modules['pandas'] = sys.modules['scipy'] = None\n"
        "from importlib import import_module\n"
        f"for name in {modules!r}: import_module(name)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stderr == ""


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported", "out of memory"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "out of memory"),
        ("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", "out of memory"),
        ("level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", "out of memory"),
        ("HIP error: out of memory", "out of memory"),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "out of memory"),
        ("FIND was unable to find an engine to execute this computation", "out of memory"),
        ("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory", "out of memory"),
        ("CUDA error: an illegal memory access was encountered", "exception"),
    ],
)
def test_what_drivers_and_libraries_say_without_a_type_of_error_is_out_of_memory_too(said: str, cause: str) -> None:
    assert rounds.failure_of("w", "round", RuntimeError(said)).cause == cause


def test_without_a_compiler_nothing_is_compiled_on_a_cpu_in_any_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise RuntimeError("no working compiler")

    monkeypatch.setattr(importlib.import_module("torch._inductor.cpp_builder"), "get_cpp_compiler", missing)
    said = {
        path: rounds.cannot_run(make_case(path=path))
        for path in ("eager", "compiled", "compiled-max-autotune", "traced")
    }
    why = "torch.compile needs a C++ compiler, and none was found"
    assert said == {"eager": "", "compiled": why, "compiled-max-autotune": why, "traced": ""}
    assert rounds.cannot_run(make_case(path="compiled-max-autotune", device="cuda")) == ""
