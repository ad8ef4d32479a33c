"""The graph of torch.jit.trace: its ops, modules, casts and tensors; and the casts of the autograd graph.

A trace is run once here to see the dtypes and inner casts of its nodes. The autograd graph, the plan of a backward
pass, is read from the `grad_fn` chain before it runs.
"""

import inspect
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from ampbench.core.units import counted
from ampbench.errors import first_line
from ampbench.records.casts import (
    ACTIVATION,
    AUTOGRAD,
    BUFFER,
    FOLDED,
    GRADIENT,
    INPUT,
    KEPT,
    TRACED,
    WEIGHT,
    Cast,
    GraphCast,
    GraphTrace,
    Operation,
    is_view,
)
from ampbench.trace.dtypes import short_dtype
from ampbench.trace.ledger import CastLedger, trace_casts


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor that a model stores: `what` is weight or buffer, `name` its name."""

    what: str
    name: str
    tensor: torch.Tensor


def stored_tensors(model: torch.nn.Module) -> list[Stored]:
    """Return the parameters and buffers of `model`, each under the first name that it has."""
    return [
        *(Stored(WEIGHT, name, tensor) for name, tensor in model.named_parameters()),
        *(Stored(BUFFER, name, tensor) for name, tensor in model.named_buffers()),
    ]


Region = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Seen:
    """What running a graph showed: dtype and element count of each tensor by name, and casts inside its ops.

    The latter come with the name of a value that their op makes.
    """

    tensors: Mapping[str, tuple[torch.dtype, int]] = field(default_factory=dict)
    inside: list[tuple[str, Cast]] = field(default_factory=list)


def observe(
    model: torch.nn.Module, graph: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], region: Region
) -> Seen:
    """Run `graph` once inside `region` and return its dtypes; a frozen graph itself forgets its types.

    A copy of the graph is run that returns the dtypes of all its tensors in the place of its own results. Each dtype
    is asked of an alias: an op that does nothing, but shows up in the ledger and says how far the graph has run.
    Raises RuntimeError for a graph that freezing could not free of its module: it writes to attributes.
    """
    copy = graph.copy()  # gives values other names, but keeps their order
    names = [value.debugName() for value in _tensors(graph)]
    values = list(_tensors(copy))
    inputs = list(copy.inputs())
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
        after = alias
        for kind in ("prim::dtype", "aten::numel"):
            asked = copy.create(kind, [alias.output()], 1)
            asked.output().setType(torch._C.IntType.get())
            asked.insertAfter(after)
            copy.registerOutput(asked.output())
            after = asked
    copy.makeMultiOutputIntoTuple()
    order = [node.inputsAt(0) for node in copy.nodes() if node.kind() == "aten::alias"]
    places = {value.debugName(): name for value, name in zip(values, names, strict=True)}
    markers = [places.get(value.debugName()) for value in order]
    run = _Called(torch._C._create_function_from_graph("observed", copy))
    wanted = [value.debugName().partition(".")[0] for value in copy.inputs()]  # "x.1" is what the model calls "x"
    operands = [*args, *(kwargs[name] for name in wanted if name in kwargs)]
    cache = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with torch.no_grad(), region():
            run(*operands)  # TorchScript optimizes a graph on its first run, and compares constants through the mode
        with trace_casts(model) as ledger, torch.no_grad(), region():
            results = run(*operands)
    finally:
        torch.set_autocast_cache_enabled(cache)
    known = _dtypes_by_number()
    tensors = {name: (known[results[2 * at]], results[2 * at + 1]) for at, name in enumerate(names)}
    return Seen(tensors, _inside(ledger, markers))


class _Called(torch.nn.Module):
    """A module that calls `function`: a ledger reads whether autocast is on where a module is called."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self._function = function

    def forward(self, *args: Any) -> Any:
        return self._function(*args)


def _inside(ledger: CastLedger, markers: list[str | None]) -> list[tuple[str, Cast]]:
    """Return the casts with the value that was made next, by the aliases in between."""
    casts = {cast.index: cast for cast in ledger.casts}
    casts_named = []
    passed = 0
    for operation in ledger.ops:
        if operation.name == "aten.alias" and passed < len(markers):
            passed += 1
        elif operation.index in casts and passed < len(markers) and (name := markers[passed]) is not None:
            casts_named.append((name, casts[operation.index]))
    return casts_named


def _tensors(graph: Any) -> Iterable[Any]:
    """Yield the input tensors and the results of top-level nodes, without constants."""
    for value in graph.inputs():
        if value.type().kind() == "TensorType":
            yield value
    for node in graph.nodes():
        if node.kind() != "prim::Constant":
            outputs = [value for value in node.outputs() if value.type().kind() == "TensorType"]
            yield from (value for value in outputs if value.uses())  # an unread value may not exist


def _dtypes_by_number() -> dict[int, torch.dtype]:
    """Return torch's dtypes by TorchScript's numbers for them."""
    graph = torch._C.parse_ir("graph(%x : Tensor):\n  %d : int = prim::dtype(%x)\n  return (%d)")
    ask = torch._C._create_function_from_graph("number", graph)
    ordinary = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    floating = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
    return {ask(torch.empty(0, dtype=dtype)): dtype for dtype in (*ordinary, *floating)}


_ADDED = frozenset({"aten::_autocast_to_reduced_precision", "aten::_autocast_to_full_precision"})
"""Kinds of nodes that TorchScript's own autocast adds when a graph is frozen."""

_CASTS = _ADDED | {"aten::to", "aten::type_as"}
"""Kinds of nodes that cast, or do nothing where the dtype is right already."""


class FrozenGraph:
    """Ops and casts of a frozen graph, with `seen` dtypes and element counts by value name."""

    def __init__(self, graph: Any, tensors: Mapping[str, tuple[torch.dtype, int]], stored: Mapping[int, Stored]):
        self._nodes = list(_nodes(graph))
        self._makers = {value.debugName(): node for node in self._nodes for value in node.outputs()}
        self._inputs = {value.debugName() for value in graph.inputs()}
        self._seen = dict(tensors)
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
        casts = []
        for node in self._nodes:
            if node.kind() in _CASTS and self._does_something(node):
                source = next(node.inputs())
                dtype, elements = self._seen[source.debugName()]
                role, name = self._origin(source)
                casts.append(
                    GraphCast(
                        what=role,
                        name=name,
                        module=self._module(node),
                        from_dtype=short_dtype(dtype),
                        to_dtype=short_dtype(self._seen[node.output().debugName()][0]),
                        elements=elements,
                        fate=KEPT,
                    )
                )
        return casts

    def inside(self, observed: list[tuple[str, Cast]]) -> list[GraphCast]:
        """Return the observed casts that a node makes inside another op."""
        return [
            GraphCast(
                what=cast.what,
                name=cast.name,
                module=self._module(self._makers[value]),
                from_dtype=cast.from_dtype,
                to_dtype=cast.to_dtype,
                elements=cast.elements,
            )
            for value, cast in observed
            if value in self._makers and self._makers[value].kind() not in _CASTS
        ]

    def _does_something(self, node: Any) -> bool:
        outputs = [self._seen[value.debugName()][0] for value in node.outputs() if value.debugName() in self._seen]
        if node.kind() in _CASTS and outputs:
            source = self._seen.get(next(node.inputs()).debugName())
            return source is not None and source[0] != outputs[0]
        return bool(outputs) or any("Tensor" in str(value.type()) for value in node.outputs())

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
        """Return the kind and the name of a value."""
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
    known = {value.name: value for value in stored}
    casts = []
    for node in _nodes(graph):
        if node.kind() not in _CASTS:
            continue
        value = known.get(_attribute(next(node.inputs())))
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


_HIDE = ("CheckpointFunction", "CompiledFunction")
"""Nodes whose backward pass has a graph of its own, which is made only when it runs."""


def autograd_graph(output: torch.Tensor, model: torch.nn.Module) -> GraphTrace:
    """Return the casts in the autograd graph of `output`, in the order in which autograd will run them.

    A cast's `name` is the weight whose gradient it casts, "" for the gradient of an activation.
    """
    root = output.grad_fn
    if root is None:
        return GraphTrace(graph=AUTOGRAD, error="the output needs no gradient, so autograd keeps no graph of it")
    nodes = _in_order(root)
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


def _in_order(root: Any) -> list[Any]:
    """Return the nodes in the order of autograd's engine: newest first."""
    nodes, known = [root], {root}
    for node in nodes:
        new = [following for following, _ in node.next_functions if following is not None and following not in known]
        known.update(new)
        nodes += dict.fromkeys(new)
    return sorted(nodes, key=lambda node: -node._sequence_nr())


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

    Ops come from the frozen graph, which runs once, inside `region`, to learn their dtypes. A cast of a weight that
    freezing has done once and for all is folded. A model in training mode cannot be frozen: that is the `error`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced, frozen = trace_frozen(model, args, kwargs, region)
            return _read(model, traced.inlined_graph, frozen.graph, args, kwargs, region)
    except Exception as error:  # noqa: BLE001 - the error is the answer
        return GraphTrace(graph=TRACED, error=first_line(error))


def _read(
    model: torch.nn.Module, before: Any, graph: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], region: Region
) -> GraphTrace:
    stored = stored_tensors(model)
    observation = observe(model, graph, args, kwargs, region)
    reader = FrozenGraph(graph, observation.tensors, {value.tensor.data_ptr(): value for value in stored})
    inside = reader.inside(observation.inside)
    casts = [*reader.casts(), *inside]
    kept = {(cast.name, cast.to_dtype) for cast in casts}
    folded = [cast for cast in stored_casts(before, stored) if (cast.name, cast.to_dtype) not in kept]
    notes = removed(before, graph)
    if inside:
        notes.append(f"{counted(len(inside), 'cast')} are made inside ops of the graph when it runs, not by its nodes")
    return GraphTrace(graph=TRACED, ops=reader.ops(), casts=[*folded, *casts], notes=notes)
