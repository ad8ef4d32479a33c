"""Takes 300 steps under a default dtype of bf16, which cannot count beyond 256."""

import torch

DEVICE = "cpu"

counts = []
torch.set_default_dtype(torch.bfloat16)
for foreach, fused in ((False, False), (True, False), (False, True)):
    weight = torch.nn.Parameter(torch.ones(1, device=DEVICE))
    optimizer = torch.optim.AdamW([weight], foreach=foreach, fused=fused)
    weight.grad = torch.ones_like(weight)
    for _ in range(300):
        optimizer.step()
    counts.append(optimizer.state[weight]["step"].item())
torch.set_default_dtype(torch.float32)
expected = "AdamW counts 300.0 steps, foreach 300.0, fused 300.0"
seen = f"AdamW counts {counts[0]} steps, foreach {counts[1]}, fused {counts[2]}"

print("expected:", expected)
print("seen:    ", seen)
