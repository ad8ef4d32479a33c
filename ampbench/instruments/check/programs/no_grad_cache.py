"""The first call caches the weight's cast without a history; the second one must not be given that."""

import torch

DEVICE = "cpu"

layer = torch.nn.Linear(4, 4, device=DEVICE)
batch = torch.ones(2, 4, device=DEVICE)
with torch.autocast(DEVICE, dtype=torch.bfloat16):
    with torch.no_grad():
        layer(batch)
    loss = layer(batch).float().sum()
if loss.requires_grad:
    loss.backward()
expected = "the weight has a gradient"
seen = "the weight has a gradient" if layer.weight.grad is not None else "the weight has no gradient"

print("expected:", expected)
print("seen:    ", seen)
