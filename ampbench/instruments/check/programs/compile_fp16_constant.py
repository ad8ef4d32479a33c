"""Masks fp16 scores with -1e9, which fp16 cannot hold and eager refuses; compiled code must not write -inf instead."""

from collections.abc import Callable

import torch

DEVICE = "cpu"


def mask(scores: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(scores > 0, -1e9)


def outcome(function: Callable[[torch.Tensor], torch.Tensor]) -> str:
    try:
        return f"writes {function(torch.ones(4, dtype=torch.float16, device=DEVICE))[0].item()}"
    except RuntimeError:
        return "refuses"


eager = outcome(mask)
expected = f"eager {eager}, compiled {eager}"
seen = f"eager {eager}, compiled {outcome(torch.compile(mask))}"

print("expected:", expected)
print("seen:    ", seen)
