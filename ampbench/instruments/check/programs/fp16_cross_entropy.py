"""All classes are as likely, so that the loss is the logarithm of their number; what is summed first is beyond fp16."""

import math

import torch

DEVICE = "cpu"

scores = torch.zeros(16384, 100, device=DEVICE, dtype=torch.float16)
loss = torch.nn.functional.cross_entropy(scores, torch.zeros(16384, device=DEVICE, dtype=torch.long))
expected = f"the mean loss of 16384 rows of 100 equal scores is {math.log(100):.1f}"
seen = f"the mean loss of 16384 rows of 100 equal scores is {loss.item():.1f}"

print("expected:", expected)
print("seen:    ", seen)
