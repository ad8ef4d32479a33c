"""The sensors of a CUDA device during a measurement: clock, power, limits, other processes.

NVML (`pynvml` of nvidia-ml-py, imported only here) reports them. A thread reads them while steps are timed (`Sampler`)
and takes at most a hundredth of the time. Where a sensor is missing, the record gives the reason.
"""

import importlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from ampbench.core.units import format_bytes
from ampbench.errors import first_line
from ampbench.records.case import DeviceState
from ampbench.records.measured import HEAT, POWER_BRAKE, POWER_CAP, SLOWDOWN, Telemetry
from ampbench.records.wire import MARK

PERIOD_SECONDS = 0.05
"""The time between readings: NVML refreshes clocks and power only every 20 to 100 ms."""
MOST_SHARE = 0.01
"""The largest share of the time that readings may take: a slow sensor is read less often."""
NVML_POWER_ERROR_WATTS = 5.0
"""nvidia-smi --help-query-gpu, power.draw: "accurate to within +/- 5 watts"."""
NVML_AVERAGED_SECONDS = 1.0
"""nvmlDeviceGetPowerUsage: "On Ampere (except GA100) or newer GPUs, the API returns power averaged over 1 sec interval.
On GA100 and older architectures, instantaneous power is returned."."""
GA100 = (8, 0)
"""The compute capability of GA100."""
MIG = "an instance of a GPU (MIG): NVML reports power and clock of the whole GPU only"

UNSEEN = "other processes on the device are not visible here"


class NoSourceError(Exception):
    """The device has no sensors, or they stopped answering; the text is the reason, without a full stop."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The sensor values `at` a time of the sampler's clock (None: not reported); `limits` are the reasons for a low
    clock."""

    at: float
    clock_hz: float | None = None
    power_watts: float | None = None
    limits: frozenset[str] = frozenset()


class Nvml:
    """NVIDIA's management library, by the module `pynvml` and the `handle` of a device."""

    name = "NVML"

    LIMITS: Mapping[int, str] = {
        0x2: "set clocks",
        0x4: POWER_CAP,
        0x8: SLOWDOWN,
        0x10: "sync boost",
        0x20: HEAT,
        0x40: HEAT,
        0x80: POWER_BRAKE,
        0x100: "set clocks",
    }
    """nvml.h, nvmlClocksEventReasons; 0x1, an idle GPU, is no limit."""

    def __init__(self, nvml: Any, handle: Any, averaged_seconds: float = NVML_AVERAGED_SECONDS):
        self._nvml, self._handle = nvml, handle
        self.averaged_seconds = averaged_seconds
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or getattr(
            nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None
        )
        self._asks: dict[str, Callable[[], Any]] = {
            "clock": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "power": lambda: nvml.nvmlDeviceGetPowerUsage(handle),
            "limits": lambda: reasons(handle) if reasons is not None else None,
        }
        self.lacks: list[str] = []
        for name, ask in list(self._asks.items()):
            try:
                answered = ask() is not None
                why = "not in this NVML"
            except nvml.NVMLError as error:
                answered, why = False, first_line(error)
            if not answered:
                del self._asks[name]
                self.lacks.append(f"{self.name} does not report the {name}: {why}")

    @classmethod
    def open(cls, uuid: str, capability: tuple[int, int]) -> "Nvml":
        """Return the sensors of torch's GPU, whose index may differ in NVML; `NoSourceError` where there are none."""
        if torch.version.hip is not None:
            raise NoSourceError("NVML is NVIDIA's, and this torch was built for ROCm")
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            raise NoSourceError('nvidia-ml-py is not installed: pip install "ampbench[cuda]"') from None
        bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
        try:
            nvml.nvmlInit()
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{bare}")
            except nvml.NVMLError:
                nvml.nvmlDeviceGetHandleByUUID(f"MIG-{bare}")
                raise NoSourceError(MIG) from None
            with suppress(nvml.NVMLError):  # cards without MIG have no such mode
                if nvml.nvmlDeviceGetMigMode(handle)[0]:
                    raise NoSourceError(MIG)
        except nvml.NVMLError as error:
            raise NoSourceError(f"NVML does not answer: {first_line(error)}") from None
        return cls(nvml, handle, 0.0 if capability <= GA100 else NVML_AVERAGED_SECONDS)

    def read(self, at: float) -> Reading:
        """Return the GPU's sensor values at the time `at`; `NoSourceError` where it no longer answers."""
        try:
            values = {name: ask() for name, ask in self._asks.items()}
        except self._nvml.NVMLError as error:
            raise NoSourceError(f"NVML does not answer any more: {first_line(error)}") from None
        clock, power, mask = (values.get(name) for name in ("clock", "power", "limits"))
        return Reading(
            at,
            clock_hz=None if clock is None else clock * 1e6,
            power_watts=None if power is None else power / 1e3,
            limits=frozenset(word for bit, word in self.LIMITS.items() if (mask or 0) & bit),
        )

    def state(self) -> DeviceState:
        """Return the power limits and the other processes."""
        nvml, handle = self._nvml, self._handle
        limit = default = None
        lacks, others = list(self.lacks), self.others()
        try:
            limit = nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3
            default = nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1e3
        except nvml.NVMLError as error:
            lacks.append(f"NVML does not report the limit of the power: {first_line(error)}")
        if others is None:
            lacks.append(UNSEEN)
        return DeviceState(
            source=self.name,
            unavailable=lacks,
            power_limit_watts=limit,
            default_limit_watts=default,
            processes=others or [],
        )

    def others(self) -> list[str] | None:
        """Return the other processes that compute on the GPU, with their memory; None where NVML does not show them.

        In a container, NVML's list lacks even this process.
        """
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            return None
        memory = {process.pid: process.usedGpuMemory for process in running}
        if os.getpid() not in memory:
            return None
        names = {pid: kernel_text(f"/proc/{pid}/comm") or "unknown" for pid in memory if not is_own(pid)}
        sizes = {pid: f" ({format_bytes(memory[pid])})" if memory[pid] else "" for pid in names}
        return [f"{pid} {name}{sizes[pid]}" for pid, name in names.items()]

    def other_share(self, since: float) -> float | None:
        """Return the share of time in which other processes kept multiprocessors busy."""
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, int(since * 1e6))
        except (self._nvml.NVMLError, AttributeError):
            return None
        shares: dict[int, list[float]] = {}
        for sample in samples:
            shares.setdefault(sample.pid, []).append(sample.smUtil / 100)
        if os.getpid() not in shares:
            return None
        return min(1.0, sum(statistics.fmean(used) for pid, used in shares.items() if not is_own(pid)))


def open_source(type: str) -> Nvml:
    """Return the sensors of this process's device of a type; `NoSourceError` without any."""
    if type != "cuda":
        raise NoSourceError(f"no sensors are read on {type}")
    try:
        card = torch.cuda.get_device_properties()
        return Nvml.open(str(card.uuid), (card.major, card.minor))
    except (RuntimeError, AssertionError, AttributeError, OSError) as error:  # torch's: the device is gone, or unknown
        raise NoSourceError(first_line(error)) from None


def state_of(type: str) -> DeviceState:
    """Return the current state of the device of a type, and its other users."""
    try:
        return open_source(type).state()
    except NoSourceError as error:
        return DeviceState(unavailable=[str(error)], mig=str(error) == MIG)


Span = tuple[float, float]
"""Beginning and end of a window, by the sampler's clock."""


class Sampler:
    """Reads a device's sensors repeatedly in a thread, within a `with` statement.

    `readings` are the readings so far, `costs` the seconds of each; `ended` is the reason why they stopped, at once
    without a `source`. Readings are `period` seconds apart: `PERIOD_SECONDS`, or longer where they would take more than
    `MOST_SHARE` of it.
    """

    def __init__(self, source: Nvml | None, ended: str = "", clock: Callable[[], float] = perf_counter):
        self._source, self._clock = source, clock
        self.readings: list[Reading] = []
        self.costs: list[float] = []
        self.ended = ended
        self._since = time.time()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ampbench telemetry", daemon=True)

    @property
    def period(self) -> float:
        """The seconds from one reading to the next."""
        return max(PERIOD_SECONDS, statistics.median(self.costs) / MOST_SHARE if self.costs else 0.0)

    def take(self) -> None:
        """Take one reading; where the source does not answer, set `ended`."""
        assert self._source is not None
        began = self._clock()
        try:
            self.readings.append(self._source.read(began))
        except NoSourceError as error:
            self.ended = str(error)
        except Exception as error:  # noqa: BLE001 - a driver whose device disappears must not end the measurement
            self.ended = first_line(error)
        self.costs.append(self._clock() - began)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self.ended:
            self.take()
            if self._stop.wait(self.period):
                break

    def clock_hz(self, span: Span) -> float | None:
        """Return the median clock in a window; None: not reported."""
        return _median_clock(self._within([span]))

    def telemetry(self, windows: Sequence[Span]) -> Telemetry:
        """Return the telemetry of `windows`, and the other processes."""
        source, ended = self._source, bool(self.ended)
        if source is None:
            return Telemetry(unavailable=self.ended)
        within = self._within(windows)
        powers = [reading.power_watts for reading in within if reading.power_watts is not None]
        limited = {word for reading in within for word in reading.limits}
        first, last = (self.clock_hz(windows[place]) for place in (0, -1)) if windows else (None, None)
        others = None if ended else source.others()
        reasons = [*source.lacks, *([self.ended] if ended else [])]
        if others is None and not ended:
            reasons.append(UNSEEN)
        if not within and not ended:
            reasons.append("no reading fell into a window")
        return Telemetry(
            source=source.name,
            unavailable="; ".join(reasons),
            period_seconds=self.period,
            readings=len(within),
            window_seconds=sum(end - begin for begin, end in windows),
            clock_hz=_median_clock(within),
            first_clock_hz=first,
            last_clock_hz=last,
            limited={word: sum(word in reading.limits for reading in within) / len(within) for word in sorted(limited)},
            power_watts=None if ended else mean_power(list(self.readings), windows),
            power_low_watts=min(powers, default=None),
            power_high_watts=max(powers, default=None),
            power_error_watts=NVML_POWER_ERROR_WATTS if powers else None,
            averaged_seconds=source.averaged_seconds if powers else None,
            processes=others or [],
            other_share=None if ended else source.other_share(self._since),
        )

    def _within(self, windows: Sequence[Span]) -> list[Reading]:
        readings = list(self.readings)
        return [reading for reading in readings if any(begin <= reading.at <= end for begin, end in windows)]


def sampler_of(type: str) -> Sampler:
    """Return the sampler of a device type, for a `with` statement around a measurement."""
    try:
        return Sampler(open_source(type))
    except NoSourceError as error:
        return Sampler(None, str(error))


def mean_power(readings: Sequence[Reading], windows: Sequence[Span]) -> float | None:
    """Return the mean power over `windows` in watts: the time integral of the linearly interpolated readings.

    Power is constant before the first and after the last reading. None without readings of power, or where none is
    within a second of the windows.
    """
    points = [(reading.at, reading.power_watts) for reading in readings if reading.power_watts is not None]
    total = sum(end - begin for begin, end in windows)
    if not points or total <= 0 or all(points[-1][0] < begin - 1 or points[0][0] > end + 1 for begin, end in windows):
        return None
    times, powers = zip(*points, strict=True)
    area = 0.0
    for begin, end in windows:
        at = [begin, *(time for time in times if begin < time < end), end]
        area += float(np.trapezoid(np.interp(at, times, powers), at))
    return area / total


def _median_clock(readings: Iterable[Reading]) -> float | None:
    known = [reading.clock_hz for reading in readings if reading.clock_hz is not None]
    return statistics.median(known) if known else None


def is_own(pid: int) -> bool:
    """Return whether a process is this one, or a worker of another lane of the same session.

    Workers carry `MARK` in their environment; the driver is their first ancestor without it.
    """
    return pid == os.getpid() or (MARK in os.environ and _driver_of(pid) == _driver_of(os.getpid()) is not None)


def _driver_of(pid: int) -> int | None:
    """Return the driver of the server that process `pid` belongs to, None without a visible one."""
    marked = False
    while pid > 1:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
        if not any(variable.startswith(f"{MARK}=".encode()) for variable in environment):
            return pid if marked else None
        marked, pid = True, parent
    return None


def kernel_text(path: str | Path) -> str:
    """Return the text of a kernel file; "" where it is missing or unreadable."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""
