"""An encoder in eval mode gets a mask of padding: it trains under autocast, so it has to run there in eval, too."""

import torch
from torch import nn

DEVICE = "cpu"

torch.manual_seed(0)
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, device=DEVICE), 2).eval()
words = torch.randn(2, 4, 8, device=DEVICE)
padding = torch.tensor([[False] * 4, [False, False, True, True]], device=DEVICE)
expected = "the encoder is within 0.1 of fp32"
try:
    with torch.inference_mode():
        exact = encoder(words, src_key_padding_mask=padding)[0]
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            mixed = encoder(words, src_key_padding_mask=padding)[0]
    error_seen = (mixed.double() - exact.double()).abs().max().item()
    good = error_seen < 0.1
    seen = f"the encoder is within {error_seen:.3f} of fp32"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
