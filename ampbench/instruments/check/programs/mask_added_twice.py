"""Adds two masks of the lowest number, as for padding and causality: together they are -inf, all along a row."""

import torch

DEVICE = "cpu"

found = []
for dtype in (torch.float16, torch.bfloat16):
    mask = torch.full((4,), torch.finfo(dtype).min, device=DEVICE, dtype=dtype)
    found.append(torch.softmax(mask + mask, dim=-1)[0].item())
expected = "a fully masked row of 4 gets probabilities of 0.25 in fp16, 0.25 in bf16"
seen = f"a fully masked row of 4 gets probabilities of {found[0]} in fp16, {found[1]} in bf16"

print("expected:", expected)
print("seen:    ", seen)
