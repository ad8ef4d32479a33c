"""In eval mode an encoder layer takes a fast path: under autocast it has to run there, too, or take the other one."""

import torch

DEVICE = "cpu"

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, device=DEVICE).eval()
words = torch.randn(2, 4, 8, device=DEVICE)
padding = torch.tensor([[False] * 4, [False, False, True, True]], device=DEVICE)
expected = "the encoder layer is within 0.1 of fp32"
try:
    with torch.inference_mode():
        exact = layer(words, src_key_padding_mask=padding)[0]
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            mixed = layer(words, src_key_padding_mask=padding)[0]
    error_seen = (mixed.double() - exact.double()).abs().max().item()
    good = error_seen < 0.1
    seen = f"the encoder layer is within {error_seen:.3f} of fp32"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
