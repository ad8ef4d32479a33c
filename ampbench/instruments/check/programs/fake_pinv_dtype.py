"""Fake tensors are to tell, without running, what dtype a call gives: here of an op that is made of others inside."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

DEVICE = "cpu"

with torch.autocast(DEVICE, dtype=torch.bfloat16):
    real = torch.linalg.pinv(torch.eye(3, device=DEVICE)).dtype
with FakeTensorMode(), torch.autocast(DEVICE, dtype=torch.bfloat16):
    fake = torch.linalg.pinv(torch.eye(3, device=DEVICE)).dtype
expected = f"pinv gives {real}"
seen = f"pinv gives {fake}"

print("expected:", expected)
print("seen:    ", seen)
