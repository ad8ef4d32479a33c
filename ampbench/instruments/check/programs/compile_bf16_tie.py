"""Squares 1.0078125 in bf16, which rounds to 1.015625, and asks whether it equals that: eager says yes."""

import torch

DEVICE = "cpu"


@torch.compile
def ties(values: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
    return values * values == square


values = torch.full((64,), 1.0078125, dtype=torch.bfloat16, device=DEVICE)
square = torch.full((64,), 1.015625, dtype=torch.bfloat16, device=DEVICE)
expected = "the square equals 1.015625: True"
seen = f"the square equals 1.015625: {ties(values, square)[0].item()}"

print("expected:", expected)
print("seen:    ", seen)
