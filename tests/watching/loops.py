"""Training loops that are watched: healthy ones in every form, and some with a planted fault."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import ampbench
from ampbench.watching import Watch


class Net(nn.Module):
    """A small network with normalisations and dropout; `checkpointed` runs its middle again in the backward pass."""

    def __init__(self, checkpointed: bool = False):
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.norm = nn.BatchNorm1d(32)
        self.middle = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.1))
        self.last = nn.Linear(32, 4)
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = checkpoint(self.middle, x, use_reentrant=False) if self.checkpointed else self.middle(x)
        return self.last(x)


def data(steps: int, batch: int = 32) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield torch.randn(batch, 16, generator=generator), torch.randint(0, 4, (batch,), generator=generator)


def take_step(loss: torch.Tensor, optimizer: Any, scaler: Any = None) -> None:
    """Take the step that everybody takes."""
    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def trained(
    form: str, steps: int, *, watched: bool, wrap: Callable[[nn.Module], nn.Module] = lambda module: module
) -> tuple[list[torch.Tensor], Watch | None]:
    """Return the losses and weights of a training in a form, as bits, and its watch."""
    torch.manual_seed(0)
    network = Net(checkpointed=form == "checkpointing")
    dtype = torch.bfloat16 if form == "pure" else torch.float32
    module = wrap(network.to(dtype))
    optimizer = sgd(module.parameters())
    if form in ("fused", "pure"):
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, eps=1e-4, fused=form == "fused")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20) if form in ("fp16", "fused", "overflowing") else None
    half = {
        "autocast": torch.bfloat16,
        "fp16": torch.float16,
        "fused": torch.float16,
        "overflowing": torch.float16,
    }.get(form)
    every = 2 if form == "accumulation" else 1
    seen: list[torch.Tensor] = []
    watch = ampbench.watch(module, optimizer, scaler=scaler, every=20) if watched else contextlib.nullcontext()
    with watch:
        for place, (x, y) in enumerate(data(steps)):
            with torch.autocast("cpu", dtype=half or torch.bfloat16, enabled=half is not None):
                loss = F.cross_entropy(module(x.to(dtype)).float(), y)
            if form == "overflowing" and place in (30, 31, 90):
                loss = loss * torch.inf
            if scaler is not None:
                scaler.scale(loss).backward()
            else:
                (loss / every).backward()
            seen.append(loss.detach())
            if (place + 1) % every:
                continue
            if form == "clipping":
                nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            if scaler is not None:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()
    seen += [tensor.detach().clone() for tensor in module.state_dict().values()]
    return seen, watch if isinstance(watch, Watch) else None


def same_bits(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
        for one, other in zip(first, second, strict=True)
    )
