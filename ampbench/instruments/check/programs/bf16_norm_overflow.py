"""The norm of 1e20 is 1e20, well within bf16 (and fp32); the square that is summed on the way is not."""

import torch

DEVICE = "cpu"

vector = torch.tensor([1e20, 1.0, 1.0], device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
norm = torch.linalg.vector_norm(vector)
(gradient,) = torch.autograd.grad(norm, vector)
expected = "the norm is 1e+20, its gradient 1.0"
seen = f"the norm is {norm.item():.0e}, its gradient {gradient[0].item()}"

print("expected:", expected)
print("seen:    ", seen)
