"""The fingerprint of this machine and installation, from a worker, and the sensors of a CUDA device.

NVML (`pynvml` of nvidia-ml-py, imported only here) reports clock, power, limits and other processes. A thread reads
them while steps are timed (`Sampler`). Where a sensor is missing, the record gives the reason.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import statistics
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, time
from typing import Any

import numpy as np
import torch
from packaging.version import Version

import ampbench
from ampbench.core.units import format_bytes
from ampbench.errors import UsageError, first_line
from ampbench.records.case import DEVICES, VISIBLE_DEVICES, DeviceDescription, DeviceState, Environment
from ampbench.records.measured import HEAT, POWER_BRAKE, POWER_CAP, SLOWDOWN, Telemetry
from ampbench.records.wire import MARK, SERVER_VARIABLES
from ampbench.trace.dtypes import short_dtype
from ampbench.workloads.index import LIBRARIES

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
        self._asks: dict[str, Callable[[], Any]] = {
            "clock": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "power": lambda: nvml.nvmlDeviceGetPowerUsage(handle),
            "limits": lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        }
        self.lacks: list[str] = []
        for name, ask in list(self._asks.items()):
            try:
                ask()
            except nvml.NVMLError as error:
                del self._asks[name]
                self.lacks.append(f"{self.name} does not report the {name}: {first_line(error)}")

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
        self._since = time()
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
    """Return whether a process is this one, or a worker of the same driver, whose pid begins the value of `MARK`."""
    driver = os.environ.get(MARK, "").partition("-")[0]
    variables = kernel_text(f"/proc/{pid}/environ").split("\0") if driver else []
    return pid == os.getpid() or any(variable.startswith(f"{MARK}={driver}-") for variable in variables)


def kernel_text(path: str | Path) -> str:
    """Return the text of a kernel file; "" where it is missing or unreadable."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


MINIMUM_TORCH = (2, 11)
"""The first torch with complete `torch.accelerator` and its memory statistics."""
VARIABLE_PREFIXES = (
    "OMP_", "MKL_", "KMP_", "ONEDNN_", "DNNL_", "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "CUDA_", "CUBLAS_",
    "NVIDIA_TF32", "HIP_", "ROCR_", "MIOPEN_", "HIPBLASLT_", "SYCL_", "ONEAPI_", "ZE_", "UR_",
)  # fmt: skip
VARIABLE_NAMES = ("LD_PRELOAD", "MALLOC_CONF", "GLIBC_TUNABLES", "THP_MEM_ALLOC_ENABLE", "ATEN_CPU_CAPABILITY")
"""Environment variables that change torch's computation or the placement of its memory."""
DATA_PACKAGES = {
    "sklearn": 'not installed: pip install "ampbench[data]"',
    "pydoc_data": "this Python was installed without its help texts",
}
"""Packages with data of workloads, and the reasons for their absence; only looked up, since imports take a second."""
MEASURED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NVIDIA_NODE = "/dev/nvidiactl"
"""Exists where NVIDIA's driver is loaded and visible."""
ABSENT = ("Found no NVIDIA driver", "No CUDA GPUs are available", "No XPU devices are available")
"""First words of torch's errors on a machine without the device."""
DETAILS = ("uuid", "major", "minor", "multi_processor_count", "gpu_eu_count", "platform_name", "type")
"""The recorded properties of a card, by torch's names."""
UNSUPPORTED = re.compile("not implemented|not support|unsupported", re.IGNORECASE)
"""Texts of a device's errors for an unsupported dtype."""


def read_environment() -> Environment:
    """Return the fingerprint of this process; touches the accelerator, if there is one.

    Raises `UsageError` where torch is older than `MINIMUM_TORCH`.
    """
    if Version(torch.__version__).release < MINIMUM_TORCH:
        raise UsageError(
            f"torch {torch.__version__} is too old: ampbench needs {'.'.join(map(str, MINIMUM_TORCH))} or newer"
        )
    unavailable: dict[str, str] = {}
    torchvision = _torchvision(unavailable)
    others = {name: row.absent for name, row in LIBRARIES.items() if name != "torchvision"}
    wanted = DATA_PACKAGES | others
    unavailable |= {package: how for package, how in wanted.items() if importlib.util.find_spec(package) is None}
    flags = _cpu_line("flags", "Features").split()
    cpu = _cpu()
    return Environment(
        host=socket.gethostname(),
        system=platform.platform(),
        cpu=cpu.name,
        cpu_count=os.cpu_count() or 1,
        cpu_flags=[flag for flag in flags if flag.startswith(("avx", "amx", "fma", "f16c", "asimd", "sve", "bf16"))],
        memory_bytes=cpu.memory_bytes,
        python_version=platform.python_version(),
        ampbench_version=ampbench.__version__,
        torch_version=str(torch.__version__),
        torch_commit=getattr(torch.version, "git_version", "") or "",
        torchvision_version=torchvision,
        packages={name: importlib.metadata.version(name) for name in others if name not in unavailable},
        numpy_version=np.__version__,
        cuda_version=torch.version.cuda,
        cudnn_version=str(torch.backends.cudnn.version() or "") or None  # type: ignore[no-untyped-call]
        if torch.version.cuda
        else None,
        xpu_version=getattr(torch.version, "xpu", None),
        threads=torch.get_num_threads(),
        compiler=shutil.which(os.environ.get("CXX", "g++")) and os.environ.get("CXX", "g++"),
        devices=[cpu, *map(_accelerator, DEVICES[1:])],
        unavailable=unavailable,
        variables={
            name: value
            for name, value in sorted(os.environ.items())
            if (name.startswith(VARIABLE_PREFIXES) or name in VARIABLE_NAMES)
            and SERVER_VARIABLES.get(name) != value
            and not name.endswith("_DIR")
        },
    )


EMULATED_FROM = 2.0
"""A half dtype counts as emulated on a CPU from this many times fp32's time: flags name instructions, not kernels."""
TRIALS = 5


def _cpu() -> DeviceDescription:
    """Return the description of the CPU; its measured slowdown in half decides its arithmetic.

    That is the time of a half dtype over fp32's: the geometric mean of a product and of a convolution with gradients.
    Each time is the shortest of several on one thread, the dtypes in turns, against other load. Takes about 40 ms.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    trials: dict[str, list[tuple[float, float]]] = {}
    try:
        with torch.inference_mode():
            for _ in range(1 + TRIALS):
                for dtype in MEASURED_DTYPES:
                    with contextlib.suppress(RuntimeError):  # this torch has no such kernel
                        times = _timed(dtype)
                        trials.setdefault(short_dtype(dtype), []).append(times)
    finally:
        torch.set_num_threads(threads)
    best = {dtype: np.min(all_times[1:], axis=0) for dtype, all_times in trials.items()}  # the first warms up
    full = best.pop("fp32")
    slowdown = {dtype: float(np.sqrt(np.prod(half / full))) for dtype, half in best.items()}
    kinds = {dtype: "emulated" if times >= EMULATED_FROM else "native" for dtype, times in slowdown.items()}
    return DeviceDescription(
        type="cpu",
        available=True,
        name=_cpu_line("model name") or platform.machine(),
        count=1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        arithmetic={"fp32": "native"} | kinds,
        slowdown=slowdown,
        autocast_dtype=short_dtype(torch.get_autocast_dtype("cpu")),
        details={"capability": torch.backends.cpu.get_cpu_capability()},
    )


def _timed(dtype: torch.dtype) -> tuple[float, float]:
    """Return the seconds of one matrix product and of one convolution with its gradients."""
    factor = torch.ones(256, 256, dtype=dtype)
    images, kernel = torch.ones(1, 16, 14, 14, dtype=dtype), torch.ones(16, 16, 3, 3, dtype=dtype)
    began = perf_counter()
    factor @ factor
    between = perf_counter()
    output = torch.conv2d(images, kernel, padding=1)
    torch.ops.aten.convolution_backward(
        output, images, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    )
    return between - began, perf_counter() - between


def _accelerator(type: str) -> DeviceDescription:
    """Return the description of a type of accelerator: usable, present but unusable with torch's reason, or absent."""
    autocast = short_dtype(torch.get_autocast_dtype(type))
    present, problem = _problem(type)
    if problem:
        return DeviceDescription(
            type=type, available=False, unusable=present, reason=problem, autocast_dtype=autocast, float64=False
        )
    properties = _asked(type, "get_device_properties")
    driver = str(getattr(properties, "driver_version", ""))
    if type == "cuda":
        driver = nvidia_driver(kernel_text("/proc/driver/nvidia/version")) or ""
    refusals = {short_dtype(dtype): reason for dtype in MEASURED_DTYPES if (reason := _refusal(type, dtype))}
    arithmetic = {short_dtype(dtype): "native" for dtype in MEASURED_DTYPES}
    if _asked(type, "is_bf16_supported", including_emulation=False) is False:
        arithmetic["bf16"] = "emulated"
    for dtype, reason in refusals.items():  # other errors, as of memory, leave it open
        arithmetic[dtype] = "unavailable" if UNSUPPORTED.search(reason) else "unknown"
    return DeviceDescription(
        type=type,
        available=True,
        name=str(getattr(properties, "name", type)),
        count=torch.accelerator.device_count(),
        memory_bytes=getattr(properties, "total_memory", None),
        arithmetic=arithmetic,
        refusals=refusals,
        tf32=has_tf32(type),
        float64=not _refusal(type, torch.float64),
        autocast_dtype=autocast,
        driver=driver or None,
        details={name: str(getattr(properties, name)) for name in DETAILS if hasattr(properties, name)},
        state=state_of(type),
    )


def _problem(type: str) -> tuple[bool, str]:
    """Return whether the machine has an accelerator of this type, and the reason why torch cannot use it, if any."""
    present = type == "cuda" and Path(NVIDIA_NODE).exists()
    if not (getattr(torch.version, type, None) or (type == "cuda" and torch.version.hip)):
        return present, f"this torch was built without {type}"
    usable = torch.accelerator.current_accelerator(check_available=True)
    if usable is not None and usable.type == type:
        return True, _refusal(type, torch.float32)
    hidden = next((name for name in VISIBLE_DEVICES if os.environ.get(name) in ("", "-1")), None)
    if hidden:
        return False, f"hidden by {hidden}={os.environ[hidden]}"
    try:
        torch.get_device_module(type).init()
    except Exception as error:  # noqa: BLE001 - drivers raise errors of their own
        present = present or not str(error).startswith(ABSENT)
        return present, first_line(error) if present else f"no {type} device or driver found"
    return present, f"torch finds no {type} device"


def has_tf32(type: str) -> bool:
    """Return whether the device has tf32: CUDA from compute capability 8.0 (NVIDIA A100 whitepaper); XPU by its
    report."""
    if type == "cuda":
        return torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)
    return bool(_asked(type, "is_tf32_supported"))


def _asked(type: str, question: str, **arguments: bool) -> Any:
    """Return the answer of torch's module of a device type; None where it lacks the function."""
    function = getattr(torch.get_device_module(type), question, None)
    return None if function is None else function(**arguments)


def _refusal(type: str, dtype: torch.dtype) -> str:
    """Return the first line of the error of a small product of `dtype`; "" where its result is right."""
    try:
        ones = torch.ones(8, 8, dtype=dtype, device=type)
        value = float((ones @ ones)[0, 0].item())
    except (RuntimeError, TypeError) as error:
        return first_line(error)
    return "" if value == 8 else f"a product of ones of size 8 is {value:g}"


def nvidia_driver(text: str) -> str | None:
    """Return the driver's version in the text of NVIDIA's kernel module, open or proprietary; None without one.

    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64 550.54.14 Release Build", or "… x86_64 Kernel Module …".
    """
    version = re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)", text, re.MULTILINE)
    return version and version[1]


def _torchvision(unavailable: dict[str, str]) -> str | None:
    """Return the version of torchvision; None where it is unusable, with the reason in `unavailable`.

    It is imported, which takes as long as torch's import, only in doubt: without a version file, with operators of
    another torch, or without its dependencies.
    """
    try:
        spec = importlib.util.find_spec("torchvision")
        folder = Path(spec.origin).parent if spec is not None and spec.origin else None
        written = folder and re.search(r"^__version__ = '(.+)'$", (folder / "version.py").read_text(), re.MULTILINE)
        if folder is not None and written and importlib.util.find_spec("PIL") is not None:
            for library in folder.glob("_C*.so"):
                torch.ops.load_library(library)  # type: ignore[no-untyped-call]
            torch.ops.torchvision.nms  # noqa: B018 - raises where there is none
            return written[1]
    except (ImportError, OSError, AttributeError, RuntimeError):
        pass
    try:
        return str(importlib.import_module("torchvision").__version__)
    except Exception as error:  # noqa: BLE001 - a package built for another torch raises anything
        text = str(error).splitlines()[0] if str(error) else ""
        unavailable["torchvision"] = f"{type(error).__name__}: {text}"
        return None


def _cpu_line(*names: str) -> str:
    lines = kernel_text("/proc/cpuinfo").splitlines()
    return next((line for line in lines if line.startswith(names)), "").partition(":")[2].strip()
