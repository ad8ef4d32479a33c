"""Devices behind one small interface: a class over `torch.accelerator` and a no-op one for the CPU.

Nothing else in ampbench asks which accelerator it runs on; what is still per device (names, arithmetic, drivers) is
read in `environment`.
"""

import gc
from collections.abc import Callable
from itertools import repeat
from time import perf_counter
from typing import Protocol

import torch

from ampbench.errors import UsageError

CLOCK_SECONDS = 1e-7
"""The cost of reading the clock once: `perf_counter` takes 40-100 ns on the machines seen."""
EVENT_RESOLUTION_SECONDS = 1e-6
"""Device events resolve about half a microsecond (CUDA's page on cudaEventElapsedTime); twice that is assumed."""


class Device(Protocol):
    """What measuring needs of a device; bytes are those of its allocator."""

    type: str
    timer_seconds: float

    def seconds(self, step: Callable[[], object], count: int) -> float:
        """Return the seconds that `count` steps take, with one synchronisation at the end."""

    def synchronize(self) -> None:
        """Wait until everything queued has run."""

    def allocated_bytes(self) -> int:
        """Return the bytes allocated now."""

    def reset_peak(self) -> None:
        """Start a new peak from what is allocated now."""

    def peak_bytes(self) -> int:
        """Return the most bytes allocated at once since `reset_peak`."""

    def release(self) -> None:
        """Give unused memory back."""


class Cpu:
    """The CPU: its work is done when a call returns, and its allocator does not count (see `memory`)."""

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

    def allocated_bytes(self) -> int:
        """Return 0: nothing is counted here."""
        return 0

    def reset_peak(self) -> None:
        """Do nothing."""

    def peak_bytes(self) -> int:
        """Return 0: nothing is counted here."""
        return 0

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
        """Start a new peak from what is allocated now."""
        torch.accelerator.reset_peak_memory_stats()

    def peak_bytes(self) -> int:
        """Return the most bytes the caching allocator had handed out at once since `reset_peak`."""
        return int(torch.accelerator.max_memory_allocated())

    def release(self) -> None:
        """Collect garbage and return cached blocks to the driver."""
        gc.collect()
        torch.accelerator.empty_cache()


def fp64_device(device: Device) -> Device:
    """Return where fp64 is computed: on the device, or on the CPU where the device cannot (some XPUs)."""
    if isinstance(device, Cpu):
        return device
    try:
        torch.ones(2, dtype=torch.float64, device=device.type).sum().item()
    except (RuntimeError, TypeError):
        return Cpu()
    return device


def open_device(type: str) -> Device:
    """Return the device of this `type`; `UsageError` where it is not there (any more)."""
    if type == "cpu":
        return Cpu()
    present = torch.accelerator.current_accelerator(check_available=True)
    if present is None or present.type != type:
        raise UsageError(
            f"device {type} is not available here: {f'found {present.type}' if present else 'no accelerator found'}"
        )
    return Accelerator(type)
