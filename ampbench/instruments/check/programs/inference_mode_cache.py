"""Validates in inference mode and then trains, in one region; the training must not be given the validation's casts."""

import torch

DEVICE = "cpu"

layer = torch.nn.Linear(4, 4, device=DEVICE)
batch = torch.ones(2, 4, device=DEVICE)
expected = seen = "the weight has a gradient"
try:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        with torch.inference_mode():
            layer(batch)
        loss = layer(batch).float().sum()
    loss.backward()
    if layer.weight.grad is None:
        seen = "the weight has no gradient"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
