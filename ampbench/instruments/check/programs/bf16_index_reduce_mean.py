"""The mean of 4096 ones is 1; in bf16, their sum or their count stops at 256, which is a sixteenth of the other."""

import torch

DEVICE = "cpu"

target = torch.zeros(1, 2, device=DEVICE, dtype=torch.bfloat16)
rows = torch.zeros(4096, device=DEVICE, dtype=torch.long)
ones = torch.ones(4096, 2, device=DEVICE, dtype=torch.bfloat16)
mean = target.index_reduce(0, rows, ones, "mean", include_self=False)
expected = "the mean of 4096 ones is 1.0"
seen = f"the mean of 4096 ones is {mean[0, 0].item()}"

print("expected:", expected)
print("seen:    ", seen)
