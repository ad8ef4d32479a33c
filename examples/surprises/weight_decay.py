"""Weight decay does nothing to bf16 weights at usual learning rates.

AdamW multiplies weights by 1 - lr x decay. At lr 1e-3 and decay 0.1 the factor is 0.9999, and bf16 rounds the product
back to the weight: the decay needs lr x decay above 1/512.
Your recipe: `ampbench run model.py:make --phase training --optimizer adamw:lr=1e-3,weight_decay=0.1`.

Prints:
fp32: norm 31.6 -> 23.4
bf16: norm 31.6 -> 31.6
"""

import torch

for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
    weights = torch.nn.Parameter(torch.ones(1000, dtype=dtype))
    optimizer = torch.optim.AdamW([weights], lr=1e-3, weight_decay=0.1)
    before = weights.float().norm().item()
    for _ in range(3_000):
        weights.grad = torch.zeros_like(weights)
        optimizer.step()
    print(f"{name}: norm {before:.1f} -> {weights.float().norm().item():.1f}")
