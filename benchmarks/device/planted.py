"""A network that is made 5 % slower on purpose: one layer more in twenty, of products that fill a GPU."""

import torch
from torch import nn

WIDTH = BATCH = 4096
"""Twenty products of 2·4096³ FLOPs: 2.7 TFLOPs a step, 3 to 60 ms on an H200, far above the cost of a launch."""
DEPTH = 20


def layers(
    changed: int = 0, renamed: int = 0, width: int = WIDTH, batch: int = BATCH
) -> tuple[nn.Module, torch.Tensor]:
    """Return twenty linear layers, one more where `changed`; `renamed` changes nothing but what they are called."""
    del renamed
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(DEPTH + changed))), torch.randn(
        batch, width
    )
