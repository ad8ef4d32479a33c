"""Runs a norm, a projection, a softmax and a projection, all of them in bf16 already, in autocast to bf16."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = "cpu"


class Casts(TorchDispatchMode):
    """Counts casts."""

    count = 0
    _should_skip_dynamo = classmethod(lambda _: False)  # or torch._dynamo is imported, for seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype)
        return func(*args, **(kwargs or {}))


batch = weight = torch.ones(4, 4, device=DEVICE, dtype=torch.bfloat16)
with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.bfloat16), Casts() as casts:
    normed = torch.nn.functional.layer_norm(batch, (4,))
    shares = torch.softmax(torch.nn.functional.linear(normed, weight), dim=-1)
    torch.nn.functional.linear(shares, weight)
expected = "0 casts"
seen = f"{casts.count} casts"

print("expected:", expected)
print("seen:    ", seen)
