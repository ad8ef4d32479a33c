"""Devices behind one small interface; torch's switches for each precision; the kernels of attention.

A step is measured alike on every accelerator. `environment` reads names, arithmetic and drivers, `telemetry` clock and
power. Switches are global: they are set for a case and restored exactly. A canary product shows the rounding of fp32;
profiles show the kernel of attention, and torch's own switches select it.
"""

import contextlib
import gc
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from time import perf_counter
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ampbench.core.precisions import FP64, Precision
from ampbench.errors import AmpbenchError, UsageError
from ampbench.records.case import Case
from ampbench.records.measured import NATIVE

CLOCK_SECONDS = 1e-7
"""The cost of reading the clock once: `perf_counter` takes 40-100 ns on the machines measured."""
EVENT_RESOLUTION_SECONDS = 1e-6
"""Device events resolve about half a microsecond (CUDA's page on cudaEventElapsedTime); twice that is assumed."""


class Cpu:
    """The CPU: its work is done when a call returns, and its allocator counts nothing (see `memory`)."""

    type = "cpu"
    timer_seconds = CLOCK_SECONDS

    def seconds(self, step: Callable[[], object], count: int) -> float:
        """Return the seconds that `count` steps take."""
        start = perf_counter()
        for _ in repeat(None, count):
            step()
        return perf_counter() - start

    def synchronize(self) -> None:
        """Do nothing: calls on the CPU are synchronous."""

    def release(self) -> None:
        """Collect garbage."""
        gc.collect()


class Accelerator:
    """The accelerator of this machine, whatever its type, through `torch.accelerator` and device events."""

    timer_seconds = EVENT_RESOLUTION_SECONDS

    def __init__(self, type: str):
        self.type = type

    def seconds(self, step: Callable[[], object], count: int) -> float:
        """Return the device's seconds between the first and the last of `count` steps."""
        start, end = (torch.Event(self.type, enable_timing=True) for _ in range(2))
        start.record()
        for _ in repeat(None, count):
            step()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    def synchronize(self) -> None:
        """Wait until everything queued has run."""
        torch.accelerator.synchronize()

    def allocated_bytes(self) -> int:
        """Return the bytes the caching allocator has handed out."""
        return int(torch.accelerator.memory_allocated())

    def reset_peak(self) -> None:
        """Start a new peak at the bytes allocated now."""
        torch.accelerator.reset_peak_memory_stats()

    def peak_bytes(self) -> int:
        """Return the most bytes the caching allocator had handed out at once since `reset_peak`."""
        return int(torch.accelerator.max_memory_allocated())

    def reserved_bytes(self) -> int:
        """Return the most bytes that the caching allocator had taken from the driver at once since `reset_peak`."""
        return int(torch.accelerator.max_memory_reserved())

    def drop_workspaces(self) -> None:
        """Free cuBLAS' workspaces, which the next product allocates again; no other device is known to keep any."""
        if self.type == "cuda":
            self.synchronize()
            getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()

    def release(self) -> None:
        """Collect garbage and return cached blocks to the driver."""
        gc.collect()
        torch.accelerator.empty_cache()


Device = Cpu | Accelerator
"""The device of a measurement; only an accelerator counts bytes."""


def fp64_device(device: Device) -> Device:
    """Return the device for fp64: this one, or the CPU where this one has no fp64 (some XPUs)."""
    if isinstance(device, Cpu):
        return device
    try:
        torch.ones(2, dtype=torch.float64, device=device.type).sum().item()
    except (RuntimeError, TypeError):
        return Cpu()
    return device


def open_device(type: str) -> Device:
    """Return the device of this `type`; `UsageError` where the machine has none, or none any more."""
    if type == "cpu":
        return Cpu()
    present = torch.accelerator.current_accelerator(check_available=True)
    if present is None or present.type != type:
        raise UsageError(
            f"device {type} is not available here: {f'found {present.type}' if present else 'no accelerator found'}"
        )
    return Accelerator(type)


Place = tuple[str, str]
"""A backend and a kind of product, as torch's own functions for `fp32_precision` take them."""

FP32_PRECISION: dict[Place, str] = {
    ("generic", "all"): "torch.backends.fp32_precision",
    ("cuda", "all"): "torch.backends.cudnn.fp32_precision",
    ("mkldnn", "all"): "torch.backends.mkldnn.fp32_precision",
    ("cuda", "matmul"): "torch.backends.cuda.matmul.fp32_precision",
    ("cuda", "conv"): "torch.backends.cudnn.conv.fp32_precision",
    ("cuda", "rnn"): "torch.backends.cudnn.rnn.fp32_precision",
    ("mkldnn", "matmul"): "torch.backends.mkldnn.matmul.fp32_precision",
    ("mkldnn", "conv"): "torch.backends.mkldnn.conv.fp32_precision",
    ("mkldnn", "rnn"): "torch.backends.mkldnn.rnn.fp32_precision",
}
"""torch's newer switches of the precision of fp32 products, by users' names; "none" defers to the one above."""

IMPLIED = {"highest": ("ieee", "ieee"), "high": ("tf32", "tf32"), "medium": ("tf32", "bf16")}
"""The cuda and mkldnn switches that `torch.set_float32_matmul_precision` sets for matrix products."""


@dataclass(frozen=True, slots=True)
class Products:
    """The rounding of fp32 products: torch's older switches, and its newer ones.

    `matmul` is the value of `torch.set_float32_matmul_precision`, `cudnn` and `onednn` (None: not in this torch) are
    the backends' `allow_tf32`; `newer` are the switches of `FP32_PRECISION`.
    """

    matmul: str
    cudnn: bool
    onednn: bool | None
    newer: dict[Place, str]

    @staticmethod
    def now() -> "Products":
        """Return the current switches.

        Each newer switch is read while the ones above it are "none", which shows its own value. Reading an older switch
        raises where a newer one contradicts it, so the newer ones are aligned for the reading.
        """
        newer = {}
        for place in FP32_PRECISION:
            newer[place] = torch._C._get_fp32_precision_getter(*place)
            torch._C._set_fp32_precision_setter(*place, "none")
        matmul = torch.get_float32_matmul_precision()
        for op in ("conv", "rnn"):
            torch._C._set_fp32_precision_setter("cuda", op, "tf32")
        cudnn = False
        with contextlib.suppress(RuntimeError):  # raises where it is off: the newer ones are on
            cudnn = torch.backends.cudnn.allow_tf32
        onednn = bool(torch.backends.mkldnn.allow_tf32) if torch.xpu.is_available() else None
        products = Products(matmul, cudnn, onednn, newer)
        products.set()
        return products

    def set(self) -> None:
        """Set all switches: the older ones first, because they set newer ones."""
        torch.set_float32_matmul_precision(self.matmul)
        torch.backends.cudnn.allow_tf32 = self.cudnn
        if self.onednn is not None:
            torch._C._set_onednn_allow_tf32(self.onednn)
        for place, value in self.newer.items():
            torch._C._set_fp32_precision_setter(*place, value)


def _products(kind: str) -> Products:
    """Return the switches of a precision with this kind of `fp32_products`.

    tf32 is set by `set_float32_matmul_precision` and `cudnn.allow_tf32`, the pair that keeps torch's older and newer
    switches consistent.
    """
    matmul = {"tf32": "high", "bf16": "medium"}.get(kind, "highest")
    convolutions = "tf32" if kind in ("tf32", "shipped") else "none"
    newer = dict.fromkeys(FP32_PRECISION, "none")
    newer["cuda", "matmul"], newer["mkldnn", "matmul"] = IMPLIED[matmul]
    newer["cuda", "conv"] = newer["cuda", "rnn"] = convolutions
    if kind == "bf16":
        newer["mkldnn", "conv"] = newer["mkldnn", "rnn"] = "bf16"
    onednn = kind == "tf32" if torch.xpu.is_available() else None
    return Products(matmul, convolutions == "tf32", onednn, newer)


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch that no precision uses: its `owner`, its `name` there, and its value as torch `ships` it."""

    owner: Any
    called: str
    name: str
    ships: bool

    def now(self) -> Any:
        """Return its value: for reduced-precision reductions with the value of split-k, which a bare bool would
        reset."""
        value = getattr(self.owner, self.name)
        split = getattr(self.owner, f"{self.name}_split_k", None) if self.name.endswith("_reduction") else None
        return value if split is None else (value, split)

    def set(self, value: Any) -> None:
        """Set a value of `now`."""
        setattr(self.owner, self.name, value)


_MATMUL, _CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
SWITCHES = (
    Switch(_MATMUL, "torch.backends.cuda.matmul", "allow_fp16_reduced_precision_reduction", True),
    Switch(_MATMUL, "torch.backends.cuda.matmul", "allow_bf16_reduced_precision_reduction", True),
    Switch(_MATMUL, "torch.backends.cuda.matmul", "allow_fp16_accumulation", False),
    Switch(_CUDNN, "torch.backends.cudnn", "enabled", True),
    Switch(_CUDNN, "torch.backends.cudnn", "benchmark", False),
    Switch(_CUDNN, "torch.backends.cudnn", "deterministic", False),
)
"""The switches that keep torch's defaults in every precision, as for a user who changes nothing.

`cudnn.benchmark` stays off, because it would choose other kernels from one process to the next.
"""


def users_switches() -> list[str]:
    """Return all switches with their values, in the user's spelling; an older one sets newer ones."""
    products = Products.now()
    values = {
        "torch.backends.cudnn.allow_tf32": products.cudnn,
        "torch.backends.mkldnn.allow_tf32": products.onednn,
        **{FP32_PRECISION[place]: f'"{value}"' for place, value in products.newer.items()},
        **{f"{switch.called}.{switch.name}": switch.now() for switch in SWITCHES},
    }
    first = f'torch.set_float32_matmul_precision("{products.matmul}")'
    return [first, *(f"{name} = {value}" for name, value in values.items())]


@contextmanager
def precision_flags(precision: Precision) -> Iterator[None]:
    """Hold torch's switches at the values of `precision`, and restore them exactly, also after an error.

    In fp64 torch chooses among all kernels of attention, even if the case fixes one, which may not support fp64.
    """
    products, before = Products.now(), [(switch, switch.now()) for switch in SWITCHES]
    try:
        _products(precision.fp32_products).set()
        for switch in SWITCHES:
            switch.set(switch.ships)
        with sdpa_kernel([*BACKENDS.values()]) if precision is FP64 else contextlib.nullcontext():
            yield
    finally:
        for switch, value in before:
            switch.set(value)
        products.set()


EDGES = {"cpu": 64, "": 1024}
"""Rows, columns and channels on a CPU, and under "" elsewhere: kernels for smaller products may not round."""
FINE, COARSE, TINY = 1 + 2.0**-12, 1 + 2.0**-9, 2.0**-30
"""Factors that fp32 holds exactly. tf32 and fp16 have 10 bits after the point and lose the first; bf16 has 7 and loses
the second, too; fp16 ends at 2^-24 and loses the third."""


def rounded_products(device: Device) -> dict[str, str]:
    """Return the dtype to which factors of fp32 products are rounded here and now, by the kind of product.

    "matmul" and "conv" to "tf32", "fp16" or "bf16"; unrounded kinds are left out. Every sum adds a power of two of
    equal products by 1, which fp32 holds exactly, so any loss is a factor's rounding. A kernel that rounds only larger
    products is not detected.
    """
    rounded = {"matmul": _rounded(_matmul, device), "conv": _rounded(_conv, device)}
    return {name: dtype for name, dtype in rounded.items() if dtype}


def _rounded(product: Callable[[torch.Tensor], torch.Tensor], device: Device) -> str:
    edge = EDGES.get(device.type, EDGES[""])

    def keeps(factor: float) -> bool:
        return bool((product(torch.full((edge, edge), factor, device=device.type)) == factor * edge).all())

    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        if keeps(FINE):
            return ""
        if not keeps(COARSE):
            return "bf16"
        return "tf32" if keeps(TINY) else "fp16"


def _matmul(factors: torch.Tensor) -> torch.Tensor:
    return factors @ torch.ones_like(factors)


def _conv(factors: torch.Tensor) -> torch.Tensor:
    """Return a convolution by a kernel of one pixel, of an image whose pixels are all rows of `factors`."""
    image = factors[0].reshape(1, -1, 1, 1).expand(1, -1, 16, 16).contiguous()
    return torch.nn.functional.conv2d(image, torch.ones_like(factors)[..., None, None])


BACKENDS: Mapping[str, SDPBackend] = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "overrideable": SDPBackend.OVERRIDEABLE,
}
"""torch's names for the backends of `records.case.SDPA`."""

_OPS: Mapping[str, str] = {
    "aten::_scaled_dot_product_attention_math": "math",
    "aten::_scaled_dot_product_attention_math_for_mps": "math",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_flash_attention_forward": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_efficient_attention_forward": "efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_cudnn_attention_forward": "cudnn",
    "aten::_scaled_dot_product_fused_attention_overrideable": "overrideable",
    "aten::_native_multi_head_attention": NATIVE,
}
"""The ops that compute attention in forward passes (native_functions.yaml of torch 2.15), by their kernel."""

_REFUSALS = ("No available kernel", "No viable backend", "Invalid backend")
"""The beginnings of torch's errors where no allowed kernel takes the inputs."""
_ABOUT_OTHERS = re.compile(r"not used because:|disabled")
_PLACE = re.compile(r"\s*\(Triggered internally.*", re.DOTALL)


class NoKernelError(AmpbenchError):
    """The one allowed kernel does not take the inputs; the message is torch's reason."""


def kernels_in(threads: Iterable[Sequence[Any]]) -> dict[str, int]:
    """Return the number of runs of each kernel of attention, from a profiler's events (without Kineto) by thread.

    torch's scaled_dot_product_attention chooses by dtype, shapes, masks and gradients, inside one op of Python; a
    dispatch mode sees only parts of some kernels. Among nested ops, as where autocast calls an op again, the innermost
    counts.
    """
    counts: Counter[str] = Counter()
    for events in threads:
        open_: list[tuple[str, bool]] = []  # of each op begun: its kernel, and whether another is within
        for event in events:
            if event.kind() == "push":
                kernel = _OPS.get(event.name(), "")
                if kernel:
                    open_ = [(name, True) for name, _ in open_]
                open_.append((kernel, False))
            elif event.kind() == "pop" and open_:
                kernel, holds = open_.pop()
                if kernel and not holds:
                    counts[kernel] += 1
    return dict(counts)


@contextmanager
def sdpa_fixed(case: Case) -> Iterator[None]:
    """Let scaled_dot_product_attention run only the case's `sdpa`, if it has one; fp64 is free.

    torch.compile's disk caches are off, because they ignore the allowed kernel (torch 2.15). Raises `NoKernelError`
    where torch refuses the inputs.
    """
    if not case.sdpa:
        yield
        return
    warned: list[str] = []
    before = torch.compiler.config.force_disable_caches
    with warnings.catch_warnings(), sdpa_kernel(BACKENDS[case.sdpa]):
        show = warnings.showwarning

        def record(message: Warning | str, *place: Any, **options: Any) -> None:
            warned.append(_PLACE.sub("", str(message)))
            show(message, *place, **options)

        warnings.showwarning = record
        torch.compiler.config.force_disable_caches = True
        try:
            yield
        except RuntimeError as error:
            if not str(error).startswith(_REFUSALS):
                raise
            reasons = [reason for reason in dict.fromkeys(warned) if reason and not _ABOUT_OTHERS.search(reason)]
            why = "; ".join(reasons) or str(error).partition(".")[0]
            raise NoKernelError(f"{case.device} has no {case.sdpa} attention for this: {why.rstrip('.')}") from error
        finally:
            torch.compiler.config.force_disable_caches = before


def unheeded(case: Case, attention: Mapping[str, int] | None) -> str:
    """Return the reason why the case's `sdpa` had no effect on a step with these kernels; "" where it had.

    Compiled code may take kernels apart (None), and gets no reason.
    """
    if not case.sdpa or attention is None or attention.keys() == {case.sdpa}:
        return ""
    if others := sorted(attention.keys() - {case.sdpa, NATIVE}):
        ran = " and ".join(others)
        return f"--set sdpa={case.sdpa} was not used: the network itself selects {ran} (torch.nn.attention)"
    if case.sdpa in attention:
        return ""
    why = (
        "attention runs in torch's fast path of encoder layers"
        if attention
        else "no step calls scaled_dot_product_attention"
    )
    return f"--set sdpa={case.sdpa} decides nothing: {why}"
