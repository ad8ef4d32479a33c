"""Batches of a workload: what they are, where and in which dtypes they lie, how a network is called with one."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree


def batches_of(inputs: object) -> list[Any]:
    """Return `inputs` as a list of batches: a list is one already."""
    return inputs if isinstance(inputs, list) else [inputs]


def stored_dtype(dtype: torch.dtype, storage: torch.dtype) -> torch.dtype:
    """Return the dtype in which a tensor of `dtype` is stored where floating ones are in `storage`.

    Complex tensors are twice as wide in fp64, and as they are else, as `Module.half` leaves them; so are integers.
    """
    if dtype.is_complex:
        return torch.complex128 if storage is torch.float64 else dtype
    return storage if dtype.is_floating_point else dtype


def placed(tree: Any, storage: torch.dtype, where: Mapping[str, Any], *, channels_last: bool) -> Any:
    """Return a copy of `tree` on the device, in the dtypes of `stored_dtype`.

    Leaves of a graph that require a gradient still do: a network may differentiate by its inputs.

    `where` are further arguments of `Tensor.to`: the device, unless the tensors lie there already.
    """

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        layout = torch.channels_last if channels_last and leaf.ndim == 4 else torch.preserve_format
        dtype = stored_dtype(leaf.dtype, storage)
        there = leaf.detach().to(dtype=dtype, copy=True, memory_format=layout, **where)
        return there.requires_grad_(leaf.requires_grad and leaf.is_leaf)

    return pytree.tree_map(place, tree)


def in_batches(data: tuple[Any, Any], samples: int) -> list[tuple[Any, Any]]:
    """Return inputs and targets, whose tensors all lie sample by sample, in batches of so many; [] for others.

    What is left over is no batch.
    """
    lengths = {len(tensor) if tensor.ndim else 0 for tensor in tensors_of(data)}
    if len(lengths) != 1:
        return []
    (length,) = lengths

    def part(start: int) -> tuple[Any, Any]:
        inputs, targets = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor[start : start + samples], data)
        return inputs, targets

    return [part(at) for at in range(0, length - samples + 1, samples)]


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in `tree`, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def differing(tree: Any, original: Any) -> list[str]:
    """Return where in `tree`, a copy by `placed` of `original`, tensors no longer hold the values they were given.

    A tensor alone is at "". Tensors that are sparse or nested are not looked at.
    """
    leaves, _ = pytree.tree_flatten_with_path(tree)
    return [
        pytree.keystr(path)
        for (path, leaf), given in zip(leaves, pytree.tree_leaves(original), strict=False)
        if isinstance(leaf, torch.Tensor) and isinstance(given, torch.Tensor) and differs(leaf, given)
    ]


def differs(tensor: torch.Tensor, original: torch.Tensor) -> bool:
    """Return whether `tensor`, a copy of `original` that may have another dtype, holds other values; NaN is NaN."""
    if any(one.layout is not torch.strided or one.is_nested for one in (tensor, original)):
        return False
    value, given = tensor.detach(), original.detach().to(tensor.device, tensor.dtype)
    return not torch.equal(value, given) and (
        value.shape != given.shape or not bool(((value == given) | (value.isnan() & given.isnan())).all())
    )


def put_back(tensor: torch.Tensor, original: torch.Tensor) -> None:
    """Give `tensor`, a copy of `original` that may have another dtype, its values again, in place."""
    if tensor.grad_fn is not None:  # a weight was added to it in place
        tensor.detach_()
    with torch.no_grad():
        tensor.copy_(original)


def bound(forward: Callable[..., Any], batch: Any) -> Callable[[], Any]:
    """Return `forward` called with `batch`."""
    args, kwargs = called_with(batch)
    return functools.partial(forward, *args, **kwargs)


def called_with(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return `batch` as arguments: a tuple is positional, a dict by name, anything else the one argument."""
    if isinstance(batch, tuple):
        return batch, {}
    return ((), batch) if isinstance(batch, dict) else ((batch,), {})
