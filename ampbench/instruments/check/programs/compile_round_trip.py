"""Casts 1 + 2**-10 to bf16 and back, compiled: bf16 has 8 significant bits, so that 1.0 must come back."""

import torch

DEVICE = "cpu"


@torch.compile
def rounded(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.bfloat16).to(torch.float32)


values = torch.full((64,), 1 + 2**-10, device=DEVICE)
expected = "1.0"
seen = str(rounded(values)[0].item())

print("expected:", expected)
print("seen:    ", seen)
