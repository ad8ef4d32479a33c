"""The two reference networks of `timing`, and networks whose `changed=1` `ampbench ab` has to find.

The changes are in code, as a commit's would be, not in numbers.
"""

import torch
from torch import nn

WIDTH, BATCH = 512, 64


def small_linear() -> tuple[nn.Module, torch.Tensor]:
    """Four 512x512 linears with ReLU, batch 64."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(BATCH, WIDTH)


def small_conv() -> tuple[nn.Module, torch.Tensor]:
    """Two convolutions, batch 4 of 3x32x32."""
    layers = (nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU())
    return nn.Sequential(*layers), torch.randn(4, 3, 32, 32)


class Head(nn.Module):
    """A linear head and its softmax, in fp32 or, where `changed`, in autocast's dtype."""

    def __init__(self, changed: int):
        super().__init__()
        self.changed = changed
        self.linear = nn.Linear(WIDTH, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.linear(x)
        with torch.autocast(x.device.type, enabled=False):
            return (scores if self.changed else scores.to(self.linear.weight.dtype)).softmax(-1)


def half_softmax(changed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    """A softmax moved from fp32 to half."""
    return Head(changed), torch.randn(BATCH, WIDTH)


def relu_for_gelu(changed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    """Another activation: in each precision as near to its own fp64 as before."""
    activation = nn.ReLU() if changed else nn.GELU()
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), activation, nn.Linear(WIDTH, WIDTH)), torch.randn(BATCH, WIDTH)
