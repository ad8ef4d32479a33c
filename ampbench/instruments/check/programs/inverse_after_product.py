"""A product is bf16 under autocast, and inv takes no half dtype: autocast has to cast for it."""

import torch

DEVICE = "cpu"

expected = "inv gives torch.float32"
try:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        matrix = torch.mm(torch.eye(4, device=DEVICE), torch.eye(4, device=DEVICE))
        seen = f"inv gives {torch.linalg.inv(matrix).dtype}"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
