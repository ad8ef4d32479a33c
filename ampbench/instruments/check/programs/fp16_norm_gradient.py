"""The 3-norm of one value is that value, so its gradient is 1; in fp16 it is made of powers that are 0."""

import torch

DEVICE = "cpu"

vector = torch.tensor([1e-4], device=DEVICE, dtype=torch.float16, requires_grad=True)
(gradient,) = torch.autograd.grad(vector.norm(3), vector)
expected = "the gradient is 1.0"
seen = f"the gradient is {gradient.item():.1f}"

print("expected:", expected)
print("seen:    ", seen)
