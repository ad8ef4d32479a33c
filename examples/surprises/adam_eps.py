"""Adam's eps is zero in fp16, and a weight without gradient becomes NaN.

The default eps=1e-8 is below half of fp16's smallest number, 6e-8. Where a gradient is 0, the update is 0 / (0 + eps).
Your network: `ampbench run model.py:make --phase training --precision fp16_pure --optimizer adam:lr=1e-3`.

Prints:
eps=1e-08: weight nan
eps=1e-04: weight 1.0
"""

import torch

for eps in (1e-8, 1e-4):
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float16))
    weight.grad = torch.zeros_like(weight)
    torch.optim.Adam([weight], lr=1e-3, eps=eps).step()
    print(f"eps={eps:.0e}: weight {weight.item()}")
