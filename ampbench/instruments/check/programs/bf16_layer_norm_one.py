"""A value is its own mean, so that layer norm over one value returns the bias, whatever the value."""

import torch

DEVICE = "cpu"

value, weight, bias = (torch.tensor([number], device=DEVICE, dtype=torch.bfloat16) for number in (1e6, 2.0, 3.0))
result = torch.nn.functional.layer_norm(value, (1,), weight, bias)
expected = "layer norm of 1e6 alone, with a bias of 3.0, is 3.0"
seen = f"layer norm of 1e6 alone, with a bias of 3.0, is {result.item()}"

print("expected:", expected)
print("seen:    ", seen)
