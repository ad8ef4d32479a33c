"""Uses a frozen weight twice in one region, and counts how often it is cast."""

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


weight = torch.nn.Parameter(torch.ones(4, 4, device=DEVICE), requires_grad=False)
batch = torch.ones(2, 4, device=DEVICE, dtype=torch.bfloat16)
with torch.autocast(DEVICE, dtype=torch.bfloat16), torch.no_grad(), Casts() as casts:
    torch.nn.functional.linear(batch, weight)
    torch.nn.functional.linear(batch, weight)
expected = "2 uses cast the weight 1 time"
seen = f"2 uses cast the weight {casts.count} time{'s' * (casts.count != 1)}"

print("expected:", expected)
print("seen:    ", seen)
