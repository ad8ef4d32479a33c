"""GradScaler skips the first step; the scheduler then moves on, and warns of a wrong order that is not the user's."""

import warnings

import torch

DEVICE = "cpu"

weight = torch.nn.Parameter(torch.ones(1, device=DEVICE))
optimizer = torch.optim.SGD([weight], lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
scaler = torch.amp.GradScaler(DEVICE)
scaler.scale(torch.zeros((), device=DEVICE))
weight.grad = torch.full_like(weight, float("inf"))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
expected = "no warning"
said = [str(one.message).split(". ")[0] for one in caught]
seen = next((f"a warning: {line}" for line in said if "lr_scheduler" in line), "no warning")

print("expected:", expected)
print("seen:    ", seen)
