"""The first step is skipped; fused SGD then takes uninitialized memory for momentum, which is filled with NaN here."""

import torch

DEVICE = "cpu"

torch.use_deterministic_algorithms(True)
weight = torch.nn.Parameter(torch.ones(4, device=DEVICE))
optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, fused=True)
scaler = torch.amp.GradScaler(DEVICE)
scaler.scale(torch.zeros((), device=DEVICE))
for gradient in (float("inf"), 1.0):
    weight.grad = torch.full_like(weight, gradient * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
torch.use_deterministic_algorithms(False)
expected = "a weight of 1.0 is 0.9000 after a skipped step and one along a gradient of 1.0"
seen = f"a weight of 1.0 is {weight[0]:.4f} after a skipped step and one along a gradient of 1.0"

print("expected:", expected)
print("seen:    ", seen)
