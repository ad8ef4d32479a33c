"""Steps bf16 weights with a GradScaler, which some devices have no kernel for."""

import torch

DEVICE = "cpu"

weight = torch.nn.Parameter(torch.ones(1, device=DEVICE, dtype=torch.bfloat16))
optimizer = torch.optim.SGD([weight], lr=0.5)
scaler = torch.amp.GradScaler(DEVICE, init_scale=8.0)
scaler.scale(torch.zeros((), device=DEVICE))
weight.grad = torch.full_like(weight, 8.0)
expected = "a bf16 weight is stepped from 1.0 to 0.5"
try:
    scaler.step(optimizer)
    seen = f"a bf16 weight is stepped from 1.0 to {weight.item()}"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
