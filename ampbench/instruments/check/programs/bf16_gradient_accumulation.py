"""Accumulates a gradient of 1.0 a thousand times in bf16, where 256 + 1 is 256."""

import torch

DEVICE = "cpu"

layer = torch.nn.Linear(1, 1, bias=False, device=DEVICE, dtype=torch.bfloat16)
batch = torch.ones(1, 1, device=DEVICE, dtype=torch.bfloat16)
for _ in range(1000):
    layer(batch).sum().backward()
gradient = layer.weight.grad
expected = "1000 gradients of 1.0 add up to 1000.0"
seen = f"1000 gradients of 1.0 add up to {None if gradient is None else gradient.item()}"

print("expected:", expected)
print("seen:    ", seen)
