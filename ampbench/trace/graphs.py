"""The graphs of a step besides eager mode's: of torch.jit.trace, of autograd, and of torch.compile, with their casts.

A trace is run once here below a ledger, which sees its ops and casts. The autograd graph, the plan of a backward
pass, is read from the `grad_fn` chain before it runs.

Inductor's graphs split each op into parts, which compute in fp32 whatever their inputs are. The parts of one op keep
its name and its number in the autograd graph, so they can be put together again; a part that converts is no cast of
the program's. Inductor runs up to its fused kernels and no further: it generates no code, needs no C++ compiler, and
a network takes seconds. The step then runs on the graph that inductor received.
"""

import copy
import inspect
import math
import operator
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from msgspec import structs

from ampbench.core.units import counted
from ampbench.errors import first_line
from ampbench.records.casts import (
    ACTIVATION,
    AUTOGRAD,
    BUFFER,
    COMPILED,
    FOLDED,
    FUSED,
    GRADIENT,
    INPUT,
    KEPT,
    TRACED,
    WEIGHT,
    GraphCast,
    GraphTrace,
    Operation,
    is_view,
)
from ampbench.trace.dtypes import short_dtype
from ampbench.trace.ledger import trace_casts


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor that a model stores: `what` is weight or buffer, `name` its name."""

    what: str
    name: str
    tensor: torch.Tensor


def _stored_tensors(model: torch.nn.Module) -> list[_Stored]:
    return [
        *(_Stored(WEIGHT, name, tensor) for name, tensor in model.named_parameters()),
        *(_Stored(BUFFER, name, tensor) for name, tensor in model.named_buffers()),
    ]


Region = Callable[[], AbstractContextManager[Any]]


def _observed(
    model: torch.nn.Module, graph: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], region: Region
) -> tuple[list[Operation], list[GraphCast], int]:
    """Run `graph` once inside `region`, below a ledger; return its ops, its casts, and the number of casts inside ops.

    Raises `RuntimeError` where freezing left attributes, which the graph writes to.
    """
    function, wanted, makers = _with_aliases(graph)
    run = _Called(function)
    operands = [*args, *(kwargs[name] for name in wanted if name in kwargs)]
    named = dict(zip(wanted, operands, strict=True))
    cache = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with torch.no_grad(), region():
            run(**named)  # TorchScript optimizes a graph on its first run, and compares constants through the mode
        with trace_casts(model) as ledger, torch.no_grad(), region():
            run(**named)
    finally:
        torch.set_autocast_cache_enabled(cache)
    found = {cast.index: cast for cast in ledger.casts}
    ops: list[Operation] = []
    casts: list[GraphCast] = []
    modules: dict[int | None, str] = {}
    inside = passed = 0
    for operation in ledger.ops:
        if passed == len(makers):
            break
        if operation.name == "aten.alias":
            passed += 1
            continue
        if not operation.outputs:  # TorchScript compares constants
            continue
        modules[operation.index] = module = _module(makers[passed])
        ops.append(structs.replace(operation, index=len(ops), module=module))
        if (cast := found.get(operation.index)) is not None:
            inside += makers[passed].kind() not in _CASTS
            stored = cast.what in (WEIGHT, BUFFER) or cast.name in named
            casts.append(
                GraphCast(
                    what=cast.what if stored else ACTIVATION,
                    name=cast.name if stored else modules.get(cast.producer, ""),
                    module=module,
                    from_dtype=cast.from_dtype,
                    to_dtype=cast.to_dtype,
                    elements=cast.elements,
                )
            )
    return ops, casts, inside


def _with_aliases(graph: Any) -> tuple[Callable[..., Any], list[str], list[Any]]:
    """Return a copy of `graph` as a function, the names of its inputs, and its nodes in the order of aliases.

    It returns an alias of each tensor in place of the results: an op without effect, whose place in a ledger shows
    which node made the ops before it.
    """
    copy = graph.copy()
    inputs = list(copy.inputs())
    results = (value for node in copy.nodes() if node.kind() != "prim::Constant" for value in node.outputs())
    values = [*inputs, *(value for value in results if value.uses())]  # an unread value may not exist
    values = [value for value in values if value.type().kind() == "TensorType"]
    if inputs and inputs[0].type().kind() == "ClassType":
        if inputs[0].uses():
            raise RuntimeError("freezing left attributes in the graph, so it cannot run without its module")
        copy.eraseInput(0)
    while list(copy.outputs()):
        copy.eraseOutput(0)
    for value in values:
        alias = copy.create("aten::alias", [value], 1)
        if value.node().kind() == "prim::Param":
            copy.prependNode(alias)
        else:
            alias.insertAfter(value.node())
        copy.registerOutput(alias.output())
    copy.makeMultiOutputIntoTuple()
    makers = [node.inputsAt(0).node() for node in copy.nodes() if node.kind() == "aten::alias"]
    names = [value.debugName().partition(".")[0] for value in copy.inputs()]  # "x.1" is what the model calls "x"
    return torch._C._create_function_from_graph("observed", copy), names, makers


def _module(node: Any) -> str:
    """Return a node's module; the casts that freezing adds have none, and are made for the op that reads them."""
    scope = _scope(node)
    users = node.output().uses() if not scope and node.kind() in _ADDED else ()
    return next((path for use in users if (path := _scope(use.user))), scope)


class _Called(torch.nn.Module):
    """A module that calls `function`: a ledger reads there whether autocast is on, and the names of inputs."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self._function = function

    def forward(self, **kwargs: Any) -> Any:
        return self._function(*kwargs.values())


_ADDED = frozenset({"aten::_autocast_to_reduced_precision", "aten::_autocast_to_full_precision"})
"""Kinds of nodes that TorchScript's own autocast adds when a graph is frozen."""

_CASTS = _ADDED | {"aten::to", "aten::type_as"}
"""Kinds of nodes that cast, or do nothing where the dtype is right already."""


def _stored_casts(graph: Any, stored: list[_Stored]) -> list[GraphCast]:
    """Return the casts of weights and buffers in a graph that is not frozen."""
    known = {value.name: value for value in stored}
    casts = []
    for node in _nodes(graph):
        if node.kind() not in _CASTS:
            continue
        maker = next(node.inputs()).node()
        while is_view(maker.kind()):
            maker = next(maker.inputs()).node()
        path: list[str] = []
        while maker.kind() == "prim::GetAttr":
            path.insert(0, maker.s("name"))
            maker = next(maker.inputs()).node()
        value = known.get(".".join(path))
        dtype = node.output().type().dtype() if node.output().type().kind() == "TensorType" else None
        if value is not None and dtype is not None and dtype != value.tensor.dtype:
            casts.append(
                GraphCast(
                    what=value.what,
                    name=value.name,
                    module=_scope(node),
                    from_dtype=short_dtype(value.tensor.dtype),
                    to_dtype=short_dtype(dtype),
                    elements=value.tensor.numel(),
                    fate=FOLDED,
                )
            )
    return casts


def _nodes(block: Any) -> Iterable[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _scope(node: Any) -> str:
    return str(node.scopeName()).rpartition("/")[2].removeprefix("__module").removeprefix(".")


_HIDE = ("CheckpointFunction", "CompiledFunction")
"""Nodes whose backward pass has a graph of its own, which is made only when it runs."""


def autograd_graph(output: torch.Tensor, model: torch.nn.Module) -> GraphTrace:
    """Return the casts in the autograd graph of `output`, in the order in which autograd will run them.

    `output` needs a gradient. A cast's `name` is the weight whose gradient it casts, "" for the gradient of an
    activation.
    """
    root: Any = output.grad_fn
    nodes, known = [root], {root}
    for node in nodes:
        new = [following for following, _ in node.next_functions if following is not None and following not in known]
        known.update(new)
        nodes += dict.fromkeys(new)
    nodes.sort(key=lambda node: -node._sequence_nr())  # as autograd's engine: newest first
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    casts = []
    for node in nodes:
        following, number = node.next_functions[0] if node.next_functions else (None, 0)
        if following is None or not node.name().startswith("ToCopyBackward"):
            continue
        incoming, handed_on = node._input_metadata[0], following._input_metadata[number]
        if incoming.dtype != handed_on.dtype:  # a copy to another device has the same name
            casts.append(
                GraphCast(
                    what=GRADIENT,
                    name=names.get(id(getattr(following, "variable", None)), ""),
                    phase="backward",
                    from_dtype=short_dtype(incoming.dtype),
                    to_dtype=short_dtype(handed_on.dtype),
                    elements=math.prod(incoming.shape),
                )
            )
    hidden = Counter(kind for node in nodes for kind in _HIDE if kind in node.name())
    notes = [f"{count} nodes {kind} hide a graph that is made only when they run" for kind, count in hidden.items()]
    return GraphTrace(graph=AUTOGRAD, casts=casts, notes=notes)


def trace_frozen(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], region: Region) -> Any:
    """Return `model` traced inside `region` and the same frozen, as a pair of ScriptModules.

    The weight cache is off while tracing: with it, `torch.jit.trace` can fail with "Cannot insert a Tensor that
    requires grad as a constant". Raises whatever tracing raises, and RuntimeError for a model in training mode.
    """
    cache = torch.is_autocast_cache_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, in other words in every torch version
        torch.set_autocast_cache_enabled(False)
        try:
            with torch.no_grad(), region():
                inputs: dict[str, Any] = {"example_inputs": args}
                if kwargs:
                    positional = inspect.signature(model.forward).bind_partial(*args).arguments
                    inputs = {"example_kwarg_inputs": {**positional, **kwargs}}
                traced = torch.jit.trace(  # type: ignore[no-untyped-call]
                    model, check_trace=False, strict=False, **inputs
                )
                return traced, torch.jit.freeze(traced)
        finally:
            torch.set_autocast_cache_enabled(cache)


def traced_graph(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], region: Region
) -> GraphTrace:
    """Return the graph of `model` traced inside `region` and frozen, with the casts it had before it was frozen.

    Ops are those of the frozen graph as it runs once, inside `region`. A cast of a weight that freezing has done once
    and for all is folded. A model in training mode cannot be frozen: that is the `error`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced, frozen = trace_frozen(model, args, kwargs, region)
            before, graph = traced.inlined_graph, frozen.graph
            ops, casts, inside = _observed(model, graph, args, kwargs, region)
    except Exception as error:  # noqa: BLE001 - the error is the answer
        return GraphTrace(graph=TRACED, error=first_line(error))
    kept = {(cast.name, cast.to_dtype) for cast in casts}
    stored = _stored_casts(before, _stored_tensors(model))
    folded = [cast for cast in stored if (cast.name, cast.to_dtype) not in kept]
    norms = [sum(node.kind() == "aten::batch_norm" for node in _nodes(read)) for read in (before, graph)]
    gone = norms[0] - norms[1]
    notes = [f"freezing folded {gone} batch norms into the weights of the op before them"] if gone else []
    if inside:
        notes.append(f"{counted(inside, 'cast')} are made inside ops of the graph when it runs, not by its nodes")
    return GraphTrace(graph=TRACED, ops=ops, casts=[*folded, *casts], notes=notes)


Modules = Mapping[str, str]
"""The paths of modules by `str(id(module))`, as dynamo marks nodes with."""

_CONVERTS = frozenset({"prims.convert_element_type", "aten._to_copy"})
"""Ops that copy into another dtype: inductor's and ATen's."""

_COPY = "aten.copy"
"""The op that graphs have for `copy_`; its inputs are the written and the read tensor."""

Node = torch.fx.Node


def _target_name(node: Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return str(packet) if packet is not None else getattr(node.target, "__name__", str(node.target))


def _ops_of(nodes: list[Node], modules: Modules, *, backward: bool, start: int) -> list[Operation]:
    """Return the ops of one graph, numbered from `start`, the parts of each put together.

    An op's first output is its result; others are its further used values. In a backward graph, forward ops run again.
    """
    groups: dict[Any, list[Node]] = {}
    for number, node in enumerate(nodes):
        if node.op == "call_function":
            original = node.meta.get("original_aten")
            key: Any = (str(original), node.meta.get("seq_nr"), _born_backward(node, backward), _path(node, modules))
            packet = str(getattr(original, "overloadpacket", original))
            if (
                original is None
                or packet == _target_name(node)
                or (_target_name(node) in _CONVERTS and _asked_for(node))
            ):
                key = number
            if node.target is operator.getitem and original is None:
                continue
            groups.setdefault(key, []).append(node)
    return [
        _operation(index, parts, modules, backward=backward)
        for index, parts in enumerate(groups.values(), start=start)
        if _target_name(parts[0]) != "aten.copy_"
    ]


def _casts_of(
    nodes: list[Node], names: Mapping[str, _Stored], modules: Modules, undone: Mapping[int, str], *, backward: bool
) -> Iterator[tuple[Node, GraphCast]]:
    """Yield the casts of one graph with their nodes; `names` are the stored tensors and the inputs by placeholder.

    A gradient has the name of the value under the forward cast of its autograd number, from `undone`. A forward
    cast that the backward graph does again has the phase "backward".
    """
    for node in nodes:
        if not _is_cast(node):
            continue
        source = _source(node)
        late = _born_backward(node, backward)
        above = undone.get(node.meta.get("seq_nr", -1), _path(source, modules))
        role, name = (GRADIENT, above) if late else _origin(source, names, modules)
        yield (
            node,
            GraphCast(
                what=role,
                name=name,
                module=_path(node, modules),
                phase="backward" if late or backward else "forward",
                from_dtype=short_dtype(source.meta["val"].dtype),
                to_dtype=short_dtype(node.meta["val"].dtype),
                elements=count if isinstance(count := source.meta["val"].numel(), int) else None,
            ),
        )


def _is_cast(node: Node) -> bool:
    """Return whether a node copies into another dtype because the program or autocast asked for it."""
    name = _target_name(node)
    if node.op != "call_function" or not (name == _COPY or (name in _CONVERTS and _asked_for(node))):
        return False
    source = _source(node).meta.get("val") if node.all_input_nodes else None
    output = node.meta.get("val")
    return isinstance(source, torch.Tensor) and isinstance(output, torch.Tensor) and source.dtype != output.dtype


def _source(node: Node) -> Node:
    return node.all_input_nodes[-1 if _target_name(node) == _COPY else 0]


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
    users = {part: [user for user in part.users if user not in members] for part in parts}
    used = [
        part
        for part, others in users.items()
        if any(user.op == "call_function" for user in others)
        and any(_target_name(user) != "aten.copy_" for user in others)
    ]
    result = (used or parts)[-1]
    outputs = [result, *(part for part in used if part is not result)]
    return Operation(
        index=index,
        name=str(packet) if packet is not None and not _is_cast(first) else _target_name(first),
        module=_path(first, modules),
        phase="backward" if late else "forward",
        recomputed=backward and not late,
        inputs=_dtypes(inputs),
        outputs=_dtypes(outputs),
    )


def _origin(node: Node, names: Mapping[str, _Stored], modules: Modules) -> tuple[str, str]:
    while node.op == "call_function" and is_view(_target_name(node)):
        node = node.all_input_nodes[0]
    if node.name in names:
        return names[node.name].what, names[node.name].name
    return ACTIVATION, _path(node, modules)


def _path(node: Node, modules: Modules) -> str:
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    numbers = (str(key).partition("@")[0] for key in reversed(stack))
    return next((modules[number] for number in numbers if number in modules), "")


def _dtypes(nodes: Iterable[Node]) -> tuple[str, ...]:
    values = (node.meta.get("val") for node in nodes)
    flat = (leaf for value in values for leaf in (value if isinstance(value, tuple | list) else [value]))
    return tuple(short_dtype(leaf.dtype) for leaf in flat if isinstance(leaf, torch.Tensor))


@dataclass(slots=True)
class _Lowered:
    """A graph that inductor was given: `nodes` are FX nodes, `names` the stored tensors by placeholder.

    `kernels` are, per fused kernel, the nodes it computes with their ops, None where they could not be read; `mistake`
    says why.
    """

    nodes: list[torch.fx.Node]
    names: dict[str, _Stored]
    backward: bool
    kernels: list[dict[str, str]] | None = None
    mistake: str = ""


@dataclass(slots=True)
class _Backend:
    """A backend for torch.compile that runs inductor up to its fused kernels and keeps their graphs."""

    stored: dict[int, _Stored]
    graphs: list[_Lowered] = field(default_factory=list)
    frames: int = 0

    def __call__(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        from torch._inductor.compile_fx import compile_fx

        self.frames += 1
        arguments = [*module.parameters(), *module.buffers(), *inputs]
        names = {place: self.stored[id(value)] for place, value in enumerate(arguments) if id(value) in self.stored}
        places = [node.name for node in module.graph.nodes if node.op == "placeholder"]
        for place, (name, value) in enumerate(zip(places, inputs, strict=True), start=len(arguments) - len(inputs)):
            match = re.fullmatch(r"[lL]_(.+)_", name)
            plain = match[1] if match else name  # an input of the model, or a value from before a graph break
            broken = plain.startswith("stack")
            names.setdefault(place, _Stored(ACTIVATION if broken else INPUT, "" if broken else plain, value))
        return compile_fx(
            module, inputs, inner_compile=lambda graph, given, **options: self.lower(graph, given, names, options)
        )

    def __deepcopy__(self, memo: Any) -> "_Backend":
        """Return itself: inductor sometimes copies its options, `fused` among them."""
        return self

    def lower(
        self, graph: torch.fx.GraphModule, inputs: Any, names: dict[int, _Stored], options: dict[str, Any]
    ) -> Any:
        """Read one graph and its fusion by inductor; return the graph itself, ready to run."""
        from torch._functorch._aot_autograd.utils import make_boxed_func
        from torch._inductor.compile_fx import compile_fx_inner

        kept = copy.deepcopy(graph)
        backward = bool(options.get("is_backward"))
        places = [node.name for node in kept.graph.nodes if node.op == "placeholder"]
        known = {name: names[at] for at, name in enumerate(places) if at in names}
        saved = {name: stored for earlier in self.graphs for name, stored in earlier.names.items() if name in places}
        # values saved by a forward graph keep their names
        lowered = _Lowered(list(kept.graph.nodes), saved if backward else known, backward)
        self.graphs.append(lowered)
        try:
            compile_fx_inner(graph, inputs, **options)
        except Exception as error:  # noqa: BLE001 - inductor wraps errors of its passes in its own
            if lowered.kernels is None:
                lowered.mistake = first_line(error)
        return make_boxed_func(kept.forward)

    def fused(self, kernels: Iterable[Any]) -> Any:
        """Keep the nodes of each kernel, with their ops, and end the compilation; inductor calls this after fusion.

        A kernel of a library has the casts of its inputs among its origins, which are computed before it: only its own
        node counts.
        """
        from torch._inductor.ir import ExternKernel, TemplateBuffer

        computed: list[dict[str, str]] = []
        for kernel in kernels:
            computed.append({})
            for buffer in (part.node for part in kernel.get_nodes() if part.node is not None):
                origins = list(buffer.origins)
                if isinstance(buffer, ExternKernel | TemplateBuffer) and len(origins) > 1:
                    origins = [origin for origin in [buffer.get_origin_node()] if origin is not None]
                computed[-1].update({origin.name: _target_name(origin) for origin in origins})
        self.graphs[-1].kernels = computed
        raise RuntimeError("the fused kernels are read")


def compiled_graph(model: torch.nn.Module, step: Callable[[Callable[..., Any]], Any]) -> GraphTrace:
    """Return the graphs that torch.compile makes of `model` while `step(compiled)` runs one step, in order.

    `step` runs forward, loss and, in training, backward with its argument as the model; code outside the model is not
    in the graphs. Ops are those of ATen before inductor splits them up. A cast is fused where it became part of a
    kernel that does other work, kept where its kernel does nothing else. `error` is the first line of a compilation
    error.
    """
    from torch._dynamo.utils import counters
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config

    backend = _Backend({id(stored.tensor): stored for stored in _stored_tensors(model)})
    options = {
        "fx_graph_cache": False, "fx_graph_remote_cache": False, "_post_fusion_custom_pass": backend.fused,
    }  # fmt: skip
    torch.compiler.reset()
    before = Counter(counters["graph_break"])
    try:
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(inductor_config.patch(options))
            stack.enter_context(functorch_config.patch(enable_autograd_cache=False))
            step(torch.compile(model, backend=backend))
            breaks = list(Counter(counters["graph_break"]) - before)
    except Exception as error:  # noqa: BLE001 - the error is the answer
        return GraphTrace(graph=COMPILED, error=first_line(error))
    finally:
        torch.compiler.reset()
    if not backend.graphs:
        return GraphTrace(graph=COMPILED, error="torch.compile made no graph of the model: all of it ran in Python")
    return _trace(model, backend, breaks)


def _trace(model: torch.nn.Module, backend: _Backend, breaks: list[str]) -> GraphTrace:
    """Return what `backend` kept as one trace; `breaks` are the reasons why dynamo broke the graph."""
    modules = {str(id(module)): name for name, module in model.named_modules()}
    ops: list[Operation] = []
    casts: list[GraphCast] = []
    notes = []
    undone: dict[int, str] = {}
    dropped = 0
    for lowered in backend.graphs:
        for node in () if lowered.backward else reversed(lowered.nodes):
            if _is_cast(node) and not _born_backward(node, False):
                # the first counts: a node without gradient has the number of the node before
                undone[node.meta.get("seq_nr", -1)] = _origin(_source(node), lowered.names, modules)[1]
        ops += _ops_of(lowered.nodes, modules, backward=lowered.backward, start=len(ops))
        for node, cast in _casts_of(lowered.nodes, lowered.names, modules, undone, backward=lowered.backward):
            kernels = [kernel.values() for kernel in lowered.kernels or () if node.name in kernel]
            alone = any(all(op in _CONVERTS or op == _COPY or is_view(op) for op in ops_in) for ops_in in kernels)
            if kernels or lowered.kernels is None:
                casts.append(structs.replace(cast, fate=FUSED if kernels and not alone else KEPT))
            else:
                dropped += 1
    if dropped:
        notes.append(f"inductor dropped {counted(dropped, 'cast')}: the copy is never made")
    if breaks or backend.frames > 1:
        why = f" ({breaks[0].strip().splitlines()[0]})" if breaks and breaks[0].strip() else ""
        notes.append(
            f"the model breaks{why}: {counted(backend.frames, 'graph')} of it; the rest of it runs as in eager mode"
        )
    mistakes = Counter(lowered.mistake for lowered in backend.graphs if lowered.mistake)
    notes += [f"inductor's fusion is unknown for {n} of the graphs: {mistake}" for mistake, n in mistakes.items()]
    return GraphTrace(graph=COMPILED, ops=ops, casts=casts, notes=notes)
