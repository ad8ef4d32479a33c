"""What glibc does with memory that a step frees: keep it in the process, or give it back and pay for it again."""

import ctypes
import os
import resource
import statistics
from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Any

MMAP_THRESHOLD, TRIM_THRESHOLD = ("mmap_threshold", -3), ("trim_threshold", -1)
"""Parameters of malloc by the names they have in GLIBC_TUNABLES, and by those of mallopt(3)."""
MMAP_THRESHOLD_BYTES = 32 << 20
"""The largest that glibc accepts on 64-bit machines, half of its HEAP_MAX_SIZE, and where it arrives by itself."""
NEVER = -1
"""As a threshold of trimming: nothing is given back."""
FAULT_STEPS, FAULT_SECONDS = 10, 0.2
"""Page faults are counted in so many steps, or in those that begin within so many seconds."""


@cache
def keep_freed_memory() -> None:
    """Let glibc keep what is freed, once and for all (docs/statistics.md); nothing with another libc.

    What GLIBC_TUNABLES says of a parameter is left as it is.
    """
    libc, given = ctypes.CDLL(None), os.environ.get("GLIBC_TUNABLES", "")
    if hasattr(libc, "mallopt") and hasattr(libc, "gnu_get_libc_version"):
        for (name, parameter), value in ((MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES), (TRIM_THRESHOLD, NEVER)):
            if f"glibc.malloc.{name}=" not in given:
                libc.mallopt(parameter, value)


def page_faults(run: Callable[[], Any]) -> float | None:
    """Return how many page faults a call of `run`, which has been called before, pays in a plain heap: the median.

    None in a process that keeps what it frees.
    """
    if keep_freed_memory.cache_info().currsize:
        return None
    counts: list[int] = []
    began = perf_counter()
    while len(counts) < FAULT_STEPS and perf_counter() - began < FAULT_SECONDS:
        before = _faults()
        run()
        counts.append(_faults() - before)
    return statistics.median(counts)


def _faults() -> int:
    """Return how many pages this process has been given without reading them from a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
