"""The fingerprint of this machine and installation, from a worker."""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from packaging.version import Version

import ampbench
from ampbench.errors import UsageError, first_line
from ampbench.records.case import DEVICES, VISIBLE_DEVICES, DeviceDescription, Environment
from ampbench.records.wire import SERVER_VARIABLES
from ampbench.trace.dtypes import short_dtype
from ampbench.worker.telemetry import kernel_text, state_of
from ampbench.workloads.index import LIBRARIES

MINIMUM_TORCH = (2, 11)
"""The first torch with complete `torch.accelerator` and its memory statistics."""
VARIABLE_PREFIXES = (
    "OMP_",
    "MKL_",
    "KMP_",
    "ONEDNN_",
    "DNNL_",
    "PYTORCH_",
    "TORCH_",
    "TORCHINDUCTOR_",
    "CUDA_",
    "CUBLAS_",
    "NVIDIA_TF32",
    "HIP_",
    "ROCR_",
    "MIOPEN_",
    "HIPBLASLT_",
    "SYCL_",
    "ONEAPI_",
    "ZE_",
    "UR_",
)
VARIABLE_NAMES = (
    "LD_PRELOAD",
    "MALLOC_CONF",
    "GLIBC_TUNABLES",
    "THP_MEM_ALLOC_ENABLE",
    "ATEN_CPU_CAPABILITY",
)
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
    return Environment(
        host=socket.gethostname(),
        system=platform.platform(),
        cpu=_cpu_name(),
        cpu_count=os.cpu_count() or 1,
        cpu_flags=[flag for flag in flags if flag.startswith(("avx", "amx", "fma", "f16c", "asimd", "sve", "bf16"))],
        memory_bytes=_memory_bytes(),
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
        devices=[_cpu(flags), *map(_accelerator, DEVICES[1:])],
        unavailable=unavailable,
        variables={
            name: value
            for name, value in sorted(os.environ.items())
            if (name.startswith(VARIABLE_PREFIXES) or name in VARIABLE_NAMES)
            and SERVER_VARIABLES.get(name) != value
            and not name.endswith("_DIR")
        },
    )


def cpu_arithmetic(flags: list[str]) -> dict[str, str]:
    """Return the CPU's arithmetic per dtype, from its `flags`: "native" or "emulated".

    Native bf16 is AVX512-BF16, AMX-BF16 or Arm's bf16; native fp16 AVX512-FP16, AMX-FP16 or Arm's asimdhp. Without
    them, oneDNN and torch convert to fp32 and back around every operation.
    """
    bf16 = {"avx512_bf16", "amx_bf16", "bf16"}
    fp16 = {"avx512_fp16", "amx_fp16", "asimdhp"}
    return {
        "fp32": "native",
        "bf16": "native" if bf16 & set(flags) else "emulated",
        "fp16": "native" if fp16 & set(flags) else "emulated",
    }


EMULATED_FROM = 2.0
"""A half dtype counts as emulated on a CPU from this many times fp32's time: flags name instructions, not kernels."""
TRIALS = 5


def measured_cpu(device: DeviceDescription) -> DeviceDescription:
    """Return a CPU's description with the measured slowdown of each half dtype, which decides its arithmetic."""
    slowdown = cpu_slowdown()
    kinds = {dtype: "emulated" if times >= EMULATED_FROM else "native" for dtype, times in slowdown.items()}
    return replace(device, arithmetic=device.arithmetic | kinds, slowdown=slowdown)


def cpu_slowdown() -> dict[str, float]:
    """Return the time of a half dtype over fp32's: the geometric mean of a product and of a convolution with gradients.

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
    return {dtype: float(np.sqrt(np.prod(half / full))) for dtype, half in best.items()}


def _timed(dtype: torch.dtype) -> tuple[float, float]:
    """Return the seconds of one matrix product and of one convolution with its gradients."""
    factor = torch.ones(256, 256, dtype=dtype)
    images, kernel = torch.ones(1, 16, 14, 14, dtype=dtype), torch.ones(16, 16, 3, 3, dtype=dtype)
    began = time.perf_counter()
    factor @ factor
    between = time.perf_counter()
    output = torch.conv2d(images, kernel, padding=1)
    torch.ops.aten.convolution_backward(
        output, images, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    )
    return between - began, time.perf_counter() - between


def _cpu(flags: list[str]) -> DeviceDescription:
    return DeviceDescription(
        type="cpu",
        available=True,
        name=_cpu_name(),
        count=1,
        memory_bytes=_memory_bytes(),
        arithmetic=cpu_arithmetic(flags),
        autocast_dtype=short_dtype(torch.get_autocast_dtype("cpu")),
        details={"capability": torch.backends.cpu.get_cpu_capability()},
    )


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
    return DeviceDescription(
        type=type,
        available=True,
        name=str(getattr(properties, "name", type)),
        count=torch.accelerator.device_count(),
        memory_bytes=getattr(properties, "total_memory", None),
        arithmetic={short_dtype(dtype): _accelerator_arithmetic(type, dtype, refusals) for dtype in MEASURED_DTYPES},
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


def _accelerator_arithmetic(type: str, dtype: torch.dtype, refusals: Mapping[str, str]) -> str:
    """Return an accelerator's arithmetic of `dtype`: "native", "emulated", "unavailable" or "unknown".

    A product that failed for lack of memory or with the device's own error leaves it unknown.
    """
    reason = refusals.get(short_dtype(dtype))
    if reason:
        return "unavailable" if UNSUPPORTED.search(reason) else "unknown"
    if dtype is torch.bfloat16:
        try:
            native = _asked(type, "is_bf16_supported", including_emulation=False)
        except TypeError:
            native = _asked(type, "is_bf16_supported")
        return "emulated" if native is False else "native"
    return "native"


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


def _cpu_name() -> str:
    if not kernel_text("/proc/cpuinfo"):
        return platform.processor() or platform.machine()
    return _cpu_line("model name") or platform.machine()


def _cpu_line(*names: str) -> str:
    """Return the kernel's value for a CPU by the first of these names; "" without one."""
    lines = kernel_text("/proc/cpuinfo").splitlines()
    return next((line for line in lines if line.startswith(names)), "").partition(":")[2].strip()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
