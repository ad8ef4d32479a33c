"""Times a convolution in bf16 and in fp32; converting both, at worst, costs little beside the convolution."""

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
image, kernel = torch.randn(1, 16, 48, 48, device=DEVICE), torch.randn(16, 16, 3, 3, device=DEVICE)
half = image.to(torch.bfloat16), kernel.to(torch.bfloat16)
ratio = best(lambda: torch.nn.functional.conv2d(*half)) / best(lambda: torch.nn.functional.conv2d(image, kernel))
cpu = Path("/proc/cpuinfo")
words = set(cpu.read_text().split()) if cpu.exists() else set()
flags = sorted(word for word in words if word.startswith(("avx", "amx", "asimd", "bf16", "f16c", "sve")))
print("kernels for", torch.backends.cpu.get_cpu_capability(), "on a CPU with", *flags)
print(f"bf16 takes {ratio:.2f} times as long as fp32")
good = ratio <= 4
expected = "bf16 takes at most 4 times as long as fp32"
seen = expected if good else "bf16 takes more than 4 times as long as fp32"

print("expected:", expected)
print("seen:    ", seen)
