"""Calls a layer in a bf16 region and again in an fp16 region within it, which must not be given the cast to bf16."""

import torch

DEVICE = "cpu"

layer = torch.nn.Linear(4, 4, device=DEVICE)
batch = torch.ones(2, 4, device=DEVICE)
with torch.autocast(DEVICE, dtype=torch.bfloat16):
    outer = layer(batch).dtype
    with torch.autocast(DEVICE, dtype=torch.float16):
        try:
            inner = str(layer(batch).dtype)
        except RuntimeError as error:
            inner = f"{type(error).__name__}: {str(error).splitlines()[0]}"
expected = "outer torch.bfloat16, inner torch.float16"
seen = f"outer {outer}, inner {inner}"

print("expected:", expected)
print("seen:    ", seen)
