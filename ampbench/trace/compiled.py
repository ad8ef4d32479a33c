"""The graphs of torch.compile: the ops and casts that inductor receives, and the fate of each cast.

Inductor's own graphs have each op split into parts, which compute in fp32 whatever they are given. The parts of one op
keep its name and its number in the autograd graph, so that they can be put together again; and a part that converts is
no cast of the program's. Inductor is followed up to its fused kernels, and stopped there: no code is generated, so that
no C++ compiler is needed and a network takes seconds. The step then runs on the graph that inductor was given.
"""

import copy
import operator
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from msgspec import structs

from ampbench.core.units import counted
from ampbench.errors import first_line
from ampbench.records.casts import (
    ACTIVATION,
    COMPILED,
    FUSED,
    GRADIENT,
    INPUT,
    KEPT,
    GraphCast,
    GraphTrace,
    Operation,
    is_view,
)
from ampbench.trace.dtypes import short_dtype
from ampbench.trace.traced import Stored, stored_tensors

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

    An op's first output is its result; others are its further used values. In a backward graph, forward ops run again.
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
    """Return the names of values that a forward graph casts, by autograd number; see `casts_of` for `names`."""
    casts: dict[int, str] = {}
    for node in nodes:
        if is_cast(node) and not _born_backward(
            node, False
        ):  # a node without gradient has the number of the node before
            casts.setdefault(node.meta.get("seq_nr", -1), _origin(_source(node), names, modules)[1])
    return casts


def casts_of(
    nodes: list[Node], names: Mapping[str, Stored], modules: Modules, undone: Mapping[int, str], *, backward: bool
) -> Iterator[tuple[Node, GraphCast]]:
    """Yield the casts of one graph with their nodes; `names` are the stored tensors and the inputs by placeholder.

    A gradient has the name of the value under the forward cast of its number: `undone`, from `cast_names`. A forward
    cast that the backward graph does again has the phase "backward".
    """
    for node in nodes:
        if not is_cast(node):
            continue
        source = _source(node)
        late = _born_backward(node, backward)
        role, name = _origin(source, names, modules)
        if late:
            role, name = GRADIENT, undone.get(node.meta.get("seq_nr", -1), _path(source, modules))
        yield (
            node,
            GraphCast(
                what=role,
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
    output = node.meta.get("val")
    return isinstance(source, torch.Tensor) and isinstance(output, torch.Tensor) and source.dtype != output.dtype


def _source(node: Node) -> Node:
    """Return the input of a cast."""
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
    members = set(parts)
    inputs = dict.fromkeys(source for part in parts for source in part.all_input_nodes if source not in members)
    used = [part for part in parts if any(user.op == "call_function" and user not in members for user in part.users)]
    used = [
        part for part in used if any(target_name(user) != "aten.copy_" for user in part.users if user not in members)
    ]
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
    """Return the kind and the name of a node's value."""
    while node.op == "call_function" and is_view(target_name(node)):
        node = node.all_input_nodes[0]
    if node.name in names:
        return names[node.name].what, names[node.name].name
    return ACTIVATION, _path(node, modules)


def _path(node: Node, modules: Modules) -> str:
    """Return the path of a node's innermost module in the model, "" if unknown."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    by_id, paths = modules
    for key, (text, _) in reversed(stack.items()):
        known = by_id.get(str(key).partition("@")[0])
        if known is not None:
            return known
        dotted = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", r".\1", text)
        dotted = re.sub(r"\[['\"]?([^]'\"]*)['\"]?\]", r".\1", dotted.partition("]")[2])
        if dotted.strip(".") in paths:
            return dotted.strip(".")
    return ""


def _dtypes(nodes: Iterable[Node]) -> tuple[str, ...]:
    values = (node.meta.get("val") for node in nodes)
    flat = (leaf for value in values for leaf in (value if isinstance(value, tuple | list) else [value]))
    return tuple(short_dtype(leaf.dtype) for leaf in flat if isinstance(leaf, torch.Tensor))


def _elements(value: torch.Tensor) -> int | None:
    count = value.numel()
    return count if isinstance(count, int) else None


_HOOK = "_post_fusion_custom_pass"
"""Inductor's option for a function that is given the kernels after fusion; it may be absent in a torch version."""


class _FusedError(Exception):
    """Raised within inductor once the fused kernels have been read."""


@dataclass(slots=True)
class Lowered:
    """A graph that inductor was given: `nodes` are FX nodes, `names` the stored tensors by placeholder.

    `kernels` are, per fused kernel, the nodes it computes with their ops, None where they could not be read; `mistake`
    says why.
    """

    nodes: list[torch.fx.Node]
    names: dict[str, Stored]
    backward: bool
    kernels: list[dict[str, str]] | None = None
    mistake: str = ""


@dataclass(slots=True)
class _Backend:
    """A backend for torch.compile that runs inductor up to its fused kernels and keeps their graphs."""

    stored: dict[int, Stored]
    graphs: list[Lowered] = field(default_factory=list)
    frames: int = 0

    def __call__(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        from torch._inductor.compile_fx import compile_fx

        self.frames += 1
        arguments = [*module.parameters(), *module.buffers(), *inputs]
        names = {place: self.stored[id(value)] for place, value in enumerate(arguments) if id(value) in self.stored}
        places = [node.name for node in module.graph.nodes if node.op == "placeholder"]
        for place, (name, value) in enumerate(zip(places, inputs, strict=True), start=len(arguments) - len(inputs)):
            names.setdefault(place, _given(name, value))

        def inner(graph: torch.fx.GraphModule, example_inputs: Any, **options: Any) -> Any:
            return self.lower(graph, example_inputs, names, options)

        return compile_fx(module, inputs, inner_compile=inner)

    def __deepcopy__(self, memo: Any) -> "_Backend":
        """Return itself: inductor copies its options deeply now and then, and `fused` is one of them."""
        return self

    def lower(self, graph: torch.fx.GraphModule, inputs: Any, names: dict[int, Stored], options: dict[str, Any]) -> Any:
        """Read one graph and its fusion by inductor; return the graph itself, ready to run."""
        from torch._functorch._aot_autograd.utils import make_boxed_func
        from torch._inductor.compile_fx import compile_fx_inner

        kept = copy.deepcopy(graph)
        backward = bool(options.get("is_backward"))
        places = [node.name for node in kept.graph.nodes if node.op == "placeholder"]
        by_name = {name: names[at] for at, name in enumerate(places) if at in names}
        if backward:  # values saved by a forward graph keep their names
            by_name = {
                name: stored for earlier in self.graphs for name, stored in earlier.names.items() if name in places
            }
        lowered = Lowered(list(kept.graph.nodes), by_name, backward)
        self.graphs.append(lowered)
        try:
            compile_fx_inner(graph, inputs, **options)
        except Exception as error:  # noqa: BLE001 - inductor wraps errors of its passes in its own
            if lowered.kernels is None:
                lowered.mistake = first_line(error)
        return make_boxed_func(kept.forward)

    def fused(self, kernels: Iterable[Any]) -> Any:
        """Keep the nodes of each kernel and end the compilation; inductor calls this after fusion."""
        self.graphs[-1].kernels = [_computed(kernel) for kernel in kernels]
        raise _FusedError("the fused kernels are read")


def compiled_graph(model: torch.nn.Module, step: Callable[[Callable[..., Any]], Any]) -> GraphTrace:
    """Return the graphs that torch.compile makes of `model` while `step(compiled)` runs one step, in order.

    `step` runs forward, loss and, in training, backward with its argument as the model; code outside the model is not
    in the graphs. Ops are those of ATen before inductor splits them up. A cast is fused where it became part of a
    kernel that does other work, kept where its kernel does nothing else. `error` is the first line of a compilation
    error.
    """
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config

    backend = _Backend({id(stored.tensor): stored for stored in stored_tensors(model)})
    hooked = hasattr(inductor_config, _HOOK)
    options: dict[str, Any] = {"fx_graph_cache": False, "fx_graph_remote_cache": False}
    if hooked:
        options[_HOOK] = backend.fused
    torch.compiler.reset()
    before = _breaks()
    try:
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(inductor_config.patch(options))
            if hasattr(functorch_config, "enable_autograd_cache"):
                stack.enter_context(functorch_config.patch(enable_autograd_cache=False))
            step(torch.compile(model, backend=backend))
            breaks = list(_breaks() - before)
    except Exception as error:  # noqa: BLE001 - the error is the answer
        return GraphTrace(graph=COMPILED, error=first_line(error))
    finally:
        torch.compiler.reset()
    if not backend.graphs:
        return GraphTrace(graph=COMPILED, error="torch.compile made no graph of the model: all of it ran in Python")
    return _trace(model, backend, breaks, hooked=hooked)


def _given(name: str, tensor: Any) -> Stored:
    """Return the value behind dynamo's placeholder: an input of the model, or a value from before a graph break."""
    match = re.fullmatch(r"[lL]_(.+)_", name)
    plain = match[1] if match else name
    return Stored(ACTIVATION, "", tensor) if plain.startswith("stack") else Stored(INPUT, plain, tensor)


def _computed(kernel: Any) -> dict[str, str]:
    """Return the nodes of the graph that a fused kernel computes, by name, with their ops.

    A kernel of a library has the casts of its inputs among its origins, which are computed before it: only its own
    node counts.
    """
    from torch._inductor.ir import ExternKernel, TemplateBuffer

    ops: dict[str, str] = {}
    for part in kernel.get_nodes():
        buffer = part.node
        if buffer is None:
            continue
        origins = list(buffer.origins)
        if isinstance(buffer, ExternKernel | TemplateBuffer) and len(origins) > 1:
            origins = [origin for origin in [buffer.get_origin_node()] if origin is not None]
        ops.update({origin.name: target_name(origin) for origin in origins})
    return ops


def _fate(name: str, lowered: Lowered) -> str | None:
    """Return the fate of a cast: kept, fused, or None if no kernel computes it."""
    if lowered.kernels is None:
        return KEPT
    computing = [kernel for kernel in lowered.kernels if name in kernel]
    if not computing:
        return None
    alone = any(all(op in CONVERTS or op == COPY or is_view(op) for op in kernel.values()) for kernel in computing)
    return KEPT if alone else FUSED


def _breaks() -> Counter[str]:
    """Return why, and how often, dynamo has broken graphs in this process so far."""
    from torch._dynamo.utils import counters

    return Counter(counters["graph_break"])


def _trace(model: torch.nn.Module, backend: _Backend, breaks: list[str], *, hooked: bool) -> GraphTrace:
    paths = {str(id(module)): name for name, module in model.named_modules()}
    modules = paths, frozenset(name for name, _ in model.named_modules())
    ops: list[Operation] = []
    casts: list[GraphCast] = []
    notes = []
    undone: dict[int, str] = {}
    dropped = 0
    for lowered in backend.graphs:
        if not lowered.backward:
            undone |= cast_names(lowered.nodes, lowered.names, modules)
        ops += ops_of(lowered.nodes, modules, backward=lowered.backward, start=len(ops))
        for node, cast in casts_of(lowered.nodes, lowered.names, modules, undone, backward=lowered.backward):
            fate = _fate(node.name, lowered)
            if fate is None:
                dropped += 1
            else:
                casts.append(structs.replace(cast, fate=fate))
    if dropped:
        notes.append(f"inductor dropped {counted(dropped, 'cast')}: the copy is never made")
    if breaks or backend.frames > 1:
        why = f" ({breaks[0].strip().splitlines()[0]})" if breaks and breaks[0].strip() else ""
        notes.append(
            f"the model breaks{why}: {counted(backend.frames, 'graph')} of it; the rest of it runs as in eager mode"
        )
    if not hooked:
        notes.append("this torch does not show inductor's fusion: each cast counts as kept")
    mistakes = Counter(lowered.mistake for lowered in backend.graphs if lowered.mistake)
    notes += [f"inductor's fusion is unknown for {n} of the graphs: {mistake}" for mistake, n in mistakes.items()]
    return GraphTrace(graph=COMPILED, ops=ops, casts=casts, notes=notes)
