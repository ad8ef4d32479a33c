"""The time of a step: warm-up until settled, samples, builds at random places in memory, turns with other steps.

The place of a build in memory is the largest source of luck in small CPU cells, so every build gets a new random place.
The idea is Stabilizer's (Curtsinger and Berger, ASPLOS 2013): randomise an uncontrolled factor, so that it becomes
spread between builds instead of a difference between runs. The machine's load is recorded meanwhile.
"""

import math
import os
import random
import resource
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, thread_time
from typing import Any, TypeVar

import torch

from ampbench.records.measured import Fitness, parse_cpu_times
from ampbench.worker.environment import kernel_text
from ampbench.worker.machine import Device
from ampbench.worker.memory import is_out_of_memory, peaks_of
from ampbench.worker.step import Step, TrainingStep

SPACER_BYTES = 4 << 20
"""The largest spacer: several times a core's L2 cache, so that every offset into it can occur."""
LINE_BYTES = 64
SMALL_SPACERS = 8


class Placement:
    """Holds spacers of random size, so that the next allocation begins at a random place."""

    def __init__(self, draw: random.Random):
        self._draw = draw
        self._spacers: list[torch.Tensor] = []

    def move(self) -> None:
        """Move the next allocations: small spacers move the heap, a large one the mappings."""
        lines = SPACER_BYTES // LINE_BYTES
        small = [self._draw.randrange(1, 1024) for _ in range(self._draw.randrange(SMALL_SPACERS))]
        sizes = [*small, self._draw.randrange(1, lines)]
        self._spacers += [torch.empty(lines * LINE_BYTES, dtype=torch.uint8) for lines in sizes]


TIMER_SHARE = 1e-4
"""The timer may cost at most this share of a sample (statistics.md, "timer overhead")."""
SETTLED = 0.02
"""Warm-up ends when a chunk is less than this faster than the best one before it."""
WARM_STEPS = 3
"""The least steps of warm-up, as long as they fit the budget."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of one build: seconds per step by sample, steps in each sample, steps of warm-up.

    `cpu_samples` are the CPU seconds per step of the calling thread, None where they do not bound the time of a step.
    `time_sustained` adds the seconds per step over each of its `windows`, their `spans` by its clock, whether it
    reached a steady state (None: it was warm before), and the seconds per step of the fastest sample, including
    warm-up.
    """

    samples: list[float]
    steps_per_sample: int
    warmup_steps: int
    cpu_samples: list[float] | None = None
    windows: list[float] | None = None
    spans: list[tuple[float, float]] = field(default_factory=list)
    steady: bool | None = None
    burst_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class _Sample:
    """One sample: seconds per step, and the calling thread's part (None: the device does the work).

    `cpu` are its CPU seconds per step, `waits` the times per step that it gave up the processor by itself.
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
    """Time `step` for about `budget_seconds`, plus at most half as long for warm-up.

    `restore` restores training state before every sample, untimed. `warm`: this process has run the same step before,
    so a step longer than the budget needs no warm-up, as its cold start is far below one step's time. With `apart`
    every sample is one step, because a second one would find other inputs.
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


WINDOW_SECONDS = 1.0
"""The least duration of a window: power is averaged over a second (NVML), and a clock follows it faster."""
WARM_LIMIT_SECONDS = 20.0
"""The limit of warm-up, steady or not: a card's heat takes minutes to settle, its power limit tenths of a second.
Slower changes show in the clocks of windows and of rounds."""
STEADY = 0.01
"""The largest difference of time and clock between two steady windows: clocks move in steps of 15 MHz, 0.8% of 2
GHz."""
SAMPLES_PER_WINDOW = 10
"""The most samples of a window; fewer where a step takes longer."""


def time_sustained(
    step: Callable[[], None],
    device: Device,
    *,
    budget_seconds: float,
    max_samples: int,
    restore: Callable[[], None] | None = None,
    warm: bool = False,
    apart: bool = False,
    clock_hz: Callable[[tuple[float, float]], float | None] = lambda _: None,
    clock: Callable[[], float] = perf_counter,
) -> Timing:
    """Time `step` on an accelerator at its sustained speed: in one or more windows of `WINDOW_SECONDS`.

    Windows fill the budget after the warm-up, which runs windows until two consecutive ones differ by at most `STEADY`
    in time and in the clock that `clock_hz` reports for their spans (None: unknown), for at most `WARM_LIMIT_SECONDS`.
    `warm`: the device has just been under this load, and half a window is enough. `restore`, `apart` and `max_samples`
    as in `time_build`, but a window restores once (`apart`: before each sample), because a device that waits for state
    from the host cools down. `clock` is the host's.
    """
    shortest = device.timer_seconds / TIMER_SHARE
    length = max(shortest, WINDOW_SECONDS / SAMPLES_PER_WINDOW)
    count, burst, run = 1, math.inf, 0

    def sample(first: bool = True) -> float:
        nonlocal burst, run
        seconds = _one_sample(step, device, restore if first or apart else None, count).seconds
        run += count
        if seconds * count >= (100 * device.timer_seconds if apart else shortest):
            burst = min(burst, seconds)
        return seconds

    def window(least: float) -> tuple[float, list[float], tuple[float, float]]:
        """Return the seconds per step over a window, its samples and its span."""
        taken: list[float] = []
        began, spent = clock(), 0.0
        while not taken or (spent < least and not (apart and clock() - began >= least)):
            taken.append(sample(first=not taken))
            spent += taken[-1] * count
        return spent / (len(taken) * count), taken, (began, clock())

    began = clock()
    last = sample()
    while not apart and count * last < 0.8 * length:  # samples may be a little shorter than planned
        count = min(10 * count, math.ceil(length / max(last, device.timer_seconds)))
        last = sample()
    steady: bool | None = None
    before: tuple[float, float | None] | None = None
    while True:
        last, _, span = window(WINDOW_SECONDS / 2 if warm else WINDOW_SECONDS)
        if not apart:
            count = max(1, math.ceil(length / max(last, device.timer_seconds)))
        if warm:
            break
        now = last, clock_hz(span)
        steady = before is not None and all(
            old is None or new is None or abs(new / old - 1) <= STEADY for old, new in zip(before, now, strict=True)
        )
        if steady or clock() - began >= WARM_LIMIT_SECONDS:
            break
        before = now
    warmed = run
    wanted = max(1, round(budget_seconds / WINDOW_SECONDS))
    taken = [window(WINDOW_SECONDS) for _ in range(wanted)]
    kept = max(1, max_samples // wanted)
    return Timing(
        [seconds for _, samples, _ in taken for seconds in samples[:kept]],
        count,
        warmed,
        windows=[seconds for seconds, _, _ in taken],
        spans=[span for _, _, span in taken],
        steady=steady,
        burst_seconds=burst if math.isfinite(burst) else None,
    )


def _timing(samples: list[_Sample], steps_per_sample: int, warmup_steps: int) -> Timing:
    """Return the timing of a build, without CPU time if the step waits in every sample, for a disk or other threads."""
    cpu = [float(f"{sample.cpu:.5g}") for sample in samples if sample.cpu is not None]
    known = len(cpu) == len(samples) and min(sample.waits for sample in samples) < 1
    return Timing([sample.seconds for sample in samples], steps_per_sample, warmup_steps, cpu if known else None)


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
    """Run growing chunks until one is no longer faster than the best before, or the budget is used; at least one.

    Return the last chunk as a sample and the steps run. Growing chunks (as in `timeit.autorange`) keep the timer's
    share small without knowing the step's time.
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

    CPU time is the calling thread's. Undisturbed, it computes all the time or waits for the other threads in a loop,
    which counts: its CPU time equals the wall time for any number of threads. The process's CPU time would be a
    multiple.
    """
    if restore is not None:
        restore()
        device.synchronize()
    if device.type != "cpu":
        return _Sample(device.seconds(step, count) / count, None, 0.0)
    waited, began = _own_waits(), thread_time()
    seconds = device.seconds(step, count)
    cpu, waits = thread_time() - began, _own_waits() - waited
    return _Sample(seconds / count, cpu / count, waits / count)


def _own_waits() -> int:
    """Return the number of times that the calling thread gave up the processor by itself."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


class FitnessWatch:
    """The machine's counters at the start of a round; `seen` compares them with the present."""

    def __init__(self, device: Device):
        self._device = device
        self._load = os.getloadavg()[0]
        self._cpu = parse_cpu_times(kernel_text("/proc/stat"))
        self._own = _own_ticks()
        self._began, self._waits = perf_counter(), _waited_seconds()

    def seen(self, *, clocked: bool = False) -> Fitness:
        """Return the changes since the watch began, with the clock of a GPU now, unless it was `clocked` meanwhile."""
        ticks = parse_cpu_times(kernel_text("/proc/stat"))
        steal = others = None
        if ticks and self._cpu and ticks.total > self._cpu.total:
            total = ticks.total - self._cpu.total
            # some kernels count ticks back
            steal = _share(ticks.steal - self._cpu.steal, total)
            others = _share(ticks.busy - self._cpu.busy - (_own_ticks() - self._own), total)
        waits, seconds = _waited_seconds(), perf_counter() - self._began
        waited = None if waits is None or self._waits is None else _share(waits - self._waits, seconds)
        clock = None
        if self._device.type == "cuda" and not clocked:
            with suppress(Exception):  # it needs NVML, which not every installation has
                clock = torch.cuda.clock_rate() * 1e6
        frequency = kernel_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
        return Fitness(
            steal_share=steal,
            other_share=others,
            waited_share=waited,
            load=self._load,
            frequency_hz=int(frequency) * 1e3 if frequency.isdigit() else None,
            accelerator_clock_hz=clock,
        )


def _share(ticks: float, total: float) -> float:
    return min(max(ticks / total, 0.0), 1.0)


def _own_ticks() -> float:
    """Return this process's CPU time, in the kernel's ticks."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * os.sysconf("SC_CLK_TCK")


def _waited_seconds() -> float | None:
    """Return the seconds that the calling thread waited for a processor while ready to run; None where unknown.

    The second field of schedstat, in nanoseconds (the kernel's Documentation/scheduler/sched-stats.rst).
    """
    fields = kernel_text("/proc/thread-self/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else None


PAIRS = 12
"""The most pairs of builds."""
FEWEST_PAIRS = 6
"""The least pairs of builds for an interval: below six, no signs of the differences are rare enough."""
TURNS = 5
"""The most turns of two builds, each with one sample of either."""
PATIENCE = 4
"""The most time for an interval, as a multiple of the given seconds."""


Built = TypeVar("Built", bound=Any)
"""A `Step`, or another object whose `run` repeats after `restore()`, with its `changed()` and `mode()`."""
Settled = dict[str, Any] | None
"""GradScaler's settled state; None without one."""


def warm_up(step: Step, settled: Settled = None) -> Settled:
    """Run a step; return GradScaler's settled state: `settled`, where it is known already."""
    if isinstance(step, TrainingStep):
        return step.start(settled)
    with step.mode():
        step.run()
    step.changed()  # found now, before anything is timed
    return None


def settled_peaks(
    builds: Sequence[Callable[[], Step]], settled: Sequence[Settled], device: Device, notes: list[str]
) -> list[int | None]:
    """Return the peak in bytes of a step of each build, with GradScaler in its `settled` state.

    Where one does not fit into the memory, all are None, with a note.
    """

    def ready(build: Callable[[], Step], state: Settled) -> Step:
        step = build()
        if isinstance(step, TrainingStep):
            step.settle_at(state)
        return step

    peaks: list[int | None] = []
    try:
        for pair in peaks_of([partial(ready, *both) for both in zip(builds, settled, strict=True)], device):
            peaks.append(pair[1].peak)
            del pair
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        notes.append("the peak of memory was not measured: there is no room for it")
        return [None] * len(builds)
    return peaks


def side_by_side(
    builds: Sequence[Callable[[], Built]],
    warm: Callable[[Built, int], object],
    device: Device,
    seconds: float,
    notes: list[str],
) -> list[list[list[float]]]:
    """Return the samples of each build, taken in turns for about `seconds`: `[place][build]` are seconds per run.

    It takes more time where an interval needs more, at most `PATIENCE` times as much. All are rebuilt together at
    random places in memory, and each is made `warm`, with its place; where memory does not allow that, one after the
    other, with a note.
    """
    samples: list[list[list[float]]] = [[] for _ in builds]
    draw = random.Random(0)
    order = list(range(len(builds)))
    apart = False
    placement = Placement(random.Random(0))
    start = perf_counter()
    for number in range(PAIRS):
        placement.move()
        draw.shuffle(order)
        budget = seconds / PAIRS / 2
        if not apart:
            try:
                taken = _taken(builds, warm, device, budget, order)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                apart = True
                notes.append("timed one after the other: there is no room to build all side by side")
        if apart:
            taken = {}
            for place in order:
                taken |= _taken(builds, warm, device, budget / len(order), [place])
        for place, times in taken.items():
            samples[place].append(times)
        spent = perf_counter() - start
        if spent + spent / (number + 1) > (seconds if number + 1 >= FEWEST_PAIRS else PATIENCE * seconds):
            break
    return samples


def _taken(
    builds: Sequence[Callable[[], Built]],
    warm: Callable[[Built, int], object],
    device: Device,
    seconds: float,
    order: Sequence[int],
) -> dict[int, list[float]]:
    """Build the places in `order` together, and return the samples of each, in seconds per step, by its place.

    They are taken in turns for about `seconds`, at least one of each. A different step begins each turn.
    """
    device.release()
    steps = {place: builds[place]() for place in order}
    for place, step in steps.items():
        warm(step, place)

    def sample(place: int, count: int) -> float:
        step = steps[place]
        step.restore()
        device.synchronize()
        with step.mode():
            return device.seconds(step.run, count) / count

    once = max(sample(place, 1) for place in order)
    apart = any(step.changed() for step in steps.values())
    count, turns = plan_samples(once, device.timer_seconds, seconds / len(order), TURNS, apart)
    samples: dict[int, list[float]] = {place: [] for place in order}
    for turn in range(turns):
        first = turn % len(order)
        for place in (*order[first:], *order[:first]):
            samples[place].append(sample(place, count))
    return samples
