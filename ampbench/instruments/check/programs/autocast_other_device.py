"""A region of autocast is named after a device type: here after another one than that of the tensors in it."""

import torch

DEVICE = "cpu"

with torch.autocast("cuda" if DEVICE == "cpu" else "cpu", dtype=torch.bfloat16):
    product = torch.mm(torch.ones(2, 2, device=DEVICE), torch.ones(2, 2, device=DEVICE))
expected = "the product gives torch.bfloat16"
seen = f"the product gives {product.dtype}"

print("expected:", expected)
print("seen:    ", seen)
