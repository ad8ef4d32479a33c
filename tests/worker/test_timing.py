"""Timing and placement with a scripted device, how quiet the machine was, and an accelerator's sensors, made up."""

import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampbench.core import stats
from ampbench.records.measured import CpuTimes, Fitness
from ampbench.worker import environment, timing
from ampbench.worker.environment import (
    MIG,
    MOST_SHARE,
    PERIOD_SECONDS,
    NoSourceError,
    Nvml,
    Reading,
    Sampler,
    mean_power,
)
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
from tests.scripted_accelerator import FULL_HZ, Script, ScriptedAccelerator, ScriptedSource, falling


class ScriptedDevice:
    """A device whose steps take the seconds a script gives; the last one goes on for ever."""

    type = "fake"

    def __init__(self, script: list[float], timer_seconds: float = 1e-7):
        self.timer_seconds = timer_seconds
        self.asked: list[int] = []
        self._script = itertools.chain(script, itertools.repeat(script[-1]))

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
        lambda: None, device, budget_seconds=budget, max_samples=200, clock_hz=sampler.clock_hz, clock=device.clock,
        **given,
    )  # fmt: skip
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
        lambda: None, device, budget_seconds=1.0, max_samples=20, restore=restore, apart=True, clock=device.clock
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


class NVMLError(Exception):
    """As pynvml's."""


def by_names(uuid: str, *known: str) -> str:
    if uuid not in known:
        raise NVMLError("Not Found")
    return "handle"


def made_nvml(**changes: Any) -> SimpleNamespace:
    """Return a module as pynvml, of one GPU, of which `changes` replace functions; an exception is raised by them."""

    def answering(value: Any) -> Callable[..., Any]:
        def answer(*_: Any) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        return value if callable(value) else answer

    fields: dict[str, Any] = {
        "nvmlInit": None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: by_names(uuid, "GPU-aaaa"),
        "nvmlDeviceGetMigMode": NVMLError("Not Supported"),
        "nvmlDeviceGetClockInfo": 1755,
        "nvmlDeviceGetPowerUsage": 612_500,
        "nvmlDeviceGetCurrentClocksEventReasons": 0x4 | 0x40,
        "nvmlDeviceGetEnforcedPowerLimit": 500_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=5 << 30),
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=os.getpid(), usedGpuMemory=1)],
        "nvmlDeviceGetProcessUtilization": [],
    }
    made = {name: answering(value) for name, value in (fields | changes).items()}
    return SimpleNamespace(NVMLError=NVMLError, NVML_CLOCK_SM=1, **made)


def opened(
    monkeypatch: pytest.MonkeyPatch, uuid: str = "aaaa", capability: tuple[int, int] = (9, 0), **changes: Any
) -> Nvml:
    monkeypatch.setitem(sys.modules, "pynvml", made_nvml(**changes))
    return Nvml.open(uuid, capability)


def with_gpu(monkeypatch: pytest.MonkeyPatch, uuid: str) -> None:
    card = SimpleNamespace(uuid=uuid, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: card)


def test_nvml_tells_clock_power_and_what_limits_in_base_units(monkeypatch: pytest.MonkeyPatch) -> None:
    found = opened(monkeypatch).read(7.0)
    assert found == Reading(7.0, 1.755e9, 612.5, frozenset({"power limit", "heat"}))


def test_the_gpu_is_found_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened(monkeypatch, "GPU-aaaa")._handle == opened(monkeypatch, "aaaa")._handle == "handle"
    with pytest.raises(NoSourceError, match="Not Found"):
        opened(monkeypatch, "bbbb")


@pytest.mark.parametrize(
    ("uuid", "changes"),
    [
        ("aaaa", {"nvmlDeviceGetMigMode": [1, 1]}),
        ("MIG-cccc", {"nvmlDeviceGetHandleByUUID": lambda uuid: by_names(uuid, "MIG-cccc")}),
    ],
    ids=["a GPU in that mode", "the id of an instance"],
)
def test_an_instance_of_a_gpu_has_no_sensors_and_is_told_so(
    monkeypatch: pytest.MonkeyPatch, uuid: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(NoSourceError) as told:
        opened(monkeypatch, uuid, **changes)
    assert str(told.value) == MIG
    with_gpu(monkeypatch, uuid)
    found = environment.state_of("cuda")
    assert found.mig
    assert found.unavailable == [MIG]


def test_no_module_no_driver_and_rocm_are_each_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoSourceError, match="Driver Not Loaded"):
        opened(monkeypatch, nvmlInit=NVMLError("Driver Not Loaded"))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NoSourceError, match=r'pip install "ampbench\[cuda\]"'):
        Nvml.open("aaaa", (9, 0))
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(NoSourceError, match="ROCm"):
        Nvml.open("aaaa", (9, 0))


def test_what_a_laptop_does_not_tell_is_said_and_the_rest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = opened(
        monkeypatch,
        nvmlDeviceGetPowerUsage=NVMLError("Not Supported"),
        nvmlDeviceGetEnforcedPowerLimit=NVMLError("Not Supported"),
    )
    assert found.read(0.0).power_watts is None
    assert found.read(0.0).clock_hz == 1.755e9
    state = found.state()
    assert state.power_limit_watts is None
    assert state.unavailable == [
        "NVML does not report the power: NVMLError: Not Supported",
        "NVML does not report the limit of the power: NVMLError: Not Supported",
    ]


def test_another_process_is_named_and_this_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    parent, own = os.getppid(), os.getpid()
    name = Path(f"/proc/{parent}/comm").read_text().strip()
    running = [SimpleNamespace(pid=own, usedGpuMemory=1), SimpleNamespace(pid=parent, usedGpuMemory=3 << 30)]
    assert opened(monkeypatch, nvmlDeviceGetComputeRunningProcesses=running).others() == [f"{parent} {name} (3.00 GiB)"]


@pytest.mark.parametrize("pids", [(), (4_100_001,), (4_100_001, 4_100_002)])
def test_a_list_that_lacks_this_process_shows_nobody_and_the_state_says_so(
    monkeypatch: pytest.MonkeyPatch, pids: tuple[int, ...]
) -> None:
    running = [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in pids]
    source = opened(monkeypatch, nvmlDeviceGetComputeRunningProcesses=running)
    assert source.others() is None
    assert source.state().unavailable == [environment.UNSEEN]


def test_the_share_of_others_is_that_of_their_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    def util(pid: int, share: int) -> SimpleNamespace:
        return SimpleNamespace(pid=pid, smUtil=share, timeStamp=1)

    told = [util(os.getpid(), 60), util(os.getppid(), 40), util(os.getppid(), 20)]
    assert opened(monkeypatch, nvmlDeviceGetProcessUtilization=told).other_share(0.0) == pytest.approx(0.3)
    assert opened(monkeypatch, nvmlDeviceGetProcessUtilization=told[1:]).other_share(0.0) is None
    assert opened(monkeypatch, nvmlDeviceGetProcessUtilization=NVMLError("Not Found")).other_share(0.0) is None


def test_a_gpu_that_is_lost_ends_the_readings_with_what_nvml_said(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([1755, 1755])

    def clock(*_: Any) -> int:
        try:
            return next(answers)
        except StopIteration:
            raise NVMLError("GPU is lost") from None

    sampler = Sampler(opened(monkeypatch, nvmlDeviceGetClockInfo=clock))
    sampler.take()
    sampler.take()
    assert len(sampler.readings) == 1
    assert "GPU is lost" in sampler.ended


@pytest.mark.parametrize(("mark", "own"), [("7-ab", True), ("70-ab", False), ("8-ab", False)])
def test_workers_of_one_driver_are_own_and_those_of_another_are_not(
    mark: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = subprocess.Popen(["sleep", "60"], env={environment.MARK: mark, "PATH": os.environ["PATH"]})
    try:
        monkeypatch.setenv(environment.MARK, "7-cd")
        assert environment.is_own(other.pid) == own
        monkeypatch.delenv(environment.MARK)
        assert not environment.is_own(other.pid)
        assert environment.is_own(os.getpid())
    finally:
        other.kill()
        other.wait()


def test_reading_a_slow_sensor_takes_no_more_than_its_share_of_the_time() -> None:
    """The cost of a reading times how often there is one, counted on a scripted clock."""
    for cost in (50e-6, 4e-3, 30e-3):
        now = [0.0]

        class Slow(ScriptedSource):
            def read(self, at: float) -> Reading:
                now[0] += cost  # noqa: B023 - called within the loop's turn
                return Reading(at)

        sampler = Sampler(cast("Nvml", Slow(Script())), clock=lambda: now[0])  # noqa: B023
        began = sampler.take()
        for _ in range(20):
            now[0] += sampler.period
            sampler.take()
        assert began is None
        assert sum(sampler.costs[1:]) / now[0] <= MOST_SHARE
        assert sampler.period == pytest.approx(max(PERIOD_SECONDS, cost / MOST_SHARE))


def test_what_a_driver_raises_as_its_device_goes_ends_the_thread_and_nothing_else() -> None:
    class Broken(ScriptedSource):
        def read(self, at: float) -> Reading:
            raise OSError("ioctl failed")

    with Sampler(cast("Nvml", Broken(Script()))) as sampler:
        sampler._thread.join(30)
    assert sampler.telemetry([(0.0, 1.0)]).unavailable == "OSError: ioctl failed"


def test_the_mean_power_is_the_integral_of_the_readings_over_the_windows() -> None:
    """Held against the closed form of power that rises by the square: 100 + 10 t², read 100 times a second."""
    readings = [Reading(number / 100, power_watts=100 + 10 * (number / 100) ** 2) for number in range(1001)]
    windows = [(1.0, 2.5), (4.0, 9.0)]
    exact = sum(100 * (end - begin) + 10 * (end**3 - begin**3) / 3 for begin, end in windows) / 6.5
    assert mean_power(readings, windows) == pytest.approx(exact, rel=1e-5)


def test_telemetry_is_of_the_windows_alone_and_its_shares_are_counted() -> None:
    script = Script(
        clock_hz=falling(2e9, 1.5e9, 1.0, 2.0),
        limits=lambda now: frozenset({"power limit"}) if now > 1.5 else frozenset(),
        power_watts=lambda now: 300.0 if now < 2.0 else 500.0,
        others=["4711 python3 (2.00 GiB)"],
        other_share=0.25,
    )
    device = ScriptedAccelerator(script)
    device.seconds(lambda: None, 4000)
    told = device.watched().telemetry([(0.2, 0.6), (2.6, 3.0)])
    assert (told.first_clock_hz, told.last_clock_hz) == (2e9, 1.5e9)
    assert told.limited == {"power limit": pytest.approx(0.5, abs=0.07)}
    assert told.power_watts == pytest.approx(400.0)
    assert (told.power_low_watts, told.power_high_watts) == (300.0, 500.0)
    assert told.window_seconds == pytest.approx(0.8)
    assert (told.processes, told.other_share) == (["4711 python3 (2.00 GiB)"], 0.25)
    assert told.readings == pytest.approx(16, abs=2)
    assert told.source == "scripted"
    assert told.unavailable == ""


def test_a_pynvml_too_old_to_know_a_question_is_a_reason_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    old = made_nvml()
    del old.nvmlDeviceGetMigMode
    monkeypatch.setitem(sys.modules, "pynvml", old)
    with_gpu(monkeypatch, "aaaa")
    assert "nvmlDeviceGetMigMode" in environment.sampler_of("cuda").ended
    assert environment.state_of("cuda").unavailable
