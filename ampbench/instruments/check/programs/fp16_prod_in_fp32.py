"""Multiplies fp16 values with an fp32 result: 8 to the power of 6 is beyond fp16, and exact in fp32."""

import torch

DEVICE = "cpu"

product = torch.full((6,), 8.0, device=DEVICE, dtype=torch.float16).prod(dtype=torch.float32)
expected = f"8 ** 6 is {float(8**6)}"
seen = f"8 ** 6 is {product.item()}"

print("expected:", expected)
print("seen:    ", seen)
