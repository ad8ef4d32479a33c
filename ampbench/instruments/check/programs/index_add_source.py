"""The product is bf16 under autocast and the sum that it is added to is fp32: a sum by index should take it."""

import torch

DEVICE = "cpu"

index = torch.zeros(4, dtype=torch.int64, device=DEVICE)
expected = "index_add gives torch.float32"
try:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        messages = torch.mm(torch.ones(4, 4, device=DEVICE), torch.ones(4, 4, device=DEVICE))
        seen = f"index_add gives {torch.zeros(2, 4, device=DEVICE).index_add(0, index, messages).dtype}"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
