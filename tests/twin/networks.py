"""Nine small networks, as a user's file has them; each has a seed of its own, so that every caller gets the same."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ampbench import Workload

Make = Callable[[], Workload]
SGD = partial(torch.optim.SGD, lr=0.01)
LOGITS = {"convolutions": "", "recurrent": "", "tokens": "", "heads": "scores"}
"""The names of the outputs that are logits, with classes in dimension 1."""


def seeded(make: Make) -> Make:
    @wraps(make)
    def made() -> Workload:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(44)
            return make()

    return made


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.GRU(6, 12, batch_first=True), nn.Linear(12, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(inputs)[0][:, -1])


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.dropout, self.head = nn.Embedding(30, 16), nn.Dropout(0.2), nn.Linear(16, 30)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(self.words(words))).transpose(1, 2)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.head(inputs + self.inner(inputs)), dim=-1)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.boxes, self.scores = nn.Linear(10, 24), nn.Linear(24, 4), nn.Linear(24, 3)

    def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        features = torch.tanh(self.trunk(inputs))
        return {"boxes": 100 * self.boxes(features), "scores": self.scores(features)}


def of_heads(output: dict[str, torch.Tensor], targets: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return functional.l1_loss(output["boxes"], targets[0]) + functional.cross_entropy(output["scores"], targets[1])


def workload(module: nn.Module, inputs: Any, targets: Any, loss: Any, optimizer: Any = SGD) -> Workload:
    return Workload(module=module, inputs=[inputs], targets=[targets], loss=loss, optimizer=optimizer)


@seeded
def convolutions() -> Workload:
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.BatchNorm2d(8),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 6),
    )  # fmt: skip
    sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3)
    return workload(network, torch.randn(8, 3, 10, 10), torch.randint(6, (8,)), functional.cross_entropy, sgd)


@seeded
def recurrent() -> Workload:
    return workload(Recurrent(), torch.randn(8, 7, 6), torch.randint(5, (8,)), functional.cross_entropy)


@seeded
def attention() -> Workload:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    adamw = partial(torch.optim.AdamW, lr=1e-3)
    return workload(layer, torch.randn(4, 6, 16), torch.randn(4, 6, 16), functional.mse_loss, adamw)


@seeded
def tokens() -> Workload:
    words = torch.randint(24, (4, 9))
    adam = partial(torch.optim.Adam, lr=1e-3)
    return workload(Tokens(), words, words.roll(-1, 1), functional.cross_entropy, adam)


@seeded
def group_norm() -> Workload:
    network = nn.Sequential(nn.Conv1d(2, 8, 5, padding=2), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv1d(8, 1, 5, padding=2))
    rmsprop = partial(torch.optim.RMSprop, lr=1e-3)
    return workload(network, torch.randn(6, 2, 20), torch.randn(6, 1, 20), functional.smooth_l1_loss, rmsprop)


@seeded
def residual() -> Workload:
    targets = functional.one_hot(torch.randint(4, (12,)), 4).float()
    adamw = partial(torch.optim.AdamW, lr=3e-4, weight_decay=0.1)
    return workload(Residual(), torch.randn(12, 16), targets, functional.mse_loss, adamw)


@seeded
def heads() -> Workload:
    sgd = partial(torch.optim.SGD, lr=1e-3, momentum=0.9, nesterov=True)
    return workload(Heads(), torch.randn(10, 10), (100 * torch.randn(10, 4), torch.randint(3, (10,))), of_heads, sgd)


@seeded
def transposed() -> Workload:
    depthwise = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=4)
    network = nn.Sequential(depthwise, nn.LeakyReLU(), nn.ConvTranspose2d(8, 2, 4, 2, 1))
    adagrad = partial(torch.optim.Adagrad, lr=1e-2)
    return workload(network, torch.randn(4, 4, 8, 8), torch.randn(4, 2, 8, 8), functional.mse_loss, adagrad)


@seeded
def batches() -> Workload:
    """Return a network with a frozen layer and two batches; the loss of its targets exceeds fp16."""
    network = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 16), nn.Sigmoid(), nn.Linear(16, 1))
    network[0].requires_grad_(False)
    inputs, targets = list(torch.randn(2, 32, 5)), list(280 + torch.randn(2, 32, 1))
    adamw = partial(torch.optim.AdamW, lr=1e-2)
    return Workload(module=network, inputs=inputs, targets=targets, loss=functional.mse_loss, optimizer=adamw)


NETWORKS = (convolutions, recurrent, attention, tokens, group_norm, residual, heads, transposed, batches)


class Forgetting(nn.Module):
    """Forgets `loud`, whose own error is the largest as its large weights cancel, and magnifies what `early` errs."""

    def __init__(self) -> None:
        super().__init__()
        self.early, self.loud, self.norm = nn.Linear(16, 16), nn.Linear(16, 16), nn.LayerNorm(16)
        self.wide, self.narrow, self.head = nn.Linear(16, 64), nn.Linear(64, 16), nn.Linear(16, 4)
        with torch.no_grad():
            self.loud.weight[:, 1::2] = 0.01 - self.loud.weight[:, ::2]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features = self.early(inputs)
        pairs = features.repeat_interleave(2, dim=1)[:, :16]
        features = torch.sin(6 * (features + 1e-4 * self.loud(pairs)))
        return self.head(features + self.narrow(torch.relu(self.wide(self.norm(features)))))


@seeded
def forgetting() -> Workload:
    return workload(Forgetting(), torch.randn(64, 16), torch.randint(4, (64,)), functional.cross_entropy)
