"""TorchScript graphs, read: ops, casts, modules and whose tensor is cast."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ampbench.casts.families import is_view
from ampbench.explain.dtypes import short_dtype
from ampbench.explain.graphs.names import Stored
from ampbench.records.casts import ACTIVATION, FOLDED, INPUT, KEPT, Cast, GraphCast, Operation

_ADDED = frozenset({"aten::_autocast_to_reduced_precision", "aten::_autocast_to_full_precision"})
"""Kinds of nodes that TorchScript's own autocast adds when a graph is frozen."""

_CASTS = _ADDED | {"aten::to", "aten::type_as"}
"""Kinds of nodes that cast or, where the dtype is right already, do nothing."""


class FrozenGraph:
    """Ops and casts of a frozen graph, with `seen` dtypes and element counts by value name."""

    def __init__(self, graph: Any, seen: Mapping[str, tuple[torch.dtype, int]], stored: Mapping[int, Stored]):
        self._nodes = list(_nodes(graph))
        self._makers = {value.debugName(): node for node in self._nodes for value in node.outputs()}
        self._inputs = {value.debugName() for value in graph.inputs()}
        self._seen = dict(seen)
        self._stored = stored
        for name, node in self._makers.items():
            if node.kind() == "prim::Constant" and (tensor := _constant(node)) is not None:
                self._seen[name] = tensor.dtype, tensor.numel()

    def ops(self) -> list[Operation]:
        """Return the ops that make tensors, in order; a cast that has nothing to do is left out."""
        nodes = [node for node in self._nodes if not node.kind().startswith("prim::") and self._does_something(node)]
        return [
            Operation(
                index=index,
                name=node.kind().replace("::", "."),
                module=self._module(node),
                inputs=tuple(short_dtype(dtype) for value in node.inputs() for dtype in self._dtypes(value)),
                outputs=tuple(short_dtype(dtype) for value in node.outputs() for dtype in self._dtypes(value)),
            )
            for index, node in enumerate(nodes)
        ]

    def casts(self) -> list[GraphCast]:
        """Return the casts that are still there."""
        found = []
        for node in self._nodes:
            if node.kind() in _CASTS and self._does_something(node):
                source = next(node.inputs())
                dtype, elements = self._seen[source.debugName()]
                what, name = self._origin(source)
                found.append(
                    GraphCast(
                        what=what,
                        name=name,
                        module=self._module(node),
                        from_dtype=short_dtype(dtype),
                        to_dtype=short_dtype(self._seen[node.output().debugName()][0]),
                        elements=elements,
                        fate=KEPT,
                    )
                )
        return found

    def inside(self, seen: list[tuple[str, Cast]]) -> list[GraphCast]:
        """Return those of the casts seen at the making of a value that its node makes inside another op."""
        return [
            GraphCast(
                what=cast.what,
                name=cast.name,
                module=self._module(self._makers[made]),
                from_dtype=cast.from_dtype,
                to_dtype=cast.to_dtype,
                elements=cast.elements,
            )
            for made, cast in seen
            if made in self._makers and self._makers[made].kind() not in _CASTS
        ]

    def _does_something(self, node: Any) -> bool:
        made = [self._seen[value.debugName()][0] for value in node.outputs() if value.debugName() in self._seen]
        if node.kind() in _CASTS and made:
            given = self._seen.get(next(node.inputs()).debugName())
            return given is not None and given[0] != made[0]
        return bool(made) or any("Tensor" in str(value.type()) for value in node.outputs())

    def _dtypes(self, value: Any) -> Iterable[torch.dtype]:
        name = value.debugName()
        if name in self._seen:
            yield self._seen[name][0]
        elif name in self._makers:
            node = self._makers[name]
            if node.kind() in ("prim::ListConstruct", "prim::TupleConstruct"):
                for part in node.inputs():
                    yield from self._dtypes(part)
            elif node.kind() == "prim::Constant" and isinstance(parts := node.output().toIValue(), list):
                yield from (part.dtype for part in parts if isinstance(part, torch.Tensor))

    def _origin(self, value: Any) -> tuple[str, str]:
        """Return what a value is and what it is called."""
        name = value.debugName()
        if name in self._inputs:
            return INPUT, name.partition(".")[0]
        node = self._makers[name]
        if is_view(node.kind()):
            return self._origin(next(node.inputs()))
        if node.kind() == "prim::Constant" and (tensor := _constant(node)) is not None:
            known = self._stored.get(tensor.data_ptr())
            return (known.what, known.name) if known is not None else (ACTIVATION, "")
        return ACTIVATION, self._module(node)

    def _module(self, node: Any) -> str:
        """Return a node's module; the casts that freezing adds have none, and are made for the op that reads them."""
        scope = _scope(node)
        if not scope and node.kind() in _ADDED:
            return next((_scope(use.user) for use in node.output().uses()), "")
        return scope


def stored_casts(graph: Any, stored: list[Stored]) -> list[GraphCast]:
    """Return the casts of weights and buffers in a graph that is not frozen."""
    known = {one.name: one for one in stored}
    found = []
    for node in _nodes(graph):
        if node.kind() not in _CASTS:
            continue
        one = known.get(_attribute(next(node.inputs())))
        dtype = node.output().type().dtype() if node.output().type().kind() == "TensorType" else None
        if one is not None and dtype is not None and dtype != one.tensor.dtype:
            found.append(
                GraphCast(
                    what=one.what,
                    name=one.name,
                    module=_scope(node),
                    from_dtype=short_dtype(one.tensor.dtype),
                    to_dtype=short_dtype(dtype),
                    elements=one.tensor.numel(),
                    fate=FOLDED,
                )
            )
    return found


def _attribute(value: Any) -> str:
    """Return the dotted name of the attribute a value is, through views; "" if it is none."""
    node = value.node()
    while is_view(node.kind()):
        node = next(node.inputs()).node()
    names: list[str] = []
    while node.kind() == "prim::GetAttr":
        names.append(node.s("name"))
        node = next(node.inputs()).node()
    return ".".join(reversed(names))


def removed(before: Any, after: Any) -> list[str]:
    """Return a note on batch norms that freezing has folded into the weights of the op before them."""
    count = Counter(node.kind() for node in _nodes(before))
    count.subtract(node.kind() for node in _nodes(after))
    gone = count["aten::batch_norm"]
    return [f"freezing folded {gone} batch norms into the weights of the op before them"] if gone > 0 else []


def _nodes(block: Any) -> Iterable[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _constant(node: Any) -> torch.Tensor | None:
    value = node.output().toIValue()
    return value if isinstance(value, torch.Tensor) else None


def _scope(node: Any) -> str:
    return str(node.scopeName()).rpartition("/")[2].removeprefix("__module").removeprefix(".")
