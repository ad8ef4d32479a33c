"""The autograd graph: what a backward pass will do, read from the `grad_fn` chain before it runs."""

import heapq
import itertools
import math
from collections import Counter
from typing import Any

import torch

from ampbench.casts.families import is_view
from ampbench.explain.dtypes import short_dtype
from ampbench.explain.graphs.names import Stored, stored_tensors
from ampbench.records.casts import AUTOGRAD, GRADIENT, GraphCast, GraphTrace, Operation

_CAST = "ToCopyBackward"
_ACCUMULATES = "AccumulateGrad"

_HIDE = ("CheckpointFunction", "CompiledFunction")
"""Nodes whose backward pass has a graph of its own, which is made only when it runs."""


def autograd_graph(output: torch.Tensor, model: torch.nn.Module) -> GraphTrace:
    """Return the autograd graph of `output`: its nodes in the order in which autograd will run them.

    An op's inputs are the dtypes of the gradients it is given, its outputs those of the gradients it hands on. A cast's
    `name` is that of the weight whose gradient it casts or, for an activation, of the module that made it. Nodes keep
    no module: an op has that of the weight it reads, "" if it reads none; a cast that of the op it is made for.
    """
    root = output.grad_fn
    if root is None:
        return GraphTrace(graph=AUTOGRAD, error="the output needs no gradient, so autograd keeps no graph of it")
    nodes, parents = _in_order(root)
    stored = {id(one.tensor): one for one in stored_tensors(model)}
    modules = {node: _module(node, stored) for node in nodes}
    ops = [
        Operation(
            index=index,
            name=node.name(),
            module=_place(node, modules, parents),
            phase="backward",
            inputs=tuple(short_dtype(one.dtype) for one in _given(node)),
            outputs=tuple(short_dtype(one.dtype) for one in _handed_on(node)),
        )
        for index, node in enumerate(nodes)
    ]
    casts = [
        GraphCast(
            what=GRADIENT,
            name=_cast_name(node, modules, stored),
            module=_place(node, modules, parents),
            phase="backward",
            from_dtype=short_dtype(_given(node)[0].dtype),
            to_dtype=short_dtype(_handed_on(node)[0].dtype),
            elements=math.prod(_given(node)[0].shape),
        )
        for node in nodes
        if _casts(node)
    ]
    hidden = Counter(kind for node in nodes for kind in _HIDE if kind in node.name())
    notes = [f"{count} nodes {kind} hide a graph that is made only when they run" for kind, count in hidden.items()]
    return GraphTrace(graph=AUTOGRAD, ops=ops, casts=casts, notes=notes)


def _in_order(root: Any) -> tuple[list[Any], dict[Any, Any]]:
    """Return the nodes as autograd's engine takes them (ready ones first made last), and a node each is fed by."""
    waiting: Counter[Any] = Counter({root: 0})
    parents: dict[Any, Any] = {}
    found = [root]
    for node in found:
        for following in _following(node):
            if following not in waiting:
                found.append(following)
                parents[following] = node
            waiting[following] += 1
    number = itertools.count()
    ready = [(-root._sequence_nr(), next(number), root)]
    nodes = []
    while ready:
        _, _, node = heapq.heappop(ready)
        nodes.append(node)
        for following in _following(node):
            waiting[following] -= 1
            if not waiting[following]:
                heapq.heappush(ready, (-following._sequence_nr(), next(number), following))
    return nodes, parents


def _following(node: Any) -> list[Any]:
    return [following for following, _ in node.next_functions if following is not None]


def _given(node: Any) -> list[Any]:
    return [one for one in node._input_metadata if one.dtype is not None]


def _handed_on(node: Any) -> list[Any]:
    pairs = [(following, number) for following, number in node.next_functions if following is not None]
    return [following._input_metadata[number] for following, number in pairs]


def _casts(node: Any) -> bool:
    """Return whether a node copies into another dtype; a copy to another device has the same name."""
    given, handed_on = _given(node), _handed_on(node)
    return bool(node.name().startswith(_CAST) and given and handed_on and given[0].dtype != handed_on[0].dtype)


def _leaf(node: Any, stored: dict[int, Stored]) -> Stored | None:
    """Return the parameter whose gradient a node leads to by casts and views alone."""
    while (node.name().startswith(_CAST) or is_view(node.name())) and (following := _following(node)):
        node = following[0]
    return stored.get(id(node.variable)) if node.name().endswith(_ACCUMULATES) else None


def _module(node: Any, stored: dict[int, Stored]) -> str:
    found = (_leaf(following, stored) for following in [node, *_following(node)])
    return next((leaf.module for leaf in found if leaf is not None), "")


def _place(node: Any, modules: dict[Any, str], parents: dict[Any, Any]) -> str:
    """Return the module of a node; a cast is made for the op that read its copy."""
    if node.name().startswith(_CAST) and not modules[node] and node in parents:
        return modules[parents[node]]
    return modules[node]


def _cast_name(node: Any, modules: dict[Any, str], stored: dict[int, Stored]) -> str:
    leaf = _leaf(node, stored)
    if leaf is not None:
        return leaf.name
    return next((modules[following] for following in _following(node)), "")
