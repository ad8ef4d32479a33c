"""Sums 72 integers; their sum is exact, so that only its rounding to fp16, where values are 4 apart, may differ."""

import torch

DEVICE = "cpu"

torch.manual_seed(0)
integers = torch.randint(16, 100, (9, 8))
right = integers.sum().to(torch.float16).item()
expected = f"72 integers that sum to {integers.sum()} sum to {right} in fp16"
seen = f"72 integers that sum to {integers.sum()} sum to {integers.half().to(DEVICE).sum().item()} in fp16"

print("expected:", expected)
print("seen:    ", seen)
