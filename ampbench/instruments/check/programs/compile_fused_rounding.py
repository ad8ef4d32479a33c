"""Squares 1.0078125 in bf16, which rounds to 1.015625, and subtracts that: eager sees 0, fused code the rounding."""

import torch

DEVICE = "cpu"


@torch.compile
def remainder(values: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
    return values * values - square


values = torch.full((64,), 1.0078125, dtype=torch.bfloat16, device=DEVICE)
square = torch.full((64,), 1.015625, dtype=torch.bfloat16, device=DEVICE)
expected = "a remainder of 0.0"
seen = f"a remainder of {remainder(values, square)[0].item()}"

print("expected:", expected)
print("seen:    ", seen)
