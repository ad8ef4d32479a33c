"""The table of an embedding bag stays fp32 under autocast; the weights of its samples come in bf16 from a product."""

import torch
import torch.nn.functional as F

DEVICE = "cpu"

table = torch.ones(8, 4, device=DEVICE)
words = torch.zeros(1, 4, dtype=torch.int64, device=DEVICE)
expected = "embedding_bag gives torch.float32"
try:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        weights = torch.mm(torch.ones(1, 4, device=DEVICE), torch.ones(4, 4, device=DEVICE))
        bag = F.embedding_bag(words, table, per_sample_weights=weights, mode="sum")
    seen = f"embedding_bag gives {bag.dtype}"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
