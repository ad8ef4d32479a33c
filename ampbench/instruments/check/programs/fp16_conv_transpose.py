"""Two products beyond fp16 cancel to a small number; added in fp16, they are inf - inf."""

import torch

DEVICE = "cpu"

values = torch.tensor([[[30000.0, 30000.0]]], dtype=torch.float16)
kernel = torch.tensor([[[-3.1, 3.0]]], dtype=torch.float16)
right = (values.double() * kernel.double()).sum().half().item()
result = torch.nn.functional.conv_transpose1d(values.to(DEVICE), kernel.to(DEVICE))
expected = f"30000 * -3.1 + 30000 * 3.0 is {right}"
seen = f"30000 * -3.1 + 30000 * 3.0 is {result[0, 0, 1].item()}"

print("expected:", expected)
print("seen:    ", seen)
