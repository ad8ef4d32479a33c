"""What `ampbench.watch` costs a training loop: the time of a step, of a look, and of its hooks alone."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import torch
from torch import nn

import ampbench
from ampbench.core.units import format_seconds
from ampbench.worker.memory import keep_freed_memory

EVERY, STEPS, PLACE, SECONDS = 100, 40, 20, 30.0
"""Steps between looks that costs are for; those of a turn, and the one of these looked at; seconds a network."""


class Decoder(nn.Module):
    """Two causal layers of a transformer over 64 tokens."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x, mask=self.mask, is_causal=True)


def _convolutions() -> tuple[nn.Module, torch.Tensor]:
    parts = [(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU()) for i, o in ((3, 32), (32, 64), (64, 64))]
    return nn.Sequential(*(part for layer in parts for part in layer)), torch.randn(16, 3, 32, 32)


NETWORKS: Mapping[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = MappingProxyType(
    {
        "4 linears, batch 256": lambda: (
            nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(512, 512), nn.ReLU()))),
            torch.randn(256, 512),
        ),
        "3 convolutions, batch 16": _convolutions,
        "2 decoder layers, batch 8": lambda: (Decoder(), torch.randn(8, 64, 256)),
    }
)


def _turn(make: Callable[[], tuple[nn.Module, torch.Tensor]], *, watched: bool, steps: int, every: int) -> list[float]:
    """Return the seconds of each step after the first."""
    torch.manual_seed(0)
    module, inputs = make()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    seconds = []
    with ampbench.watch(module, optimizer, every=every) if watched else contextlib.nullcontext():
        for _ in range(steps + 1):
            start = time.perf_counter()
            module(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.perf_counter() - start)
    return seconds[1:]


def _hooks() -> float:
    """Return the seconds that the watch takes in a step between looks, seen in steps that do next to nothing."""
    fastest: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(40):
        watched = bool(turn % 2)
        steps = _turn(lambda: (nn.Linear(2, 2), torch.ones(2, 2)), watched=watched, steps=200, every=1000)
        fastest[watched].append(statistics.median(steps))
    return min(fastest[True]) - min(fastest[False])


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield the cost between looks, of a look and over all steps for each network; arms take turns.

    Freed memory is kept, as page faults of a process's heap differ by more than the watch costs.
    """
    keep_freed_memory()
    hooks = _hooks()
    yield "watch: its hooks between looks", format_seconds(hooks), "≤ 30 us"
    for name, make in NETWORKS.items():
        between, looks, plain = [], [], []
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end or len(plain) < 3:
            arms = (False, True) if len(plain) % 2 else (True, False)
            taken = {watched: _turn(make, watched=watched, steps=STEPS, every=PLACE + 1) for watched in arms}
            others = {
                watched: statistics.median(steps[5 : PLACE - 1] + steps[PLACE:]) for watched, steps in taken.items()
            }
            between.append(others[True] / others[False] - 1)
            looks.append(taken[True][PLACE - 1] - others[True])
            plain.append(others[False])
        low, cost, high = statistics.quantiles(between, n=4)
        step, look = statistics.median(plain), statistics.median(looks)
        network, spread = f"watch, {name} ({format_seconds(step)} a step)", f"{low:+.2%} to {high:+.2%}"
        yield f"{network}: between looks", f"{cost:+.2%} ({spread}); hooks {hooks / step:.2%}", "≤ 0.2%"
        yield f"{network}: all steps", f"{cost + look / step / EVERY:+.2%}; a look {format_seconds(look)}", "≤ 1%"
