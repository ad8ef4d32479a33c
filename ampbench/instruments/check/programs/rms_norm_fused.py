"""A Linear gives bf16 and the weight of RMSNorm is fp32: it should run as one op, as it does with fp32 alone."""

from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = "cpu"


class Watch(TorchDispatchMode):
    """Notes the names of the ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the op and run it."""
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def normed(dtype: torch.dtype) -> str:
    """Return what rms_norm of an input of this dtype, with a fp32 weight, runs as."""
    batch, weight = torch.ones(2, 8, dtype=dtype, device=DEVICE), torch.ones(8, device=DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16), Watch() as watch:
        F.rms_norm(batch, (8,), weight)
    return "is fused" if "_fused_rms_norm" in watch.names else f"is {len(watch.names)} ops"


expected = f"rms_norm of bf16 {normed(torch.float32)}"
seen = f"rms_norm of bf16 {normed(torch.bfloat16)}"
if "fused" not in expected:
    lacks = "here rms_norm is not one op even where all is fp32"

print("expected:", expected)
print("seen:    ", seen)
