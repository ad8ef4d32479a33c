"""Multiplies 6.5 four times; every product is exact in fp64, and is rounded once here."""

import torch

DEVICE = "cpu"

exact = [torch.tensor(6.5**power, dtype=torch.float64).half().item() for power in range(1, 5)]
products = torch.full((4,), 6.5, device=DEVICE, dtype=torch.float16).cumprod(0)
expected = f"cumprod of 6.5 is {exact}"
seen = f"cumprod of 6.5 is {products.tolist()}"

print("expected:", expected)
print("seen:    ", seen)
