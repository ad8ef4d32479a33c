"""Whether what a step frees stays in the process, and what it costs where it does not."""

import ctypes
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ampbench.worker import memory

FAULTS = """
import resource, torch
from ampbench.worker.memory import keep_freed_memory
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
layers = torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3, padding=1)
network = torch.nn.Sequential(*layers)
inputs = torch.randn(4, 3, 32, 32)
keep_freed_memory()
with torch.inference_mode():
    for _ in range(20):
        network(inputs)
    before = faults()
    for _ in range(50):
        network(inputs)
print((faults() - before) / 50)
"""


@pytest.fixture(autouse=True)
def plain() -> Iterator[None]:
    """A process whose heap is the plain one, as far as it knows."""
    memory.keep_freed_memory.cache_clear()
    yield
    memory.keep_freed_memory.cache_clear()


@pytest.fixture
def mallopt(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """A C library that notes what it is asked to keep."""
    asked: list[tuple[int, int]] = []

    class Library:
        gnu_get_libc_version = None

        def mallopt(self, parameter: int, value: int) -> int:
            asked.append((parameter, value))
            return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library())
    return asked


def test_glibc_is_told_to_keep_what_is_freed(mallopt: list[tuple[int, int]]) -> None:
    memory.keep_freed_memory()
    assert mallopt == [(-3, 1 << 25), (-1, -1)]


def test_another_libc_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    memory.keep_freed_memory()


def test_what_a_user_says_of_a_parameter_is_left_as_it_is(
    mallopt: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072")
    memory.keep_freed_memory()
    assert mallopt == [(-3, 1 << 25)]


@pytest.mark.slow
def test_a_step_that_allocates_half_a_mebibyte_pays_no_page_faults() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 20
