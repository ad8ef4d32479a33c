"""Asks within a compiled function whether a device has autocast, as libraries do; it must not break the graph."""

import torch

DEVICE = "cpu"


@torch.compile(backend="eager", fullgraph=True)
def product(batch: torch.Tensor) -> torch.Tensor:
    enabled = torch.amp.is_autocast_available(batch.device.type)
    with torch.autocast(batch.device.type, dtype=torch.bfloat16, enabled=enabled):
        return batch @ batch


expected = "a torch.bfloat16 product in one graph"
try:
    seen = f"a {product(torch.ones(2, 2, device=DEVICE)).dtype} product in one graph"
except Exception as error:  # noqa: BLE001
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
