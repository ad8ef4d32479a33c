"""Batches of a workload: what they are, where and in which dtypes they lie, how a network is called with one."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree


def batches_of(inputs: object) -> list[Any]:
    """Return `inputs` as a list of batches: a list is one already."""
    return inputs if isinstance(inputs, list) else [inputs]


def placed(tree: Any, storage: torch.dtype, where: Mapping[str, Any], *, channels_last: bool) -> Any:
    """Return a copy of `tree` on the device: floating tensors in `storage`, others in their own dtype.

    `where` are further arguments of `Tensor.to`: the device, unless the tensors lie there already.
    """

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        dtype = storage if leaf.is_floating_point() else leaf.dtype
        layout = torch.channels_last if channels_last and leaf.ndim == 4 else torch.preserve_format
        return leaf.detach().to(dtype=dtype, copy=True, memory_format=layout, **where)

    return pytree.tree_map(place, tree)


def bound(forward: Callable[..., Any], batch: Any) -> Callable[[], Any]:
    """Return `forward` called with `batch`."""
    args, kwargs = called_with(batch)
    return functools.partial(forward, *args, **kwargs)


def called_with(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return `batch` as arguments: a tuple is positional, a dict by name, anything else the one argument."""
    if isinstance(batch, tuple):
        return batch, {}
    return ((), batch) if isinstance(batch, dict) else ((batch,), {})
