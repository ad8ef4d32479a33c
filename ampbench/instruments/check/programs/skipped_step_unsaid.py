"""Takes one step and has another one skipped: what GradScaler.step returns does not tell them apart."""

import torch

DEVICE = "cpu"

weight = torch.nn.Parameter(torch.ones(1, device=DEVICE))
optimizer = torch.optim.SGD([weight], lr=0.1)
scaler = torch.amp.GradScaler(DEVICE)
scaler.scale(torch.zeros((), device=DEVICE))
returned = []
for gradient in (1.0, float("inf")):
    weight.grad = torch.full_like(weight, gradient)
    returned.append(scaler.step(optimizer))
    scaler.update()
good = returned[0] != returned[1]
expected = "step() returns one thing for a step that is taken, another for one that is skipped"
seen = f"step() returns {returned[0]} for a step that is taken, {returned[1]} for one that is skipped"

print("expected:", expected)
print("seen:    ", seen)
