"""Runs each of four layers once, without gradients, in one region; no cast is needed after its layer has run."""

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
            storage = StorageWeakRef(result.untyped_storage())
            self.made.append((storage, result.nbytes))
        return result


layers = [torch.nn.Linear(64, 64, bias=False, device=DEVICE) for _ in range(4)]
batch = torch.ones(2, 64, device=DEVICE, dtype=torch.bfloat16)
with torch.autocast(DEVICE, dtype=torch.bfloat16), torch.no_grad(), Casts():
    for layer in layers:
        batch = layer(batch)
    held = sum(size for cast, size in Casts.made if not cast.expired())
print("bytes of the weights in fp32:", sum(layer.weight.nbytes for layer in layers))
expected = "0 bytes of casts are held after the last layer"
seen = f"{held} bytes of casts are held after the last layer"

print("expected:", expected)
print("seen:    ", seen)
