"""Clips fp16 gradients whose norm, 80000, is beyond fp16: it comes out as inf, and every gradient is set to 0."""

import torch

DEVICE = "cpu"

weight = torch.nn.Parameter(torch.ones(4, device=DEVICE, dtype=torch.float16))
weight.grad = torch.full_like(weight, 40000.0)
norm = torch.nn.utils.clip_grad_norm_([weight], max_norm=1.0)
expected = "four gradients of 40000 are clipped to 0.5 each"
seen = f"four gradients of 40000 are clipped to {weight.grad[0].item()} each"

print("expected:", expected)
print("seen:    ", seen)
