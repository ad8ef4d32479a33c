"""An error leaves an autocast region and is caught in the same compiled function, which then multiplies outside it."""

import torch

DEVICE = "cpu"


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, batch: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("no such kernel")


@torch.compile(backend="eager")
def product(batch: torch.Tensor) -> torch.Tensor:
    try:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            Failing.apply(batch)
    except NotImplementedError:
        pass
    return batch @ batch


expected = "a torch.float32 product"
try:
    seen = f"a {product(torch.ones(2, 2, device=DEVICE)).dtype} product"
except Exception as error:  # noqa: BLE001
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
