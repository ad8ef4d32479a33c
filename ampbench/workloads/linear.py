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
    grid_targets,
    momentum,
    regression_loss,
)


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


def bce_head(generator: Generator, *, width: int, classes: int, batch_size: int) -> Workload:
    """Linear layer to logits (batch_size, classes), each a label of its own; SGD with momentum.

    With logits, because autocast on CUDA refuses binary_cross_entropy on probabilities.
    """
    with device("meta"):
        module = nn.Linear(width, classes)

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(output, targets.to(output.dtype))

    fill(generator, module, gains={"": 2.0})
    targets = generator.integers("targets", (batch_size, classes), 2).float()
    return _rows(generator, module, width, targets, loss)


def kl_head(generator: Generator, *, width: int, classes: int, batch_size: int) -> Workload:
    """Linear layer and log-softmax; divergence from a teacher's probabilities, SGD with momentum.

    The teacher's probabilities are fourth powers of whole numbers over their sum: a few large, most small.
    """
    with device("meta"):
        module = nn.Sequential(nn.Linear(width, classes), nn.LogSoftmax(dim=-1))

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return F.kl_div(output, targets, reduction="batchmean")

    fill(generator, module, rules={"0.weight": classifier(0.5)})
    powers = generator.integers("targets", (batch_size, classes), 256) ** 4
    targets = (powers.double() / powers.sum(-1, keepdim=True).double()).float()
    return _rows(generator, module, width, targets, loss)


def mse_head(generator: Generator, *, width: int, outputs: int, batch_size: int) -> Workload:
    """Linear layer to (batch_size, outputs); mean squared error, SGD with momentum."""
    with device("meta"):
        module = nn.Linear(width, outputs)
    fill(generator, module)
    targets = grid_targets(generator, (batch_size, outputs))
    return _rows(generator, module, width, targets, regression_loss)


def _rows(
    generator: Generator, module: nn.Module, width: int, targets: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
) -> Workload:
    """Return the workload of a network that reads a row of `width` features for each of the targets."""
    inputs = generator.uniform("inputs", (len(targets), width))
    return Workload(module=module, inputs=inputs, targets=targets, loss=loss, optimizer=momentum)
