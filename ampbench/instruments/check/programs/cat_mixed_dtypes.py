"""A skip connection joins the fp32 input with the bf16 output of a layer: the result has to be of the wider dtype."""

import torch

DEVICE = "cpu"

given = torch.full((2, 4), 1.0009765625, device=DEVICE)
with torch.autocast(DEVICE, dtype=torch.bfloat16):
    layer = torch.mm(given, torch.ones(4, 4, device=DEVICE))
    dtypes = [torch.cat([given, layer]).dtype, torch.cat([layer, given]).dtype, torch.stack([layer, given]).dtype]
expected = "cat torch.float32, cat in the other order torch.float32, stack torch.float32"
seen = f"cat {dtypes[0]}, cat in the other order {dtypes[1]}, stack {dtypes[2]}"

print("expected:", expected)
print("seen:    ", seen)
