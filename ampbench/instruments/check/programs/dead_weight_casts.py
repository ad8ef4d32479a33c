"""Uses one weight after another in one region, as where layers are loaded when needed; each is gone after its use."""

from typing import Any, ClassVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = "cpu"


class Casts(TorchDispatchMode):
    """Notes the memory of every cast, without keeping it."""

    made: ClassVar[list[Any]] = []
    _should_skip_dynamo = classmethod(lambda _: False)  # or torch._dynamo is imported, for seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default:
            self.made.append(StorageWeakRef(result.untyped_storage()))
        return result


batch = torch.ones(2, 4, device=DEVICE, dtype=torch.bfloat16)
with torch.autocast(DEVICE, dtype=torch.bfloat16), torch.no_grad(), Casts():
    for _ in range(8):
        torch.nn.functional.linear(batch, torch.nn.Parameter(torch.ones(4, 4, device=DEVICE)))
    held = sum(not cast.expired() for cast in Casts.made)
expected = "after 8 weights that are gone at most 1 cast is held"
seen = f"after 8 weights that are gone {held} casts are held"
good = held <= 1

print("expected:", expected)
print("seen:    ", seen)
