"""After a skipped step, unfused Adam leaves unscaled gradients behind, and fused Adam scaled ones."""

import torch

DEVICE = "cpu"

left = []
for fused in (False, True):
    weight = torch.nn.Parameter(torch.ones(2, device=DEVICE))
    optimizer = torch.optim.Adam([weight], fused=fused)
    scaler = torch.amp.GradScaler(DEVICE)
    scaler.scale(torch.zeros((), device=DEVICE))
    weight.grad = torch.tensor([scaler.get_scale(), float("inf")], device=DEVICE)
    scaler.step(optimizer)
    left.append(weight.grad[0].item())
expected = "a gradient of 1.0 is left as 1.0 by Adam, as 1.0 by fused Adam"
seen = f"a gradient of 1.0 is left as {left[0]} by Adam, as {left[1]} by fused Adam"

print("expected:", expected)
print("seen:    ", seen)
