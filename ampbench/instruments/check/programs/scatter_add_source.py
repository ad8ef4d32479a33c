"""The product is bf16 under autocast, the sum that it is added to is fp32: scatter_add has to take the wider dtype."""

import torch

DEVICE = "cpu"

index = torch.zeros(1, 4, dtype=torch.int64, device=DEVICE)
expected = "scatter_add gives torch.float32"
try:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        messages = torch.mm(torch.ones(1, 4, device=DEVICE), torch.ones(4, 4, device=DEVICE))
        seen = f"scatter_add gives {torch.zeros(2, 4, device=DEVICE).scatter_add(0, index, messages).dtype}"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
