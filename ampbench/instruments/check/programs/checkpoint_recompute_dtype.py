"""Notes the dtype of a checkpointed layer's output in the forward pass and where backward computes it again."""

import torch
from torch.utils.checkpoint import checkpoint

DEVICE = "cpu"

layer = torch.nn.Linear(4, 4, device=DEVICE)
batch = torch.ones(2, 4, device=DEVICE, requires_grad=True)
dtype = torch.float16 if DEVICE == "cpu" else torch.bfloat16  # not the one that autocast takes by itself
dtypes: list[str] = []


def noted(batch: torch.Tensor) -> torch.Tensor:
    """Return the layer's output."""
    output: torch.Tensor = layer(batch)
    dtypes.append(str(output.dtype))
    return output


with torch.autocast(DEVICE, dtype=dtype):
    loss = checkpoint(noted, batch, use_reentrant=True).float().sum()
loss.backward()
expected = f"forward {dtype}, again {dtype}"
seen = "forward " + ", again ".join(dtypes)

print("expected:", expected)
print("seen:    ", seen)
