"""The scale doubles after every good step; where it grew to infinity, no gradient could be unscaled again."""

import math

import torch

DEVICE = "cpu"

layer = torch.nn.Linear(1, 1, device=DEVICE)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**120, growth_interval=1)
batch = torch.ones(1, 1, device=DEVICE)
for _ in range(20):
    optimizer.zero_grad()
    scaler.scale(layer(batch).sum() * 2.0**-100).backward()
    scaler.step(optimizer)
    scaler.update()
expected = "the scale is finite after 20 good steps from 2**120"
seen = f"the scale is {'finite' if math.isfinite(scaler.get_scale()) else 'inf'} after 20 good steps from 2**120"

print("expected:", expected)
print("seen:    ", seen)
