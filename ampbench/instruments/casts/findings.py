"""What the times of a cast pass come to, what is in doubt, and what other graphs make of eager's casts, in sentences.

Seconds of ops and casts are *traced*: tracing adds some microseconds to each op, so they are never mixed with those of
the untraced step without saying so.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ampbench.core import stats
from ampbench.core.precisions import PRECISIONS
from ampbench.core.units import counted, format_seconds
from ampbench.instruments.casts.tables import Totals, sentence, totals
from ampbench.records.case import Case
from ampbench.records.cast_tables import Saving, savings
from ampbench.records.casts import (
    AUTOGRAD,
    BUFFER,
    CASTS,
    FLOATING,
    FOLDED,
    FUSED,
    GRADIENT,
    INPUT,
    VIEWS,
    WEIGHT,
    WHOLE,
    Cast,
    CastPass,
    CastTrace,
    CheckedSaving,
    GraphCast,
    GraphTrace,
    Operation,
    is_view,
    plain_name,
)
from ampbench.records.labels import few
from ampbench.records.rules import FAKE
from ampbench.studies.paired import WIDEST, SavedTime, saved_time, unfit, worth_of

SLOWEST = 3.0
"""Where traced ops take more than so many times the untraced step, tracing is most of what was timed, and the casts'
share of the one says little of their share of the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The times of a pass in seconds; None where there is none, or none to be trusted: then `doubts` say why.

    `step_seconds` is the untraced step's, with the 95% interval `step_low` to `step_high`. `traced_seconds` is what
    all ops took while traced, `traced_cast_seconds` the casts among them, `cast_share` their share of it (0-1).
    `step_cast_seconds` is that share of the untraced step: an estimate. `doubts` are sentences without a full stop.
    """

    step_seconds: float | None = None
    step_low: float | None = None
    step_high: float | None = None
    traced_seconds: float | None = None
    traced_cast_seconds: float | None = None
    cast_share: float | None = None
    step_cast_seconds: float | None = None
    doubts: tuple[str, ...] = ()


def saved_by(one: CheckedSaving) -> SavedTime:
    """Return what a change that was made and measured saves a step."""
    return saved_time(one.before, one.after)


def costs(found: CastPass, whole: Totals | None = None) -> Costs:
    """Return the times of `found`; `whole` is what its casts add up to, where that is known already."""
    whole = whole or totals(found.trace)
    doubts = list(unfit(found.fitness))
    step, low, high = _step_time(found.step_samples)
    if step is None and found.step_samples:
        worth = worth_of(found.step_samples)
        between = f"{format_seconds(min(worth))} to {format_seconds(max(worth))}"
        doubts.append(f"the time of the untraced step is too noisy to say: its {len(worth)} builds took {between}")
    traced = sum(op.seconds or 0.0 for op in found.trace.ops) if found.trace.timed else None
    estimate = None
    if step is not None and low is not None and traced and whole.share is not None and whole.casts:
        if traced <= SLOWEST * step:
            estimate = whole.share * step
        else:
            doubts.append(
                f"traced, the ops take {traced / step:.1f} times as long as the untraced step: what share of that its "
                "casts have is not known"
            )
    return Costs(
        step_seconds=step,
        step_low=low,
        step_high=high,
        traced_seconds=traced,
        traced_cast_seconds=whole.seconds,
        cast_share=whole.share,
        step_cast_seconds=estimate,
        doubts=tuple(doubts),
    )


def casts_said(found: CastPass, case: Case, whole: Totals | None = None, saved: Sequence[Saving] | None = None) -> str:
    """Return in a line how many casts a step of `case` makes, what they cost and how many could be saved."""
    trace = found.trace
    if not trace.casts and case.precision in PRECISIONS and PRECISIONS[case.precision].autocast is None:
        return f"no casts: {case.precision} runs without autocast"
    whole = whole or totals(trace)
    of = "a step"
    if found.how == FAKE and not trace.inference and all(op.phase == "forward" for op in trace.ops):
        of = "in the forward pass (backward pass not traced)"
    found_savings = list(savings(trace) if saved is None else saved)
    return sentence(whole, found_savings, of=of, step_cast_seconds=costs(found, whole).step_cast_seconds)


def times_said(found: CastPass, whole: Totals | None = None) -> list[str]:
    """Return what the step takes, untraced and traced, and what is in doubt about it: sentences without a full stop.

    `whole` as for `costs`.
    """
    known = costs(found, whole)
    parts = []
    if known.step_seconds is not None:
        builds = counted(len(found.step_samples), "build")
        between = f"from {builds}, too few for an interval"
        if known.step_low is not None and known.step_high is not None:
            between = f"95%: {format_seconds(known.step_low)} to {format_seconds(known.step_high)}"
        parts.append(f"the step takes {format_seconds(known.step_seconds)} ({between}) when nothing traces it")
    if known.traced_seconds is not None:
        one_or_two = {1: "of one step", 2: "of two steps"}.get(found.traced_steps)
        steps = f"{one_or_two}, in which one delay may be most of it"
        times = steps if one_or_two else f"medians of {found.traced_steps} steps"
        parts.append(f"traced, its ops take {format_seconds(known.traced_seconds)} ({times})")
    return [*(["; ".join(parts)] if parts else []), *known.doubts]


def _step_time(builds: Sequence[Sequence[float]]) -> tuple[float | None, float | None, float | None]:
    """Return the step's seconds and the ends of their interval; nothing where that is too wide to say anything."""
    if not builds:
        return None, None, None
    worth = worth_of(builds)
    interval = stats.log_t_interval(worth)
    if interval is None:
        return stats.median(worth), None, None
    if interval[1] > WIDEST * interval[0]:
        return None, None, None
    return stats.median(worth), *interval


DTYPE, ADDED, GONE, OUTSIDE = "dtype", "added", "gone", "outside"
"""An op works in another dtype; a cast that only the graph has; one that only eager has; one in a module that the
graph leaves to eager mode. Beside these: `FUSED` and `FOLDED`."""

DIFFERENCES = (DTYPE, ADDED, GONE, OUTSIDE, FOLDED, FUSED)
"""Kinds of differences, the ones that change results first."""


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


def graph_sentence(trace: CastTrace, graph: GraphTrace) -> str:
    """Return "46 casts where eager makes 47; 22 kept, 24 fused; 1 module in another dtype"."""
    if graph.error:
        return f"not made: {graph.error}"
    casts = counted(len(graph.casts), "cast")
    if graph.graph == AUTOGRAD:
        forward = [one for one in trace.casts if one.phase == "forward" and not trace.ops[one.index].recomputed]
        return f"undoes {casts} where eager's forward makes {len(forward)}"
    said = f"{casts} where eager makes {len(_model_casts(trace, graph))}"
    if graph.casts:
        fates = Counter(cast.fate for cast in graph.casts)
        said += "; " + ", ".join(f"{count} {fate}" for fate, count in sorted(fates.items()))
    modules = {difference.module for difference in _dtypes(trace, graph)}
    return said + (f"; {counted(len(modules), 'module')} in another dtype" if modules else "")


def compare_graph(trace: CastTrace, graph: GraphTrace) -> list[GraphDifference]:
    """Return where `graph` and the eager `trace` of the same step differ, what changes results first.

    A graph is compared in the phases it has; what eager does outside the model after it (the loss) is in none. A graph
    that could not be made differs in nothing, nor does autograd's, which is a list of casts.
    """
    if graph.error or graph.graph == AUTOGRAD:
        return []
    return sorted(
        [*_dtypes(trace, graph), *_casts(trace, graph)], key=lambda difference: DIFFERENCES.index(difference.kind)
    )


def _dtypes(trace: CastTrace, graph: GraphTrace) -> list[GraphDifference]:
    """Compare the results of ops, module by module: op by op where both have it, else the module's last."""
    eager, other = op_results(_model_ops(trace)), op_results(graph.ops)
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
                said = (
                    f"{_place(module)}: {when}{family} gives {after} in the {graph.graph} graph, {before} in eager mode"
                )
                found.append(
                    GraphDifference(graph=graph.graph, kind=DTYPE, module=module, said=said, eager=before, found=after)
                )
    return found


Key = tuple[str, str, str, str, str, str]


def _casts(trace: CastTrace, graph: GraphTrace) -> list[GraphDifference]:
    present = {operation.module for operation in graph.ops} | {cast.module for cast in graph.casts}
    eager: dict[Key, list[Cast]] = {}
    for cast in _model_casts(trace, graph):
        eager.setdefault(_key(cast), []).append(cast)
    other: dict[Key, list[GraphCast]] = {}
    for made in graph.casts:
        other.setdefault(_key(made), []).append(made)
    found: dict[tuple[str, str, str, str, str], list[Cast | GraphCast]] = {}

    def note(kind: str, cast: Cast | GraphCast) -> None:
        key = (kind, cast.module, cast.what, f"{cast.from_dtype} → {cast.to_dtype}", cast.phase)
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
            note(GONE if missing.module in present or not missing.module else OUTSIDE, missing)
    return [_difference(graph, key, casts) for key, casts in found.items()]


def _key(cast: Cast | GraphCast) -> Key:
    """Return what makes two casts the same: what is stored has a name; other values are told apart by the module."""
    stored = cast.what in (WEIGHT, BUFFER)
    what = cast.what if stored or cast.what == GRADIENT else "value"
    return (what, cast.name if stored else "", cast.module, cast.phase, cast.from_dtype, cast.to_dtype)


def _model_ops(trace: CastTrace) -> list[Operation]:
    """Return the ops of the model's own call and of its backward pass; the loss is in no graph."""
    end = trace.model_ops
    if end is None:
        return trace.ops
    makers = {cast.index: cast.producer for cast in trace.casts}

    def forward(operation: Operation) -> int | None:
        """Return the forward op; a cast that differentiates none is of the gradient that another op made."""
        maker = makers.get(operation.index) if operation.forward is None else None
        return trace.ops[maker].forward if maker is not None else operation.forward

    return [
        operation
        for operation in trace.ops
        if operation.recomputed
        or (operation.index < end if operation.phase == "forward" else (forward(operation) or 0) < end)
    ]


def _model_casts(trace: CastTrace, graph: GraphTrace) -> list[Cast]:
    """Return the casts that a graph can have: the model's own, in the phases of the graph."""
    within = {operation.index for operation in _model_ops(trace)}
    phases = {operation.phase for operation in graph.ops}
    return [cast for cast in trace.casts if cast.phase in phases and cast.index in within]


def _difference(
    graph: GraphTrace, key: tuple[str, str, str, str, str], casts: Sequence[Cast | GraphCast]
) -> GraphDifference:
    kind, module, what, way, phase = key
    of = counted(len(casts), "cast") + f" of {_what(what, casts)} ({way})"
    of += " in the backward pass" if phase == "backward" else ""
    name = f"the {graph.graph} graph"
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


def _what(what: str, casts: Sequence[Cast | GraphCast]) -> str:
    names = list(dict.fromkeys(cast.name for cast in casts if cast.name))
    unnamed, count = any(not cast.name for cast in casts), len(casts)
    if what in (WEIGHT, BUFFER, INPUT) and names:
        if names == [what] and not unnamed:
            return f"the {what}"
        return f"{what}{'s' if len(names) > 1 else ''} {few(names)}" + (" and others" if unnamed else "")
    return f"{what}s" if count > 1 else f"an {what}" if what[0] in "aeiou" else f"a {what}"


def _place(module: str) -> str:
    """Return a module's path; one that is a number is said to be a module's."""
    return f'module "{module}"' if module.isdecimal() else module or "the model itself"


def _joined(dtypes: Iterable[str]) -> str:
    return " and ".join(sorted(dtypes))


_MOVES = frozenset({"copy", "clone"})

_FAMILIES = {
    "matmul": ("addmm", "mm", "bmm", "baddbmm", "linear", "matmul", "addbmm", "mv", "addmv"),
    "convolution": ("convolution", "mkldnn_convolution", "cudnn_convolution", "conv1d", "conv2d", "conv3d"),
    "batch_norm": ("batch_norm", "batch_norm_legit", "batch_norm_legit_functional", "batch_norm_legit_no_training"),
    "dropout": ("dropout", "native_dropout", "bernoulli"),
}
"""Names that graphs have for one op; others differ by no more than "native_", a leading or a trailing "_"."""

_PRODUCTS = ("matmul", "convolution", "convolution_backward")
_FAMILY = {name: family for family, names in _FAMILIES.items() for name in names}


def op_results(ops: Iterable[Operation]) -> dict[tuple[str, str], dict[str, list[str]]]:
    """Return the floating dtypes of ops' results, by phase and module and by kind of op, in the order of running.

    Of the backward pass only products: what else there is differs from graph to graph.
    """
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for operation in ops:
        name = plain_name(operation.name)
        family = _FAMILY.get(name, name)
        floating = [dtype for dtype in operation.outputs if dtype in FLOATING]
        if operation.recomputed or not floating or name in VIEWS | CASTS | _MOVES:
            continue
        if not any(dtype in FLOATING for dtype in operation.inputs):
            continue  # made from nothing: zeros to start from, random masks
        if operation.phase == "forward" or (operation.phase == "backward" and family in _PRODUCTS):
            families = found.setdefault((operation.phase, operation.module), {})
            families[family] = [*families.pop(family, []), floating[0]]  # the last to run comes last
    return found


def stood_for(trace: CastTrace, device: str) -> list[str]:
    """Return a sentence per function of `WHOLE` in a trace on fake tensors of `device`: told as one op, or in parts."""
    whole = Counter(op.name.rpartition(".")[2] for op in trace.ops)
    parts = {(op.function or "").rpartition(".")[2] for op in trace.ops}
    found = []
    for name, kernel in WHOLE.items():
        if device in kernel.devices and whole[name]:
            found.append(
                f"told as the one op that {device} has for it: {name} ({counted(whole[name], 'call')}), {kernel.said}"
            )
        elif device not in kernel.devices and name in parts:
            found.append(f"fake tensors take {name} apart: {device} may run it whole, with fewer casts")
    return found


def casts_inside(trace: CastTrace) -> list[str]:
    """Return a sentence per op that gives another floating dtype than all it was given, without a cast that is seen.

    "_transformer_encoder_layer_fwd: fp32 in, bf16 out, cast inside 2 ops and in no count". An op that makes a tensor of
    its own ("zeros_like") or shows the same bytes as another dtype casts nothing.
    """
    casts = {cast.index for cast in trace.casts}
    found: Counter[tuple[str, tuple[str, ...], tuple[str, ...]]] = Counter()
    for operation in trace.ops:
        given, made = _floating(operation.inputs), _floating(operation.outputs)
        if operation.index in casts or not given or not made or set(given) & set(made):
            continue
        name = operation.name.partition(".")[2] or operation.name
        if not (is_view(operation.name) or name.endswith("_like") or name.startswith(("new_", "_efficientzerotensor"))):
            found[name, given, made] += 1
    return [
        f"{name}: {' and '.join(given)} in, {' and '.join(made)} out, "
        f"cast inside {counted(count, 'op')} and in no count"
        for (name, given, made), count in found.items()
    ]


def _floating(dtypes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(dtype for dtype in dtypes if dtype in FLOATING))
