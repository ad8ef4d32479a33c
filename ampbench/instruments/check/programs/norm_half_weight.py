"""A norm whose weights were made half meets a fp32 input under autocast, which is there to make such dtypes fit."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

DEVICE = "cpu"

batch = torch.ones(2, 8, device=DEVICE)
weight = torch.ones(8, dtype=torch.float16, device=DEVICE)


def told(call: Callable[[], torch.Tensor]) -> str:
    """Return the dtype of what the call returns, or its error."""
    try:
        return str(call().dtype)
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


with torch.autocast(DEVICE, dtype=torch.float16):
    layer = told(lambda: F.layer_norm(batch, (8,), weight, weight))
    group = told(lambda: F.group_norm(batch, 2, weight, weight))
expected = "layer_norm gives torch.float32, group_norm gives torch.float32"
seen = f"layer_norm gives {layer}, group_norm gives {group}"

print("expected:", expected)
print("seen:    ", seen)
