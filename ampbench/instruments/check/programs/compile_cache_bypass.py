"""Compiles a function with an autocast region and asks the compiler's counters whether its cache left the graph out."""

import torch
import torch._functorch.config
from torch._dynamo.utils import counters

DEVICE = "cpu"


@torch.compile
def product(batch: torch.Tensor) -> torch.Tensor:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        return batch @ batch


with torch.no_grad(), torch._functorch.config.patch(enable_autograd_cache=True):
    product(torch.ones(4, 4, dtype=torch.bfloat16, device=DEVICE))
expected = "0 graphs left out of the cache"
counted = {what: counters["aot_autograd"][f"autograd_cache_{what}"] for what in ("bypass", "hit", "miss")}
seen = f"{counted['bypass']} graphs left out of the cache"
if not any(counted.values()):
    lacks = "the compiler's cache is switched off here"

print("expected:", expected)
print("seen:    ", seen)
