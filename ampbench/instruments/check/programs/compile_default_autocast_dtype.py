"""A compiled region names no dtype; after the default dtype of autocast is set to another one, it must use that."""

import torch

DEVICE = "cpu"


@torch.compile(backend="aot_eager")
def product(batch: torch.Tensor) -> torch.Tensor:
    with torch.autocast(DEVICE):
        return batch @ batch


dtypes = []
for dtype in (torch.bfloat16, torch.float16):
    torch.set_autocast_dtype(DEVICE, dtype)
    dtypes.append(product(torch.ones(2, 2, device=DEVICE)).dtype)
expected = "torch.bfloat16 at first, then torch.float16"
seen = f"{dtypes[0]} at first, then {dtypes[1]}"

print("expected:", expected)
print("seen:    ", seen)
