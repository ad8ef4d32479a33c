"""What normalisations treat as one: the channel or row of which they take the statistics."""

from collections import Counter

import torch

from ampbench.explain.magnitudes import SMALL, count_magnitudes


def normalises_together(module: torch.nn.Module) -> bool:
    """Return whether a module of torch's subtracts the mean of what it is given, not one that it remembers."""
    if isinstance(module, torch.nn.modules.batchnorm._NormBase):
        return module.training or module.running_mean is None
    return isinstance(module, torch.nn.LayerNorm | torch.nn.GroupNorm)


def count_together(module: torch.nn.Module, tensor: torch.Tensor) -> Counter[int]:
    """Return how many values lie in a channel or row whose largest magnitude has an exponent up to `SMALL`.

    By that exponent; those that hold nothing but zeros are left out. `tensor` is what `module`, one that
    `normalises_together`, is given.
    """
    largest = _largest(module, tensor.detach())
    counts = count_magnitudes(largest)
    members = tensor.numel() // largest.numel() if largest.numel() else 0
    return Counter({exponent: count * members for exponent, count in counts.exponents.items() if exponent <= SMALL})


def _largest(module: torch.nn.Module, tensor: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude of each channel or row."""
    if isinstance(module, torch.nn.GroupNorm):
        rows = tensor.reshape(len(tensor), module.num_groups, -1)
    elif isinstance(module, torch.nn.LayerNorm):
        last = len(module.normalized_shape)
        if tuple(tensor.shape[-last:]) != tuple(module.normalized_shape):  # a subclass for images, by their channels
            tensor = tensor.movedim(1, -1)
        rows = tensor.flatten(-last)
    elif isinstance(module, torch.nn.modules.instancenorm._InstanceNorm):
        rows = tensor.flatten(1 - module._get_no_batch_dim())  # type: ignore[no-untyped-call]
    else:
        rows = tensor.transpose(0, 1).flatten(1) if tensor.dim() > 1 else tensor[:, None]
    return rows.abs().amax(-1)
