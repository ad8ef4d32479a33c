"""Normalizes bf16 values and counts how far the results are from those of fp64, in distances of bf16 values."""

import torch

DEVICE = "cpu"

torch.manual_seed(0)
values = torch.randn(256, 12).bfloat16()
right = torch.nn.functional.layer_norm(values.double(), (12,), eps=0.0)
result = torch.nn.functional.layer_norm(values.to(DEVICE), (12,), eps=0.0).cpu().double()
error = ((result - right).abs() / 2.0 ** (right.abs().log2().floor() - 7)).max().item()
good = error <= 1
expected = "off by one distance of bf16 values at most"
seen = f"off by {'one distance' if good else f'{error:.0f} distances'} of bf16 values at most"

print("expected:", expected)
print("seen:    ", seen)
