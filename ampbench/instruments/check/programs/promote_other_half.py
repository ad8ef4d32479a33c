"""Ops that take the widest dtype of their inputs meet a half dtype that is not the region's own; fp32 is the widest."""

from collections.abc import Callable

import torch

DEVICE = "cpu"

half = torch.ones(4, dtype=torch.float16, device=DEVICE)
single = torch.ones(4, device=DEVICE)


def told(call: Callable[[], torch.Tensor]) -> str:
    """Return the dtype of what the call returns, or its error."""
    try:
        return str(call().dtype)
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


with torch.autocast(DEVICE, dtype=torch.bfloat16):
    joined = told(lambda: torch.cat([half, single]))
    added = told(lambda: torch.addcmul(half, single, single))
expected = "cat torch.float32, addcmul torch.float32"
seen = f"cat {joined}, addcmul {added}"

print("expected:", expected)
print("seen:    ", seen)
