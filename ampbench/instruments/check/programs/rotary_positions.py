"""Rotary embeddings multiply positions by frequencies with matmul, which autocast casts although both are fp32."""

import torch

DEVICE = "cpu"

positions = torch.arange(1000, 1008, dtype=torch.float32, device=DEVICE)
frequencies = torch.ones(1, 1, device=DEVICE)
with torch.autocast(DEVICE, dtype=torch.bfloat16):
    angles = frequencies @ positions[None]
expected = "8 positions have 8 angles"
seen = f"8 positions have {len(set(angles[0].tolist()))} angles"

print("expected:", expected)
print("seen:    ", seen)
