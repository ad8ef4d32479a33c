"""A TorchScript graph, run once to see which dtypes come out of each of its nodes and what is cast inside them."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from ampbench.explain.ledger import CastLedger, trace_casts
from ampbench.records.casts import Cast

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
    """Run `graph` once inside `region`, and return what was seen; a frozen graph itself forgets its types.

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
            raise RuntimeError("freezing left attributes in the graph, which cannot be run without its module then")
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
    given = _positional(copy, args, kwargs)
    cache = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with torch.no_grad(), region():
            run(*given)  # TorchScript optimizes a graph on its first run, and compares constants through the mode
        with trace_casts(model) as ledger, torch.no_grad(), region():
            found = run(*given)
    finally:
        torch.set_autocast_cache_enabled(cache)
    known = _dtypes_by_number()
    tensors = {name: (known[found[2 * at]], found[2 * at + 1]) for at, name in enumerate(names)}
    return Seen(tensors, _inside(ledger, markers))


class _Called(torch.nn.Module):
    """A module that calls `function`: a ledger reads whether autocast is on where a module is called."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self._function = function

    def forward(self, *args: Any) -> Any:
        return self._function(*args)


def _positional(graph: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the inputs in the graph's order; it calls "x.1" what the model calls "x"."""
    names = [value.debugName().partition(".")[0] for value in graph.inputs()]
    return [*args, *(kwargs[name] for name in names if name in kwargs)]


def _inside(ledger: CastLedger, markers: list[str | None]) -> list[tuple[str, Cast]]:
    """Return the casts with the value that was made next, by the aliases in between."""
    casts = {cast.index: cast for cast in ledger.casts}
    found = []
    passed = 0
    for operation in ledger.ops:
        if operation.name == "aten.alias" and passed < len(markers):
            passed += 1
        elif operation.index in casts and passed < len(markers) and (name := markers[passed]) is not None:
            found.append((name, casts[operation.index]))
    return found


def _tensors(graph: Any) -> Iterable[Any]:
    """Yield the tensors that come in and those that top-level nodes make, constants apart."""
    for value in graph.inputs():
        if value.type().kind() == "TensorType":
            yield value
    for node in graph.nodes():
        if node.kind() != "prim::Constant":
            outputs = [value for value in node.outputs() if value.type().kind() == "TensorType"]
            yield from (value for value in outputs if value.uses())  # what nobody reads may not even be made


def _dtypes_by_number() -> dict[int, torch.dtype]:
    """Return torch's dtypes by the numbers TorchScript has for them, as TorchScript itself tells them."""
    graph = torch._C.parse_ir("graph(%x : Tensor):\n  %d : int = prim::dtype(%x)\n  return (%d)")
    ask = torch._C._create_function_from_graph("number", graph)
    ordinary = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    floating = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
    return {ask(torch.empty(0, dtype=dtype)): dtype for dtype in (*ordinary, *floating)}
