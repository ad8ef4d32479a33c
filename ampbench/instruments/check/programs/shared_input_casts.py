"""Projects one fp32 input to queries, keys and values by weights in bf16, and counts how often that input is cast."""

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


weights = [torch.ones(4, 4, device=DEVICE, dtype=torch.bfloat16) for _ in range(3)]
batch = torch.ones(2, 4, device=DEVICE)
with torch.autocast(DEVICE, dtype=torch.bfloat16), torch.no_grad(), Casts() as casts:
    queries, keys, values = (torch.nn.functional.linear(batch, weight) for weight in weights)
expected = "3 projections cast their input 1 time"
seen = f"3 projections cast their input {casts.count} time{'s' * (casts.count != 1)}"

print("expected:", expected)
print("seen:    ", seen)
