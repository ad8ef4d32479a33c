"""Programs to trace, and the plainest log of casts to count against."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampbench.trace.ledger import CastLedger, trace_casts

BF16, FP16 = torch.bfloat16, torch.float16
CONVERSIONS = {torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype}


class CastLog(TorchDispatchMode):
    """Counts the conversions that change a dtype and knows nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.casts = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        # In inference mode, `to` reaches a mode undecomposed.
        if func in CONVERSIONS and out.dtype is not args[0].dtype:
            self.casts += 1
        return out


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = torch.nn.GRU(8, 8)
        self.fc = torch.nn.Linear(8, 2)

    def forward(self, batch: torch.Tensor) -> Any:
        return self.fc(self.rnn(batch)[0])


def autocast(dtype: torch.dtype = BF16, **options: Any) -> torch.autocast:
    return torch.autocast("cpu", dtype=dtype, **options)


def trace(function: Callable[[], Any], model: torch.nn.Module | None = None, **options: Any) -> CastLedger:
    """Return the ledger of `function()` under bf16 autocast."""
    with trace_casts(model, **options) as ledger, autocast():
        function()
    return ledger


def conv_net() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 4)
    )


def encoder() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
