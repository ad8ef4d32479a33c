"""A weight without a gradient must stay; in fp16 Adam's eps of 1e-8 is 0, so that it divides 0 by 0."""

import torch

DEVICE = "cpu"

weight = torch.nn.Parameter(torch.ones(1, device=DEVICE, dtype=torch.float16))
optimizer = torch.optim.Adam([weight])
weight.grad = torch.zeros_like(weight)
optimizer.step()
expected = "an fp16 weight of 1.0 is 1.0 after a step along a gradient of 0.0"
seen = f"an fp16 weight of 1.0 is {weight.item()} after a step along a gradient of 0.0"

print("expected:", expected)
print("seen:    ", seen)
