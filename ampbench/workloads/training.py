"""Targets, losses and optimizers that several workloads share, written as PyTorch users write them."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

from ampbench.worker.data import Generator


def grid_targets(generator: Generator, shape: tuple[int, ...], name: str = "targets") -> Tensor:
    """Return fp32 regression targets, multiples of 1/16 in [-2, 2), which every dtype holds exactly."""
    return generator.integers(name, shape, 64).to(torch.float32).sub_(32).div_(16)


def regression_loss(output: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error; `targets` are of `grid_targets`, so that casting them loses nothing."""
    return F.mse_loss(output, targets.to(output.dtype))


def class_loss(output: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of logits (batch, ..., classes) against class numbers (batch, ...)."""
    return F.cross_entropy(output.flatten(0, -2), targets.flatten())


def momentum(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    """Return SGD with lr 0.01 and momentum 0.9."""
    return optim.SGD(parameters, lr=0.01, momentum=0.9)


def adamw(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    """Return AdamW with lr 1e-4 and else PyTorch's defaults: in pure fp16, its epsilon of 1e-8 is zero."""
    return optim.AdamW(parameters, lr=1e-4)
