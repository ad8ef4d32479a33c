"""Adam's second moment never forgets a spike when its state is bf16.

The moment is multiplied by beta2 = 0.999 in each step. bf16 rounds 0.999 x v back to v, so that one large gradient
shrinks every later step.
Your recipe: `ampbench run model.py:make --phase training --precision bf16_pure --optimizer adam:lr=1e-3`.

Prints:
fp32: second moment after 5000 steps 0.0067 of its peak
bf16: second moment after 5000 steps 1.0000 of its peak
"""

import torch

for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
    weight = torch.nn.Parameter(torch.ones(1, dtype=dtype))
    optimizer = torch.optim.Adam([weight], lr=1e-3)
    weight.grad = torch.full_like(weight, 64.0)
    optimizer.step()
    peak = optimizer.state[weight]["exp_avg_sq"].item()
    for _ in range(5000):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    share = optimizer.state[weight]["exp_avg_sq"].item() / peak
    print(f"{name}: second moment after 5000 steps {share:.4f} of its peak")
