"""Decays a bf16 weight by a factor of 0.999 a thousand times; in bf16 that factor, applied to 1.0, gives 1.0."""

import torch

DEVICE = "cpu"

weight = torch.nn.Parameter(torch.ones(1, device=DEVICE, dtype=torch.bfloat16))
optimizer = torch.optim.AdamW([weight], lr=0.01, weight_decay=0.1)
weight.grad = torch.zeros_like(weight)
for _ in range(1000):
    optimizer.step()
good = abs(weight.item() - 0.999**1000) < 0.05
expected = f"1000 steps of weight decay take a bf16 weight from 1.0 to about {0.999**1000:.2f}"
seen = f"1000 steps of weight decay take a bf16 weight from 1.0 to {weight.item():.2f}"

print("expected:", expected)
print("seen:    ", seen)
