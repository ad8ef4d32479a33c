"""Compiles a function that draws a tensor, then sets the default dtype to bf16, as pure-bf16 code does."""

import torch

DEVICE = "cpu"


@torch.compile
def noise() -> torch.Tensor:
    return torch.randn(2, device=DEVICE)


first = noise().dtype
torch.set_default_dtype(torch.bfloat16)
expected = "torch.float32 at first, then torch.bfloat16"
seen = f"{first} at first, then {noise().dtype}"

print("expected:", expected)
print("seen:    ", seen)
