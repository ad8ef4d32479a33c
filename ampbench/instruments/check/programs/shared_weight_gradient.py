"""Uses a weight 300 times in one region, as a recurrent network does; each use adds exactly 1 to its gradient."""

import torch

DEVICE = "cpu"

weight = torch.nn.Parameter(torch.ones(1, 1, device=DEVICE))
batch = torch.ones(1, 1, device=DEVICE)
with torch.autocast(DEVICE, dtype=torch.bfloat16):
    outputs = [torch.nn.functional.linear(batch, weight) for _ in range(300)]
    loss = torch.stack([output.float() for output in outputs]).sum()
gradient = torch.autograd.grad(loss, weight)[0].item()
expected = "the gradient is 300.0"
seen = f"the gradient is {gradient}"

print("expected:", expected)
print("seen:    ", seen)
