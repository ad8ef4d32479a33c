"""The sum of the values is beyond fp16, their mean is not."""

import torch

DEVICE = "cpu"

mean = torch.full((10,), 40000.0, device=DEVICE, dtype=torch.float16).mean()
expected = "the mean of ten times 40000.0 is 40000.0"
seen = f"the mean of ten times 40000.0 is {mean.item()}"

print("expected:", expected)
print("seen:    ", seen)
