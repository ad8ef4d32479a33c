"""A scripted function joins a bf16 product with a fp32 tensor under autocast: the fp32 of the eager call, each time."""

import torch

DEVICE = "cpu"

SOURCE = """
def joined(given: Tensor) -> Tensor:
    return torch.cat([torch.mm(given, given), given])
"""
given = torch.ones(2, 2, device=DEVICE)
expected = "eager torch.float32, scripted torch.float32 each time"
try:
    scripted = torch.jit.CompilationUnit(SOURCE).joined
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        eager = torch.cat([torch.mm(given, given), given]).dtype
        times = sorted({str(scripted(given).dtype) for _ in range(3)})
    seen = f"eager {eager}, scripted {' and '.join(times)} each time"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
