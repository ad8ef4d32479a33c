"""Smoothed or not, the loss of equal scores is the logarithm of their number; the smooth part sums over all of them."""

import math

import torch

DEVICE = "cpu"

scores = torch.zeros(16, 1000, device=DEVICE, dtype=torch.float16)
labels = torch.zeros(16, device=DEVICE, dtype=torch.long)
losses = [torch.nn.functional.cross_entropy(scores, labels, label_smoothing=share).item() for share in (0.0, 0.1)]
expected = f"the mean loss is {math.log(1000):.1f}, with label smoothing {math.log(1000):.1f}"
seen = f"the mean loss is {losses[0]:.1f}, with label smoothing {losses[1]:.1f}"

print("expected:", expected)
print("seen:    ", seen)
