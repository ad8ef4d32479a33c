"""Steps fp16 weights with a GradScaler: it refuses to unscale their gradients, unless the optimizer is fused."""

import torch

DEVICE = "cpu"

results = []
for fused in (False, True):
    weight = torch.nn.Parameter(torch.ones(1, device=DEVICE, dtype=torch.float16))
    optimizer = torch.optim.SGD([weight], lr=0.5, fused=fused)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=8.0)
    scaler.scale(torch.zeros((), device=DEVICE))
    weight.grad = torch.full_like(weight, 8.0)
    try:
        scaler.step(optimizer)
        results.append(f"the weight is {weight.item()}")
    except ValueError as error:
        results.append(f"ValueError: {error}")
expected = "SGD: the weight is 0.5; fused SGD: the weight is 0.5"
seen = f"SGD: {results[0]}; fused SGD: {results[1]}"

print("expected:", expected)
print("seen:    ", seen)
