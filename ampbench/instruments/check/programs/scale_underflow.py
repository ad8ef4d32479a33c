"""Every skipped step halves the scale, down to 0; from then on unscaling multiplies by infinity."""

import torch

DEVICE = "cpu"

weight = torch.zeros(1, device=DEVICE, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
scaler = torch.amp.GradScaler(DEVICE)
scaler.scale(torch.zeros((), device=DEVICE))
for _ in range(200):
    weight.grad = torch.full_like(weight, float("inf"))
    scaler.step(optimizer)
    scaler.update()
weight.grad = torch.zeros_like(weight)
scaler.unscale_(optimizer)
good = scaler.get_scale() > 0
expected = "after 200 skipped steps the scale is above 0, and a gradient of 0.0 stays 0.0"
seen = f"after 200 skipped steps the scale is {scaler.get_scale()}, and a gradient of 0.0 becomes {weight.grad.item()}"

print("expected:", expected)
print("seen:    ", seen)
