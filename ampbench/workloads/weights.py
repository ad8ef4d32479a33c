"""Weights that keep signals at a realistic size; and targets, losses and optimizers that several workloads share.

Weights follow rules by layer type and gains by name, all analytic. Default initialisation gives an untrained network
whose signals fade or grow with depth, so that its rounding errors say nothing about a trained one. Here every layer
gives outputs of an RMS near one. Layers without normalisation follow He et al., "Delving deep into rectifiers", ICCV
2015. Before a normalisation, kernels are centred and scaled against the variance of what they read (Brock et al.,
"Characterizing signal propagation to close the performance gap in unnormalized ResNets", ICLR 2021), so that the
running statistics, zero and one, are true: evaluation and training see nearly the same numbers. Centred rectified
layers amplify errors, each by 1.2 (Yang et al., "A mean field theory of batch normalization", ICLR 2019), which trained
networks do not: what enters an activation is therefore shifted by `ACTIVE` to its linear side. Nothing is calibrated by
running torch, and the result of each step is fixed by IEEE arithmetic: values depend neither on torch nor on the
machine. Targets, losses and optimizers are written as PyTorch users write them.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

from ampbench.worker.data import Generator


def grid_targets(generator: Generator, shape: tuple[int, ...], name: str = "targets") -> Tensor:
    """Return fp32 regression targets, multiples of 1/16 in [-2, 2), which every dtype holds exactly."""
    return generator.integers(name, shape, 64).to(torch.float32).sub_(32).div_(16)


def class_loss(output: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of logits (batch, ..., classes) against class numbers (batch, ...)."""
    return F.cross_entropy(output.flatten(0, -2), targets.flatten())


def momentum(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    """Return SGD with lr 0.01 and momentum 0.9, as VGG begins with (Simonyan and Zisserman 2015, section 3.1)."""
    return optim.SGD(parameters, lr=0.01, momentum=0.9)


def adamw(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    """Return AdamW with lr 1e-4, as DiT has (Peebles and Xie 2023, section 4), and else PyTorch's defaults.

    In pure fp16, its epsilon of 1e-8 is zero.
    """
    return optim.AdamW(parameters, lr=1e-4)


Rule = Callable[[Generator, str, Tensor], Tensor] | Tensor | float
"""Gives one tensor its value: the value, or a function of the generator, the tensor's name and its shape."""

Value = TypeVar("Value")

ACTIVE = 1.0
"""Mean of an activation's input behind a normalisation, at a standard deviation of one: 84% is above zero."""

RELU_VARIANCE = 0.7517
"""Variance of max(x, 0), x normal with mean `ACTIVE` (`rectified` computes it)."""

HARDSWISH_VARIANCE = 0.718
"""Variance of hardswish(x), x normal with mean `ACTIVE`, by numerical integration."""

HE = math.sqrt(2.0)
"""Gain behind a ReLU without normalisation, which halves the mean square (He et al., 2015)."""

GELU_VARIANCE = 0.345
"""Variance of gelu(x), x standard normal (mean 0.282, second moment 0.425)."""

SWIGLU_VARIANCE = 0.356
"""Variance of silu(x) * y, x and y standard normal: the second moment of silu(x)."""


def rectified(mean: float, variance: float) -> tuple[float, float]:
    """Return mean and variance of max(x, 0) for a normal x, to six digits.

    Source: the moments of the rectified normal distribution, with the normal density and distribution function.
    """
    deviation = math.sqrt(variance)
    ratio = mean / deviation
    density = math.exp(-ratio * ratio / 2) / math.sqrt(2 * math.pi)
    share = (1 + math.erf(ratio / math.sqrt(2))) / 2
    first = mean * share + deviation * density
    second = (mean * mean + variance) * share + mean * deviation * density
    return round(first, 6), round(second - first * first, 6)


def kernel(gain: float = 1.0, *, centred: bool = True) -> Rule:
    """Make the rule for weights (outputs, inputs, ...) that turn inputs of unit variance into outputs of RMS `gain`.

    Where `centred`, each output's weights sum to zero, so that the common mean of its inputs, which every ReLU causes,
    does not reach it. With a single input per output nothing is centred.
    """
    return lambda generator, name, tensor: _kernel(generator, name, tuple(tensor.shape), gain, centred)


def depthwise_kernel(gain: float = 1.0) -> Rule:
    """Make the rule for depthwise weights: centred, and each channel's of the norm `gain` exactly.

    Nine weights are too few for chance to give each channel the same size, and no later layer repairs a loss.
    """

    def rule(generator: Generator, name: str, tensor: Tensor) -> Tensor:
        values = _centred(generator.uniform(name, tuple(tensor.shape)).view(len(tensor), -1))
        # math.fsum rounds once, whatever the order: the norms are the same on every machine.
        norms = [math.sqrt(math.fsum(weight * weight for weight in row)) for row in values.tolist()]
        return (values * torch.tensor([gain / norm for norm in norms], dtype=torch.float32)[:, None]).view(tensor.shape)

    return rule


def classifier(rms: float) -> Rule:
    """Make the rule for a classifier's weights (classes, inputs): `kernel`, with class norms that fall as rank**-0.5.

    Classes of equal norm give a thousand nearly equal logits, whose argmax rounding decides. In a trained network a
    few classes stand clear; here those of the largest norms do, whichever of them agree with the input. Which class
    has which rank is drawn; the first one in two thousand share the largest norm, at most sixteen times the RMS, lest
    logits grow with the number of classes. `rms` is the logits' for inputs of unit variance.
    """

    def rule(generator: Generator, name: str, tensor: Tensor) -> Tensor:
        values = _kernel(generator, name, tuple(tensor.shape), rms, centred=True)
        classes = len(tensor)
        squares = [1 / (rank + max(0.5, classes / 2000)) for rank in range(classes)]
        mean = math.fsum(squares) / classes
        ranks = torch.argsort(generator.integers(f"{name}.rank", (classes,), 2**31), stable=True)
        norms = torch.tensor([math.sqrt(square / mean) for square in squares], dtype=torch.float32)
        return (values.view(classes, -1) * norms[ranks][:, None]).view(tensor.shape)

    return rule


def around(mean: float, rms: float) -> Rule:
    """Make the rule for values about `mean` with the standard deviation `rms`."""
    return lambda generator, name, tensor: generator.uniform(name, tuple(tensor.shape), rms=rms, mean=mean)


def waves(function: Callable[[float], float], places: int, size: int) -> Tensor:
    """Return `function`, sine or cosine, of every place times every frequency, (places, size), in fp32.

    Frequencies fall from 1 towards 1/10,000 (Vaswani et al., "Attention is all you need", 2017). Each value is rounded
    to 30 bits first, so that the last bit of a machine's sine, which differs, is lost.
    """
    frequencies = [10_000.0 ** (-index / size) for index in range(size)]
    rows = [[round(function(place * turn) * 2**30) / 2**30 for turn in frequencies] for place in range(places)]
    return torch.tensor(rows, dtype=torch.float64).float()


def fill(
    generator: Generator,
    module: nn.Module,
    gains: Mapping[str, float] | None = None,
    shifts: Mapping[str, float] | None = None,
    rules: Mapping[str, Rule] | None = None,
    centred: bool = True,
) -> None:
    """Give every parameter and buffer of `module`, which is on the meta device, its value.

    A layer has the gain and the shift, the mean of its biases, whose pattern (such as "layer*.conv2") is the first to
    match its name, else 1 and 0. A tensor whose name matches a pattern of `rules` follows that rule, every other one
    that of its layer's type. Kernels are `centred` or not. Raises `LookupError` for a tensor that no rule covers: a new
    version of torchvision must not bring its own initialisation in unseen.
    """
    layers = dict(module.named_modules())

    def initial(name: str, tensor: Tensor) -> Tensor | float:
        owner, _, last = name.rpartition(".")
        rule = _first_match(rules or {}, name)
        if rule is None:
            gain, shift = _first_match(gains or {}, owner), _first_match(shifts or {}, owner)
            rule = _layer_rule(layers[owner], last, 1.0 if gain is None else gain, shift or 0.0, centred)
        if rule is None:
            raise LookupError(f"no rule gives {name} of {type(layers[owner]).__name__} its value")
        return rule(generator, name, tensor) if callable(rule) else rule

    generator.fill(module, initial)


def _first_match(patterns: Mapping[str, Value], name: str) -> Value | None:
    return next((value for pattern, value in patterns.items() if fnmatchcase(name, pattern)), None)


def _layer_rule(layer: nn.Module, tensor: str, gain: float, shift: float, centred: bool) -> Rule | None:
    rules: dict[str, Rule] = {}
    if isinstance(layer, nn.Conv2d) and layer.groups == layer.in_channels > 1:
        rules = {"weight": depthwise_kernel(gain), "bias": around(shift, 0.1)}
    elif isinstance(layer, nn.Conv2d | nn.Linear):
        rules = {"weight": kernel(gain, centred=centred), "bias": around(shift, 0.1)}
    elif isinstance(layer, nn.BatchNorm2d):
        rules = {
            "weight": around(gain, 0.1 * gain),
            "bias": around(shift, 0.1 * gain),
            "running_mean": around(0, 0.1),
            "running_var": around(1, 0.1),
            "num_batches_tracked": 1000.0,
        }
    elif isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        rules = {"weight": around(gain, 0.1 * gain), "bias": around(shift, 0.1 * gain)}
    return rules.get(tensor)


def _kernel(generator: Generator, name: str, shape: tuple[int, ...], gain: float, centred: bool) -> Tensor:
    inputs = math.prod(shape[1:])
    values = generator.uniform(name, shape, rms=gain / math.sqrt(inputs))
    return _centred(values.view(shape[0], inputs)).view(shape) if centred and inputs > 1 else values


def _centred(rows: Tensor) -> Tensor:
    """Return fp32 `rows`, each less its mean; the values come from `Generator.uniform`.

    Those are multiples of 2**-24 of their range, so that their fp64 sum is exact and does not depend on its order.
    """
    return rows - (rows.sum(1, keepdim=True, dtype=torch.float64) / rows.shape[1]).float()
