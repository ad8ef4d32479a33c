"""Adds a matrix times a vector to a vector in bf16, against fp64: only the result may be rounded."""

import torch

DEVICE = "cpu"

torch.manual_seed(0)
matrix, vector, start = (torch.randn(*shape).mul(8).bfloat16() for shape in ((64, 32), (32,), (64,)))
right = start.double() + matrix.double() @ vector.double()
result = torch.addmv(start.to(DEVICE), matrix.to(DEVICE), vector.to(DEVICE)).cpu().double()
roundings = ((result - right).abs() / (right.abs() * 2.0**-8 + 0.01)).max().item()
good = roundings <= 1
expected = "off by 1 rounding at most"
seen = f"off by {'1 rounding' if good else f'{roundings:.0f} roundings'} at most"

print("expected:", expected)
print("seen:    ", seen)
