"""Of a million normal draws, about 465 are further from 0 than 3.5; computed in bf16, none is."""

import torch

DEVICE = "cpu"

torch.manual_seed(0)
far = (torch.randn(1_000_000, device=DEVICE, dtype=torch.bfloat16).abs() > 3.5).sum().item()
good = 300 < far < 650
expected = "about 465 of 1000000 normal draws are beyond 3.5"
seen = f"{far} of 1000000 normal draws are beyond 3.5"

print("expected:", expected)
print("seen:    ", seen)
