"""Asks the compiler by its switch to keep casts to bf16 and back; 1 + 2**-10 must come back as 1.0."""

import torch
import torch._inductor.config

DEVICE = "cpu"


@torch.compile
def rounded(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.bfloat16).to(torch.float32)


values = torch.full((64,), 1 + 2**-10, device=DEVICE)
expected = "1.0"
try:
    with torch._inductor.config.patch(emulate_precision_casts=True):
        seen = str(rounded(values)[0].item())
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
