"""Multiplies a batch of fp16 matrices by fp32 ones, which eager refuses; what is compiled must refuse it as well."""

from collections.abc import Callable

import torch

DEVICE = "cpu"


def multiply(half: torch.Tensor, single: torch.Tensor) -> torch.Tensor:
    return half @ single


def outcome(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> str:
    half = torch.ones(2, 4, 8, 8, dtype=torch.float16, device=DEVICE)
    try:
        return f"returns {function(half, torch.ones(2, 4, 8, 8, device=DEVICE)).dtype}"
    except RuntimeError:
        return "refuses"


eager = outcome(multiply)
expected = f"eager {eager}, compiled {eager}"
seen = f"eager {eager}, compiled {outcome(torch.compile(multiply))}"

print("expected:", expected)
print("seen:    ", seen)
