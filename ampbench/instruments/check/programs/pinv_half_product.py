"""pinv decomposes in fp32 and then multiplies, which autocast casts: the inverse of 3 has only the digits of bf16."""

import torch

DEVICE = "cpu"

matrix = torch.tensor([[1.0, 0.0], [0.0, 3.0], [0.0, 0.0]], device=DEVICE)
with torch.autocast(DEVICE, dtype=torch.bfloat16):
    inverse = torch.linalg.pinv(matrix)
error = abs(inverse[1, 1].double().item() - 1 / 3)
good = error < 1e-6
expected = "1/3 in torch.float32, wrong by less than 1e-6"
seen = f"1/3 in {inverse.dtype}, wrong by {error:.0e}"

print("expected:", expected)
print("seen:    ", seen)
