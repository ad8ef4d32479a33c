"""Writes a weight within a region, as an optimizer or a moving average does; the next output must be of the new one."""

import torch

DEVICE = "cpu"

weight = torch.nn.Parameter(torch.ones(1, 4, device=DEVICE))
batch = torch.ones(1, 4, device=DEVICE)
with torch.autocast(DEVICE, dtype=torch.bfloat16):
    before = torch.nn.functional.linear(batch, weight).item()
    with torch.no_grad():
        weight.fill_(2.0)
    after = torch.nn.functional.linear(batch, weight).item()
expected = "the output goes from 4.0 to 8.0"
seen = f"the output goes from {before} to {after}"

print("expected:", expected)
print("seen:    ", seen)
