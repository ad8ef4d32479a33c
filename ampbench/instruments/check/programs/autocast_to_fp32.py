"""A region of autocast to fp32, as a part of a half model that has to be exact, multiplies bf16 tensors."""

import torch

DEVICE = "cpu"

half = torch.ones(4, 4, dtype=torch.bfloat16, device=DEVICE)
with torch.autocast(DEVICE, dtype=torch.float32):
    product = torch.mm(half, half)
expected = "a product under autocast to fp32 gives torch.float32"
seen = f"a product under autocast to fp32 gives {product.dtype}"

print("expected:", expected)
print("seen:    ", seen)
