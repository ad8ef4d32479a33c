"""An embedding stays fp32 under autocast and an encoder gives bf16: multimodal models put the one into the other."""

import torch

DEVICE = "cpu"

tokens = torch.zeros(4, 4, device=DEVICE)
places = torch.ones(4, 4, dtype=torch.bool, device=DEVICE)
expected = "masked_scatter gives torch.float32"
try:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        features = torch.mm(torch.ones(4, 4, device=DEVICE), torch.ones(4, 4, device=DEVICE))
        seen = f"masked_scatter gives {tokens.masked_scatter(places, features).dtype}"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
