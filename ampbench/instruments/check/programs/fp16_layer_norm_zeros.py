"""Normalizes zeros with an eps that is 0 in fp16; computed in fp32, it keeps 0 from being divided by 0."""

import torch

DEVICE = "cpu"

zeros = torch.zeros(1, 10, device=DEVICE, dtype=torch.float16)
result = torch.nn.functional.layer_norm(zeros, (10,), eps=1e-12)
expected = "layer norm of zeros is 0.0"
seen = f"layer norm of zeros is {result[0, 0].item()}"

print("expected:", expected)
print("seen:    ", seen)
