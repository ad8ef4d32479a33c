"""What counting every magnitude costs: training steps under `watch_ranges`, their time and memory."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

from ampbench.core.units import format_seconds
from ampbench.records.case import Case, WorkloadSource
from ampbench.trace.ranges import watch_ranges
from ampbench.worker.machine import Cpu
from ampbench.worker.memory import rss_bytes
from ampbench.worker.sources import build_workload
from ampbench.worker.step import TrainingStep, build_training
from ampbench.workloads.index import WORKLOADS

TURNS = 7
MANY = 4

CASES: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "ResNet-50 training step (2x3x64x64, fp32)": ("resnet50", {"image": 64, "batch_size": 2}),
    "resnet50 small, training step": ("resnet50", {}),
    "decoder_lm small, training step": ("decoder_lm", {}),
    "mlp small, training step": ("mlp", {}),
}


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield what is measured, the figure, and its goal."""
    for what in CASES:
        plain, one, many = step_times(what)
        yield what, format_seconds(plain[0]), "–"
        yield f"{what}, watched, weights included", _times(one, plain), "≤ 3 times"
        yield f"{what}, watched, one of {MANY}", _times(many, plain), "≤ 3 times"
        yield f"{what}, watched: peak of resident memory", f"{memory_ratio(what):.2f} times", "≤ 2 times"


def step_times(what: str) -> tuple[tuple[float, float], ...]:
    """Return the median seconds of a step, by the clock and of all processors: plain, watched, one of `MANY` watched.

    The three are measured in turns; what is counted once a block, the weights, is part of the watched ones.
    """
    step = _step(what)
    modes: list[tuple[Callable[[], AbstractContextManager[object]], int]] = [
        (nullcontext, 1),
        (lambda: watch_ranges(step.module, step.optimizer), 1),
        (lambda: watch_ranges(step.module, step.optimizer), MANY),
    ]
    taken: list[list[tuple[float, float]]] = [[] for _ in modes]
    for turn in range(TURNS + 1):
        for (mode, steps), samples in zip(modes, taken, strict=True):
            start, used = time.perf_counter(), time.process_time()
            with mode():
                for _ in range(steps):
                    step.run()
            if turn:
                samples.append(((time.perf_counter() - start) / steps, (time.process_time() - used) / steps))
    return tuple((statistics.median(s[0] for s in each), statistics.median(s[1] for s in each)) for each in taken)


def memory_ratio(what: str) -> float:
    """Return what `print_memory_ratio` says in a process of its own: a peak that was higher before hides a rise."""
    command = [sys.executable, "-c", f"from benchmarks.self import headroom; headroom.print_memory_ratio({what!r})"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_memory_ratio(what: str) -> None:
    """Print the peak of resident memory with watched steps over that with plain ones, both above the bare process."""
    bare = rss_bytes() or 0
    step = _step(what)
    for _ in range(3):
        step.run()
    plain = rss_bytes("VmHWM") or 0
    with watch_ranges(step.module, step.optimizer) as seen:
        for _ in range(3):
            step.run()
    assert seen.magnitudes
    print(((rss_bytes("VmHWM") or 0) - bare) / (plain - bare))


def _step(what: str) -> TrainingStep:
    name, changed = CASES[what]
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


def _times(watched: tuple[float, float], plain: tuple[float, float]) -> str:
    return f"{watched[0] / plain[0]:.2f} times ({watched[1] / plain[1]:.2f} of the processors' time)"
