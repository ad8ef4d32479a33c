"""Traces a layer within a region; tracing calls it more than once, and must not take the cached cast for a constant."""

import torch

DEVICE = "cpu"

layer = torch.nn.Linear(4, 4, device=DEVICE).eval()
batch = torch.ones(2, 4, device=DEVICE)
expected = seen = "the traced layer gives what the layer gives"
try:
    with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.bfloat16):
        traced = torch.jit.trace(layer, batch)
        if not torch.equal(traced(batch), layer(batch)):
            seen = "the traced layer gives something else"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
