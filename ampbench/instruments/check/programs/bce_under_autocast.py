"""A model ends with a sigmoid and binary_cross_entropy: what runs under autocast here should do so on every device."""

import torch
import torch.nn.functional as F

DEVICE = "cpu"

target = torch.ones(2, 2, device=DEVICE)
expected = "binary_cross_entropy gives torch.float32"
try:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        chance = torch.mm(torch.ones(2, 2, device=DEVICE), torch.ones(2, 2, device=DEVICE)).sigmoid()
        seen = f"binary_cross_entropy gives {F.binary_cross_entropy(chance, target).dtype}"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {' '.join(str(error).split())[:90]}"

print("expected:", expected)
print("seen:    ", seen)
