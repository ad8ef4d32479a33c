"""Timing and placement with a scripted device: no test waits for a clock.

And how quiet the machine was during a round, from counters that are told.
"""

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampbench.core import stats
from ampbench.records.measured import CpuTimes, Fitness
from ampbench.worker import timing
from ampbench.worker.environment import Sampler
from ampbench.worker.machine import Cpu
from ampbench.worker.timing import (
    TIMER_SHARE,
    FitnessWatch,
    Placement,
    Timing,
    plan_samples,
    time_build,
    time_sustained,
)
from tests.scripted_accelerator import FULL_HZ, Script, ScriptedAccelerator, falling


class ScriptedDevice:
    """A device whose steps take the seconds a script gives; the last one goes on for ever."""

    type = "fake"

    def __init__(self, script: list[float], timer_seconds: float = 1e-7):
        self.timer_seconds = timer_seconds
        self.asked: list[int] = []
        self._script = self._endless(script)

    @staticmethod
    def _endless(script: list[float]) -> Iterator[float]:
        yield from script
        while True:
            yield script[-1]

    def seconds(self, step: Callable[[], object], count: int) -> float:
        self.asked.append(count)
        return sum(next(self._script) for _ in range(count))

    def synchronize(self) -> None:
        pass


def test_a_slow_start_is_warmed_up_and_not_among_the_samples() -> None:
    device = ScriptedDevice([0.5, 0.02, 0.005, 0.003, 0.001])
    timing = time_build(lambda: None, device, budget_seconds=0.6, max_samples=60)
    assert timing.warmup_steps >= 4
    assert timing.samples == pytest.approx([0.001] * len(timing.samples))


def test_a_step_longer_than_its_budget_gets_one_warm_up_and_one_sample() -> None:
    device = ScriptedDevice([0.9, 0.8])
    timing = time_build(lambda: None, device, budget_seconds=0.1, max_samples=60)
    assert (timing.samples, timing.warmup_steps) == ([0.8], 1)


def test_training_state_is_restored_before_every_sample_and_outside_the_clock() -> None:
    events: list[str] = []

    class Recording(ScriptedDevice):
        def seconds(self, step: Callable[[], object], count: int) -> float:
            events.append("timed")
            return super().seconds(step, count)

    device = Recording([0.01])
    time_build(lambda: None, device, budget_seconds=0.1, max_samples=10, restore=lambda: events.append("restored"))
    assert events[::2] == ["restored"] * (len(events) // 2)
    assert events[1::2] == ["timed"] * (len(events) // 2)


class Clocks:
    """What the operating system tells of a thread: a step takes `wall` seconds, computes for `cpu`, waits `waits`."""

    type = "cpu"
    timer_seconds = 1e-7

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wall: float, cpu: float, waits: int):
        self._wall, self._cpu, self._waits = wall, cpu, waits
        self._computed, self._waited = 0.0, 0
        monkeypatch.setattr(timing, "thread_time", lambda: self._computed)
        monkeypatch.setattr(timing, "_own_waits", lambda: self._waited)

    def seconds(self, step: Callable[[], object], count: int) -> float:
        self._computed += count * self._cpu
        self._waited += count * self._waits
        return count * self._wall

    def synchronize(self) -> None:
        pass


def test_a_sample_on_a_cpu_comes_with_the_cpu_time_of_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    found = time_build(lambda: None, Clocks(monkeypatch, 0.01, 0.004, 0), budget_seconds=0.1, max_samples=5)
    assert found.cpu_samples == pytest.approx([0.004] * len(found.samples))


def test_a_step_that_waits_of_its_own_accord_has_no_cpu_time_to_hold_its_time_against(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = time_build(lambda: None, Clocks(monkeypatch, 0.01, 0.001, 1), budget_seconds=0.1, max_samples=5)
    assert found.cpu_samples is None


def test_the_cpu_time_of_a_real_step_is_its_time_and_that_of_a_sleeping_one_is_not() -> None:
    assert time_build(lambda: time.sleep(1e-4), Cpu(), budget_seconds=0.01, max_samples=5).cpu_samples is None
    found = time_build(lambda: sum(range(1000)), Cpu(), budget_seconds=0.01, max_samples=5)
    assert found.cpu_samples is not None
    assert min(found.cpu_samples) > 0


@given(st.floats(1e-7, 10.0), st.sampled_from([1e-7, 1e-6]), st.floats(0.01, 10.0), st.integers(1, 200))
def test_samples_are_long_enough_for_the_timer_and_never_too_many(
    step: float, timer: float, budget: float, most: int
) -> None:
    count, wanted = plan_samples(step, timer, budget, most)
    assert 1 <= wanted <= most
    assert count >= 1
    if step < budget:
        assert timer <= TIMER_SHARE * count * step * (1 + 1e-9)
        assert wanted * count * step >= 0.4 * min(budget, most * count * step)
    else:
        assert (count, wanted) == (1, 1)


def addresses(seed: int, builds: int) -> list[int]:
    placement, kept, found = Placement(random.Random(seed)), [], []
    for _ in range(builds):
        placement.move()
        kept.append(torch.empty(1 << 16, dtype=torch.uint8))
        found.append(kept[-1].data_ptr())
    return found


def test_every_build_lands_elsewhere() -> None:
    found = addresses(0, 10)
    assert len(set(found)) == 10


def seen(monkeypatch: pytest.MonkeyPatch, ticks: list[CpuTimes | None], own: list[float]) -> Fitness:
    taken = iter(ticks)
    monkeypatch.setattr(timing, "parse_cpu_times", lambda _: next(taken))
    monkeypatch.setattr(timing, "_own_ticks", iter(own).__next__)
    return FitnessWatch(Cpu()).seen()


def test_others_have_what_was_busy_and_not_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = [CpuTimes(busy=100, steal=0, total=1000), CpuTimes(busy=180, steal=20, total=1200)]
    found = seen(monkeypatch, ticks, [5.0, 55.0])
    assert found.other_share == pytest.approx(0.15)
    assert found.steal_share == pytest.approx(0.1)


def sustained(script: Script, budget: float = 1.0, **given: Any) -> tuple[Timing, ScriptedAccelerator, Sampler]:
    """Return what timing a scripted accelerator gives, the device, and its sampler."""
    device = ScriptedAccelerator(script)
    sampler = device.watched()
    found = time_sustained(
        lambda: None,
        device,
        budget_seconds=budget,
        max_samples=200,
        clock_hz=sampler.clock_hz,
        clock=device.clock,
        **given,
    )
    return found, device, sampler


def test_a_steady_accelerator_warms_for_two_seconds_and_its_windows_are_its_burst() -> None:
    found, device, _ = sustained(Script())
    assert found.steady
    assert 2.0 <= found.spans[0][0] < 2.5
    assert found.windows == pytest.approx([1e-3])
    assert found.burst_seconds == pytest.approx(1e-3)
    assert all(end - begin >= timing.WINDOW_SECONDS for begin, end in found.spans)
    assert found.samples == pytest.approx([1e-3] * len(found.samples))
    assert device.script.now >= 3.0


def test_a_clock_that_falls_under_load_is_waited_for_and_the_burst_is_what_it_was_before() -> None:
    found, _, sampler = sustained(Script(clock_hz=falling(FULL_HZ, 1.6e9, 0.5, 4.5)))
    assert found.steady
    assert found.spans[0][0] > 4.5
    assert found.windows == pytest.approx([2e6 / 1.6e9])
    assert found.burst_seconds == pytest.approx(1e-3)
    told = sampler.telemetry(found.spans)
    assert told.clock_hz == pytest.approx(1.6e9)


def test_a_clock_that_never_comes_to_rest_is_measured_all_the_same_and_told() -> None:
    found, _, _ = sustained(Script(clock_hz=falling(FULL_HZ, 0.2e9, 0.0, 60.0)))
    assert found.steady is False
    assert found.spans[0][0] == pytest.approx(timing.WARM_LIMIT_SECONDS, abs=1.5)


def test_a_step_bound_by_something_else_is_warm_only_when_the_clock_rests_too() -> None:
    clock = falling(FULL_HZ, 1.6e9, 0.0, 4.0)
    found, _, _ = sustained(Script(clock_hz=clock, work=0.0, fixed=1e-3))
    assert found.spans[0][0] > 4.0


def test_a_device_with_bursts_has_the_time_that_it_keeps_up() -> None:
    """Full speed in two tenths of every second: the fastest sample knows nothing of the rest."""
    found, _, _ = sustained(Script(clock_hz=lambda now: FULL_HZ if now % 1.0 < 0.2 else 1.0e9), budget=5.0)
    assert found.burst_seconds == pytest.approx(1e-3)
    # in a second: x steps of 1 ms for 0.2 s, then steps of 2 ms for 0.8 s
    assert stats.round_value([found.samples], None, [found.windows or []]) == pytest.approx(1 / (200 + 400), rel=0.05)


def test_a_build_after_another_is_warmed_for_half_a_window_alone() -> None:
    found, _, _ = sustained(Script(), warm=True)
    assert found.spans[0][0] < 1.0
    assert found.steady is None


def test_a_step_of_many_seconds_gets_a_window_of_its_own() -> None:
    found, _, _ = sustained(Script(work=0.0, fixed=30.0))
    assert found.windows == [30.0]
    assert found.steps_per_sample == 1
    assert found.warmup_steps == 2


def test_steps_that_must_stand_apart_are_samples_of_one_and_the_host_ends_their_window() -> None:
    device = ScriptedAccelerator(Script(work=0.0, fixed=1e-3))

    def restore() -> None:
        device.script.now += 9e-3

    found = time_sustained(
        lambda: None,
        device,
        budget_seconds=1.0,
        max_samples=20,
        restore=restore,
        apart=True,
        clock=device.clock,
    )
    assert (found.steps_per_sample, len(found.samples)) == (1, 20)
    assert found.windows == pytest.approx([1e-3])
    assert found.spans[0][1] - found.spans[0][0] == pytest.approx(1.0, abs=0.02)
    assert found.burst_seconds == pytest.approx(1e-3)


def test_training_is_restored_once_a_window_so_that_the_device_stays_under_load() -> None:
    device = ScriptedAccelerator(Script())

    def from_host() -> None:
        device.script.now += 0.3

    timed = time_sustained(
        lambda: None, device, budget_seconds=4.0, max_samples=200, restore=from_host, warm=True, clock=device.clock
    )
    lengths = [end - begin for begin, end in timed.spans]
    assert lengths == pytest.approx([1.3] * 4, abs=0.12)
    assert timed.windows == pytest.approx([1e-3] * 4)
