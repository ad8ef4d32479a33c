"""An accelerator that follows a script: how fast it steps, what its sensors tell, and when it stops answering.

Nobody waits: time is a number that steps, readings and a host's work move on. A script is a function of that time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from ampbench.records.case import DeviceDescription, DeviceState
from ampbench.worker.environment import NoSourceError, Nvml, Reading, Sampler

FULL_HZ = 2e9
_ALL = {"fp32": "native", "bf16": "native", "fp16": "native"}
H100 = DeviceDescription(type="cuda", available=True, tf32=True, memory_bytes=80 << 30, arithmetic=_ALL)
A770 = DeviceDescription(
    type="xpu", available=True, tf32=True, float64=False, memory_bytes=16 << 30, arithmetic=_ALL
)  # fmt: skip


@dataclass
class Script:
    """What a device does at a time `now`: its clock, what holds that down, its power, who else is there.

    A step takes `work` cycles and `fixed` seconds. From `gone` seconds on it does not answer.
    """

    clock_hz: Callable[[float], float] = lambda now: FULL_HZ
    limits: Callable[[float], frozenset[str]] = lambda now: frozenset()
    power_watts: Callable[[float], float] = lambda now: 400.0
    work: float = 2e6
    fixed: float = 0.0
    others: list[str] = field(default_factory=list)
    other_share: float | None = 0.0
    gone: float = float("inf")
    now: float = 0.0

    def step_seconds(self) -> float:
        return self.work / self.clock_hz(self.now) + self.fixed


class ScriptedAccelerator:
    """The device of a script; readings are had every 50 ms of its time, as by the thread."""

    type = "cuda"
    timer_seconds = 1e-6

    def __init__(self, script: Script):
        self.script = script
        self.sampler = Sampler(cast("Nvml", ScriptedSource(script)), clock=lambda: script.now)
        self._next = 0.0

    def clock(self) -> float:
        return self.script.now

    def seconds(self, step: Callable[[], object], count: int) -> float:
        if self.script.now >= self.script.gone:
            raise RuntimeError("CUDA error: unspecified launch failure")
        step()
        total = 0.0
        while count > 0:  # steps between two readings at once
            each = self.script.step_seconds()
            some = min(count, max(1, int((self._next - self.script.now) / each)))
            self.script.now += some * each
            total, count = total + some * each, count - some
            self._read()
        return total

    def _read(self) -> None:
        while self.script.now >= self._next:
            if not self.sampler.ended:
                self.sampler.take()
            self._next += 0.05

    def synchronize(self) -> None:
        pass

    def allocated_bytes(self) -> int:
        return 0

    def reset_peak(self) -> None:
        pass

    def peak_bytes(self) -> int:
        return 0

    def reserved_bytes(self) -> int | None:
        return None

    def drop_workspaces(self) -> None:
        pass

    def release(self) -> None:
        self.script.now += 0.2  # a host's work between two builds

    def watched(self) -> Sampler:
        self.sampler._thread.run = lambda: None  # type: ignore[method-assign]
        return self.sampler


class ScriptedSource:
    name = "scripted"
    averaged_seconds = 1.0

    def __init__(self, script: Script):
        self._script = script
        self.lacks: list[str] = []

    def read(self, at: float) -> Reading:
        if at >= self._script.gone:
            raise NoSourceError("the GPU is lost")
        script = self._script
        return Reading(at, script.clock_hz(at), script.power_watts(at), script.limits(at))

    def state(self) -> DeviceState:
        return DeviceState(source=self.name, processes=self._script.others)

    def others(self) -> list[str]:
        return self._script.others

    def other_share(self, since: float) -> float | None:
        return self._script.other_share


def falling(from_hz: float, to_hz: float, begin: float, end: float) -> Callable[[float], float]:
    """Return a clock that falls from one to the other, by a straight line from `begin` to `end`."""

    def clock(now: float) -> float:
        share = min(1.0, max(0.0, (now - begin) / (end - begin)))
        return from_hz + share * (to_hz - from_hz)

    return clock
