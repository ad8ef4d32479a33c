"""Compiles a product in a bf16 region, forgets it as a new process would, and compiles it in an fp16 one."""

import torch
import torch._functorch.config

DEVICE = "cpu"


def product(batch: torch.Tensor) -> torch.Tensor:
    return batch @ batch


dtypes = []
for dtype in (torch.bfloat16, torch.float16):
    torch._dynamo.reset()
    with (
        torch.no_grad(),
        torch.autocast(DEVICE, dtype=dtype),
        torch._functorch.config.patch(enable_autograd_cache=True),
    ):
        dtypes.append(torch.compile(product)(torch.ones(4, 4, device=DEVICE)).dtype)
expected = "torch.bfloat16, then torch.float16"
seen = f"{dtypes[0]}, then {dtypes[1]}"

print("expected:", expected)
print("seen:    ", seen)
