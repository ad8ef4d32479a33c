"""Autocast computes with yesterday's weight when the weight changes inside its block.

The cast of a weight is kept until the block ends, so a change through `.data` is not seen. Leave the block around each
step, or pass cache_enabled=False.
Your torch: `ampbench check` runs this and other known defects.

Prints:
cache on: 1.0, then 1.0
cache off: 1.0, then 5.0
"""

import torch

for name, cached in (("on", True), ("off", False)):
    layer = torch.nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(1.0)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
        before = layer(torch.ones(1, 1)).item()
        layer.weight.data.fill_(5.0)
        after = layer(torch.ones(1, 1)).item()
    print(f"cache {name}: {before}, then {after}")
