"""Optimizers of bf16 weights whose updates are rounded stochastically, or compensated, instead of to nearest.

The optimizer is the user's own. Around each of its steps, weights and gradients in bf16 are exchanged for fp32 copies,
and so is its state; afterwards the difference is rounded into the same bf16 tensors. State is stored in bf16, rounded
to nearest, as in the published methods: torchao's `_AdamW(bf16_stochastic_round=True)`, optimi's Kahan summation, and
Zamirai et al. 2020 (arXiv 2010.06192), which both follow. So a second moment with 1 - β2 < 2**-9 decays no more than
there. Numbers without a dimension, such as Adam's count of steps, stay as they are.

What is emulated is the result, not its cost: during a step there are fp32 copies of weights, gradients and state.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ampbench.worker.data import is_wrapper
from ampbench.worker.network import MakeOptimizer

COMPENSATION = "kahan_comp"
"""The key of the compensation in the state of a weight, as optimi calls it."""


def stochastic(make_optimizer: MakeOptimizer) -> MakeOptimizer:
    """Return a function that makes the same optimizer, whose bf16 weights are rounded stochastically.

    A weight becomes one of its two neighbours in bf16, each with the probability that makes the mean exact. All
    optimizers that the function makes draw from one sequence of random numbers for each device, which begins at
    `torch.initial_seed()` and leaves torch's own generators alone: a run with the same seed gives the same weights.
    """
    generators: dict[torch.device, torch.Generator] = {}

    def write_back(stored: torch.Tensor, moved: torch.Tensor, _: dict[str, Any]) -> None:
        device = stored.device
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(torch.initial_seed())
        stored.copy_(round_stochastically(moved, generators[device]))

    return _around(make_optimizer, write_back)


def kahan(make_optimizer: MakeOptimizer) -> MakeOptimizer:
    """Return a function that makes the same optimizer, whose bf16 weights have a bf16 compensation each.

    The compensation holds the part of the updates that rounding took from the weight; it is state of the optimizer
    below the key `COMPENSATION`, and a weight plus its compensation is the true value.
    """

    def write_back(stored: torch.Tensor, moved: torch.Tensor, state: dict[str, Any]) -> None:
        kept = state.setdefault(COMPENSATION, torch.zeros_like(stored))
        before = stored.float()
        kept.copy_(kept.float() + (moved - before))
        stored.copy_(before + kept.float())
        kept.copy_(kept.float() + (before - stored.float()))

    return _around(make_optimizer, write_back)


def round_stochastically(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return fp32 values in bf16, up or down with probabilities that keep their mean; others than finite ones as they
    are.

    16 random bits are added to the 16 that bf16 drops, as in torchao.
    """
    noise = torch.randint(1 << 16, values.shape, dtype=torch.int32, device=values.device, generator=generator)
    rounded = (values.view(torch.int32) + noise & -(1 << 16)).view(torch.float32)
    return torch.where(values.isfinite(), rounded, values).bfloat16()


_WriteBack = Callable[[torch.Tensor, torch.Tensor, dict[str, Any]], None]


def _around(make_optimizer: MakeOptimizer, write_back: _WriteBack) -> MakeOptimizer:
    def make(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = make_optimizer(parameters)
        lifted = _Lifted(write_back)
        optimizer.register_step_pre_hook(lifted.lift)
        optimizer.register_step_post_hook(lifted.lower)
        return optimizer

    return make


@dataclass(slots=True)
class _Lifted:
    """The weights of a step in fp32, and the bf16 tensors that they, their gradients and their state came from."""

    write_back: _WriteBack
    weights: list[tuple[torch.nn.Parameter, torch.Tensor, torch.Tensor, Mapping[str, torch.Tensor]]] = field(
        default_factory=list
    )

    @torch.no_grad()
    def lift(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Exchange bf16 weights with a gradient, this and the state for fp32 copies."""
        for parameter in (member for group in optimizer.param_groups for member in group["params"]):
            if parameter.dtype is not torch.bfloat16 or parameter.grad is None:
                continue
            state = optimizer.state.get(parameter, {})
            kept = {
                key: value for key, value in state.items() if key != COMPENSATION and _is_plain(value, torch.bfloat16)
            }
            state.update({key: value.float() for key, value in kept.items()})
            stored, gradient = parameter.data, parameter.grad
            self.weights.append((parameter, stored, gradient, kept))
            parameter.grad = None
            parameter.data = stored.float()
            parameter.grad = gradient.float()

    @torch.no_grad()
    def lower(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Write the moved weights and the state back into the bf16 tensors."""
        for parameter, stored, gradient, kept in self.weights:
            moved, state = parameter.data, optimizer.state[parameter]
            parameter.grad = None
            parameter.data = stored
            parameter.grad = gradient
            for key, value in state.items():
                if key in kept:
                    state[key] = kept[key].copy_(value)
                elif key != COMPENSATION and _is_plain(value, torch.float32):
                    state[key] = value.bfloat16()
            self.write_back(stored, moved, state)
        self.weights.clear()


def _is_plain(value: Any, dtype: torch.dtype) -> bool:
    """Return whether a value of the state is stored like a weight: neither a number nor in a class of its own."""
    return isinstance(value, torch.Tensor) and value.dtype is dtype and value.ndim > 0 and not is_wrapper(value)
