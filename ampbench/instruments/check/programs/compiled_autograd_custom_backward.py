"""A training step with compiled autograd calls a function with custom_bwd under autocast; its gradient is known."""

from typing import Any

import torch
import torch._dynamo.config

DEVICE = "cpu"


class Square(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type=DEVICE)
    def forward(ctx: Any, batch: torch.Tensor) -> torch.Tensor:
        return batch @ batch

    @staticmethod
    @torch.amp.custom_bwd(device_type=DEVICE)
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3


torch._dynamo.config.compiled_autograd = True


@torch.compile(backend="eager")
def step(batch: torch.Tensor) -> None:
    loss = Square.apply(batch).float().sum()
    loss.backward()


batch = torch.ones(1, 1, device=DEVICE, requires_grad=True)
expected = "a gradient of 3.0"
try:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        step(batch)
    seen = f"a gradient of {batch.grad.item() if batch.grad is not None else None}"
except Exception as error:  # noqa: BLE001
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
