"""Casts a weight in a second thread, where autocast is on as in autograd's; clearing the cache must free that cast."""

from concurrent.futures import ThreadPoolExecutor
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


def use() -> list[Any]:
    """Call the layer as a thread of autograd's would: autocast is on there, and no region ends there."""
    torch.set_autocast_enabled(DEVICE, True)
    torch.set_autocast_dtype(DEVICE, torch.bfloat16)
    with Casts():
        layer(batch)
    return Casts.made


layer = torch.nn.Linear(4, 4, bias=False, device=DEVICE)
batch = torch.ones(2, 4, device=DEVICE, dtype=torch.bfloat16)
with ThreadPoolExecutor(1) as pool:
    made = pool.submit(use).result()
    torch.clear_autocast_cache()
    held = sum(not cast.expired() for cast in made)
expected = "of 1 cast in the other thread 0 are held once the cache is cleared"
seen = f"of {len(made)} cast in the other thread {held} are held once the cache is cleared"

print("expected:", expected)
print("seen:    ", seen)
