"""Two selective checkpoints share a layer: backward casts the weight which the second forward pass found cached."""

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

DEVICE = "cpu"

layer = torch.nn.Linear(4, 4, device=DEVICE)
batch = torch.ones(2, 4, device=DEVICE)
saving = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
with torch.autocast(DEVICE, dtype=torch.bfloat16):
    first = checkpoint(layer, batch, use_reentrant=False, context_fn=saving)
    second = checkpoint(layer, first, use_reentrant=False, context_fn=saving)
expected = seen = "backward runs"
try:
    second.float().sum().backward()
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
