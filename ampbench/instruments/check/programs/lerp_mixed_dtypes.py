"""lerp mixes a fp32 tensor with a product, which is bf16 under autocast; add and mul of the same two take them."""

import torch

DEVICE = "cpu"

given = torch.ones(2, 2, device=DEVICE)
expected = "lerp gives torch.float32"
try:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        product = torch.mm(given, given)
        print("given + 0.5 * (product - given) gives", (given + 0.5 * (product - given)).dtype)
        seen = f"lerp gives {torch.lerp(given, product, 0.5).dtype}"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
