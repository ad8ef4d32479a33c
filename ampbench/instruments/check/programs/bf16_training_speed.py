"""Times training steps of a small regression in autocast to bf16 and in fp32."""

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


def step(dtype: torch.dtype) -> None:
    """Train a small network for a step, in autocast where the dtype is not fp32."""
    with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=dtype != torch.float32):
        output = model(batch)
    output.float().square().mean().backward()


torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(1, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)
).to(DEVICE)
batch = torch.randn(64, 1, device=DEVICE)
ratio = best(lambda: step(torch.bfloat16)) / best(lambda: step(torch.float32))
cpu = Path("/proc/cpuinfo")
words = set(cpu.read_text().split()) if cpu.exists() else set()
flags = sorted(word for word in words if word.startswith(("avx", "amx", "asimd", "bf16", "f16c", "sve")))
print("kernels for", torch.backends.cpu.get_cpu_capability(), "on a CPU with", *flags)
print(f"bf16 autocast takes {ratio:.2f} times as long as fp32")
good = ratio <= 4
expected = "bf16 autocast takes at most 4 times as long as fp32"
seen = expected if good else "bf16 autocast takes more than 4 times as long as fp32"

print("expected:", expected)
print("seen:    ", seen)
