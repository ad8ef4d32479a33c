"""Gives an fp16 batch to an fp32 layer of one weight, which eager refuses; the compiler makes a plain product of it."""

from collections.abc import Callable

import torch

DEVICE = "cpu"


def outcome(layer: Callable[[torch.Tensor], torch.Tensor]) -> str:
    try:
        return f"returns {layer(torch.ones(1, 1, dtype=torch.float16, device=DEVICE)).dtype}"
    except RuntimeError:
        return "refuses"


layer = torch.nn.Linear(1, 1, device=DEVICE)
eager = outcome(layer)
expected = f"eager {eager}, compiled {eager}"
seen = f"eager {eager}, compiled {outcome(torch.compile(layer, backend='aot_eager_decomp_partition'))}"

print("expected:", expected)
print("seen:    ", seen)
