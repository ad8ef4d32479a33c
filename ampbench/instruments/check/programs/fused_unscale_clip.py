"""Gradients are unscaled and clipped by hand before the step; a fused optimizer must not unscale them again."""

import torch

DEVICE = "cpu"

weight = torch.nn.Parameter(torch.ones(2, device=DEVICE))
sgd = torch.optim.SGD([weight], lr=0.1, fused=True)
adam = torch.optim.Adam([weight], lr=0.0, fused=True)
for optimizer in (sgd, adam):
    scaler = torch.amp.GradScaler(DEVICE)
    scaler.scale(torch.zeros((), device=DEVICE))
    weight.grad = torch.tensor([3.0, 4.0], device=DEVICE) * scaler.get_scale()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_([weight], max_norm=1.0)
    scaler.step(optimizer)
average = adam.state[weight]["exp_avg"]
expected = "SGD steps to 0.9400 0.9200, Adam averages 0.0600 0.0800"
seen = f"SGD steps to {weight[0]:.4f} {weight[1]:.4f}, Adam averages {average[0]:.4f} {average[1]:.4f}"

print("expected:", expected)
print("seen:    ", seen)
