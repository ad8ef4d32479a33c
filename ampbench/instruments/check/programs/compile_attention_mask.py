"""Attention written by hand with an fp32 mask, compiled under autocast: the compiler puts one fused op in its place."""

import torch

DEVICE = "cpu"


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = query @ key.transpose(-2, -1) / 8**0.5 + mask
    return torch.softmax(scores, dim=-1) @ value


torch.manual_seed(0)
inputs = [torch.randn(2, 4, 16, 8).to(DEVICE) for _ in range(3)] + [torch.randn(2, 1, 16, 16).to(DEVICE)]
exact = attend(*(one.double() for one in inputs))
expected = "torch.bfloat16, within 0.05 of fp64"
try:
    with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.bfloat16):
        attended = torch.compile(attend)(*inputs)
    error = (attended.double() - exact).abs().max().item()
    seen = f"{attended.dtype}, within {0.05 if error < 0.05 else round(error, 3)} of fp64"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
