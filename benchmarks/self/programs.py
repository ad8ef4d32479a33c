"""The programs of the proof of advice (`outcomes`): networks with data, optimizer and schedule, trained in seconds.

Programs, recipes, the rule of outcomes and the split were fixed before any training but fp32's. Seven networks come
from earlier proofs. `LAST` is the third of the programs that must choose nothing: its verdicts are read once, at the
end. A change of a limit after reading them needs other programs.
"""

import functools
import hashlib
import importlib.util
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

from ampbench.core.recipes import CONSTANT, COSINE, LINEAR, rate_share
from ampbench.workload import Workload

SEEDS = (20, 21, 22)
"""The seeds of the trainings; verdicts are of the first."""
EVERY = 5
"""One in five examples is held out."""

Data = tuple[Tensor, Tensor]
"""Examples and their targets."""
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A network of a `kind`, made by seed, and its recipe: `optimizer` with a `rate`, that warms up for `warm` steps.

    The `schedule` leads the rate from there to the last of the `steps`.
    """

    kind: str
    make: Callable[[int], Workload]
    optimizer: Callable[[Any, float], optim.Optimizer]
    rate: float
    steps: int
    schedule: str = CONSTANT
    warm: int = 0

    def share(self, step: int) -> float:
        """Return the share of the learning rate at a step from 0."""
        return min(1.0, (step + 1) / (self.warm + 1)) * rate_share(self.schedule, step, self.steps)


def last_third(names: Iterable[str]) -> frozenset[str]:
    """Return the third of the names with the smallest SHA-256."""
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return frozenset(ordered[: len(ordered) // 3])


class Lion(optim.Optimizer):
    """Lion (Chen et al., 2023); without betas, sign-SGD."""

    def __init__(self, parameters: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:  # type: ignore[override]
        """Move each weight by the learning rate, against the sign of its momentum."""
        for group in self.param_groups:
            (first, second), rate = group["betas"], group["lr"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                weight.mul_(1 - rate * group["weight_decay"])
                weight.sub_(rate * state["momentum"].lerp(weight.grad, 1 - first).sign())
                state["momentum"].lerp_(weight.grad, 1 - second)


def _built(kind: Callable[..., optim.Optimizer], **options: Any) -> Callable[[Any, float], optim.Optimizer]:
    return lambda parameters, rate: kind(parameters, lr=rate, **options)


def _drawn(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """Return a network with the weights that torch draws by default."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def _classes(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, -2), targets.flatten())


def _workload(seed: int, make: Callable[[], nn.Module], data: Data, batch_size: int, loss: Loss = _classes) -> Workload:
    """Return a network with batches of `data` in the order of the seed; a rest without a full batch is left out."""
    inputs, targets = data
    held = torch.arange(len(inputs)) % EVERY == EVERY - 1
    order = torch.randperm(int((~held).sum()), generator=torch.Generator().manual_seed(seed))
    batches = [batch for batch in order.split(batch_size) if len(batch) == batch_size]
    return Workload(
        module=_drawn(seed, make),
        inputs=[inputs[~held][batch] for batch in batches],
        targets=[targets[~held][batch] for batch in batches],
        loss=loss,
        items_per_step=batch_size,
        held_out=(inputs[held], targets[held]),
    )


def _stack(activation: type[nn.Module], *widths: int) -> nn.Sequential:
    """Return linear layers of these widths with activations between them."""
    layers = [(nn.Linear(wide, narrow), activation()) for wide, narrow in itertools.pairwise(widths)]
    return nn.Sequential(*itertools.chain.from_iterable(layers))[:-1]


def _random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@functools.cache
def _textures() -> Data:
    """Return 4000 images (3, 12, 12) of stripes in noise; the class is which of six ways they run."""
    generator = np.random.default_rng(1)
    classes = generator.integers(6, size=4000)
    angle = (classes + generator.normal(0, 0.15, 4000)) * np.pi / 6
    frequency, phase = generator.uniform(0.8, 1.6, 4000), generator.uniform(0, 2 * np.pi, (4000, 3))
    down, across = np.mgrid[:12, :12]
    along = down * np.sin(angle)[:, None, None] + across * np.cos(angle)[:, None, None]
    waves = np.sin((frequency[:, None, None] * along)[:, None] + phase[:, :, None, None])
    images = waves + generator.normal(0, 1.5, (4000, 3, 12, 12))
    return torch.from_numpy(images.astype(np.float32)), torch.from_numpy(classes)


@functools.cache
def _bytes() -> Data:
    """Return the same images as numbers from 0 to 255."""
    images, classes = _textures()
    return (128 + 30 * images).clamp(0, 255).round(), classes


@functools.cache
def _views() -> Data:
    """Return two noisy views of each image, side by side in channels, and targets that the loss does not need."""
    images, classes = _textures()
    return torch.cat([images + _random(*images.shape, seed=seed) for seed in (1, 2)], 1), classes.float()


@functools.cache
def _patches() -> Data:
    """Return grey images (144) as their own targets."""
    grey = _textures()[0].mean(1).flatten(1)
    return grey, grey


@functools.cache
def _diffused() -> Data:
    """Return images between noise and themselves, with the time, and their noise."""
    images = _patches()[0]
    noise, time = _random(*images.shape), torch.rand(len(images), 1, generator=torch.Generator().manual_seed(2))
    angle = time * math.pi / 2
    return torch.cat([images * angle.cos() + noise * angle.sin(), time], 1), noise


@functools.cache
def _oscillations() -> Data:
    """Return windows of a chaotic series in noise, each with the same moved on by one: Mackey and Glass, 1977."""
    series = [1.2] * 18
    for _ in range(200_000):
        series.append(series[-1] + 0.2 * series[-18] / (1 + series[-18] ** 10) - 0.1 * series[-1])
    values = torch.tensor(series[1000::3])
    values = (values - values.mean()) / values.std()
    values += 0.2 * torch.randn(len(values), generator=torch.Generator().manual_seed(1))
    windows = values.unfold(0, 25, 24)[..., None].contiguous()
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


MODULES = ("argparse", "_pydecimal", "pathlib", "typing", "subprocess", "turtle", "tarfile", "inspect")
"""Modules of Python's own library whose source is read."""
CODES = 96
"""Printable ASCII; the last code stands for other and hidden characters."""
WINDOWS = 5000
"""The most windows of a text."""


@functools.cache
def _sources() -> list[Tensor]:
    """Return the source of each of `MODULES` as codes."""
    texts = []
    for name in MODULES:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        text = Path(spec.origin).read_bytes()
        texts.append(torch.tensor([code - 32 if 32 <= code < 127 else CODES - 1 for code in text]))
    return texts


@functools.cache
def _next_characters() -> Data:
    windows = torch.cat(_sources()[:3]).unfold(0, 25, 24)[:WINDOWS]
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


@functools.cache
def _hidden_characters(english: bool) -> Data:
    """Return windows of source or of Python's documentation, with a sixth of the characters hidden, to guess."""
    text = torch.cat(_sources()[:4])
    if english:
        from pydoc_data.topics import topics

        letters = "".join(topics[name] for name in sorted(topics)).encode()
        text = torch.tensor([code - 32 if 32 <= code < 127 else CODES - 1 for code in letters])
    windows = text.unfold(0, 32, 32)[:WINDOWS].contiguous()
    hidden = torch.rand(windows.shape, generator=torch.Generator().manual_seed(1)) < 1 / 6
    return torch.where(hidden, CODES - 1, windows), torch.where(hidden, windows, -100)


@functools.cache
def _trigrams() -> Data:
    """Return the trigrams of windows of 34 characters, as numbers below 4096, and which of `MODULES` each is of."""
    inputs, targets = [], []
    for number, text in enumerate(_sources()):
        windows = text.unfold(0, 34, 34)[:1500]
        inputs.append((windows[:, :-2] * 9409 + windows[:, 1:-1] * 97 + windows[:, 2:]) % 4096)
        targets.append(torch.full((len(windows),), number))
    mixed = torch.randperm(sum(map(len, targets)), generator=torch.Generator().manual_seed(1))
    return torch.cat(inputs)[mixed], torch.cat(targets)[mixed]


def _teacher(seed: int, count: int, inputs: int, outputs: int) -> Data:
    """Return points and the values, of mean 0 and deviation 1, that a random network gives them, in noise of 0.3."""
    points = _random(count, inputs, seed=seed)
    values = torch.sin(points @ _random(inputs, 32, seed=seed + 1) / inputs**0.5) @ _random(32, outputs, seed=seed + 2)
    values = (values - values.mean(0)) / values.std(0)
    return points, (values + 0.3 * _random(*values.shape, seed=seed + 3)) / 1.044


@functools.cache
def _table() -> Data:
    points, values = _teacher(10, 6000, 16, 5)
    return points, values.argmax(1)


@functools.cache
def _yes_no() -> Data:
    points, values = _teacher(20, 6000, 12, 1)
    return points, (values[:, 0] > 0.5).float()


@functools.cache
def _kelvin() -> Data:
    points, values = _teacher(30, 6000, 10, 1)
    return points, 288 + 0.7 * values


@functools.cache
def _prices() -> Data:
    """Return log-normal prices from about 100 to 1e5."""
    points, values = _teacher(40, 6000, 10, 1)
    return points, (8 + 1.2 * values).exp().clamp(max=1e5)


@functools.cache
def _scaled() -> Data:
    points, values = _teacher(50, 6000, 10, 1)
    return points, 150 + 50 * values


@functools.cache
def _widths() -> Data:
    """Return log-normal widths from about 0.1 to 10."""
    points, values = _teacher(60, 6000, 10, 1)
    return points, (0.7 * values).exp()


@functools.cache
def _coordinates() -> Data:
    """Return places of a picture of edges and waves, with its brightness."""
    places = torch.rand(6000, 2, generator=torch.Generator().manual_seed(1))
    x, y = places.T
    value = torch.sin(20 * x + 9 * y) + torch.sign(torch.sin(14 * y - 5 * x)) + 0.5 * torch.sin(40 * x * y)
    return places, value[:, None]


@functools.cache
def _collocation() -> Data:
    """Return points of [0, 1] with the source f of u'' = f and the boundary values, for u = sin(2πx) + x² / 2."""
    x = torch.rand(4000, 1, generator=torch.Generator().manual_seed(1))
    source = 1 - (2 * math.pi) ** 2 * torch.sin(2 * math.pi * x)
    return x, torch.cat([source, torch.zeros_like(x), torch.full_like(x, 0.5)], 1)


@functools.cache
def _ratings() -> Data:
    """Return pairs of a user and a film, and the stars from 1 to 5."""
    generator = torch.Generator().manual_seed(1)
    users = torch.randint(400, (24_000,), generator=generator)
    films = (300 * torch.rand(24_000, generator=generator) ** 2).long()
    taste = (_random(400, 4, seed=2)[users] * _random(300, 4, seed=3)[films]).sum(1) / 2
    stars = 3.5 + 0.7 * taste + 0.4 * _random(300, seed=4)[films] + 0.4 * _random(24_000, seed=5)
    return torch.stack([users, films], 1), stars.round().clamp(1, 5)


@functools.cache
def _clicks() -> Data:
    """Return eight categories each, as numbers below 8 · 200, and whether there was a click (one in eight)."""
    fields = (200 * torch.rand(16_000, 8, generator=torch.Generator().manual_seed(1)) ** 2).long()
    fields += 200 * torch.arange(8)
    odds = _random(1600, seed=2)[fields].sum(1) - 3.2
    return fields, (odds + _random(16_000, seed=3) > 0).float()


@functools.cache
def _clouds() -> Data:
    """Return sets of 24 points of a circle, a square, a cross or two bars, turned and in noise, with their class."""
    generator = np.random.default_rng(1)
    classes, along = generator.integers(4, size=5000), generator.uniform(-1, 1, (5000, 24))
    side = generator.integers(4, size=(5000, 24))
    first = side % 2 == 0
    sign, one = np.where(side < 2, 1.0, -1.0), np.ones_like(along)
    shapes = [
        (np.cos(np.pi * along), np.sin(np.pi * along)),
        (np.where(first, sign * one, along), np.where(first, along, sign * one)),
        (np.where(first, along, 0), np.where(first, 0, along)),
        (along, sign * 0.6),
    ]
    x, y = (np.choose(classes[:, None], [shape[axis] for shape in shapes]) for axis in (0, 1))
    turn = generator.uniform(0, np.pi, (5000, 1))
    points = np.stack([x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn)], 2)
    points += generator.normal(0, 0.15, points.shape)
    return torch.from_numpy(points.astype(np.float32)), torch.from_numpy(classes)


NODES = 16


@functools.cache
def _graphs() -> Data:
    """Return graphs of two groups of nodes, a few of known group, and which group each node is of.

    A node's row holds its two features and its row of the adjacency matrix divided by its degree.
    """
    generator = np.random.default_rng(1)
    groups = generator.integers(2, size=(3000, NODES))
    same = groups[:, :, None] == groups[:, None]
    edges = np.triu(generator.random(same.shape) < np.where(same, 0.5, 0.12), 1)
    adjacency = edges + edges.transpose(0, 2, 1) + np.eye(NODES)
    adjacency /= adjacency.sum(2, keepdims=True)
    known = generator.random(groups.shape) < 0.35
    features = np.stack([known & (groups == 0), known & (groups == 1)], 2)
    return torch.from_numpy(np.concatenate([features, adjacency], 2).astype(np.float32)), torch.from_numpy(groups)


class Residual(nn.Module):
    """A convolution with group norm that its input is added to."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(F.relu(self.norm(x)))


class Recurrent(nn.Module):
    """A recurrent layer between what it reads and what it predicts at every place."""

    def __init__(self, first: nn.Module, layer: nn.GRU | nn.LSTM, outputs: int):
        super().__init__()
        self.first, self.layer, self.head = first, layer, nn.Linear(layer.hidden_size, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.first(x))[0])


class Encoder(nn.Module):
    """Two layers of attention, causal or in both directions, with embeddings and a head."""

    def __init__(self, *, causal: bool = False) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(CODES, 32), nn.Parameter(0.02 * torch.randn(32, 32))
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=causal
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head, self.causal = nn.LayerNorm(32), nn.Linear(32, CODES), causal

    def forward(self, codes: Tensor) -> Tensor:
        x = self.tokens(codes) + self.places[: codes.shape[1]]
        mask = x.new_full((codes.shape[1],) * 2, -torch.inf).triu(1) if self.causal else None
        return self.head(self.norm(self.layers(x, mask=mask, is_causal=self.causal)))


class Causal(nn.Module):
    """Three causal convolutions over characters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(CODES, 32), nn.Linear(32, CODES)
        self.convs = nn.ModuleList(nn.Conv1d(32, 32, 3, dilation=2**place) for place in range(3))

    def forward(self, codes: Tensor) -> Tensor:
        x = self.tokens(codes).transpose(1, 2)
        for place, conv in enumerate(self.convs):
            x = x + F.gelu(conv(F.pad(x, (2 * 2**place, 0))))
        return self.head(x.transpose(1, 2))


class Patches(nn.Module):
    """A small vision transformer: 16 patches (3, 3, 3), two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.places = nn.Conv2d(3, 32, 3, stride=3), nn.Parameter(0.02 * torch.randn(16, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 6))

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images).flatten(2).transpose(1, 2) + self.places
        return self.head(self.layers(x).mean(1))


class Bag(nn.Module):
    """The mean of embeddings, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.EmbeddingBag(4096, 16), nn.Linear(16, len(MODULES))

    def forward(self, codes: Tensor) -> Tensor:
        return self.head(self.embedding(codes))


class Fourier(nn.Module):
    """Sines and cosines of random frequencies, and a network."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 20 * torch.randn(2, 32))
        self.layers = _stack(nn.ReLU, 64, 64, 64, 1)

    def forward(self, places: Tensor) -> Tensor:
        angles = places @ self.frequencies
        return self.layers(torch.cat([angles.sin(), angles.cos()], 1))


class Residuals(nn.Module):
    """A network u(x) that is differentiated with it: u'' and the values at 0 and 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(1, 32), nn.Linear(32, 32), nn.Linear(32, 1)])

    def _derived(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return u and u''."""
        u, first, second = x, torch.ones_like(x), torch.zeros_like(x)
        for layer in self.layers:
            u, first, second = layer(u), F.linear(first, layer.weight), F.linear(second, layer.weight)
            if layer is not self.layers[-1]:
                u = torch.tanh(u)
                slope = 1 - u * u
                first, second = slope * first, slope * second - 2 * u * slope * first * first
        return u, second

    def forward(self, x: Tensor) -> Tensor:
        ends = [self._derived(torch.full_like(x, end))[0] for end in (0.0, 1.0)]
        return torch.cat([self._derived(x)[1], *ends], 1)


class Views(nn.Module):
    """Embeddings, of length 1, of the two views of each image."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(24 * 9, 32),
        )  # fmt: skip

    def forward(self, views: Tensor) -> Tensor:
        return torch.stack([F.normalize(self.layers(view), dim=1) for view in views.chunk(2, 1)], 1)


class Factors(nn.Module):
    """The product of a user's and a film's factors, with their biases."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.films = nn.Embedding(400, 9), nn.Embedding(300, 9)
        for table in (self.users, self.films):
            nn.init.normal_(table.weight, std=0.1)
        self.mean = nn.Parameter(torch.tensor(3.0))

    def forward(self, pairs: Tensor) -> Tensor:
        user, film = self.users(pairs[:, 0]), self.films(pairs[:, 1])
        return self.mean + user[:, 0] + film[:, 0] + (user[:, 1:] * film[:, 1:]).sum(1)


class Clicks(nn.Module):
    """The probability of a click: embeddings of the categories, and a network."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layers = nn.Embedding(1600, 8), _stack(nn.ReLU, 64, 32, 1)

    def forward(self, fields: Tensor) -> Tensor:
        return torch.sigmoid(self.layers(self.embedding(fields).flatten(1)).squeeze(1))


class Cloud(nn.Module):
    """A network of each point, the greatest of each feature, and a classifier (Deep Sets, PointNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.points, self.head = _stack(nn.ReLU, 2, 48, 48), _stack(nn.ReLU, 48, 32, 4)

    def forward(self, points: Tensor) -> Tensor:
        return self.head(self.points(points).amax(1))


class Graph(nn.Module):
    """Two convolutions over neighbours, and a classifier of each node."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 24), nn.Linear(24, 24)])
        self.head = nn.Linear(24, 2)

    def forward(self, nodes: Tensor) -> Tensor:
        x, adjacency = nodes[..., :2], nodes[..., 2:]
        for layer in self.layers:
            x = F.relu(layer(adjacency @ x))
        return self.head(x)


class Denoiser(nn.Module):
    """A residual network that guesses the noise of an image from it and the time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(145, 96), nn.Linear(96, 144)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(96), nn.Linear(96, 96), nn.SiLU()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.last(x)


def _pairs(output: Tensor, _targets: Tensor) -> Tensor:
    """Return InfoNCE at a temperature of 0.1: each view finds its other in the batch."""
    left, right = output.unbind(1)
    return F.cross_entropy(left @ right.T / 0.1, torch.arange(len(left)))


def _likelihood(output: Tensor, targets: Tensor) -> Tensor:
    probabilities = output.softmax(1).gather(1, targets[:, None])
    return -torch.log(probabilities + 1e-8).mean()


def _clamped(output: Tensor, targets: Tensor) -> Tensor:
    p = torch.sigmoid(output).clamp(1e-7, 1 - 1e-7)
    return -(targets * torch.log(p) + (1 - targets) * torch.log(1 - p)).mean()


def _clicked(output: Tensor, targets: Tensor) -> Tensor:
    return -(targets * torch.log(output + 1e-8) + (1 - targets) * torch.log(1 - output + 1e-8)).mean()


def _relative(output: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error over the squared target plus 1e-6."""
    return ((output - targets).square() / (targets.square() + 1e-6)).mean()


def _differential(output: Tensor, targets: Tensor) -> Tensor:
    residual, ends = (output[:, :1] - targets[:, :1]).square().mean(), (output[:, 1:] - targets[:, 1:]).square().mean()
    return residual + 100 * ends


def _conv(momentum: float = 0.1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 12, 5, padding=2, bias=False), nn.BatchNorm2d(12, momentum=momentum), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16, momentum=momentum), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 6),
    )  # fmt: skip


def _depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.Hardswish(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.Hardswish(),
        nn.Conv2d(16, 24, 1, bias=False), nn.BatchNorm2d(24), nn.Hardswish(), nn.Flatten(), nn.Linear(24 * 36, 6),
    )  # fmt: skip


def _residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), Residual(16), Residual(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 6),
    )  # fmt: skip


def _offset(bias: float) -> nn.Module:
    """Return a regression whose last bias begins at the mean of the targets."""
    layers = _stack(nn.ReLU, 10, 64, 32, 1)
    nn.init.constant_(layers[-1].bias, bias)  # type: ignore[arg-type]
    return layers


def _normalised() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 48), nn.BatchNorm1d(48, momentum=0.01), nn.ReLU(),
        nn.Linear(48, 48), nn.BatchNorm1d(48, momentum=0.01), nn.ReLU(), nn.Linear(48, 5),
    )  # fmt: skip


def _trained(workload: Workload, rate: float) -> Mapping[str, Tensor]:
    """Return a network's weights after one pass of AdamW in fp32 over its batches."""
    assert workload.loss is not None
    optimizer = optim.AdamW(workload.module.parameters(), lr=rate)
    for inputs, targets in zip(workload.inputs, workload.targets, strict=True):
        optimizer.zero_grad()
        workload.loss(workload.module(inputs), targets).backward()
        optimizer.step()
    return workload.module.state_dict()


def _tuned(before: Workload, now: Workload) -> Workload:
    """Return `now` with the weights that were trained on other data, and a head of its own."""
    weights = _trained(before, 1e-3)
    head = ("head.", "6.")
    now.module.load_state_dict({name: w for name, w in weights.items() if not name.startswith(head)}, strict=False)
    return now


def _tuned_encoder(seed: int) -> Workload:
    before = _workload(seed + 1000, Encoder, _hidden_characters(english=False), 16)
    return _tuned(before, _workload(seed, Encoder, _hidden_characters(english=True), 16))


def _tuned_images(seed: int) -> Workload:
    images, classes = _textures()
    before = _workload(seed + 1000, _residual, (images[:2000], classes[:2000] // 2), 32)
    return _tuned(before, _workload(seed, _residual, (images[2000:], classes[2000:]), 32))


def _of(
    make: Callable[[], nn.Module], data: Callable[[], Data], batch_size: int, loss: Loss = _classes
) -> Callable[[int], Workload]:
    return lambda seed: _workload(seed, make, data(), batch_size, loss)


_ADAM, _ADAMW, _RMSPROP = _built(optim.Adam), _built(optim.AdamW, weight_decay=0.05), _built(optim.RMSprop)
_SGD = _built(optim.SGD, momentum=0.9, weight_decay=1e-4)
_MSE = F.mse_loss
IMAGES, TEXT, REGRESSION, EQUATIONS, CONTRAST = "images", "text", "regression", "equations", "contrastive"
GENERATIVE, SERIES, RECOMMENDATION, TUNING = "generative", "series", "recommendation", "fine-tuning"
SETS, LOSSES = "sets and graphs", "own loss"


def _decoder() -> nn.Module:
    return Encoder(causal=True)


PROGRAMS: Mapping[str, Program] = MappingProxyType(
    {
        "stripes, batch norm": Program(
            kind=IMAGES, make=_of(_conv, _textures, 32), optimizer=_built(optim.SGD, momentum=0.9, nesterov=True),
            rate=0.1, steps=250, schedule=COSINE,
        ),
        "raw bytes, slow batch norm": Program(
            kind=IMAGES, make=_of(lambda: _conv(0.01), _bytes, 32), optimizer=_SGD, rate=0.03, steps=300,
            schedule=COSINE, warm=20,
        ),
        "depthwise": Program(
            kind=IMAGES, make=_of(_depthwise, _textures, 64), optimizer=_RMSPROP, rate=1e-3, steps=250, schedule=LINEAR,
        ),
        "residual, group norm": Program(
            kind=IMAGES, make=_of(_residual, _textures, 32), optimizer=_ADAM, rate=2e-3, steps=300,
        ),
        "vision transformer": Program(
            kind=IMAGES, make=_of(Patches, _textures, 32), optimizer=_ADAMW, rate=2e-3, steps=250, schedule=COSINE,
            warm=30,
        ),
        "GRU": Program(
            kind=TEXT,
            make=_of(lambda: Recurrent(nn.Embedding(CODES, 24), nn.GRU(24, 40, batch_first=True), CODES),
                     _next_characters, 16),
            optimizer=_ADAM, rate=5e-3, steps=200, schedule=COSINE,
        ),
        "masked encoder": Program(
            kind=TEXT, make=_of(Encoder, lambda: _hidden_characters(english=False), 16), optimizer=_ADAMW, rate=1e-3,
            steps=200, schedule=COSINE,
        ),
        "decoder": Program(
            kind=TEXT, make=_of(_decoder, _next_characters, 16), optimizer=_ADAMW, rate=3e-3, steps=200,
            schedule=COSINE, warm=20,
        ),
        "decoder, Adafactor": Program(
            kind=TEXT, make=_of(_decoder, _next_characters, 16), optimizer=_built(optim.Adafactor), rate=0.01,
            steps=200,
        ),
        "decoder, Lion": Program(
            kind=TEXT, make=_of(_decoder, _next_characters, 16), optimizer=_built(Lion, weight_decay=0.1), rate=2e-3,
            steps=200, schedule=LINEAR, warm=20,
        ),
        "convolutions, sign-SGD": Program(
            kind=TEXT, make=_of(Causal, _next_characters, 16), optimizer=_built(Lion, betas=(0.0, 0.0)), rate=1e-3,
            steps=250, schedule=LINEAR,
        ),
        "temperatures in K": Program(
            kind=REGRESSION, make=_of(lambda: _offset(288.0), _kelvin, 64, _MSE), optimizer=_ADAM, rate=3e-3, steps=500,
            schedule=COSINE,
        ),
        "prices to 1e5": Program(
            kind=REGRESSION, make=_of(lambda: _offset(5000.0), _prices, 64, _MSE), optimizer=_ADAM, rate=0.03,
            steps=500,
        ),
        "values of 0 to 300": Program(
            kind=REGRESSION, make=_of(lambda: _offset(0.0), _scaled, 64, _MSE), optimizer=_SGD, rate=1e-5, steps=500,
        ),
        "Fourier features": Program(
            kind=EQUATIONS, make=_of(Fourier, _coordinates, 128, _MSE), optimizer=_ADAMW, rate=1e-3, steps=500,
            schedule=COSINE,
        ),
        "differential equation": Program(
            kind=EQUATIONS, make=_of(Residuals, _collocation, 64, _differential), optimizer=_ADAM, rate=5e-3, steps=400,
            schedule=COSINE,
        ),
        "two views": Program(
            kind=CONTRAST, make=_of(Views, _views, 64, _pairs), optimizer=_ADAMW, rate=1e-3, steps=250,
            schedule=COSINE, warm=20,
        ),
        "autoencoder": Program(
            kind=GENERATIVE, make=_of(lambda: _stack(nn.GELU, 144, 64, 16, 64, 144), _patches, 64, _MSE),
            optimizer=_ADAM, rate=2e-3, steps=400, schedule=COSINE,
        ),
        "diffusion": Program(
            kind=GENERATIVE, make=_of(Denoiser, _diffused, 64, _MSE), optimizer=_ADAM, rate=2e-3, steps=500,
        ),
        "LSTM": Program(
            kind=SERIES,
            make=_of(lambda: Recurrent(nn.Linear(1, 8), nn.LSTM(8, 24, batch_first=True), 1), _oscillations, 32, _MSE),
            optimizer=_RMSPROP, rate=2e-3, steps=250,
        ),
        "plain recurrent": Program(
            kind=SERIES,
            make=_of(lambda: Recurrent(nn.Linear(1, 8), nn.RNN(8, 32, batch_first=True), 1), _oscillations, 32, _MSE),
            optimizer=_SGD, rate=0.05, steps=300, schedule=LINEAR,
        ),
        "ratings": Program(
            kind=RECOMMENDATION, make=_of(Factors, _ratings, 256, _MSE), optimizer=_built(optim.SGD, momentum=0.9),
            rate=0.5, steps=600, schedule=LINEAR,
        ),
        "trigrams in bags": Program(
            kind=RECOMMENDATION, make=_of(Bag, _trigrams, 64), optimizer=_built(optim.Adagrad), rate=0.05, steps=600,
        ),
        "clicks, log(p + 1e-8)": Program(
            kind=RECOMMENDATION, make=_of(Clicks, _clicks, 128, _clicked), optimizer=_ADAMW, rate=2e-3, steps=300,
        ),
        "encoder, tuned": Program(
            kind=TUNING, make=_tuned_encoder, optimizer=_built(optim.AdamW, weight_decay=0.01), rate=3e-4, steps=200,
            schedule=LINEAR,
        ),
        "images, tuned": Program(
            kind=TUNING, make=_tuned_images, optimizer=_SGD, rate=0.02, steps=250, schedule=COSINE, warm=20,
        ),
        "point sets": Program(
            kind=SETS, make=_of(Cloud, _clouds, 64), optimizer=_ADAM, rate=1e-3, steps=300,
        ),
        "graphs": Program(
            kind=SETS, make=_of(Graph, _graphs, 32), optimizer=_SGD, rate=0.1, steps=300, schedule=COSINE,
        ),
        "table, log(p + 1e-8)": Program(
            kind=LOSSES, make=_of(_normalised, _table, 64, _likelihood), optimizer=_SGD, rate=0.05, steps=400,
        ),
        "table, clamp(1e-7)": Program(
            kind=LOSSES, make=_of(lambda: nn.Sequential(_stack(nn.SiLU, 12, 48, 48, 1), nn.Flatten(0)), _yes_no, 64,
                                  _clamped),
            optimizer=_RMSPROP, rate=3e-3, steps=500,
        ),
        "relative error": Program(
            kind=LOSSES, make=_of(lambda: _offset(1.0), _widths, 64, _relative), optimizer=_ADAMW, rate=1e-3,
            steps=500, schedule=COSINE,
        ),
    }
)  # fmt: skip
LAST = last_third(PROGRAMS)
"""The programs that must choose nothing."""
