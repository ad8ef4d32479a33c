"""Backward runs in a thread of its own on an accelerator: a region around it, to another dtype, has to reach it."""

from typing import Any

import torch

DEVICE = "cpu"
DTYPE = torch.float16 if DEVICE == "cpu" else torch.bfloat16
ran: list[torch.dtype] = []


class Product(torch.autograd.Function):
    """A product that notes the dtype of its backward."""

    @staticmethod
    def forward(ctx: Any, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        ctx.save_for_backward(right)
        return left @ right

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient of the left factor."""
        found = gradient @ ctx.saved_tensors[0].t()
        ran.append(found.dtype)
        return found, None


left = torch.ones(2, 2, device=DEVICE, requires_grad=True)
with torch.autocast(DEVICE, dtype=DTYPE):
    loss = Product.apply(left, torch.ones(2, 2, device=DEVICE))
    loss.float().sum().backward()
expected = f"the backward's product gives {DTYPE}"
seen = f"the backward's product gives {ran[0]}"

print("expected:", expected)
print("seen:    ", seen)
