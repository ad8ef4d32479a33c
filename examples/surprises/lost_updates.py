"""bf16 weights ignore small steps of their optimizer.

bf16 has 8 significant bits: an update below 1/512 of its weight rounds to nothing. AdamW moves each weight by about its
learning rate, whatever the gradient. Both trainings below see the same gradients for 1,000 steps.
Your network: `ampbench run model.py:make --phase training --precision bf16_pure`.

Prints:
fp32: 1000 of 1000 weights moved
bf16: 0 of 1000 weights moved
"""

import torch

for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
    start = torch.linspace(0.1, 1, 1000, dtype=dtype)
    weights = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.AdamW([weights], lr=1e-5, weight_decay=0)
    for _ in range(1000):
        weights.grad = torch.ones_like(weights)
        optimizer.step()
    print(f"{name}: {int((weights != start).sum())} of 1000 weights moved")
