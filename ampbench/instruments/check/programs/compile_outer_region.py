"""Calls one compiled function outside autocast, within bf16 and within fp16: each call must see the region it is in."""

import torch

DEVICE = "cpu"


@torch.compile(backend="aot_eager")
def product(batch: torch.Tensor) -> tuple[torch.Tensor, bool]:
    return batch @ batch, torch.is_autocast_enabled(DEVICE)


batch = torch.ones(2, 2, device=DEVICE)
calls = [product(batch)]
for dtype in (torch.bfloat16, torch.float16):
    with torch.autocast(DEVICE, dtype=dtype):
        calls.append(product(batch))
expected = "torch.float32 with False, torch.bfloat16 with True, torch.float16 with True"
seen = ", ".join(f"{result.dtype} with {enabled}" for result, enabled in calls)

print("expected:", expected)
print("seen:    ", seen)
