"""A custom op gets an autocast rule by torch.library.register_autocast; within a region it then has to give bf16."""

import torch

DEVICE = "cpu"


@torch.library.custom_op("rules::twice", mutates_args=())
def twice(given: torch.Tensor) -> torch.Tensor:
    """Return the double."""
    return given * 2


@twice.register_fake
def _(given: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(given)


expected = "the op gives torch.bfloat16"
try:
    torch.library.register_autocast("rules::twice", DEVICE, torch.bfloat16)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        seen = f"the op gives {twice(torch.ones(2, device=DEVICE)).dtype}"
except ValueError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
