"""Graphs as torch.compile hands them to inductor: ops as ATen had them, and the casts that somebody asked for.

Inductor's graphs have each op split into parts, which compute in fp32 whatever they are given. The parts of one op keep
its name and its number in the autograd graph, so that they can be put together again; and a part that converts is no
cast of the program's.
"""

import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ampbench.casts.families import is_view
from ampbench.explain.dtypes import short_dtype
from ampbench.explain.graphs.names import Stored
from ampbench.records.casts import ACTIVATION, GRADIENT, GraphCast, Operation

Modules = tuple[Mapping[str, str], frozenset[str]]
"""The paths of modules by `str(id(module))`, as dynamo marks nodes with, and all paths."""

CONVERTS = frozenset({"prims.convert_element_type", "aten._to_copy"})
"""Ops that copy into another dtype: inductor's and ATen's."""

COPY = "aten.copy"
"""What a graph makes of `copy_`: the tensor written into, the one read."""

Node = torch.fx.Node


def target_name(node: Node) -> str:
    """Return "aten.addmm"."""
    packet = getattr(node.target, "overloadpacket", None)
    return str(packet) if packet is not None else getattr(node.target, "__name__", str(node.target))


def ops_of(nodes: list[Node], modules: Modules, *, backward: bool, start: int) -> list[Operation]:
    """Return the ops of one graph, numbered from `start`, the parts of each put together.

    An op's first output is its result; others are what else of it is used. In a backward graph, forward ops run again.
    """
    groups: dict[Any, list[Node]] = {}
    for number, node in enumerate(nodes):
        if node.op == "call_function":
            original = node.meta.get("original_aten")
            key: Any = (str(original), node.meta.get("seq_nr"), _born_backward(node, backward), _path(node, modules))
            packet = str(getattr(original, "overloadpacket", original))
            if original is None or packet == target_name(node) or (target_name(node) in CONVERTS and _asked_for(node)):
                key = number
            if node.target is operator.getitem and original is None:
                continue
            groups.setdefault(key, []).append(node)
    return [
        _operation(index, parts, modules, backward=backward)
        for index, parts in enumerate(groups.values(), start=start)
        if target_name(parts[0]) != "aten.copy_"
    ]


def cast_names(nodes: list[Node], names: Mapping[str, Stored], modules: Modules) -> dict[int, str]:
    """Return what a forward graph casts, by its number in the autograd graph; see `casts_of` for `names`."""
    found: dict[int, str] = {}
    for node in nodes:
        if is_cast(node) and not _born_backward(node, False):  # what needs no gradient has the number of the one before
            found.setdefault(node.meta.get("seq_nr", -1), _origin(_source(node), names, modules)[1])
    return found


def casts_of(
    nodes: list[Node], names: Mapping[str, Stored], modules: Modules, undone: Mapping[int, str], *, backward: bool
) -> Iterator[tuple[Node, GraphCast]]:
    """Yield the casts of one graph with their nodes; `names` are the stored tensors and the inputs by placeholder.

    A gradient has the name of what the forward cast of its number cast: `undone`, from `cast_names`. A forward cast
    that the backward graph does again has the phase "backward".
    """
    for node in nodes:
        if not is_cast(node):
            continue
        source = _source(node)
        late = _born_backward(node, backward)
        what, name = _origin(source, names, modules)
        if late:
            what, name = GRADIENT, undone.get(node.meta.get("seq_nr", -1), _path(source, modules))
        yield (
            node,
            GraphCast(
                what=what,
                name=name,
                module=_path(node, modules),
                phase="backward" if late or backward else "forward",
                from_dtype=short_dtype(source.meta["val"].dtype),
                to_dtype=short_dtype(node.meta["val"].dtype),
                elements=_elements(source.meta["val"]),
            ),
        )


def is_cast(node: Node) -> bool:
    """Return whether a node copies into another dtype because the program or autocast asked for it."""
    name = target_name(node)
    if node.op != "call_function" or not (name == COPY or (name in CONVERTS and _asked_for(node))):
        return False
    source = _source(node).meta.get("val") if node.all_input_nodes else None
    made = node.meta.get("val")
    return isinstance(source, torch.Tensor) and isinstance(made, torch.Tensor) and source.dtype != made.dtype


def _source(node: Node) -> Node:
    """Return what a cast reads."""
    return node.all_input_nodes[-1 if target_name(node) == COPY else 0]


def _asked_for(node: Node) -> bool:
    original = node.meta.get("original_aten")
    return original is None or str(original).startswith("aten._to_copy")


def _born_backward(node: Node, backward: bool) -> bool:
    """Return whether a node differentiates; forward nodes may be in a backward graph and the other way round."""
    tag = node.meta.get("partitioner_tag")
    if tag is not None:
        return bool(tag == "is_backward")
    return "fwd_nn_module_stack" in node.meta or (backward and "nn_module_stack" not in node.meta)


def _operation(index: int, parts: list[Node], modules: Modules, *, backward: bool) -> Operation:
    first = parts[0]
    late = _born_backward(first, backward)
    original = first.meta.get("original_aten")
    packet = getattr(original, "overloadpacket", None)
    own = set(parts)
    inputs = dict.fromkeys(source for part in parts for source in part.all_input_nodes if source not in own)
    used = [part for part in parts if any(user.op == "call_function" and user not in own for user in part.users)]
    used = [part for part in used if any(target_name(user) != "aten.copy_" for user in part.users if user not in own)]
    result = (used or parts)[-1]
    outputs = [result, *(part for part in used if part is not result)]
    return Operation(
        index=index,
        name=str(packet) if packet is not None and not is_cast(first) else target_name(first),
        module=_path(first, modules),
        phase="backward" if late else "forward",
        recomputed=backward and not late,
        inputs=_dtypes(inputs),
        outputs=_dtypes(outputs),
    )


def _origin(node: Node, names: Mapping[str, Stored], modules: Modules) -> tuple[str, str]:
    """Return what the value of a node is and what it is called."""
    while node.op == "call_function" and is_view(target_name(node)):
        node = node.all_input_nodes[0]
    if node.name in names:
        return names[node.name].what, names[node.name].name
    return ACTIVATION, _path(node, modules)


def _path(node: Node, modules: Modules) -> str:
    """Return the path of the innermost module that a node belongs to, or "" if none of the model's is known."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    by_id, paths = modules
    for key, (said, _) in reversed(stack.items()):
        known = by_id.get(str(key).partition("@")[0])
        if known is not None:
            return known
        dotted = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", r".\1", said)
        dotted = re.sub(r"\[['\"]?([^]'\"]*)['\"]?\]", r".\1", dotted.partition("]")[2])
        if dotted.strip(".") in paths:
            return dotted.strip(".")
    return ""


def _dtypes(nodes: Iterable[Node]) -> tuple[str, ...]:
    values = (node.meta.get("val") for node in nodes)
    flat = (one for value in values for one in (value if isinstance(value, tuple | list) else [value]))
    return tuple(short_dtype(one.dtype) for one in flat if isinstance(one, torch.Tensor))


def _elements(value: torch.Tensor) -> int | None:
    count = value.numel()
    return count if isinstance(count, int) else None
