"""Sums half a million fp16 values; where the running sum is kept in fp16 rather than in fp32, errors add up."""

import torch

DEVICE = "cpu"

torch.manual_seed(0)
values = torch.randn(500_000).half()
error = (values.to(DEVICE).cumsum(0).cpu().double() - values.double().cumsum(0)).abs().max().item()
good = error <= 1.0
expected = "sums up to 1600 are off by 1.0 at most, the distance of fp16 values there"
seen = f"sums up to 1600 are off by {error:.1f} at most"

print("expected:", expected)
print("seen:    ", seen)
