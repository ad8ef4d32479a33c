"""One gradient of 1.0, then a thousand of 0.0: Adam's mean of squares has to fade, and in bf16 it cannot."""

import torch

DEVICE = "cpu"

weight = torch.nn.Parameter(torch.zeros(1, device=DEVICE, dtype=torch.bfloat16))
optimizer = torch.optim.Adam([weight], betas=(0.9, 0.999))
weight.grad = torch.ones_like(weight)
optimizer.step()
first = optimizer.state[weight]["exp_avg_sq"].item()
weight.grad = torch.zeros_like(weight)
for _ in range(1000):
    optimizer.step()
kept = optimizer.state[weight]["exp_avg_sq"].item() / first
good = abs(kept - 0.999**1000) < 0.05
expected = f"the mean of squares fades to about {0.999**1000:.2f} of it in 1000 steps"
seen = f"the mean of squares fades to {kept:.2f} of it in 1000 steps"

print("expected:", expected)
print("seen:    ", seen)
