"""Linear layers: matrix products with little between, two heads with their losses, and a recommender of tables."""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, device, nn, optim
from torch.nn import functional as F

from ampbench.worker.data import Generator
from ampbench.workload import Workload
from ampbench.workloads.weights import (
    HE,
    around,
    class_loss,
    classifier,
    fill,
    grid_targets,
    momentum,
    regression_loss,
)


class Recommender(nn.Module):
    """Bags of embeddings and a perceptron's view of dense features, their products by pairs, and a perceptron on these.

    Source: Naumov et al., "Deep learning recommendation model for personalization and recommendation systems", 2019.
    """

    def __init__(self, features: int, tables: int, vocabulary: int, width: int):
        super().__init__()
        bags = (nn.EmbeddingBag(vocabulary, width, mode="sum", sparse=True) for _ in range(tables))
        self.tables = nn.ModuleList(bags)
        self.bottom = _stack([features, 4 * width, width])
        self.top = _stack([width + tables * (tables + 1) // 2, 4 * width, 4 * width, 1])
        pairs = torch.tril_indices(tables + 1, tables + 1, -1, device="cpu")
        self.pairs: tuple[list[int], list[int]] = (pairs[0].tolist(), pairs[1].tolist())

    def forward(self, dense: Tensor, entries: Tensor) -> Tensor:
        """Return a logit for each row of `dense` (batch, features) and `entries` (batch, tables, bag), (batch,)."""
        dense_vector = self.bottom(dense)
        bags = [table(entries[:, place]) for place, table in enumerate(self.tables)]
        vectors = torch.stack([dense_vector, *bags], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat((dense_vector, products), dim=1)).squeeze(1)  # type: ignore[no-any-return]


def linear_stack(generator: Generator, *, depth: int, width: int, batch_size: int) -> Workload:
    """`depth` square linear layers of `width` with ReLU between, mean squared error, SGD with momentum.

    Inputs and outputs are (batch_size, width).
    """
    with device("meta"):
        module = _stack([width] * (depth + 1))
    fill(generator, module, gains={"0": 1.0, "*": HE}, centred=False)
    return _rows(generator, module, width, grid_targets(generator, (batch_size, width)), regression_loss)


def mlp(generator: Generator, *, features: int, depth: int, width: int, classes: int, batch_size: int) -> Workload:
    """`depth` hidden layers of `width` with ReLU and a classifier, cross entropy, SGD with momentum.

    Inputs are (batch_size, features), outputs logits (batch_size, classes).
    """
    with device("meta"):
        module = _stack([features, *[width] * depth, classes])
    head = f"{2 * depth}.weight"
    fill(generator, module, gains={"0": 1.0, "*": HE}, rules={head: classifier(HE)}, centred=False)
    return _rows(generator, module, features, generator.integers("targets", (batch_size,), classes), class_loss)


def recommender(
    generator: Generator, *, features: int, tables: int, vocabulary: int, bag: int, width: int, batch_size: int
) -> Workload:
    """A click's logit from dense features and bags of table entries; binary cross entropy, SGD with lr 0.01.

    Inputs are dense features (batch_size, features) and entries (batch_size, tables, bag), of which the first of a
    table come most often; outputs logits (batch_size,). Gradients of the tables are sparse, which SGD takes only
    without momentum.
    """
    with device("meta"):
        module = Recommender(features, tables, vocabulary, width)
    pairs = tables * (tables + 1) // 2
    read = math.sqrt((width + pairs * width) / (width + pairs))  # RMS of the top's input: of products, sqrt(width)
    gains = {"bottom.0": 1.0, "bottom.2": HE, "top.0": 1 / read, "*": HE}
    fill(generator, module, gains=gains, rules={"tables.*": around(0, bag**-0.5)}, centred=False)
    entries = generator.integers("entries", (batch_size, tables, bag), vocabulary)

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(output, targets.to(output.dtype))

    return Workload(
        module=module,
        inputs=(generator.uniform("dense", (batch_size, features)), entries * entries // vocabulary),
        targets=generator.integers("targets", (batch_size,), 2).float(),
        loss=loss,
        optimizer=lambda parameters: optim.SGD(parameters, lr=0.01),
    )


def _stack(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def softmax_head(generator: Generator, *, width: int, classes: int, batch_size: int) -> Workload:
    """Linear layer and softmax: probabilities (batch_size, classes); the Brier score, SGD with momentum.

    Source of the score: Brier, "Verification of forecasts expressed in terms of probability", 1950. Unlike the
    logarithm of a probability it stays finite where half precision flushes the probability to zero.
    """
    with device("meta"):
        module = nn.Sequential(nn.Linear(width, classes), nn.Softmax(dim=-1))

    def brier_score(output: Tensor, targets: Tensor) -> Tensor:
        return (output - F.one_hot(targets, classes).to(output.dtype)).square().sum(-1).mean()

    # Logits this large make most rows nearly certain; the RMS of a vector of probabilities is at most classes**-0.5.
    fill(generator, module, rules={"0.weight": classifier(4.0)})
    return _rows(generator, module, width, generator.integers("targets", (batch_size,), classes), brier_score)


def cross_entropy_head(generator: Generator, *, width: int, vocabulary: int, batch_size: int) -> Workload:
    """Linear layer without bias to logits (batch_size, vocabulary); cross entropy, SGD with momentum."""
    with device("meta"):
        module = nn.Linear(width, vocabulary, bias=False)
    fill(generator, module, rules={"weight": classifier(1.0)})
    targets = generator.integers("targets", (batch_size,), vocabulary)
    return _rows(generator, module, width, targets, class_loss)


def _rows(
    generator: Generator, module: nn.Module, width: int, targets: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
) -> Workload:
    """Return the workload of a network that reads a row of `width` features for each of the targets."""
    inputs = generator.uniform("inputs", (len(targets), width))
    return Workload(module=module, inputs=inputs, targets=targets, loss=loss, optimizer=momentum)
