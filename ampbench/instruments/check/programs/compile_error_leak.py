"""A compiled autocast region is left by an error; if it stays open, no later region ever drops its casts of weights."""

import torch

DEVICE = "cpu"


@torch.compile(backend="eager")
def invert(matrix: torch.Tensor) -> torch.Tensor:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        return torch.linalg.inv(matrix)


try:
    invert(torch.zeros(2, 2, device=DEVICE))
except RuntimeError as error:
    print(f"{type(error).__name__}: {str(error).splitlines()[0]}")
still_open = torch.autocast_increment_nesting() - 1
torch.autocast_decrement_nesting()

weight = torch.nn.Parameter(torch.ones(1, 1, device=DEVICE))
with torch.autocast(DEVICE, dtype=torch.bfloat16):
    torch.mm(torch.ones(1, 1, device=DEVICE), weight)
with torch.no_grad():
    weight.mul_(2)
with torch.autocast(DEVICE, dtype=torch.bfloat16):
    product = torch.mm(torch.ones(1, 1, device=DEVICE), weight).item()
expected = "0 regions left open, and a weight that was set to 2.0 is used as 2.0"
seen = f"{still_open} regions left open, and a weight that was set to 2.0 is used as {product}"

print("expected:", expected)
print("seen:    ", seen)
