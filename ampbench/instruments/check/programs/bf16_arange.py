"""Counts from 241 to 272 in bf16, against the same integers rounded once."""

import torch

DEVICE = "cpu"

counted = torch.arange(241, 273, device=DEVICE, dtype=torch.bfloat16)
rounded = torch.arange(241, 273, device=DEVICE).bfloat16()
expected = "0 of 32 numbers differ from the rounded integers"
seen = f"{(counted != rounded).sum().item()} of {counted.numel()} numbers differ from the rounded integers"

print("expected:", expected)
print("seen:    ", seen)
