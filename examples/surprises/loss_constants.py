"""A constant that protects a logarithm in fp32 protects nothing in half precision.

fp16 rounds 1e-8 to 0, and bf16 rounds 1 - 1e-7 to 1. Autocast computes these lines in the dtype of the output.
Your network: `ampbench run model.py:make --phase training` looks at the loss apart from the network.

Prints:
fp32: log(0 + 1e-8) = -18.4, log(1 - clamped) = -15.9
fp16: log(0 + 1e-8) = -inf, log(1 - clamped) = -inf
bf16: log(0 + 1e-8) = -18.4, log(1 - clamped) = -inf
"""

import torch

for name, dtype in (("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)):
    zero, certain = torch.zeros(1, dtype=dtype), torch.ones(1, dtype=dtype)
    low = (zero + 1e-8).log()
    high = (1 - certain.clamp(1e-7, 1 - 1e-7)).log()
    print(f"{name}: log(0 + 1e-8) = {low.item():.1f}, log(1 - clamped) = {high.item():.1f}")
