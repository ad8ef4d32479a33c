"""Linear layers: matrix products with little between them."""

from itertools import pairwise

from torch import device, nn

from ampbench.measure.data import Generator
from ampbench.workload import Workload
from ampbench.workloads.weights import HE, class_loss, classifier, fill, grid_targets, momentum, regression_loss


def linear_stack(generator: Generator, *, depth: int, width: int, batch_size: int) -> Workload:
    """`depth` square linear layers of `width` with ReLU between, mean squared error, SGD with momentum.

    Inputs and outputs are (batch_size, width).
    """
    with device("meta"):
        module = _stack([width] * (depth + 1))
    fill(generator, module, gains={"0": 1.0, "*": HE}, centred=False)
    return Workload(
        module=module,
        inputs=generator.uniform("inputs", (batch_size, width)),
        targets=grid_targets(generator, (batch_size, width)),
        loss=regression_loss,
        optimizer=momentum,
        items_per_step=batch_size,
        version=1,
    )


def mlp(generator: Generator, *, features: int, depth: int, width: int, classes: int, batch_size: int) -> Workload:
    """`depth` hidden layers of `width` with ReLU and a classifier, cross entropy, SGD with momentum.

    Inputs are (batch_size, features), outputs logits (batch_size, classes).
    """
    with device("meta"):
        module = _stack([features, *[width] * depth, classes])
    head = f"{2 * depth}.weight"
    fill(generator, module, gains={"0": 1.0, "*": HE}, rules={head: classifier(HE)}, centred=False)
    return Workload(
        module=module,
        inputs=generator.uniform("inputs", (batch_size, features)),
        targets=generator.integers("targets", (batch_size,), classes),
        loss=class_loss,
        optimizer=momentum,
        items_per_step=batch_size,
        version=1,
    )


def _stack(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
