"""Runs a block without gradients and then checkpointed, in one region; backward must rebuild what forward saved."""

import torch
from torch.utils.checkpoint import checkpoint

DEVICE = "cpu"

first = torch.nn.Linear(4, 4, device=DEVICE)
block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4)).to(DEVICE)
batch = torch.ones(2, 4, device=DEVICE)
expected = seen = "every weight has a gradient"
try:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        with torch.no_grad():
            block(batch)
        loss = checkpoint(block, first(batch), use_reentrant=False).float().sum()
    loss.backward()
    if any(weight.grad is None for weight in block.parameters()):
        seen = "some weight has no gradient"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
