"""An exponential moving average in bf16 never leaves its start.

With decay 0.999 each step moves the average by a thousandth of the distance. bf16 needs two thousandths of the value.
Keep averages of weights in fp32.

Prints:
fp32: average 0.993
bf16: average 0.500
"""

import torch

for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
    average, weight = torch.full((1,), 0.5, dtype=dtype), torch.ones(1, dtype=dtype)
    for _ in range(4300):
        average.lerp_(weight, 1e-3)
    print(f"{name}: average {average.item():.3f}")
