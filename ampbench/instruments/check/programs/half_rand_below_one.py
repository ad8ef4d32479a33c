"""Uniform draws are below 1; one just below, rounded to 16 bits, would be 1."""

import torch

DEVICE = "cpu"

torch.manual_seed(0)
ones = [
    (torch.rand(1_000_000, device=DEVICE, dtype=dtype) == 1).sum().item() for dtype in (torch.float16, torch.bfloat16)
]
expected = "of 1000000 uniform draws, 0 are 1.0 in fp16, 0 in bf16"
seen = f"of 1000000 uniform draws, {ones[0]} are 1.0 in fp16, {ones[1]} in bf16"

print("expected:", expected)
print("seen:    ", seen)
