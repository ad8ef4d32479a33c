"""What `ampbench.watch` costs a training loop: time of a step, looked at and between looks, and memory."""

import contextlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import torch
from torch import nn

import ampbench
from ampbench.core.units import format_bytes, format_seconds

EVERY, STEPS, TURNS = 100, 200, 8
"""Steps from look to look, steps of a turn after its first one, and turns of each arm."""


class Encoder(nn.Module):
    """Two layers of a transformer over 64 tokens."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def _linear() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(512, 512), nn.ReLU()))), torch.randn(256, 512)


def _convolutions() -> tuple[nn.Module, torch.Tensor]:
    widths = [(3, 32), (32, 64), (64, 64)]
    parts = [part for i, o in widths for part in (nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())]
    return nn.Sequential(*parts), torch.randn(16, 3, 32, 32)


NETWORKS: Mapping[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = MappingProxyType(
    {
        "4 linears, batch 256": _linear,
        "3 convolutions, batch 16": _convolutions,
        "2 encoder layers, batch 8": lambda: (Encoder(), torch.randn(8, 64, 256)),
    }
)


def _turn(name: str, *, watched: bool, steps: int = STEPS) -> list[float]:
    """Return the seconds of each step after the first, which a watch looks at like any hundredth."""
    torch.manual_seed(0)
    module, inputs = NETWORKS[name]()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    seconds = []
    with ampbench.watch(module, optimizer, every=EVERY) if watched else contextlib.nullcontext():
        for _ in range(steps + 1):
            start = time.perf_counter()
            module(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.perf_counter() - start)
    return seconds[1:]


def _between(seconds: list[float]) -> float:
    """Return the median of the steps that a watch does not look at."""
    return statistics.median(taken for place, taken in enumerate(seconds, 2) if place % EVERY)


def _peak(name: str, *, watched: bool) -> int:
    """Return the largest resident memory of a process that takes a few looks."""
    words = [sys.executable, "-m", "benchmarks.self.watching", name, *(["watched"] if watched else [])]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield for each network the cost over all steps, that between looks, and that in memory; arms take turns."""
    for name in NETWORKS:
        whole, between, step = [], [], []
        for turn in range(TURNS + 1):
            arms = (False, True) if turn % 2 else (True, False)
            taken = {watched: _turn(name, watched=watched) for watched in arms}
            if turn:  # the first one warms up
                whole.append(sum(taken[True]) / sum(taken[False]) - 1)
                between.append(_between(taken[True]) / _between(taken[False]) - 1)
                step.append(statistics.median(taken[False]))
        network = f"watch, {name} ({format_seconds(statistics.median(step))} a step)"
        yield f"{network}: all steps", f"{statistics.median(whole):+.2%}", "≤ 1%"
        yield f"{network}: between looks", f"{statistics.median(between):+.2%}", "≤ 0.2%"
        more = _peak(name, watched=True) - _peak(name, watched=False)
        yield f"{network}: memory", f"{format_bytes(max(more, 0))} more", "one module's activations"


if __name__ == "__main__":
    _turn(sys.argv[1], watched=sys.argv[2:] == ["watched"], steps=5)
    sys.stdout.write(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}\n")
