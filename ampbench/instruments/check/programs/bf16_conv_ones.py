"""Convolves 2x2 ones with 2x2 ones in bf16, with oneDNN and without: four products, so 4."""

import torch

DEVICE = "cpu"

ones = torch.ones(1, 1, 2, 2, device=DEVICE, dtype=torch.bfloat16)
sums = []
for enabled in (True, False):
    with torch.backends.mkldnn.flags(enabled=enabled):
        sums.append(torch.nn.functional.conv2d(ones, ones).item())
expected = "the sum of four ones is 4.0 with oneDNN, 4.0 without"
seen = f"the sum of four ones is {sums[0]} with oneDNN, {sums[1]} without"

print("expected:", expected)
print("seen:    ", seen)
