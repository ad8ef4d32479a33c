"""Squares 300 in fp16, which overflows, and asks isinf about it in the same compiled function: both must agree."""

import torch

DEVICE = "cpu"


@torch.compile
def square(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    squared = values * values
    return squared, torch.isinf(squared)


squared, infinite = square(torch.full((64,), 300.0, dtype=torch.float16, device=DEVICE))
expected = "300 squared is inf, and isinf says True"
seen = f"300 squared is {squared[0].item()}, and isinf says {infinite[0].item()}"

print("expected:", expected)
print("seen:    ", seen)
