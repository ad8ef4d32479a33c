"""The same step on two paths: what another graph makes of eager's casts. Pure functions on records, without torch."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ampbench.casts.results import op_results
from ampbench.records.casts import (
    AUTOGRAD,
    BUFFER,
    COMPILED,
    FOLDED,
    FUSED,
    GRADIENT,
    INPUT,
    INTERNAL,
    WEIGHT,
    Cast,
    CastTrace,
    GraphCast,
    GraphTrace,
)
from ampbench.units import counted

DTYPE, ADDED, GONE, OUTSIDE, NOT_UNDONE = "dtype", "added", "gone", "outside", "not undone"
"""An op works in another dtype; a cast that only the graph has; one that only eager has; one in a module that the
graph leaves to eager mode; a forward cast that no gradient passes. Beside these: `FUSED` and `FOLDED`."""

KINDS = (DTYPE, ADDED, GONE, OUTSIDE, NOT_UNDONE, FOLDED, FUSED)
"""Kinds of differences, the ones that change results first."""

_SAID = {AUTOGRAD: "the autograd graph", COMPILED: "the compiled graph"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphDifference:
    """One thing that `graph` and the eager step do differently in `module`, as a sentence: `said`.

    `casts` counts the casts concerned (0 for a dtype). `eager` and `found` are the dtypes on the two sides, of an op's
    result or of a cast ("fp32 → bf16"); the one that has none is "".
    """

    graph: str
    kind: str
    module: str
    said: str
    casts: int = 0
    eager: str = ""
    found: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTotals:
    """How many casts a graph has, by fate, by what is cast and by phase."""

    ops: int
    casts: int
    by_fate: Mapping[str, int]
    by_what: Mapping[str, int]
    by_phase: Mapping[str, int]


def graph_totals(graph: GraphTrace) -> GraphTotals:
    """Return what the casts of `graph` add up to."""
    return GraphTotals(
        ops=len(graph.ops),
        casts=len(graph.casts),
        by_fate=Counter(cast.fate for cast in graph.casts),
        by_what=Counter(cast.what for cast in graph.casts),
        by_phase=Counter(cast.phase for cast in graph.casts),
    )


def graph_sentence(trace: CastTrace, graph: GraphTrace) -> str:
    """Return "compiled: 46 casts where eager makes 47; 22 kept, 24 fused; 1 module in another dtype"."""
    if graph.error:
        return f"{graph.graph}: not made: {graph.error}"
    whole = graph_totals(graph)
    if graph.graph == AUTOGRAD:
        forward = len(_forward(trace))
        return f"{graph.graph}: undoes {whole.casts} casts where eager's forward makes {forward}"
    phases = {operation.phase for operation in graph.ops}
    last = _last(trace)
    made = sum(cast.phase in phases and (bool(cast.module) or cast.index < last) for cast in trace.casts)
    said = f"{graph.graph}: {counted(whole.casts, 'cast')} where eager makes {made}"
    if whole.casts:
        said += "; " + ", ".join(f"{count} {fate}" for fate, count in sorted(whole.by_fate.items()))
    modules = {difference.module for difference in compare_graph(trace, graph) if difference.kind == DTYPE}
    return said + (f"; {counted(len(modules), 'module')} in another dtype" if modules else "")


def compare_graph(trace: CastTrace, graph: GraphTrace) -> list[GraphDifference]:
    """Return where `graph` and the eager `trace` of the same step differ, what changes results first.

    A graph is compared in the phases it has; what eager does outside the model after it (the loss) is in no graph but
    autograd's. A graph that could not be made differs in nothing.
    """
    if graph.error:
        return []
    found = _autograd(trace, graph) if graph.graph == AUTOGRAD else [*_dtypes(trace, graph), *_casts(trace, graph)]
    return sorted(found, key=lambda difference: KINDS.index(difference.kind))


def _dtypes(trace: CastTrace, graph: GraphTrace) -> list[GraphDifference]:
    """Compare the results of ops, module by module: op by op where both have it, else the module's last."""
    eager, other = op_results(trace.ops), op_results(graph.ops)
    found = []
    for (phase, module), here in eager.items():
        there = other.get((phase, module))
        if not there:
            continue
        shared = [family for family in here if family in there]
        pairs = [(family, set(here[family]), set(there[family])) for family in shared]
        if not shared and phase == "forward":
            pairs = [("its last op", {list(here.values())[-1][-1]}, {list(there.values())[-1][-1]})]
        for family, left, right in pairs:
            if left != right:
                before, after = _joined(left), _joined(right)
                when = "in the backward pass, " if phase == "backward" else ""
                said = f"{_place(module)}: {when}{family} gives {after} in {_name(graph)}, {before} in eager mode"
                found.append(
                    GraphDifference(graph=graph.graph, kind=DTYPE, module=module, said=said, eager=before, found=after)
                )
    return found


Key = tuple[str, str, str, str, str, str]


def _casts(trace: CastTrace, graph: GraphTrace) -> list[GraphDifference]:
    phases = {operation.phase for operation in graph.ops}
    present = {operation.module for operation in graph.ops} | {cast.module for cast in graph.casts}
    last = _last(trace)
    eager: dict[Key, list[Cast]] = {}
    for cast in trace.casts:
        if cast.phase in phases:
            eager.setdefault(_key(cast), []).append(cast)
    other: dict[Key, list[GraphCast]] = {}
    for made in graph.casts:
        other.setdefault(_key(made), []).append(made)
    found: dict[tuple[str, str, str, str, str], list[Cast | GraphCast]] = {}

    def note(kind: str, cast: Cast | GraphCast) -> None:
        key = (kind, cast.module, cast.what, _way(cast), cast.phase)
        found.setdefault(key, []).append(cast)

    for key in dict.fromkeys([*eager, *other]):
        here, there = eager.get(key, []), other.get(key, [])
        for one in there[: len(here)]:
            if one.fate in (FUSED, FOLDED):
                note(one.fate, one)
        for one in there[len(here) :]:
            if one.fate != FOLDED:  # a constant costs nothing, however often it is used
                note(ADDED, one)
        for missing in here[len(there) :]:
            if missing.module in present and (missing.module or missing.index < last):
                note(GONE, missing)
            elif missing.module and missing.module not in present:
                note(OUTSIDE, missing)
    return [_difference(graph, key, casts) for key, casts in found.items()]


def _key(cast: Cast | GraphCast) -> Key:
    """Return what makes two casts the same: what is stored has a name; other values are told apart by the module."""
    stored = cast.what in (WEIGHT, BUFFER)
    what = cast.what if stored or cast.what == GRADIENT else "value"
    return (what, cast.name if stored else "", cast.module, cast.phase, cast.from_dtype, cast.to_dtype)


def _last(trace: CastTrace) -> int:
    """Return the last op that is the model's for sure: in a submodule or reading a weight. The loss comes after it."""
    within = [operation.index for operation in trace.ops if operation.phase == "forward" and operation.module]
    return max([*within, *(use.operation for use in trace.weights)], default=-1)


def _difference(
    graph: GraphTrace, key: tuple[str, str, str, str, str], casts: Sequence[Cast | GraphCast]
) -> GraphDifference:
    kind, module, what, way, phase = key
    of = counted(len(casts), "cast") + f" of {_what(what, casts)} ({way})"
    of += " in the backward pass" if phase == "backward" else ""
    name = _name(graph)
    said = {
        FUSED: f"{name} makes {of} a part of other kernels",
        FOLDED: f"{name} has done {of} once and stores the result",
        GONE: f"{name} does without {of} that eager mode makes",
        ADDED: f"{name} makes {of} that eager mode does not make",
        OUTSIDE: f"{name} has no op of it: eager mode runs it, and makes {of}",
    }[kind]
    return GraphDifference(
        graph=graph.graph,
        kind=kind,
        module=module,
        said=f"{_place(module)}: {said}",
        casts=len(casts),
        eager="" if kind == ADDED else way,
        found="" if kind in (GONE, OUTSIDE) else way,
    )


def _autograd(trace: CastTrace, graph: GraphTrace) -> list[GraphDifference]:
    """Compare forward casts with the nodes that undo them, and those with the casts the backward pass really made."""
    forward = _forward(trace)
    named = Counter((cast.name, _way(cast)) for cast in graph.casts)
    others = Counter(_way(cast) for cast in graph.casts)
    left: list[Cast] = []
    for cast in forward:
        back = f"{cast.to_dtype} → {cast.from_dtype}"
        if cast.what == WEIGHT and cast.name:
            if named[cast.name, back]:
                named[cast.name, back] -= 1
                others[back] -= 1
            else:
                left.append(cast)
    rest = [cast for cast in forward if not (cast.what == WEIGHT and cast.name)]
    for cast in sorted(rest, key=_reached):
        back = f"{cast.to_dtype} → {cast.from_dtype}"
        if others[back] > 0:
            others[back] -= 1
        elif cast.origin != INTERNAL:  # an op's own casts may be below autograd
            left.append(cast)
    found = _grouped(graph, NOT_UNDONE, left, lambda of: f"autograd does not undo {of}: no gradient passes there")
    more = [(way, count) for way, count in others.items() if count > 0]
    for way, count in more:
        said = f"the autograd graph has {counted(count, 'cast')} ({way}) that undo none of the forward casts"
        found.append(GraphDifference(graph=graph.graph, kind=ADDED, module="", said=said, casts=count, found=way))
    nodes = Counter(_way(cast) for cast in graph.casts)
    made = Counter(_way(cast) for cast in trace.casts if cast.phase == "backward")
    for way, count in (made - nodes).items():
        said = (
            f"eager's backward pass makes {counted(count, 'cast')} ({way}) that are no nodes of the autograd graph: "
            "inside ops, or of a gradient to the dtype of its tensor"
        )
        found.append(GraphDifference(graph=graph.graph, kind=GONE, module="", said=said, casts=count, eager=way))
    return found


def _reached(cast: Cast) -> int:
    """Return how unlikely a gradient is to reach a cast: what comes from outside needs none."""
    return 2 if cast.what in (INPUT, BUFFER) else 1 if cast.operation is None else 0


def _forward(trace: CastTrace) -> list[Cast]:
    """Return the forward casts, without those that checkpointing repeats."""
    return [cast for cast in trace.casts if cast.phase == "forward" and not trace.ops[cast.index].recomputed]


def _grouped(graph: GraphTrace, kind: str, casts: Iterable[Cast], said: Callable[[str], str]) -> list[GraphDifference]:
    groups: dict[tuple[str, str, str], list[Cast]] = {}
    for cast in casts:
        groups.setdefault((cast.module, cast.what, _way(cast)), []).append(cast)
    return [
        GraphDifference(
            graph=graph.graph,
            kind=kind,
            module=module,
            said=f"{_place(module)}: " + said(f"{counted(len(members), 'cast')} of {_what(what, members)} ({way})"),
            casts=len(members),
            eager=way,
        )
        for (module, what, way), members in groups.items()
    ]


def _what(what: str, casts: Sequence[Cast | GraphCast]) -> str:
    names = list(dict.fromkeys(cast.name for cast in casts if cast.name))
    unnamed, count = any(not cast.name for cast in casts), len(casts)
    if what in (WEIGHT, BUFFER, INPUT) and names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return f"{what}{'s' if len(names) > 1 else ''} {shown}" + (" and others" if unnamed else "")
    return f"{what}s" if count > 1 else f"an {what}" if what[0] in "aeiou" else f"a {what}"


def _way(cast: Cast | GraphCast) -> str:
    return f"{cast.from_dtype} → {cast.to_dtype}"


def _name(graph: GraphTrace) -> str:
    return _SAID.get(graph.graph, f"the {graph.graph} graph")


def _place(module: str) -> str:
    return module or "the model itself"


def _joined(dtypes: Iterable[str]) -> str:
    return " and ".join(sorted(dtypes))
