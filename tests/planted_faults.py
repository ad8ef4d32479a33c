"""Networks with a fault that only half precision shows, planted in the middle of a convolutional net or an encoder."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

FAULTS = ("overflowing layer", "flushing layer", "softmax of large logits", "sum of sixteens", "tiny variance")
FLUSHES = "flushing layer"


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Scaled(torch.nn.Module):
    """A layer whose outputs are `factor` times as large as usual, and are scaled back by whoever takes them."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[1:]) * self.factor


class SharpSoftmax(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        large = F.layer_norm(x, x.shape[1:]) * 300
        return F.softmax(large * large, dim=-1)


class SixteensSummed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sixteens = torch.full((4096,), 16.0, dtype=x.dtype)
        return x * (sixteens.sum() / 65536)


class TinyVariance(torch.nn.Module):
    """Normalises values of about 1e-5, whose squares are below all that fp16 holds; so is its epsilon."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = F.layer_norm(x, x.shape[1:]) * 1e-5
        return small / (small.square().mean(-1, keepdim=True) + 1e-12).sqrt()


MAKERS = {
    "overflowing layer": lambda: Scaled(1e5), "flushing layer": lambda: Scaled(1e-9),
    "softmax of large logits": SharpSoftmax, "sum of sixteens": SixteensSummed, "tiny variance": TinyVariance,
}  # fmt: skip


class SmallConvNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.middle: torch.nn.Module = torch.nn.Identity()
        self.last = torch.nn.Conv2d(4, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.relu(self.middle(self.first(x)) + 1))


def small_conv_net(fault: str) -> tuple[torch.nn.Module, torch.Tensor, str]:
    torch.manual_seed(0)
    model = SmallConvNet()
    model.middle = MAKERS[fault]()
    return model, torch.randn(2, 3, 8, 8), "middle"


def small_encoder(fault: str) -> tuple[torch.nn.Module, torch.Tensor, str]:
    torch.manual_seed(0)
    layers = [torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(2)]
    return torch.nn.Sequential(layers[0], MAKERS[fault](), layers[1]), torch.randn(2, 5, 16), "1"


SMALL = (small_conv_net, small_encoder)
