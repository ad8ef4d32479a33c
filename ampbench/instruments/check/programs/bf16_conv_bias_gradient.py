"""The gradient of a bias is a sum over 40x40 places; summed in bf16, it would stall at 256."""

import torch

DEVICE = "cpu"

layer = torch.nn.Conv2d(1, 2, 3, stride=2, padding=1, device=DEVICE, dtype=torch.bfloat16)
layer(torch.ones(1, 1, 80, 80, device=DEVICE, dtype=torch.bfloat16)).sum().backward()
gradient = None if layer.bias is None or layer.bias.grad is None else layer.bias.grad[0].item()
expected = "the gradient of the bias is 1600.0"
seen = f"the gradient of the bias is {gradient}"

print("expected:", expected)
print("seen:    ", seen)
