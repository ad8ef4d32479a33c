"""A graph breaks within an autocast region: what runs after the break is inside it, what follows the region is not."""

import torch

DEVICE = "cpu"


def breaking(batch: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return batch @ batch


@torch.compile(backend="eager")
def products(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        inside = breaking(batch)
    return inside, batch @ batch


inside, outside = products(torch.ones(2, 2, device=DEVICE))
expected = "torch.bfloat16 after the break, torch.float32 after the region"
seen = f"{inside.dtype} after the break, {outside.dtype} after the region"

print("expected:", expected)
print("seen:    ", seen)
