"""Under autocast a norm with fp32 weights sees bf16 values; the gradient of its bias is a sum over all 65536 rows."""

import torch

DEVICE = "cpu"

torch.manual_seed(0)
torch.set_num_threads(1)
layer = torch.nn.Linear(4, 2, device=DEVICE)
norm = torch.nn.LayerNorm(2, device=DEVICE)
batch = torch.randn(65536, 4, device=DEVICE)
with torch.autocast(DEVICE, dtype=torch.bfloat16):
    result = norm(layer(batch))
(gradient,) = torch.autograd.grad(result.float().sum(), norm.bias)
expected = "the gradient of the bias, one for each of 65536 rows, is 65536.0"
seen = f"the gradient of the bias, one for each of 65536 rows, is {gradient[0].item()}"

print("expected:", expected)
print("seen:    ", seen)
