"""An accelerator's sensors during a measurement: clock, power, temperature, limits, other processes.

`SOURCES` has a source for each device type: NVML for CUDA (`pynvml` of nvidia-ml-py, imported only here), the kernel's
sysfs for XPU. A thread reads it while steps are timed (`Sampler`) and takes at most a hundredth of the time. Where a
sensor is missing, the record gives the reason, and nothing else changes.
"""

import importlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
    """The device has no source, or the source stopped answering; the text is the reason, without a full stop."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The sensor values `at` a time of the sampler's clock (None: not reported); `limits` are the reasons for a low
    clock."""

    at: float
    clock_hz: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    limits: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Which:
    """The identity of the measured device, as torch reports it; a source finds the device by one of these."""

    uuid: str = ""
    pci: str = ""
    device_id: int | None = None
    capability: tuple[int, int] | None = None
    rocm: bool = False


def which(type: str) -> Which:
    """Return the identity of this process's device of a type."""
    card = torch.get_device_module(type).get_device_properties()
    address = [
        getattr(card, f"pci_{part}_id") for part in ("domain", "bus", "device") if hasattr(card, f"pci_{part}_id")
    ]
    return Which(
        uuid=str(getattr(card, "uuid", "") or ""),
        pci="{:08x}:{:02x}:{:02x}.0".format(*address) if len(address) == 3 else "",
        device_id=getattr(card, "device_id", None),
        capability=(card.major, card.minor) if hasattr(card, "major") else None,
        rocm=torch.version.hip is not None,
    )


class Nvml:
    """NVIDIA's management library, by the module `pynvml` and the `handle` of a device."""

    name = "NVML"
    power_error_watts: float | None = NVML_POWER_ERROR_WATTS

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
            "temperature": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
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
    def open(cls, device: Which) -> "Nvml":
        """Return the source for a device; `NoSourceError` where there is none."""
        if device.rocm:
            raise NoSourceError("NVML is NVIDIA's, and this torch was built for ROCm")
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            raise NoSourceError('nvidia-ml-py is not installed: pip install "ampbench[cuda]"') from None
        try:
            nvml.nvmlInit()
            handle = cls._handle_of(nvml, device)
            with suppress(nvml.NVMLError):  # cards without MIG have no such mode
                if nvml.nvmlDeviceGetMigMode(handle)[0]:
                    raise NoSourceError(MIG)
        except nvml.NVMLError as error:
            raise NoSourceError(f"NVML does not answer: {first_line(error)}") from None
        instantaneous = device.capability is not None and device.capability <= GA100
        return cls(nvml, handle, 0.0 if instantaneous else NVML_AVERAGED_SECONDS)

    @staticmethod
    def _handle_of(nvml: Any, device: Which) -> Any:
        """Return the handle of CUDA's device, whose index may differ between CUDA and NVML."""
        bare = device.uuid.removeprefix("GPU-").removeprefix("MIG-")
        if bare and not device.uuid.startswith("MIG-"):
            with suppress(nvml.NVMLError):
                return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{bare}")
        if bare:
            with suppress(nvml.NVMLError):
                nvml.nvmlDeviceGetHandleByUUID(f"MIG-{bare}")
                raise NoSourceError(MIG)
        if device.pci:
            return nvml.nvmlDeviceGetHandleByPciBusId(device.pci)
        raise NoSourceError("NVML knows no GPU by the id that CUDA gives it")

    def read(self, at: float) -> Reading:
        """Return the GPU's sensor values at the time `at`; `NoSourceError` where it no longer answers."""
        try:
            values = {name: ask() for name, ask in self._asks.items()}
        except self._nvml.NVMLError as error:
            raise NoSourceError(f"NVML does not answer any more: {first_line(error)}") from None
        clock, power, temperature = (values.get(name) for name in ("clock", "power", "temperature"))
        mask = values.get("limits") or 0
        return Reading(
            at,
            clock_hz=None if clock is None else clock * 1e6,
            power_watts=None if power is None else power / 1e3,
            temperature_celsius=None if temperature is None else float(temperature),
            limits=frozenset(word for bit, word in self.LIMITS.items() if mask & bit),
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


class Sysfs:
    """The Linux kernel's files of an Intel GPU: the folder of its `card`, of the driver xe or i915.

    Sources: Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon and -i915-hwmon, drivers/gpu/drm/xe/xe_gt_throttle.c
    and drivers/gpu/drm/i915/gt/intel_gt_sysfs_pm.c. On a GPU of several tiles, the clock is the first tile's.
    """

    name = "sysfs"
    power_error_watts: float | None = None
    averaged_seconds = 0.0
    """Power is the gain of the energy counter since the last reading, so nothing is averaged out."""

    CLOCKS = ("device/tile0/gt0/freq0/act_freq", "gt/gt0/rps_act_freq_mhz", "gt_act_freq_mhz")
    REASONS = ("device/tile0/gt0/freq0/throttle/reason_", "gt/gt0/throttle_reason_")
    LIMITS: Mapping[str, str] = {
        "pl1": POWER_CAP,
        "pl2": POWER_CAP,
        "pl4": POWER_CAP,
        "thermal": HEAT,
        "prochot": HEAT,
        "ratl": HEAT,
        "vr_thermalert": HEAT,
        "vr_tdc": "current limit",
    }

    def __init__(self, card: Path):
        self._card = card
        hwmon = next(iter(sorted(card.glob("device/hwmon/hwmon*"))), card / "no-hwmon")
        self._clock = self._first([card / name for name in self.CLOCKS])
        self._energy = self._first([hwmon / "energy1_input", hwmon / "energy2_input"])
        self._temperature = self._first([hwmon / "temp2_input", hwmon / "temp1_input"])
        self._reasons = [
            (path, word)
            for before in self.REASONS
            for end, word in self.LIMITS.items()
            if _number(path := card / f"{before}{end}") is not None
        ]
        self._limits = [_number(hwmon / name) for name in ("power1_max", "power1_rated_max")]
        unknown = {"clock": self._clock, "power": self._energy, "temperature": self._temperature}
        self.lacks = [
            f"sysfs does not report the {name}: no file of it that this user may read"
            for name in unknown
            if not unknown[name]
        ]
        if not self._reasons:
            self.lacks.append("sysfs does not report the limits of the clock: no throttle_reason files")
        self._last: tuple[float, float] | None = None

    @classmethod
    def open(cls, device: Which, root: Path = Path("/")) -> "Sysfs":
        """Return the source for a device; `NoSourceError` without a matching device, or with several."""
        cards = [
            card
            for card in sorted(root.glob("sys/class/drm/card*"))
            if card.name.removeprefix("card").isdigit() and kernel_text(card / "device/vendor") == "0x8086"
        ]
        if not cards:
            raise NoSourceError("the kernel shows no Intel GPU in /sys/class/drm")
        if device.device_id is not None:
            alike = [card for card in cards if kernel_text(card / "device/device") == f"{device.device_id:#06x}"]
            cards = alike or cards
        if len(cards) > 1:
            names = ", ".join(card.name for card in cards)
            raise NoSourceError(f"which of {names} in /sys/class/drm is measured is not known")
        return cls(cards[0])

    def _first(self, paths: Iterable[Path]) -> Path | None:
        return next((path for path in paths if _number(path) is not None), None)

    def read(self, at: float) -> Reading:
        """Return the GPU's sensor values at the time `at`; `NoSourceError` where its files are gone."""
        known = [path for path in (self._clock, self._energy, self._temperature) if path is not None]
        values = {path: _number(path) for path in known}
        if known and all(value is None for value in values.values()):
            raise NoSourceError(f"the kernel shows {self._card.name} no more")
        clock, energy, temperature = (
            None if path is None else values[path] for path in (self._clock, self._energy, self._temperature)
        )
        power = None
        if energy is not None:
            if self._last is not None and at > self._last[0] and energy >= self._last[1]:
                power = (energy - self._last[1]) / 1e6 / (at - self._last[0])
            self._last = at, energy
        return Reading(
            at,
            clock_hz=clock * 1e6 if clock else None,  # 0: the GPU is parked
            power_watts=power,
            temperature_celsius=None if temperature is None else temperature / 1e3,
            limits=frozenset(word for path, word in self._reasons if _number(path)),
        )

    def state(self) -> DeviceState:
        """Return the power limits, current and rated."""
        limit, rated = (value / 1e6 if value else None for value in self._limits)
        return DeviceState(
            source=self.name, unavailable=[*self.lacks, UNSEEN], power_limit_watts=limit, default_limit_watts=rated
        )

    def others(self) -> list[str] | None:
        """Return None: the kernel answers only root."""
        return None

    def other_share(self, since: float) -> float | None:  # noqa: ARG002 - the interface of a source
        """Return None: the kernel does not report it."""
        return None


Source = Nvml | Sysfs
"""The sensors of a device; `lacks` lists the missing values, with reasons.

Power readings are exact to `power_error_watts` (None: not documented) and averaged over `averaged_seconds`.
"""
SOURCES: Mapping[str, Callable[[Which], Source]] = {"cuda": Nvml.open, "xpu": Sysfs.open}
"""The functions that open the source of a device type; they raise `NoSourceError`."""


def open_source(type: str) -> Source:
    """Return the source of this process's device of a type; `NoSourceError` without one."""
    row = SOURCES.get(type)
    if row is None:
        raise NoSourceError(f"no source is known for {type}")
    try:
        return row(which(type))
    except (
        RuntimeError,
        AssertionError,
        AttributeError,
        OSError,
    ) as error:  # torch's: the device is gone, or unknown
        raise NoSourceError(first_line(error)) from None


def state_of(type: str) -> DeviceState:
    """Return the current state of the device of a type, and its other users."""
    try:
        return open_source(type).state()
    except NoSourceError as error:
        return DeviceState(unavailable=[str(error)], mig=str(error) == MIG)


class Sampler:
    """Reads a source repeatedly in a thread, within a `with` statement.

    `readings` are the readings so far, `costs` the seconds of each; `ended` is the reason why they stopped. Readings
    are `period` seconds apart: `PERIOD_SECONDS`, or longer where they would take more than `MOST_SHARE` of it.
    """

    def __init__(self, source: Source, clock: Callable[[], float] = perf_counter):
        self._source, self._clock = source, clock
        self.readings: list[Reading] = []
        self.costs: list[float] = []
        self.ended = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ampbench telemetry", daemon=True)

    @property
    def period(self) -> float:
        """The seconds from one reading to the next."""
        return max(PERIOD_SECONDS, statistics.median(self.costs) / MOST_SHARE if self.costs else 0.0)

    def take(self) -> None:
        """Take one reading; where the source does not answer, set `ended`."""
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


Span = tuple[float, float]
"""Beginning and end of a window, by the sampler's clock."""


@dataclass(slots=True)
class Watched:
    """The sensors of a device during a round: read by a `sampler`, or `unavailable` gives the reason."""

    source: Source | None = None
    sampler: Sampler | None = None
    unavailable: str = ""
    since: float = field(default_factory=time.time)

    def __enter__(self) -> "Watched":
        if self.sampler is not None:
            self.sampler.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.sampler is not None:
            self.sampler.__exit__(*error)

    def clock_hz(self, span: Span) -> float | None:
        """Return the median clock in a window; None: not reported."""
        return _median(reading.clock_hz for reading in self._within([span]))

    def telemetry(self, windows: Sequence[Span]) -> Telemetry:
        """Return the telemetry of `windows`, and the other processes."""
        if self.source is None or self.sampler is None:
            return Telemetry(unavailable=self.unavailable)
        every, within = list(self.sampler.readings), self._within(windows)
        powers = [reading.power_watts for reading in within if reading.power_watts is not None]
        limited = {word for reading in within for word in reading.limits}
        temperatures = (reading.temperature_celsius for reading in within)
        hottest = max((degrees for degrees in temperatures if degrees is not None), default=None)
        first, last = (self.clock_hz(windows[place]) for place in (0, -1)) if windows else (None, None)
        reasons = [*self.source.lacks, *([self.sampler.ended] if self.sampler.ended else [])]
        others = None if self.sampler.ended else self.source.others()
        if others is None and not self.sampler.ended:
            reasons.append(UNSEEN)
        if not within and not self.sampler.ended:
            reasons.append("no reading fell into a window")
        ended = bool(self.sampler.ended)
        return Telemetry(
            source=self.source.name,
            unavailable="; ".join(reasons),
            period_seconds=self.sampler.period,
            readings=len(within),
            window_seconds=sum(end - begin for begin, end in windows),
            clock_hz=_median(reading.clock_hz for reading in within),
            first_clock_hz=first,
            last_clock_hz=last,
            limited={word: sum(word in reading.limits for reading in within) / len(within) for word in sorted(limited)},
            power_watts=None if ended else mean_power(every, windows),
            power_low_watts=min(powers, default=None),
            power_high_watts=max(powers, default=None),
            power_error_watts=self.source.power_error_watts if powers else None,
            averaged_seconds=self.source.averaged_seconds if powers else None,
            temperature_celsius=hottest,
            processes=others or [],
            other_share=None if ended else self.source.other_share(self.since),
        )

    def _within(self, windows: Sequence[Span]) -> list[Reading]:
        readings = list(self.sampler.readings) if self.sampler is not None else []
        return [reading for reading in readings if any(begin <= reading.at <= end for begin, end in windows)]


def watched(type: str) -> Watched:
    """Return the watcher of a device type, for a `with` statement around a measurement."""
    try:
        source = open_source(type)
    except NoSourceError as error:
        return Watched(unavailable=str(error))
    return Watched(source, Sampler(source))


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


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
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


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None
