"""The small networks of `outcomes`: the proof of advice, and a second set.

The objections of `ampbench.judge.verdict` were last chosen with `PROOF`. `HELD_OUT` shares no networks, optimizer
settings, data or seeds with it, was fixed before training anything but fp32, and must choose nothing. Changing an
objection after seeing it needs a third set.
"""

import dataclasses
import functools
import importlib.util
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

from ampbench.core.recipes import CONSTANT, COSINE, LINEAR
from ampbench.worker.data import Generator
from ampbench.workload import Workload
from ampbench.workloads.data import characters, digits
from ampbench.workloads.weights import HE, class_loss, fill

BATCH = 50

Make = Callable[[int], Workload]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A small network, `make` by seed, with its optimizer, `steps` until fp32 settles, and its usual learning rate."""

    make: Make
    optimizer: Callable[[Any, float], optim.Optimizer]
    said: str
    rate: float
    steps: int
    batch_size: int = BATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a training does with the usual learning rate: a `share` of it, by a `schedule`, for `longer` many steps."""

    share: float = 1.0
    schedule: str = CONSTANT
    longer: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A network trained by a recipe."""

    network: str
    recipe: str

    @property
    def rate(self) -> float:
        """The learning rate of the first step."""
        return NETWORKS[self.network].rate * RECIPES[self.recipe].share

    @property
    def steps(self) -> int:
        """How many steps a training takes."""
        return NETWORKS[self.network].steps * RECIPES[self.recipe].longer

    @property
    def name(self) -> str:
        """The name of the setting in a table."""
        return f"{self.network}, {self.recipe}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Settings that are trained from the same `seeds`, one step of each from the first of these."""

    settings: Sequence[Setting]
    seeds: Sequence[int]


def _cnn(seed: int) -> Workload:
    return digits(Generator("outcomes_cnn", 1, {}, seed), width=8, batch_size=BATCH)


def _filled(seed: int, name: str, module: nn.Module, last: str) -> Workload:
    """Return digits with another network, whose weights the seed draws."""
    fill(Generator(f"outcomes_{name}", 1, {}, seed), module, gains={last: 0.25, "*": HE}, centred=False)
    return dataclasses.replace(_cnn(seed), module=module)


def _mlp(seed: int) -> Workload:
    with torch.device("meta"):
        module = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
        )
    return _filled(seed, "mlp", module, "5")


def _normalised(seed: int) -> Workload:
    with torch.device("meta"):
        module = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64, 10),
        )  # fmt: skip
    return _filled(seed, "normalised", module, "9")


def _decoder(seed: int) -> Workload:
    generator = Generator("outcomes_decoder", 1, {}, seed)
    return characters(generator, depth=1, width=32, heads=2, sequence_length=32, batch_size=8)


def _built(kind: type[optim.Optimizer], **options: Any) -> Callable[[Any, float], optim.Optimizer]:
    return lambda parameters, rate: kind(parameters, lr=rate, **options)


Data = tuple[Tensor, Tensor]
"""Examples and their targets."""

EVERY = 5
"""One in five examples of the second set is held out."""


def _drawn(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """Return a network with the weights that torch draws by default."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def _workload(
    seed: int, module: nn.Module, data: Data, batch_size: int, loss: Callable[[Tensor, Tensor], Tensor] = class_loss
) -> Workload:
    """Return a network with batches of `data` in the order of the seed; a rest without a full batch is left out."""
    inputs, targets = data
    held = torch.arange(len(inputs)) % EVERY == EVERY - 1
    order = torch.randperm(int((~held).sum()), generator=torch.Generator().manual_seed(seed))
    batches = [batch for batch in order.split(batch_size) if len(batch) == batch_size]
    return Workload(
        module=module,
        inputs=[inputs[~held][batch] for batch in batches],
        targets=[targets[~held][batch] for batch in batches],
        loss=loss,
        items_per_step=batch_size,
        held_out=(inputs[held], targets[held]),
    )


@functools.cache
def _table() -> Data:
    """Return 8000 points of five classes in 40 dimensions, a tenth of them of another class than they seem."""
    from sklearn.datasets import make_classification

    points, classes = make_classification(
        8000, 40, n_informative=10, n_redundant=10, n_classes=5, flip_y=0.1, random_state=1
    )
    return torch.from_numpy(points.astype(np.float32)), torch.from_numpy(classes.astype(np.int64))


@functools.cache
def _friedman() -> Data:
    """Return the first regression problem of Friedman (1991), ten times as large: targets of 0 to 300, with noise."""
    from sklearn.datasets import make_friedman1

    points, values = make_friedman1(6000, 10, noise=1.0, random_state=1)
    return torch.from_numpy(points.astype(np.float32)), torch.from_numpy(10 * values.astype(np.float32))[:, None]


@functools.cache
def _patches() -> Data:
    """Return grey patches (8, 8) of two photographs, as numbers of mean 0 and deviation 1, as their own targets."""
    from sklearn.datasets import load_sample_images

    pieces = []
    for image in load_sample_images().images:
        grey = torch.from_numpy(image.astype(np.float32)).mean(2)
        pieces.append(grey.unfold(0, 8, 8).unfold(1, 8, 8).reshape(-1, 64))
    patches = torch.cat(pieces)
    patches = (patches - patches.mean()) / patches.std()
    return patches, patches


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


def _squares(output: Tensor, targets: Tensor) -> Tensor:
    wide = torch.promote_types(output.dtype, torch.float32)
    return F.mse_loss(output.to(wide), targets.to(wide))


def _from_zero(seed: int) -> Workload:
    module = nn.Linear(40, 5)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    return _workload(seed, module, _table(), 64)


def _logistic(seed: int) -> Workload:
    return _workload(seed, _drawn(seed, lambda: nn.Linear(40, 5)), _table(), 256)


def _stack(seed: int, activation: type[nn.Module], *widths: int) -> nn.Module:
    """Return linear layers of these widths with activations between them."""

    def make() -> nn.Module:
        layers = [(nn.Linear(wide, narrow), activation()) for wide, narrow in itertools.pairwise(widths)]
        return nn.Sequential(*itertools.chain.from_iterable(layers))[:-1]

    return _drawn(seed, make)


def _silu(seed: int) -> Workload:
    return _workload(seed, _stack(seed, nn.SiLU, 40, 48, 48, 5), _table(), 32)


def _wide(seed: int) -> Workload:
    return _workload(seed, _stack(seed, nn.ReLU, 40, 256, 256, 5), _table(), 128)


def _regression(seed: int) -> Workload:
    return _workload(seed, _stack(seed, nn.ReLU, 10, 64, 32, 1), _friedman(), 100, _squares)


def _autoencoder(seed: int) -> Workload:
    return _workload(seed, _stack(seed, nn.GELU, 64, 48, 12, 48, 64), _patches(), 128, _squares)


def _striped(seed: int) -> Workload:
    module = _drawn(
        seed,
        lambda: nn.Sequential(
            nn.Conv2d(3, 12, 5, padding=2, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 6),
        ),
    )  # fmt: skip
    return _workload(seed, module, _textures(), 32)


def _depthwise(seed: int) -> Workload:
    module = _drawn(
        seed,
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.Hardswish(),
            nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.Hardswish(),
            nn.Conv2d(16, 24, 1, bias=False), nn.BatchNorm2d(24), nn.Hardswish(), nn.Flatten(), nn.Linear(24 * 36, 6),
        ),
    )  # fmt: skip
    return _workload(seed, module, _textures(), 64)


class Residual(nn.Module):
    """A convolution with group norm that its input is added to."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(F.relu(self.norm(x)))


def _residual(seed: int) -> Workload:
    module = _drawn(
        seed,
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), Residual(16), Residual(16), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 6),
        ),
    )  # fmt: skip
    return _workload(seed, module, _textures(), 32)


class Recurrent(nn.Module):
    """A recurrent layer between what it reads and what it predicts at every place."""

    def __init__(self, first: nn.Module, layer: nn.GRU | nn.LSTM, outputs: int):
        super().__init__()
        self.first, self.layer, self.head = first, layer, nn.Linear(layer.hidden_size, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.first(x))[0])


def _gru(seed: int) -> Workload:
    module = _drawn(seed, lambda: Recurrent(nn.Embedding(CODES, 24), nn.GRU(24, 40, batch_first=True), CODES))
    return _workload(seed, module, _next_characters(), 16)


def _lstm(seed: int) -> Workload:
    module = _drawn(seed, lambda: Recurrent(nn.Linear(1, 8), nn.LSTM(8, 24, batch_first=True), 1))
    return _workload(seed, module, _oscillations(), 32, _squares)


class Encoder(nn.Module):
    """Two layers of attention in both directions, with what comes before and after them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(CODES, 32), nn.Parameter(0.02 * torch.randn(32, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, CODES)

    def forward(self, codes: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(self.tokens(codes) + self.places)))


def _encoder(seed: int) -> Workload:
    return _workload(seed, _drawn(seed, Encoder), _hidden_characters(english=False), 16)


@functools.cache
def _pretrained(seed: int) -> Mapping[str, Tensor]:
    """Return an encoder's weights after one pass of AdamW at 1e-3 in fp32 over other text."""
    workload = _encoder(seed)
    assert workload.loss is not None
    optimizer = optim.AdamW(workload.module.parameters(), lr=1e-3)
    for inputs, targets in zip(workload.inputs, workload.targets, strict=True):
        optimizer.zero_grad()
        workload.loss(workload.module(inputs), targets).backward()
        optimizer.step()
    return workload.module.state_dict()


def _tuned(seed: int) -> Workload:
    module = _drawn(seed + 1000, Encoder)
    trained = {name: weight for name, weight in _pretrained(seed).items() if not name.startswith("head.")}
    module.load_state_dict(trained, strict=False)
    return _workload(seed, module, _hidden_characters(english=True), 16)


class Bag(nn.Module):
    """The mean of embeddings, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(4096, 16), nn.Linear(16, len(MODULES))

    def forward(self, codes: Tensor) -> Tensor:
        return self.head(self.embedding(codes).mean(1))


def _bag(seed: int) -> Workload:
    return _workload(seed, _drawn(seed, Bag), _trigrams(), 64)


_FIRST: Mapping[str, Network] = MappingProxyType(
    {
        "MLP": Network(
            make=_mlp,
            optimizer=_built(optim.AdamW, weight_decay=0.01),
            said="three linear layers on digits, AdamW at 1e-3, decay 0.01",
            rate=1e-3,
            steps=600,
        ),
        "CNN": Network(
            make=_cnn,
            optimizer=_built(optim.SGD, momentum=0.9),
            said="two convolutions on digits, SGD at 0.03, momentum 0.9",
            rate=0.03,
            steps=400,
        ),
        "batch norm": Network(
            make=_normalised,
            optimizer=_built(optim.SGD, momentum=0.9, weight_decay=5e-4),
            said="two convolutions with batch norm on digits, SGD at 0.05, momentum 0.9, decay 5e-4",
            rate=0.05,
            steps=300,
        ),
        "decoder": Network(
            make=_decoder,
            optimizer=_built(optim.AdamW, weight_decay=0.1),
            said="one causal transformer layer on characters, AdamW at 3e-3, decay 0.1",
            rate=3e-3,
            steps=400,
            batch_size=8,
        ),
    }
)
_SECOND: Mapping[str, Network] = MappingProxyType(
    {
        "logistic": Network(
            make=_from_zero,
            optimizer=_built(optim.SGD),
            said="one linear layer, zero at first, on a table of five classes, SGD at 0.1; batches of 64",
            rate=0.1,
            steps=1000,
            batch_size=64,
        ),
        "logistic with Adam": Network(
            make=_logistic,
            optimizer=_built(optim.Adam),
            said="the same from drawn weights, Adam at 0.01; batches of 256",
            rate=0.01,
            steps=600,
            batch_size=256,
        ),
        "SiLU": Network(
            make=_silu,
            optimizer=_built(optim.RMSprop),
            said="three linear layers with SiLU on the same table, RMSprop at 1e-3; batches of 32",
            rate=1e-3,
            steps=800,
            batch_size=32,
        ),
        "wide": Network(
            make=_wide,
            optimizer=_built(optim.SGD, momentum=0.9, weight_decay=1e-3),
            said="three linear layers 256 wide on the same table, SGD at 0.05, momentum 0.9, decay 1e-3; batches "
            "of 128",
            rate=0.05,
            steps=300,
            batch_size=128,
        ),
        "regression": Network(
            make=_regression,
            optimizer=_built(optim.Adam),
            said="three linear layers on Friedman's problem, targets of 0 to 300, Adam at 0.01; batches of 100",
            rate=0.01,
            steps=1200,
            batch_size=100,
        ),
        "autoencoder": Network(
            make=_autoencoder,
            optimizer=_built(optim.Adam),
            said="four linear layers with GELU on patches of photographs, Adam at 1e-3; batches of 128",
            rate=1e-3,
            steps=600,
            batch_size=128,
        ),
        "stripes": Network(
            make=_striped,
            optimizer=_built(optim.SGD, momentum=0.9, nesterov=True, weight_decay=1e-4),
            said="two convolutions with batch norm on striped images, SGD at 0.1 with Nesterov's momentum 0.9, decay "
            "1e-4; batches of 32",
            rate=0.1,
            steps=300,
            batch_size=32,
        ),
        "depthwise": Network(
            make=_depthwise,
            optimizer=_built(optim.RMSprop),
            said="depthwise and pointwise convolutions with batch norm on striped images, RMSprop at 1e-3; batches "
            "of 64",
            rate=1e-3,
            steps=300,
            batch_size=64,
        ),
        "residual": Network(
            make=_residual,
            optimizer=_built(optim.Adam),
            said="two residual blocks with group norm on striped images, Adam at 2e-3; batches of 32",
            rate=2e-3,
            steps=400,
            batch_size=32,
        ),
        "GRU": Network(
            make=_gru,
            optimizer=_built(optim.Adam),
            said="a gated recurrent layer that predicts characters of Python's source, Adam at 5e-3; batches of 16",
            rate=5e-3,
            steps=300,
            batch_size=16,
        ),
        "LSTM": Network(
            make=_lstm,
            optimizer=_built(optim.RMSprop),
            said="a long short-term memory that predicts a noisy chaotic series, RMSprop at 2e-3; batches of 32",
            rate=2e-3,
            steps=400,
            batch_size=32,
        ),
        "encoder": Network(
            make=_encoder,
            optimizer=_built(optim.AdamW, weight_decay=0.05),
            said="two layers of attention with layer norm that guess hidden characters of Python's source, AdamW at "
            "1e-3, decay 0.05; batches of 16",
            rate=1e-3,
            steps=250,
            batch_size=16,
        ),
        "fine-tuning": Network(
            make=_tuned,
            optimizer=_built(optim.AdamW, weight_decay=0.01),
            said="the same after training in fp32, with a new last layer, on Python's help texts, AdamW at 3e-4, decay "
            "0.01; batches of 16",
            rate=3e-4,
            steps=300,
            batch_size=16,
        ),
        "trigrams": Network(
            make=_bag,
            optimizer=_built(optim.Adagrad),
            said="the mean of embeddings of trigrams, which tells modules of Python's library apart, Adagrad at 0.05; "
            "batches of 64",
            rate=0.05,
            steps=1000,
            batch_size=64,
        ),
    }
)
RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "usual rate": Recipe(),
        "a tenth": Recipe(share=0.1, longer=2),
        "cosine to 0": Recipe(schedule=COSINE),
        "linear to 0": Recipe(schedule=LINEAR),
    }
)
NETWORKS: Mapping[str, Network] = MappingProxyType({**_FIRST, **_SECOND})
PROOF = Proof(
    settings=[
        Setting(network=network, recipe=recipe)
        for network in _FIRST
        for recipe in ("usual rate", "a tenth", "cosine to 0")
    ],
    seeds=(0, 1, 2),
)
HELD_OUT = Proof(
    settings=[
        Setting(network="logistic", recipe="usual rate"),
        Setting(network="logistic with Adam", recipe="linear to 0"),
        Setting(network="SiLU", recipe="usual rate"),
        Setting(network="wide", recipe="usual rate"),
        Setting(network="regression", recipe="usual rate"),
        Setting(network="autoencoder", recipe="cosine to 0"),
        Setting(network="stripes", recipe="cosine to 0"),
        Setting(network="depthwise", recipe="linear to 0"),
        Setting(network="residual", recipe="usual rate"),
        Setting(network="GRU", recipe="cosine to 0"),
        Setting(network="LSTM", recipe="usual rate"),
        Setting(network="encoder", recipe="cosine to 0"),
        Setting(network="fine-tuning", recipe="linear to 0"),
        Setting(network="trigrams", recipe="usual rate"),
    ],
    seeds=(10, 11, 12),
)
