"""Linear layers: matrix products with little between, and the head of a language model."""

from itertools import pairwise

from torch import device, nn

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
    return Workload(
        module=module,
        inputs=generator.uniform("inputs", (batch_size, features)),
        targets=generator.integers("targets", (batch_size,), classes),
        loss=class_loss,
        optimizer=momentum,
    )


def cross_entropy_head(generator: Generator, *, width: int, vocabulary: int, batch_size: int) -> Workload:
    """Linear layer without bias to logits (batch_size, vocabulary); cross entropy, SGD with momentum."""
    with device("meta"):
        module = nn.Linear(width, vocabulary, bias=False)
    fill(generator, module, rules={"weight": classifier(1.0)})
    return Workload(
        module=module,
        inputs=generator.uniform("inputs", (batch_size, width)),
        targets=generator.integers("targets", (batch_size,), vocabulary),
        loss=class_loss,
        optimizer=momentum,
    )
