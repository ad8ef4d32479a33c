"""bilinear takes the widest dtype of its inputs under autocast, and the bias, which is fp32, is one of them."""

import torch
import torch.nn.functional as F

DEVICE = "cpu"

left = torch.ones(2, 4, dtype=torch.bfloat16, device=DEVICE)
weight = torch.ones(3, 4, 4, dtype=torch.bfloat16, device=DEVICE)
bias = torch.ones(3, device=DEVICE)
expected = "bilinear with a fp32 bias gives torch.float32"
try:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        seen = f"bilinear with a fp32 bias gives {F.bilinear(left, left, weight, bias).dtype}"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
