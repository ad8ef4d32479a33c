"""torch.func.grad of a function that uses autocast: its convolution runs in bf16, and so should its backward."""

from typing import Any

import torch
import torch.nn.functional as F
from torch.func import grad
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = "cpu"
ran: dict[str, torch.dtype] = {}


class Watch(TorchDispatchMode):
    """Notes in which dtype each op runs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the dtype of the first input and run the op."""
        ran[func.overloadpacket.__name__] = getattr(args[0] if args else None, "dtype", None)  # type: ignore[assignment]
        return func(*args, **(kwargs or {}))


def loss(kernel: torch.Tensor) -> torch.Tensor:
    """Return the sum of a convolution."""
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        return F.conv2d(torch.ones(1, 1, 4, 4, device=DEVICE), kernel).float().sum()


with Watch():
    grad(loss)(torch.ones(1, 1, 2, 2, device=DEVICE))
expected = "convolution torch.bfloat16, its backward torch.bfloat16"
seen = f"convolution {ran.get('convolution')}, its backward {ran.get('convolution_backward')}"

print("expected:", expected)
print("seen:    ", seen)
