"""Within autocast, a part that has to be exact switches it off, but names another device type than the tensors'."""

import torch

DEVICE = "cpu"

other = "cuda" if DEVICE == "cpu" else "cpu"
with torch.autocast(DEVICE, dtype=torch.bfloat16), torch.autocast(other, enabled=False):
    product = torch.mm(torch.ones(2, 2, device=DEVICE), torch.ones(2, 2, device=DEVICE))
expected = "the product gives torch.float32"
seen = f"the product gives {product.dtype}"

print("expected:", expected)
print("seen:    ", seen)
