"""Multiplies a row of inf, 0, -inf with a column of a positive, a positive and a negative number: all terms agree."""

import torch

DEVICE = "cpu"

left = torch.zeros(16, 3, device=DEVICE, dtype=torch.bfloat16)
left[8] = torch.tensor([float("inf"), 0.0, float("-inf")])
right = torch.zeros(3, 8, device=DEVICE, dtype=torch.bfloat16)
right[:, 0] = torch.tensor([0.7891, 0.2041, -0.1982])
expected = "inf * 0.79 + 0 * 0.2 + -inf * -0.2 is inf"
seen = f"inf * 0.79 + 0 * 0.2 + -inf * -0.2 is {(left @ right)[8, 0].item()}"

print("expected:", expected)
print("seen:    ", seen)
