"""What counting every magnitude costs: training steps under `watch_ranges`, their time and memory."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

from ampbench.records.case import Case, WorkloadSource
from ampbench.trace.ranges import watch_ranges
from ampbench.worker.machine import Cpu
from ampbench.worker.sources import build_workload
from ampbench.worker.step import TrainingStep, build_training
from ampbench.workloads.index import WORKLOADS

TURNS = 7

CASES: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "ResNet-50 training step (2x3x64x64, fp32)": ("resnet50", {"image": 64, "batch_size": 2}),
    "resnet50 small, training step": ("resnet50", {}),
    "decoder_lm small, training step": ("decoder_lm", {}),
    "mlp small, training step": ("mlp", {}),
}


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield what is measured, the figure, and its goal."""
    for name in CASES:
        plain, watched = step_times(name)
        shares = [after / before for after, before in zip(watched, plain, strict=True)]
        times = f"{shares[0]:.2f} times ({shares[1]:.2f} of the processors' time)"
        yield f"{name}, watched, weights included", times, "≤ 3 times"


def step_times(name: str) -> tuple[tuple[float, float], ...]:
    """Return the median seconds of a step, by the clock and of all processors: plain and watched, in turns."""
    step = _step(name)
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


def _step(title: str) -> TrainingStep:
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
