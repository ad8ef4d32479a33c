"""Autocast is entered by the functions that compiled graphs use, and the graph breaks before it is left again."""

import torch
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

DEVICE = "cpu"


def product(batch: torch.Tensor) -> torch.Tensor:
    region = _enter_autocast(DEVICE, torch.float16, True, None)
    batch = batch @ batch
    torch._dynamo.graph_break()
    batch = batch.float() @ batch.float()
    _exit_autocast(region)
    return batch


batch = torch.ones(2, 2, device=DEVICE)
expected = "a torch.float16 product"
try:
    seen = f"a {torch.compile(product, backend='eager')(batch).dtype} product"
except Exception as error:  # noqa: BLE001
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
