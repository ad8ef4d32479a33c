"""MultiheadAttention with a fp32 mask: under autocast the query becomes bf16, and the mask has to go along."""

import torch

DEVICE = "cpu"

torch.manual_seed(0)
attention = torch.nn.MultiheadAttention(8, 2, batch_first=True, device=DEVICE).eval()
words = torch.randn(1, 4, 8, device=DEVICE)
mask = torch.zeros(4, 4, device=DEVICE)
expected = "attention gives torch.bfloat16"
try:
    with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.bfloat16):
        mixed, _ = attention(words, words, words, attn_mask=mask, need_weights=False)
    seen = f"attention gives {mixed.dtype}"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
