"""How long a step takes: warm-up until settled, samples, builds at random places in memory, turns with other steps.

Where in memory a build lands is the largest source of luck in small CPU cells, so it is drawn anew for every build.
The idea is Stabilizer's (Curtsinger and Berger, ASPLOS 2013): what cannot be controlled is randomised, so that it shows
up as spread between builds instead of as a difference between runs. How quiet the machine was meanwhile is noted.
"""

import math
import os
import random
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeVar

import torch

from ampbench.records.measured import CpuTimes, Fitness, Telemetry, parse_cpu_times
from ampbench.worker.machine import Device
from ampbench.worker.memory import is_out_of_memory, peaks_of
from ampbench.worker.step import Step, TrainingStep
from ampbench.worker.telemetry import kernel_text

SPACER_BYTES = 4 << 20
"""Spacers are up to this large: several times a core's L2 cache, so that every offset into it can occur."""
LINE_BYTES = 64
SMALL_SPACERS = 8


class Placement:
    """Holds spacers of random size alive, so that what is allocated next begins at a random place."""

    def __init__(self, draw: random.Random):
        self._draw = draw
        self._spacers: list[torch.Tensor] = []

    def move(self) -> None:
        """Let the next allocations begin somewhere else: small spacers move the heap, a large one the mappings."""
        lines = SPACER_BYTES // LINE_BYTES
        small = [self._draw.randrange(1, 1024) for _ in range(self._draw.randrange(SMALL_SPACERS))]
        sizes = [*small, self._draw.randrange(1, lines)]
        self._spacers += [torch.empty(lines * LINE_BYTES, dtype=torch.uint8) for lines in sizes]


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
    `time_sustained` also gives the seconds per step over each of its `windows`, when these were (`spans`, by the clock
    it was given), for how long it warmed up, whether to a steady state (None: it had done so before), and the seconds
    per step of the fastest sample, warming included.
    """

    samples: list[float]
    steps_per_sample: int
    warmup_steps: int
    cpu_samples: list[float] | None = None
    windows: list[float] | None = None
    spans: list[tuple[float, float]] = field(default_factory=list)
    warm_seconds: float = 0.0
    steady: bool | None = None
    burst_seconds: float | None = None


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


WINDOW_SECONDS = 1.0
"""How long a window is at least: power is averaged over a second (NVML), and a clock follows it within less."""
WARM_LIMIT_SECONDS = 20.0
"""Warming up ends here, steady or not: a card's heat takes minutes to come to rest, its power limit tenths of a second.
What moves more slowly is seen in the clocks of windows and of rounds."""
STEADY = 0.01
"""Time and clock are steady where two windows, one after the other, differ by no more: clocks move in steps of 15 MHz,
0.8% of 2 GHz."""
SAMPLES_PER_WINDOW = 10
"""So many samples a window has at most; fewer where a step takes longer."""


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
    """Time `step` on an accelerator as fast as it goes on: in windows of `WINDOW_SECONDS`, one at least.

    As many fill the budget, warm-up not counted. Before, windows are run until two that follow each other do not
    differ by more than `STEADY` in time, nor in the clock that `clock_hz` tells of the span of each (None: not told),
    for `WARM_LIMIT_SECONDS` at most. With `warm` the device has just been under this load, and half a window is run.
    `restore`, `apart` and `max_samples` as in `time_build`, but a window restores once (`apart`: before each sample): a
    device that waits for state from the host in every sample cools down. `clock` is the host's.
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
        """Return the seconds per step over a window, its samples, and from when to when it was."""
        taken: list[float] = []
        began, spent = clock(), 0.0
        while not taken or (spent < least and not (apart and clock() - began >= least)):
            taken.append(sample(first=not taken))
            spent += taken[-1] * count
        return spent / (len(taken) * count), taken, (began, clock())

    began = clock()
    last = sample()
    while not apart and count * last < 0.8 * length:  # a sample of the length aimed at may well be a little shorter
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
        steady = before is not None and all(map(_alike, before, now))
        if steady or clock() - began >= WARM_LIMIT_SECONDS:
            break
        before = now
    warmed, warm_seconds = run, clock() - began
    wanted = max(1, round(budget_seconds / WINDOW_SECONDS))
    taken = [window(WINDOW_SECONDS) for _ in range(wanted)]
    kept = max(1, max_samples // wanted)
    return Timing(
        [one for _, samples, _ in taken for one in samples[:kept]],
        count,
        warmed,
        windows=[seconds for seconds, _, _ in taken],
        spans=[span for _, _, span in taken],
        warm_seconds=warm_seconds,
        steady=steady,
        burst_seconds=burst if math.isfinite(burst) else None,
    )


def _alike(before: float | None, now: float | None) -> bool:
    """Return whether two numbers differ by no more than `STEADY`; what is not told differs from nothing."""
    return before is None or now is None or abs(now / before - 1) <= STEADY


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


class FitnessWatch:
    """The machine's counters at the start of a round; `seen` compares them with now."""

    def __init__(self, device: Device):
        self._device = device
        self._load = os.getloadavg()[0]
        self._cpu = _cpu_ticks()
        self._own = _own_ticks()
        self._began, self._waits = time.perf_counter(), _waited_seconds()

    def seen(self, telemetry: Telemetry | None = None) -> Fitness:
        """Return what has changed since the watch began; clock and temperature of an accelerator are `telemetry`'s.

        Without it they are asked for now, when the device may be idle already.
        """
        ticks = _cpu_ticks()
        steal = others = None
        if ticks and self._cpu and ticks.total > self._cpu.total:
            total = ticks.total - self._cpu.total
            # kernels have been seen to count a tick back
            steal = _share(ticks.steal - self._cpu.steal, total)
            others = _share(ticks.busy - self._cpu.busy - (_own_ticks() - self._own), total)
        waits, seconds = _waited_seconds(), time.perf_counter() - self._began
        waited = None if waits is None or self._waits is None else _share(waits - self._waits, seconds)
        temperature = clock = None
        if telemetry is not None and telemetry.source:
            temperature, clock = telemetry.temperature_celsius, telemetry.clock_hz
        elif self._device.type == "cuda":
            with suppress(Exception):  # both need NVML, which not every installation has
                temperature, clock = float(torch.cuda.temperature()), torch.cuda.clock_rate() * 1e6
        frequency = kernel_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
        return Fitness(
            steal_share=steal,
            other_share=others,
            waited_share=waited,
            load=self._load,
            frequency_hz=int(frequency) * 1e3 if frequency.isdigit() else None,
            temperature_celsius=temperature,
            accelerator_clock_hz=clock,
        )


def _share(ticks: float, total: float) -> float:
    return min(max(ticks / total, 0.0), 1.0)


def _cpu_ticks() -> CpuTimes | None:
    """Return the ticks of all processors since boot; None where the kernel does not tell."""
    return parse_cpu_times(kernel_text("/proc/stat"))


def _own_ticks() -> float:
    """Return the CPU time that this process has used, in the kernel's ticks."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * os.sysconf("SC_CLK_TCK")


def _waited_seconds() -> float | None:
    """Return how long the calling thread has waited for a processor while ready to run; None where it is not known.

    The second field of schedstat, in nanoseconds (the kernel's Documentation/scheduler/sched-stats.rst).
    """
    fields = kernel_text("/proc/thread-self/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else None


PAIRS = 12
"""Pairs of builds at most."""
FEWEST_PAIRS = 6
"""Pairs of builds an interval needs: under six, no signs of the differences are rare enough."""
TURNS = 5
"""Turns that two builds take at most, each with one sample of either."""
PATIENCE = 4
"""How many times the given seconds an interval is worth."""


class Repeated(Protocol):
    """What can be timed in turns: a `Step`, or anything that `run` does again once `restore` has put its state back."""

    @property
    def run(self) -> Callable[[], Any]:
        """What is timed."""

    def restore(self) -> None:
        """Put the state back."""

    def changed(self) -> list[str]:
        """Return what a run changes in place that the next one would find changed."""

    def mode(self) -> AbstractContextManager[Any]:
        """Return what is held around the runs."""


Built = TypeVar("Built", bound=Repeated)

Settled = dict[str, Any] | None
"""The state GradScaler settled at; None without one."""


def warm_up(step: Step, settled: Settled = None) -> Settled:
    """Run a step; return the state that GradScaler settled at: `settled`, where it is known already."""
    if isinstance(step, TrainingStep):
        return step.start(settled)
    with step.mode():
        step.run()
    step.changed()  # so that it is known before anything is timed
    return None


def settled_peaks(
    builds: Sequence[Callable[[], Step]], settled: Sequence[Settled], device: Device, notes: list[str]
) -> list[int | None]:
    """Return the peak in bytes of a step of each build, whose GradScaler starts at what it `settled` at.

    None of all, which `notes` then say, where one does not fit into the memory.
    """

    def ready(build: Callable[[], Step], state: Settled) -> Step:
        step = build()
        if isinstance(step, TrainingStep):
            step.settle_at(state)
        return step

    peaks: list[int | None] = []
    try:
        for made in peaks_of([partial(ready, *one) for one in zip(builds, settled, strict=True)], device):
            peaks.append(made[1].peak)
            del made
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        notes.append("the peak of memory was not measured: there is no room for it")
        return [None] * len(builds)
    return peaks


def _places(seconds: float) -> Iterator[int]:
    """Let what is compared be built at another random place each time: yield how many builds there were before.

    About `seconds` are spent, more where they would not do for an interval, at most `PATIENCE` times as many.
    """
    placement = Placement(random.Random(0))
    start = perf_counter()
    for number in range(PAIRS):
        placement.move()
        yield number
        spent = perf_counter() - start
        allowed = seconds if number + 1 >= FEWEST_PAIRS else PATIENCE * seconds
        if spent + spent / (number + 1) > allowed:
            break


def _in_turns(steps: Sequence[Repeated], device: Device, seconds: float) -> list[list[float]]:
    """Return samples of each step, in seconds per step, taken in turns for about `seconds`, at least one of each.

    At each turn, the next of them begins.
    """
    samples: list[list[float]] = [[] for _ in steps]

    def sample(place: int, count: int) -> float:
        step = steps[place]
        step.restore()
        device.synchronize()
        with step.mode():
            return device.seconds(step.run, count) / count

    once = max(sample(place, 1) for place in range(len(steps)))
    apart = any(step.changed() for step in steps)
    count, turns = plan_samples(once, device.timer_seconds, seconds / len(steps), TURNS, apart)
    order = range(len(steps))
    for turn in range(turns):
        first = turn % len(order)
        for place in (*order[first:], *order[:first]):
            samples[place].append(sample(place, count))
    return samples


def side_by_side(
    builds: Sequence[Callable[[], Built]],
    warm: Callable[[Built, int], object],
    device: Device,
    seconds: float,
    notes: list[str],
) -> list[list[list[float]]]:
    """Return the samples of each build, taken in turns for about `seconds`: `[place][build]` are seconds per run.

    All are built side by side at random places in memory, again and again, and each is made `warm`, with its place;
    where there is no room for that, which `notes` then say, one after the other.
    """
    samples: list[list[list[float]]] = [[] for _ in builds]
    draw = random.Random(0)
    order = list(range(len(builds)))
    apart = False
    for _ in _places(seconds):
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
        for place, one in taken.items():
            samples[place].append(one)
    return samples


def _taken(
    builds: Sequence[Callable[[], Built]],
    warm: Callable[[Built, int], object],
    device: Device,
    seconds: float,
    order: Sequence[int],
) -> dict[int, list[float]]:
    """Build what `order` names side by side, and return the samples of each by its place."""
    device.release()
    built = [builds[place]() for place in order]
    for one, place in zip(built, order, strict=True):
        warm(one, place)
    return dict(zip(order, _in_turns(built, device, seconds), strict=True))
