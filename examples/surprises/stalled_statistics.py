"""BatchNorm's running mean stops far from the mean when its buffer is bf16.

Each step adds momentum x (mean - running mean). Below half a unit in the last place of the buffer, nothing changes.
The training loss does not show it, because training normalises by the batch.
Your network: `ampbench run model.py:make --phase training --precision bf16_pure` refuses stalled statistics.

Prints:
fp32: running mean 3.00 of 3.00
bf16: running mean 2.00 of 3.00
"""

import torch

for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
    norm = torch.nn.BatchNorm1d(1, momentum=0.01).to(dtype)
    batch = torch.tensor([[2.0], [4.0]], dtype=dtype)
    for _ in range(2000):
        norm(batch)
    print(f"{name}: running mean {norm.running_mean.item():.2f} of 3.00")
