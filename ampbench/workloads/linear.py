"""Linear layers: matrix products with little between, and heads with losses that autocast treats differently."""

from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, device, nn
from torch.nn import functional as F

from ampbench.worker.data import Generator
from ampbench.workload import Workload
from ampbench.workloads.weights import (
    HE,
    class_loss,
    classifier,
    fill,
    momentum,
)


def mlp(generator: Generator, *, features: int, depth: int, width: int, classes: int, batch_size: int) -> Workload:
    """`depth` hidden layers of `width` with ReLU and a classifier, cross entropy, SGD with momentum.

    Inputs are (batch_size, features), outputs logits (batch_size, classes).
    """
    with device("meta"):
        module = nn.Sequential()
        for inputs, outputs in pairwise([features, *[width] * depth]):
            module.extend([nn.Linear(inputs, outputs), nn.ReLU()])
        module.append(nn.Linear(width, classes))
    head = f"{2 * depth}.weight"
    fill(generator, module, gains={"0": 1.0, "*": HE}, rules={head: classifier(HE)}, centred=False)
    return _rows(generator, module, features, generator.integers("targets", (batch_size,), classes), class_loss)


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
