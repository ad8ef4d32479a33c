"""Dtypes: their short names, and in which modules are handed values and hand them on (`watch_dtypes`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ampbench.explain.module_runs import ModuleRun, watch_runs
from ampbench.precisions import SHORT_DTYPES


class Dtypes:
    """What `watch_dtypes` has seen so far, by module: of each call the dtypes of its floating inputs, and of outputs.

    `given[path]` has a tuple for each call, of the positional inputs in order and then of those by keyword.
    """

    def __init__(self) -> None:
        self.given: dict[str, list[tuple[torch.dtype, ...]]] = {}
        self.returned: dict[str, set[torch.dtype]] = {}

    def look(self, run: ModuleRun) -> None:
        """Note the dtypes of a call."""
        self.given.setdefault(run.path, []).append(floating_dtypes((run.args, run.kwargs)))
        self.returned.setdefault(run.path, set()).update(floating_dtypes(run.returned))


@contextmanager
def watch_dtypes(model: torch.nn.Module) -> Iterator[Dtypes]:
    """See the dtypes of the floating inputs and outputs of every module while the block runs `model`.

    Results stay the same, bit by bit. Raises `UsageError` for modules compiled by torch.compile.
    """
    seen = Dtypes()
    with watch_runs(model, seen.look):
        yield seen


def floating_dtypes(tree: Any) -> tuple[torch.dtype, ...]:
    """Return the dtypes of the floating tensors in `tree`, in order."""
    leaves = pytree.tree_leaves(tree)
    return tuple(leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point())


def short_dtype(dtype: torch.dtype) -> str:
    """Return "fp32" for torch.float32, "int64" for torch.int64."""
    name = str(dtype).removeprefix("torch.")
    return SHORT_DTYPES.get(name, name)
