"""Convolves in bf16 with a stride that leaves a last dimension of 1, against the same values in fp64."""

import torch

DEVICE = "cpu"

torch.manual_seed(0)
values = torch.randn(2, 16, 6, 6, 4).bfloat16()
kernel = torch.randn(32, 16, 3, 3, 3).bfloat16()
right = torch.nn.functional.conv3d(values.double(), kernel.double(), stride=(1, 1, 3))
result = torch.nn.functional.conv3d(values.to(DEVICE), kernel.to(DEVICE), stride=(1, 1, 3)).cpu().double()
error = ((result - right).abs().max() / right.abs().max()).item()
good = error < 0.01
expected = "off by less than 1.0 % of the largest value"
seen = f"off by {error:.1%} of the largest value"

print("expected:", expected)
print("seen:    ", seen)
