"""One row is used 4096 times, so that its gradient is 4096; summed in bf16, it stalls at 256."""

import torch

DEVICE = "cpu"

weight = torch.zeros(2, 1, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
rows = torch.zeros(4096, device=DEVICE, dtype=torch.long)
(indexed,) = torch.autograd.grad(weight[rows].sum(), weight)
(embedded,) = torch.autograd.grad(torch.nn.functional.embedding(rows, weight).sum(), weight)
expected = "the gradient is 4096.0 by indexing, 4096.0 by embedding"
seen = f"the gradient is {indexed[0].item()} by indexing, {embedded[0].item()} by embedding"

print("expected:", expected)
print("seen:    ", seen)
