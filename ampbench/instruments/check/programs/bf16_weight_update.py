"""Takes 1000 steps of 0.001 from 1.0; the next bf16 value below 1.0 is 0.996, so that every step is rounded away."""

import torch

DEVICE = "cpu"

weight = torch.nn.Parameter(torch.ones(1, device=DEVICE, dtype=torch.bfloat16))
optimizer = torch.optim.SGD([weight], lr=1e-3)
weight.grad = torch.ones_like(weight)
for _ in range(1000):
    optimizer.step()
good = abs(weight.item()) < 0.1
expected = "1000 steps of -0.001 take a bf16 weight from 1.0 to about 0.0"
seen = f"1000 steps of -0.001 take a bf16 weight from 1.0 to {weight.item()}"

print("expected:", expected)
print("seen:    ", seen)
