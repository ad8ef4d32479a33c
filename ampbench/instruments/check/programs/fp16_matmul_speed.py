"""Times a product of matrices in fp16 and in fp32; converting both, at worst, costs little beside the product."""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

DEVICE = "cpu"


def best(call: Callable[[], Any]) -> float:
    """Return the shortest of nine calls, in seconds."""
    times = []
    for _ in range(9):
        began = perf_counter()
        call()
        times.append(perf_counter() - began)
    return min(times)


torch.manual_seed(0)
single = torch.randn(192, 192, device=DEVICE)
half = single.to(torch.float16)
ratio = best(lambda: torch.matmul(half, half)) / best(lambda: torch.matmul(single, single))
cpu = Path("/proc/cpuinfo")
words = set(cpu.read_text().split()) if cpu.exists() else set()
flags = sorted(word for word in words if word.startswith(("avx", "amx", "asimd", "bf16", "f16c", "sve")))
print("kernels for", torch.backends.cpu.get_cpu_capability(), "on a CPU with", *flags)
print(f"fp16 takes {ratio:.2f} times as long as fp32")
good = ratio <= 4
expected = "fp16 takes at most 4 times as long as fp32"
seen = expected if good else "fp16 takes more than 4 times as long as fp32"

print("expected:", expected)
print("seen:    ", seen)
