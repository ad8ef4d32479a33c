"""A product is bf16 under autocast, and rfft of 6 values has no bf16 kernel: autocast has to cast for it."""

import torch

DEVICE = "cpu"

expected = "rfft gives torch.complex64"
try:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        signal = torch.mm(torch.ones(2, 6, device=DEVICE), torch.ones(6, 6, device=DEVICE))
        seen = f"rfft gives {torch.fft.rfft(signal).dtype}"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
