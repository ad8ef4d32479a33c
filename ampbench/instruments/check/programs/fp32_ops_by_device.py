"""Autocast's notes list ops that it runs in fp32 on CUDA for the sake of accuracy; here each is given a bf16 tensor."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

DEVICE = "cpu"

OPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: getattr(torch, name) for name in ("exp", "expm1", "log", "log1p", "log2", "log10", "reciprocal", "rsqrt")},
    **{name: getattr(torch, name) for name in ("cosh", "sinh", "tan", "sum", "prod", "norm")},
    **{name: getattr(F, name) for name in ("softplus", "normalize")},
    "pow": lambda given: given**2.0,
    "cumsum": lambda given: given.cumsum(0),
    "cumprod": lambda given: given.cumprod(0),
    "softmax": lambda given: given.softmax(1),
    "log_softmax": lambda given: given.log_softmax(1),
    "logsumexp": lambda given: given.logsumexp(1),
    "layer_norm": lambda given: F.layer_norm(given, (4,)),
    "group_norm": lambda given: F.group_norm(given, 2),
    "mse_loss": lambda given: F.mse_loss(given, given),
    "cosine_similarity": lambda given: F.cosine_similarity(given, given),
}
batch = torch.ones(2, 4, dtype=torch.bfloat16, device=DEVICE)
with torch.autocast(DEVICE, dtype=torch.bfloat16):
    halves = [name for name, op in OPS.items() if op(batch).dtype != torch.float32]
expected = f"all {len(OPS)} ops give torch.float32"
seen = f"not {', '.join(halves)}" if halves else expected

print("expected:", expected)
print("seen:    ", seen)
