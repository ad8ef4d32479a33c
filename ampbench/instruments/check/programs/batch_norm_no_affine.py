"""BatchNorm without weights has fp32 statistics and gets half from a layer: it has to train as it does with weights."""

import torch
from torch import nn

DEVICE = "cpu"

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=False)).to(DEVICE)
expected = "the convolution has a gradient"
try:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        output = model(torch.randn(2, 1, 8, 8, device=DEVICE))
    output.float().square().sum().backward()
    seen = f"the convolution has {'no' if model[0].weight.grad is None else 'a'} gradient"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
