"""Autocast decorates a function that is called from a compiled one; it must be part of the one graph."""

import torch

DEVICE = "cpu"


@torch.autocast(DEVICE, dtype=torch.bfloat16)
def half_product(batch: torch.Tensor) -> torch.Tensor:
    return batch @ batch


@torch.compile(backend="eager", fullgraph=True)
def product(batch: torch.Tensor) -> torch.Tensor:
    return half_product(batch)


expected = "a torch.bfloat16 product in one graph"
try:
    seen = f"a {product(torch.ones(2, 2, device=DEVICE)).dtype} product in one graph"
except Exception as error:  # noqa: BLE001
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
