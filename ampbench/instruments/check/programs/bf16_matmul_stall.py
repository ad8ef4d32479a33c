"""Sums 1024 ones by a matrix product in bf16; summed in bf16, not in fp32, it would stall at 256."""

import torch

DEVICE = "cpu"

rows = torch.ones(4, 1024, device=DEVICE, dtype=torch.bfloat16)
sums = []
for enabled in (True, False):
    with torch.backends.mkldnn.flags(enabled=enabled):
        sums.append((rows @ rows.t())[0, 0].item())
expected = "the sum of 1024 ones is 1024.0 with oneDNN, 1024.0 without"
seen = f"the sum of 1024 ones is {sums[0]} with oneDNN, {sums[1]} without"

print("expected:", expected)
print("seen:    ", seen)
