"""A lambda of 65507 is beyond fp16 and has to be refused, as on a GPU, instead of being taken for something else."""

import torch

DEVICE = "cpu"

expected = "a lambda beyond fp16 is refused"
try:
    result = torch.nn.functional.softshrink(torch.ones(2, device=DEVICE, dtype=torch.float16), 65507.0)
    seen = f"a lambda beyond fp16 gives {result.tolist()}"
except RuntimeError:
    seen = "a lambda beyond fp16 is refused"

print("expected:", expected)
print("seen:    ", seen)
