"""Counts the casts of one pass through two blocks, in fp32 under autocast and in bf16 without it."""

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


def blocks(dtype: torch.dtype) -> None:
    """Run two blocks whose weights and input have a dtype."""
    weights = [torch.ones(4, 4, device=DEVICE, dtype=dtype) for _ in range(4)]
    output = torch.ones(2, 4, device=DEVICE, dtype=dtype)
    for first, second in zip(weights[::2], weights[1::2], strict=True):
        normed = torch.nn.functional.layer_norm(output, (4,))
        output = torch.nn.functional.linear(torch.nn.functional.gelu(torch.nn.functional.linear(normed, first)), second)


with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.bfloat16), Casts() as mixed:
    blocks(torch.float32)
with torch.no_grad(), Casts() as pure:
    blocks(torch.bfloat16)
expected = f"{pure.count} casts"
seen = f"{mixed.count} casts"

print("expected:", expected)
print("seen:    ", seen)
