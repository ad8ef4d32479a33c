"""The logarithm of the largest numbers is 88; 1 plus such a number must not leave the range on the way."""

import torch

DEVICE = "cpu"

result = torch.full((64,), 1.821e38, device=DEVICE, dtype=torch.bfloat16).log1p()
expected = "log1p of 1.8e38 is 88.0"
seen = f"log1p of 1.8e38 is {result[0].item()}"

print("expected:", expected)
print("seen:    ", seen)
