"""Skips a step by hand, without step() and update(); GradScaler then takes the next iteration for the same one."""

import torch

DEVICE = "cpu"

layer = torch.nn.Linear(1, 1, device=DEVICE)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
scaler = torch.amp.GradScaler(DEVICE)
expected = "the next iteration is unscaled"
seen = "the next iteration is unscaled"
for _ in range(2):
    optimizer.zero_grad()
    scaler.scale(layer(torch.ones(1, 1, device=DEVICE)).sum()).backward()
    try:
        scaler.unscale_(optimizer)
    except RuntimeError as error:
        seen = f"RuntimeError: {error}"

print("expected:", expected)
print("seen:    ", seen)
