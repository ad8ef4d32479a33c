"""Input and weight are bf16, so there is nothing to promote: the result should be bf16, as it is outside autocast."""

import torch
import torch.nn.functional as F

DEVICE = "cpu"

batch = torch.ones(2, 8, dtype=torch.bfloat16, device=DEVICE)
weight = torch.ones(8, dtype=torch.bfloat16, device=DEVICE)
with torch.autocast(DEVICE, dtype=torch.bfloat16):
    normed = F.rms_norm(batch, (8,), weight)
expected = "rms_norm of bf16 gives torch.bfloat16"
seen = f"rms_norm of bf16 gives {normed.dtype}"

print("expected:", expected)
print("seen:    ", seen)
