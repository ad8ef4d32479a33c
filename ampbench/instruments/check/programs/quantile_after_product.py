"""A product is bf16 under autocast, and quantile takes fp32 or fp64 alone: autocast has to cast for it."""

import torch

DEVICE = "cpu"

expected = "quantile gives torch.float32"
try:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        scores = torch.mm(torch.ones(2, 4, device=DEVICE), torch.ones(4, 4, device=DEVICE))
        seen = f"quantile gives {torch.quantile(scores, 0.5, dim=1).dtype}"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
