"""The cost of tracing: every cast of a training step, a probe of rules, every magnitude."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.utils._debug_mode import DebugMode
from torchvision.models import resnet50

import ampbench
from ampbench.core.units import format_seconds
from ampbench.records.case import Case, WorkloadSource
from ampbench.trace.ranges import watch_ranges
from ampbench.worker.machine import Cpu
from ampbench.worker.sources import build_workload
from ampbench.worker.step import TrainingStep, build_training
from ampbench.workloads.index import WORKLOADS

STEPS = 15


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield what is measured, the figure, and its goal."""
    plain, traced, debugged = step_seconds()
    step = "a ResNet-50 training step (2x3x64x64, bf16 autocast)"
    yield f"{step} under trace_casts", f"{traced / plain:.2f} times", f"DebugMode's, {debugged / plain:.2f} times"
    yield "probe of autocast's rules, cpu, one dtype", format_seconds(probe_seconds("cpu")), "≤ 30 s"


def step_seconds() -> tuple[float, float, float]:
    """Return the median seconds of a step: plain, traced, under torch's DebugMode; in turns."""
    model, step = _step()
    modes: list[Callable[[], AbstractContextManager[object]]] = [
        nullcontext,
        lambda: ampbench.trace_casts(model),
        DebugMode,
    ]
    taken: list[list[float]] = [[] for _ in modes]
    for turn in range(STEPS + 2):
        for mode, samples in zip(modes, taken, strict=True):
            with mode():
                start = time.perf_counter()
                step()
                seconds = time.perf_counter() - start
            if turn >= 2:
                samples.append(seconds)
    plain, traced, debugged = map(statistics.median, taken)
    return plain, traced, debugged


def probe_seconds(device: str) -> float:
    """Return the wall time of a probe of one device type and dtype, with Python's start."""
    probe = f"from ampbench.studies.devices_measure import probe_rules; probe_rules({device!r}, ['bfloat16'])"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True)
    return time.perf_counter() - start


def _step() -> tuple[torch.nn.Module, Callable[[], None]]:
    torch.manual_seed(0)
    model = resnet50().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, target = torch.randn(2, 3, 64, 64), torch.tensor([1, 2])

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(batch), target)
        loss.backward()
        optimizer.step()

    return model, step


TURNS = 7

CASES: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "ResNet-50 training step (2x3x64x64, fp32)": ("resnet50", {"image": 64, "batch_size": 2}),
    "resnet50 small, training step": ("resnet50", {}),
    "decoder_lm small, training step": ("decoder_lm", {}),
    "mlp small, training step": ("mlp", {}),
}


def headroom_rows() -> Iterator[tuple[str, str, str]]:
    """Yield what is measured, the figure, and its goal."""
    for name in CASES:
        plain, watched = step_times(name)
        shares = [after / before for after, before in zip(watched, plain, strict=True)]
        times = f"{shares[0]:.2f} times ({shares[1]:.2f} of the processors' time)"
        yield f"{name}, watched, weights included", times, "≤ 3 times"


def step_times(name: str) -> tuple[tuple[float, float], ...]:
    """Return the median seconds of a step, by the clock and of all processors: plain and watched, in turns."""
    step = _watched_step(name)
    modes: list[Callable[[], AbstractContextManager[object]]] = [
        nullcontext,
        lambda: watch_ranges(step.module, step.optimizer),
    ]
    taken: list[list[tuple[float, float]]] = [[] for _ in modes]
    for turn in range(TURNS + 1):
        for mode, samples in zip(modes, taken, strict=True):
            start, used = time.perf_counter(), time.process_time()
            with mode():
                step.run()
            if turn:
                samples.append((time.perf_counter() - start, time.process_time() - used))
    return tuple(
        (statistics.median(s[0] for s in samples), statistics.median(s[1] for s in samples)) for samples in taken
    )


def _watched_step(title: str) -> TrainingStep:
    name, changed = CASES[title]
    spec = WORKLOADS[name]
    source = WorkloadSource(
        name=name, family=spec.family, module=f"ampbench.workloads.{spec.family}", function=name, builtin=True
    )
    parameters = {**spec.preset("small"), **changed}
    case = Case(
        workload=name,
        family=spec.family,
        parameters={key: value for key, value in parameters.items() if key != "batch_size"},
        precision="fp32",
        device="cpu",
        phase="training",
        path="eager",
        batch_size=parameters["batch_size"],
        input_dtype="fp32",
        memory_format="contiguous",
    )
    return build_training(build_workload(source, parameters, 0), case, Cpu())
