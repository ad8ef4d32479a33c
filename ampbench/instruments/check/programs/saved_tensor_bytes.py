"""Counts the bytes that a stack of layers saves for backward besides its weights, in fp32 and in autocast."""

from contextlib import nullcontext
from typing import Any

import torch

DEVICE = "cpu"

torch.manual_seed(0)
layers = [torch.nn.Linear(64, 64, bias=False, device=DEVICE) for _ in range(3)]
weights = {layer.weight.data_ptr() for layer in layers}
batch = torch.randn(4, 64, device=DEVICE)


def saved_bytes(region: Any) -> int:
    """Return how many bytes a forward pass in a region saves."""
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), region:
        output = batch
        for layer in layers:
            output = torch.relu(layer(output))
    sizes = {one.data_ptr(): one.untyped_storage().nbytes() for one in saved}
    return sum(size for address, size in sizes.items() if address not in weights)


single = saved_bytes(nullcontext())
mixed = saved_bytes(torch.autocast(DEVICE, dtype=torch.bfloat16))
expected = f"autocast saves at most {single} bytes, as many as fp32"
seen = f"autocast saves {mixed} bytes"
good = mixed <= single

print("expected:", expected)
print("seen:    ", seen)
