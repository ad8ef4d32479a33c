"""The two reference networks, and networks with a change in them that `changed=1` switches on.

`ampbench ab --baseline changed=0 --candidate changed=1 benchmarks/self/networks.py:extra_layer` and so on have to find
it; the changes are in code, as a commit's would be, not in numbers. Those of time cost about 5%.
"""

import torch
from torch import nn

WIDTH, NARROW, BATCH = 512, 256, 64


def small_linear() -> tuple[nn.Module, torch.Tensor]:
    """Four 512x512 linears with ReLU, batch 64."""
    return Stack(4, WIDTH), torch.randn(BATCH, WIDTH)


def small_conv() -> tuple[nn.Module, torch.Tensor]:
    """Two convolutions, batch 4 of 3x32x32."""
    layers = (nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU())
    return nn.Sequential(*layers), torch.randn(4, 3, 32, 32)


class Stack(nn.Module):
    """Linear layers with ReLU; `plain` says how many at the end run outside autocast, `wide` how many are upcast."""

    def __init__(self, depth: int, width: int, plain: int = 0, wide: int = 0):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.first_plain, self.first_wide = depth - plain, depth - wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for place, layer in enumerate(self.layers):
            if place >= self.first_plain:
                with torch.autocast(x.device.type, enabled=False):
                    x = layer(x.to(layer.weight.dtype)).relu()
            elif place >= self.first_wide:
                wider = torch.promote_types(x.dtype, torch.float32)
                x = nn.functional.linear(x.to(wider), layer.weight.to(wider), layer.bias.to(wider)).to(x.dtype).relu()
            else:
                x = layer(x).relu()
        return x


def extra_layer(changed: int = 0, batch: int = BATCH) -> tuple[nn.Module, torch.Tensor]:
    """One linear layer more in twenty."""
    return Stack(20 + changed, NARROW), torch.randn(batch, NARROW)


def autocast_off(changed: int = 0, batch: int = BATCH) -> tuple[nn.Module, torch.Tensor]:
    """Autocast switched off around one of ten layers; says nothing in a precision without autocast."""
    return Stack(10, NARROW, plain=changed), torch.randn(batch, NARROW)


def fp32_fallback(changed: int = 0, batch: int = BATCH) -> tuple[nn.Module, torch.Tensor]:
    """One of sixteen layers computed in fp32 without a word; says nothing in fp32."""
    return Stack(16, NARROW, wide=changed), torch.randn(batch, NARROW)


class Doubling(nn.Module):
    """A network whose activations pass through a buffer, twice as large as needed where `changed`."""

    def __init__(self, changed: int):
        super().__init__()
        self.changed = changed
        self.first, self.last = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        buffer = x.new_zeros((x.shape[0] * (1 + self.changed), *x.shape[1:]))
        buffer[: x.shape[0]] = x
        return self.last(buffer[: x.shape[0]])


def doubled_buffer(changed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    """A buffer of activations twice as large as needed."""
    return Doubling(changed), torch.randn(4, 3, 32, 32)


class Head(nn.Module):
    """A linear head and its softmax, in fp32 or, where `changed`, in what autocast left."""

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
