"""How quiet the machine was during a round, from counters that are told."""

import pytest

from ampbench.measure import timing
from ampbench.measure.machine import Cpu
from ampbench.measure.timing import FitnessWatch
from ampbench.records.measured import CpuTimes, Fitness


def seen(monkeypatch: pytest.MonkeyPatch, ticks: list[CpuTimes | None], own: list[float]) -> Fitness:
    monkeypatch.setattr(timing, "_cpu_ticks", iter(ticks).__next__)
    monkeypatch.setattr(timing, "_own_ticks", iter(own).__next__)
    return FitnessWatch(Cpu()).seen()


def test_others_have_what_was_busy_and_not_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = [CpuTimes(busy=100, steal=0, total=1000), CpuTimes(busy=180, steal=20, total=1200)]
    found = seen(monkeypatch, ticks, [5.0, 55.0])
    assert found.other_share == pytest.approx(0.15)
    assert found.steal_share == pytest.approx(0.1)


def test_a_coarse_clock_gives_no_negative_share(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = [CpuTimes(busy=100, steal=0, total=1000), CpuTimes(busy=104, steal=0, total=1010)]
    assert seen(monkeypatch, ticks, [0.0, 5.0]).other_share == 0.0


def test_a_machine_that_does_not_tell_has_no_share(monkeypatch: pytest.MonkeyPatch) -> None:
    found = seen(monkeypatch, [None, None], [0.0, 0.0])
    assert (found.steal_share, found.other_share) == (None, None)
    same = CpuTimes(busy=100, steal=0, total=1000)
    assert seen(monkeypatch, [same, same], [0.0, 0.0]).other_share is None
