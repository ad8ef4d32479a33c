"""The fp32 gradient is infinite and the fp64 gradient, looked at later, is not: the step must still be skipped."""

import torch

DEVICE = "cpu"

first = torch.nn.Parameter(torch.ones(1, device=DEVICE))
second = torch.nn.Parameter(torch.ones(1, device=DEVICE, dtype=torch.float64))
optimizer = torch.optim.SGD([first, second], lr=0.5)
scaler = torch.amp.GradScaler(DEVICE, init_scale=8.0)
scaler.scale(torch.zeros((), device=DEVICE))
first.grad = torch.full_like(first, float("inf"))
second.grad = torch.full_like(second, 8.0)
scaler.step(optimizer)
scaler.update()
expected = "the weights are 1.0 and 1.0, the scale 4.0"
seen = f"the weights are {first.item()} and {second.item()}, the scale {scaler.get_scale()}"

print("expected:", expected)
print("seen:    ", seen)
