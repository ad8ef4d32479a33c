"""What an accelerator tells of itself while it is measured: clock, power, temperature, limits, who else is there.

Who tells is a row of `SOURCES` for each device type: NVML for CUDA (`pynvml` of nvidia-ml-py, imported here alone), the
kernel's sysfs for XPU. A thread reads it beside what is timed (`Sampler`), seldom enough to take a hundredth of the
time at most. Where there is no source, or not all is told, the reason is said, and nothing else changes.
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
"""How often a sensor is read: NVML refreshes clocks and power every 20 to 100 ms, so more often tells no more."""
MOST_SHARE = 0.01
"""Reading takes no more than this share of the time: a sensor that is slow to read is read less often."""
NVML_POWER_ERROR_WATTS = 5.0
"""nvidia-smi --help-query-gpu, power.draw: "accurate to within +/- 5 watts"."""
NVML_AVERAGED_SECONDS = 1.0
"""nvmlDeviceGetPowerUsage: "On Ampere (except GA100) or newer GPUs, the API returns power averaged over 1 sec interval.
On GA100 and older architectures, instantaneous power is returned."."""
GA100 = (8, 0)
"""The compute capability of GA100."""
MIG = "an instance of a GPU (MIG): NVML tells power and clock of the whole GPU alone, and of no instance"

UNSEEN = "other processes on the device are not visible here"


class NoSourceError(Exception):
    """There is nobody to ask, or no answer any more; its text says why, without a full stop."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a device told `at` a time of the sampler's clock (None: not told), `limits` of what holds its clock down."""

    at: float
    clock_hz: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    limits: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Which:
    """Which of a machine's devices is measured, as torch tells it: one of these says so to a source."""

    uuid: str = ""
    pci: str = ""
    device_id: int | None = None
    capability: tuple[int, int] | None = None
    rocm: bool = False


def which(type: str) -> Which:
    """Return which device of a type this process has."""
    found = torch.get_device_module(type).get_device_properties()
    address = [
        getattr(found, f"pci_{part}_id") for part in ("domain", "bus", "device") if hasattr(found, f"pci_{part}_id")
    ]
    return Which(
        uuid=str(getattr(found, "uuid", "") or ""),
        pci="{:08x}:{:02x}:{:02x}.0".format(*address) if len(address) == 3 else "",
        device_id=getattr(found, "device_id", None),
        capability=(found.major, found.minor) if hasattr(found, "major") else None,
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
    """nvml.h, nvmlClocksEventReasons; an idle GPU, 0x1, is held down by nobody."""

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
                self.lacks.append(f"{self.name} does not tell the {name}: {why}")

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
            with suppress(nvml.NVMLError):  # cards without MIG do not know the question
                if nvml.nvmlDeviceGetMigMode(handle)[0]:
                    raise NoSourceError(MIG)
        except nvml.NVMLError as error:
            raise NoSourceError(f"NVML does not answer: {first_line(error)}") from None
        instantaneous = device.capability is not None and device.capability <= GA100
        return cls(nvml, handle, 0.0 if instantaneous else NVML_AVERAGED_SECONDS)

    @staticmethod
    def _handle_of(nvml: Any, device: Which) -> Any:
        """Return the handle of the device that CUDA calls so, whatever its number is there and here."""
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
        """Return what the GPU tells now, which is `at`; `NoSourceError` where it does not answer any more."""
        try:
            told = {name: ask() for name, ask in self._asks.items()}
        except self._nvml.NVMLError as error:
            raise NoSourceError(f"NVML does not answer any more: {first_line(error)}") from None
        clock, power, temperature = (told.get(name) for name in ("clock", "power", "temperature"))
        mask = told.get("limits") or 0
        return Reading(
            at,
            clock_hz=None if clock is None else clock * 1e6,
            power_watts=None if power is None else power / 1e3,
            temperature_celsius=None if temperature is None else float(temperature),
            limits=frozenset(word for bit, word in self.LIMITS.items() if mask & bit),
        )

    def state(self) -> DeviceState:
        """Return limits of the power, memory in use and other processes."""
        nvml, handle = self._nvml, self._handle
        limit = default = None
        lacks, others = list(self.lacks), self.others()
        try:
            limit = nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3
            default = nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1e3
        except nvml.NVMLError as error:
            lacks.append(f"NVML does not tell the limit of the power: {first_line(error)}")
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
        """Return which other processes compute on the GPU, with their memory; None where NVML does not show them.

        In a container its list lacks this very process.
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
        """Return the share of time in which others had multiprocessors at work."""
        try:
            found = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, int(since * 1e6))
        except (self._nvml.NVMLError, AttributeError):
            return None
        shares: dict[int, list[float]] = {}
        for one in found:
            shares.setdefault(one.pid, []).append(one.smUtil / 100)
        if os.getpid() not in shares:
            return None
        return min(1.0, sum(statistics.fmean(each) for pid, each in shares.items() if not is_own(pid)))


class Sysfs:
    """The Linux kernel's files of an Intel GPU: the folder of its `card`, of the driver xe or i915.

    Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon and -i915-hwmon, drivers/gpu/drm/xe/xe_gt_throttle.c and
    drivers/gpu/drm/i915/gt/intel_gt_sysfs_pm.c. Of a GPU of several tiles it is the first tile's clock.
    """

    name = "sysfs"
    power_error_watts: float | None = None
    averaged_seconds = 0.0
    """Power is what the counter of energy gained since the reading before, which leaves nothing out."""

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
            f"sysfs does not tell the {name}: no file of it that this user may read"
            for name in unknown
            if not unknown[name]
        ]
        if not self._reasons:
            self.lacks.append("sysfs does not tell what holds the clock down: no throttle_reason files")
        self._last: tuple[float, float] | None = None

    @classmethod
    def open(cls, device: Which, root: Path = Path("/")) -> "Sysfs":
        """Return the source for a device; `NoSourceError` where there is none, or several that may be it."""
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
        """Return what the GPU tells now, which is `at`; `NoSourceError` where its files are gone."""
        known = [path for path in (self._clock, self._energy, self._temperature) if path is not None]
        told = {path: _number(path) for path in known}
        if known and all(value is None for value in told.values()):
            raise NoSourceError(f"the kernel shows {self._card.name} no more")
        clock, energy, temperature = (
            None if path is None else told[path] for path in (self._clock, self._energy, self._temperature)
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
        """Return the limits of the power, the set one and the rated one."""
        limit, rated = (value / 1e6 if value else None for value in self._limits)
        return DeviceState(
            source=self.name, unavailable=[*self.lacks, UNSEEN], power_limit_watts=limit, default_limit_watts=rated
        )

    def others(self) -> list[str] | None:
        """Return None: only root can ask the kernel."""
        return None

    def other_share(self, since: float) -> float | None:  # noqa: ARG002 - as of every source
        """Return None: it is not told."""
        return None


Source = Nvml | Sysfs
"""Who tells of a device; `lacks` says what it does not tell, and why.

Readings of power are exact to `power_error_watts` (None: not documented) and a mean over `averaged_seconds`.
"""
SOURCES: Mapping[str, Callable[[Which], Source]] = {"cuda": Nvml.open, "xpu": Sysfs.open}
"""How the source of a device type is opened; raises `NoSourceError`."""


def open_source(type: str) -> Source:
    """Return who tells of this process' device of a type; `NoSourceError` where there is nobody."""
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
    ) as error:  # of torch: the device is gone, or a stranger
        raise NoSourceError(first_line(error)) from None


def state_of(type: str) -> DeviceState:
    """Return what the device of a type tells of itself and its other users now."""
    try:
        return open_source(type).state()
    except NoSourceError as error:
        return DeviceState(unavailable=[str(error)], mig=str(error) == MIG)


class Sampler:
    """Reads a source again and again, in a thread of its own while it is entered.

    `readings` are those had so far, `costs` the seconds that each took; `ended` says why there are no more. A reading
    follows `period` seconds after another, `PERIOD_SECONDS` or, where one takes more than `MOST_SHARE` of that, so
    long that it does not.
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
        """Have one reading; where the source does not answer, it has `ended`."""
        began = self._clock()
        try:
            self.readings.append(self._source.read(began))
        except NoSourceError as error:
            self.ended = str(error)
        except Exception as error:  # noqa: BLE001 - what a driver does as its device goes must not end what is timed
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
    """What is told of a device while a round is timed: by a `sampler`, or `unavailable` says why nothing is."""

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
        """Return the median clock in a window; None: not told."""
        return _median(one.clock_hz for one in self._within([span]))

    def telemetry(self, windows: Sequence[Span]) -> Telemetry:
        """Return what was told in `windows`, and of others."""
        if self.source is None or self.sampler is None:
            return Telemetry(unavailable=self.unavailable)
        every, told = list(self.sampler.readings), self._within(windows)
        powers = [one.power_watts for one in told if one.power_watts is not None]
        limited = {word for one in told for word in one.limits}
        hottest = max((one.temperature_celsius for one in told if one.temperature_celsius is not None), default=None)
        first, last = (self.clock_hz(windows[place]) for place in (0, -1)) if windows else (None, None)
        reasons = [*self.source.lacks, *([self.sampler.ended] if self.sampler.ended else [])]
        others = None if self.sampler.ended else self.source.others()
        if others is None and not self.sampler.ended:
            reasons.append(UNSEEN)
        if not told and not self.sampler.ended:
            reasons.append("no reading fell into a window")
        ended = bool(self.sampler.ended)
        return Telemetry(
            source=self.source.name,
            unavailable="; ".join(reasons),
            period_seconds=self.sampler.period,
            readings=len(told),
            window_seconds=sum(end - begin for begin, end in windows),
            clock_hz=_median(one.clock_hz for one in told),
            first_clock_hz=first,
            last_clock_hz=last,
            limited={word: sum(word in one.limits for one in told) / len(told) for word in sorted(limited)},
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
        return [one for one in readings if any(begin <= one.at <= end for begin, end in windows)]


def watched(type: str) -> Watched:
    """Return who watches the device of a type while something is timed on it, in a `with` statement."""
    try:
        source = open_source(type)
    except NoSourceError as error:
        return Watched(unavailable=str(error))
    return Watched(source, Sampler(source))


def mean_power(readings: Sequence[Reading], windows: Sequence[Span]) -> float | None:
    """Return the mean power over `windows` in watts: the integral of the readings, by straight lines, by their time.

    Before the first and after the last reading power is taken to be theirs. None where no power was told, or none
    within the windows or a second around them.
    """
    told = [(one.at, one.power_watts) for one in readings if one.power_watts is not None]
    total = sum(end - begin for begin, end in windows)
    if not told or total <= 0 or all(told[-1][0] < begin - 1 or told[0][0] > end + 1 for begin, end in windows):
        return None
    times, powers = zip(*told, strict=True)
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

    Workers carry `MARK`, which their servers got from the driver, the first of their ancestors without it.
    """
    return pid == os.getpid() or (MARK in os.environ and _driver_of(pid) == _driver_of(os.getpid()) is not None)


def _driver_of(pid: int) -> int | None:
    """Return who drives the server that process `pid` is of, None where it is of none that can be seen."""
    marked = False
    while pid > 1:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
        if not any(one.startswith(f"{MARK}=".encode()) for one in environment):
            return pid if marked else None
        marked, pid = True, parent
    return None


def kernel_text(path: str | Path) -> str:
    """Return what a file of the kernel says; "" where there is none, or it is not to be read."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None
