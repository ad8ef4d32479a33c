"""Where an op runs: forward, backward or in an optimizer's step, and which forward op a backward op differentiates.

Nodes of an autograd graph are numbered as they are made, just before their forward op runs; so the number that was
given last finds the forward op of a node, its module and its cast, without a hook on any tensor.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ampbench.explain.calls import Running
from ampbench.explain.modules import ModuleStack

_ACCUMULATES = 2**64 - 1
"""The number of every AccumulateGrad node, which has no forward op."""

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
"""The backward pass this thread is in; -1: none."""

_current_node: Callable[[], Any] = torch._C._current_autograd_node
"""The node of the autograd graph that is being differentiated, or None."""

_next_sequence: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
"""The number the next node of this thread's autograd graph will have."""


_CASTING = ("ToCopyBackward", "CopyBackwards")
"""Nodes of `to` and of `copy_`."""


class Place(NamedTuple):
    """Phase, module running now, whether a forward op is recomputed, the forward op a backward op differentiates.

    `leaf` is the tensor whose gradient is being stored.
    """

    phase: str
    module: str
    recomputed: bool = False
    forward: int | None = None
    leaf: torch.Tensor | None = None


class Places:
    """Follows the phases of a program. `optimizing` is set around an optimizer's step."""

    def __init__(self, modules: ModuleStack):
        self.optimizing = False
        self._modules = modules
        self._by_sequence: dict[int, int | None] = {_next_sequence() - 1: None}
        self._in_backward = False
        self._depth_before_backward = 0

    def find(self, index: int, *, called: bool) -> Place:
        """Return where op `index`, which runs now, is; `called`: from a Python function of torch."""
        modules = self._modules
        if _graph_task() == -1:
            self._in_backward = False
            self._by_sequence.setdefault(_next_sequence() - 1, index)
            if Running.differentiating:
                return Place("backward", modules.path)
            return Place("optimizer" if self.optimizing and modules.depth == 0 else "forward", modules.path)
        if not self._in_backward:
            self._in_backward, self._depth_before_backward = True, modules.depth
        within = modules.depth > self._depth_before_backward
        recomputed = torch.is_grad_enabled() and (within or (called and not Running.create_graph))
        if recomputed or Running.create_graph:
            self._by_sequence.setdefault(_next_sequence() - 1, index)
        if recomputed:
            return Place("forward", modules.path, recomputed=True)
        node = _current_node()
        if node is None:
            return Place("backward", modules.path)
        sequence = node._sequence_nr()
        if sequence < 0 or sequence >= _ACCUMULATES:
            return Place("backward", modules.path, leaf=getattr(node, "variable", None))
        return Place("backward", modules.path, forward=self._by_sequence.get(sequence))


def undoes_cast() -> bool:
    """Return whether autograd is now differentiating a cast."""
    node = _current_node()
    return node is not None and any(kind in node.name() for kind in _CASTING)


def in_backward() -> bool:
    """Return whether this thread is in a backward pass now."""
    return _graph_task() != -1


def leaves_ahead() -> list[torch.Tensor]:
    """Return the tensors whose gradients the node that autograd differentiates now hands on to, or a view after it."""
    node = _current_node()
    ahead = [following for following, _ in node.next_functions if following is not None] if node is not None else []
    beyond = [following for near in ahead for following, _ in near.next_functions if following is not None]
    return [leaf for near in (*ahead, *beyond) if (leaf := getattr(near, "variable", None)) is not None]
