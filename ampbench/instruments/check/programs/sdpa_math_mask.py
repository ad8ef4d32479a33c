"""A bf16 model hands a fp32 mask to attention: every implementation of it should take that mask, or none."""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DEVICE = "cpu"

words = torch.ones(1, 1, 4, 8, dtype=torch.bfloat16, device=DEVICE)
mask = torch.zeros(4, 4, device=DEVICE)
expected = "attention by its math implementation gives torch.bfloat16"
try:
    with sdpa_kernel(SDPBackend.MATH):
        mixed = F.scaled_dot_product_attention(words, words, words, mask)
    seen = f"attention by its math implementation gives {mixed.dtype}"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
