"""Positions above 256 collide in bf16.

bf16 holds every integer up to 256, then every second, then every fourth. Position or time indices that are cast with
the network lose their order, and rotary embeddings give neighbours the same angle.
Your network: `ampbench explain origin model.py:make` names the first module whose error is large.

Prints:
fp32: 4096 different positions of 4096
fp16: 3073 different positions of 4096
bf16: 769 different positions of 4096
"""

import torch

positions = torch.arange(4096)
for name, dtype in (("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)):
    print(f"{name}: {positions.to(dtype).unique().numel()} different positions of 4096")
