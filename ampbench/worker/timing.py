"""How long a step takes: warm-up until settled, the steps per sample from the timer-overhead rule, the samples."""

import math
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

from ampbench.worker.devices import Device

TIMER_SHARE = 1e-4
"""The timer may cost at most this share of a sample (statistics.md, "timer overhead")."""
SETTLED = 0.02
"""Warm-up ends when a chunk is less than this faster than the best one before it."""
WARM_STEPS = 3
"""Steps that warm-up takes at least, as long as they fit the budget."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What timing one build gave: seconds per step by sample, steps in each sample, steps of warm-up.

    `cpu_samples` are the CPU seconds per step of the calling thread, None where they do not bound the time of a step.
    """

    samples: list[float]
    steps_per_sample: int
    warmup_steps: int
    cpu_samples: list[float] | None = None


@dataclass(frozen=True, slots=True)
class _Sample:
    """One sample: seconds per step, and what the calling thread did in it (None: the device does the work).

    `cpu` are its CPU seconds per step, `waits` how often a step it gave up the processor of its own accord.
    """

    seconds: float
    cpu: float | None
    waits: float


def time_build(
    step: Callable[[], None],
    device: Device,
    *,
    budget_seconds: float,
    max_samples: int,
    restore: Callable[[], None] | None = None,
    warm: bool = False,
    apart: bool = False,
) -> Timing:
    """Time `step` for about `budget_seconds`, warm-up not counted (it takes at most half as long again).

    `restore`, called before every sample and outside what is timed, puts training state back. `warm` says that this
    process has run the same step before, so that a step longer than the budget needs no further warm-up: for such
    steps a cold start is far below one step's time. With `apart` every sample is one step, because a second one would
    find other inputs.
    """
    first = _one_sample(step, device, restore, 1)
    if warm and first.seconds >= budget_seconds:
        return _timing([first], 1, 0)
    last, settling = _settle(step, device, restore, budget_seconds / 2, apart)
    if last.seconds >= budget_seconds:
        return _timing([last], 1, settling)
    count, wanted = plan_samples(last.seconds, device.timer_seconds, budget_seconds, max_samples, apart)
    samples = [_one_sample(step, device, restore, count) for _ in range(wanted)]
    return _timing(samples, count, 1 + settling)


def _timing(samples: list[_Sample], steps_per_sample: int, warmup_steps: int) -> Timing:
    """Return the timing of a build; a step that waits in every sample, for a disk or other threads, has no CPU time."""
    cpu = [float(f"{one.cpu:.5g}") for one in samples if one.cpu is not None]
    known = len(cpu) == len(samples) and min(one.waits for one in samples) < 1
    return Timing([one.seconds for one in samples], steps_per_sample, warmup_steps, cpu if known else None)


def plan_samples(
    step_seconds: float, timer_seconds: float, budget_seconds: float, max_samples: int, apart: bool = False
) -> tuple[int, int]:
    """Return (steps per sample, samples) for a step of `step_seconds`.

    A sample is long enough for the timer to be below `TIMER_SHARE` of it, and long enough for `max_samples` to fill
    the budget; a step longer than the budget gets one sample. `apart` as in `time_build`.
    """
    if step_seconds >= budget_seconds:
        return 1, 1
    shortest = max(timer_seconds / TIMER_SHARE, budget_seconds / max_samples)
    count = 1 if apart else max(1, math.ceil(shortest / step_seconds))
    wanted = round(budget_seconds / (count * step_seconds))
    return count, min(max_samples, max(1, wanted))


def _settle(
    step: Callable[[], None], device: Device, restore: Callable[[], None] | None, budget_seconds: float, apart: bool
) -> tuple[_Sample, int]:
    """Run growing chunks until one is no longer faster than the best before it, or the budget is used; at least one.

    Return the last chunk as a sample and the steps run. Growing chunks (as in `timeit.autorange`) keep the
    timer's share small without knowing the step's time.
    """
    best, spent, steps, count = math.inf, 0.0, 0, 1
    while True:
        last = _one_sample(step, device, restore, count)
        now = last.seconds
        steps, spent = steps + count, spent + now * count
        settled = now > best * (1 - SETTLED) and (apart or now * count > 100 * device.timer_seconds)
        if (settled and steps >= WARM_STEPS) or spent >= budget_seconds:
            return last, steps
        best = min(best, now)
        count = 1 if apart else min(2 * count, max(1, int((budget_seconds - spent) / max(now, device.timer_seconds))))


def _one_sample(step: Callable[[], None], device: Device, restore: Callable[[], None] | None, count: int) -> _Sample:
    """Return one sample of `count` steps.

    CPU time is that of the calling thread alone. Undisturbed, it computes all of the time or, where a step has several
    threads, waits for them in a loop, which counts: its CPU time is the wall time whatever the number of threads. That
    of the whole process would be any multiple of it.
    """
    if restore is not None:
        restore()
        device.synchronize()
    if device.type != "cpu":
        return _Sample(device.seconds(step, count) / count, None, 0.0)
    waited, began = _own_waits(), time.thread_time()
    seconds = device.seconds(step, count)
    cpu, waits = time.thread_time() - began, _own_waits() - waited
    return _Sample(seconds / count, cpu / count, waits / count)


def _own_waits() -> int:
    """Return how often the calling thread has given up the processor before its time was over."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
