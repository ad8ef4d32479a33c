"""A function with custom_fwd that asks for fp32, compiled within a bf16 region: 1 + 2**-10 must stay itself."""

from typing import Any

import torch

DEVICE = "cpu"


class Product(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type=DEVICE, cast_inputs=torch.float32)
    def forward(ctx: Any, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(left, right)
        return left @ right

    @staticmethod
    @torch.amp.custom_bwd(device_type=DEVICE)
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        left, right = ctx.saved_tensors
        return gradient @ right.T, left.T @ gradient


@torch.compile(backend="aot_eager")
def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return Product.apply(left, right)


left = torch.full((1, 1), 1 + 2**-10, device=DEVICE)
right = torch.ones(1, 1, device=DEVICE, requires_grad=True)
expected = "a torch.float32 product of 1.0009765625, and that as a gradient"
try:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        result = product(left, right)
    result.sum().backward()
    gradient = right.grad.item() if right.grad is not None else None
    same = "that" if gradient == 1 + 2**-10 else gradient
    seen = f"a {result.dtype} product of {result.item()}, and {same} as a gradient"
except Exception as error:  # noqa: BLE001
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
