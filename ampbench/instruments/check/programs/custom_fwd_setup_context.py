"""custom_fwd keeps in ctx what custom_bwd needs; forward gets no ctx where setup_context is a method of its own."""

from typing import Any

import torch
from torch.amp import custom_bwd, custom_fwd

DEVICE = "cpu"


class Twice(torch.autograd.Function):
    """Doubles its input."""

    @staticmethod
    @custom_fwd(device_type=DEVICE)
    def forward(given: torch.Tensor) -> torch.Tensor:
        """Return the double."""
        return given * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    @custom_bwd(device_type=DEVICE)
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Return the double."""
        return gradient * 2


expected = "the gradient is 2.0"
given = torch.ones(1, device=DEVICE, requires_grad=True)
try:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        loss = Twice.apply(given)
    loss.sum().backward()
    seen = f"the gradient is {given.grad.item() if given.grad is not None else None}"
except AttributeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
