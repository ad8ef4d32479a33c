"""The casts of a step: tensor, op, cost, possible savings, and other graphs.

One table holds the casts; per op and per origin are groups of its rows. Seconds of ops and casts are *traced*: tracing
adds some microseconds to each op, so they never stand for the untraced step.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import structs

from ampbench.core import by_key
from ampbench.core.precisions import PRECISIONS
from ampbench.core.statement import Statement
from ampbench.core.units import UNDEFINED
from ampbench.records import casts as terms
from ampbench.records.case import Case
from ampbench.records.casts import (
    CAST_COLUMNS,
    Cast,
    CastPass,
    CastTrace,
    GraphCast,
    GraphTrace,
    Operation,
    Tracing,
    bytes_moved,
    cache_bytes,
    cast_users,
    casts_inside,
    floating,
    op_rows,
    savings,
)
from ampbench.records.kinds import CASTS
from ampbench.records.labels import few
from ampbench.records.rules import FAKE
from ampbench.records.wire import Task
from ampbench.show.document import Column
from ampbench.studies.study import (
    WIDEST,
    Selects,
    Study,
    Table,
    Timing,
    advise,
    asks,
    busy,
    info,
    step_seconds,
)

if TYPE_CHECKING:
    from ampbench.drive.planning import PlannedCase
    from ampbench.studies.study import Session

Row = dict[str, Any]
"""A row of a table, by the keys of its columns."""
TASK = Task(CASTS, Tracing, CastPass, "ampbench.studies.casts_measure:measure_casts", absent=True, flags=True)
GRAPHS = (terms.COMPILED, terms.TRACED)
SLOWEST = 3.0
"""Above this ratio of traced to untraced time, the share of casts does not hold for the untraced step."""
CHANGES = {terms.STORE: "store in", terms.KEEP: "keep a copy in", terms.ONCE: "cast once to", terms.STAY: "stay in"}
"""What to do to the values of a saving, before the dtype."""
STORED = "only stored"
"""The name in place of an op where no op uses the copy."""
MOVES = terms.VIEWS | terms.CASTS | {"copy", "clone"}
"""Ops that compute nothing."""
SEEN_INSIDE = ("aten", "prims", "prim")
"""Namespaces of ops that run no ops of their own which autocast could cast for, or are opened where they do."""


class CastsAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How the casts of a step are traced."""

    sources: Annotated[bool, asks("Find each op's line of code.")] = False


class Casts(StrEnum):
    """What the casts of a step come to."""

    NONE = "casts-none"
    MADE = "casts-made"
    PROMOTED = "casts-promoted"
    SAVED = "casts-saved"
    WEIGHTS = "casts-weights"
    GRAPH = "casts-graph"
    NO_GRAPH = "casts-no-graph"
    INSIDE = "casts-inside"
    UNSEEN = "casts-unseen"


def conclusions(case: Case, record: CastPass) -> Iterator[Statement]:
    """Yield the number and cost of casts, possible savings, and gaps in the trace."""
    trace, step = record.trace, step_seconds(record.step_samples)
    if not trace.casts and case.precision in PRECISIONS and PRECISIONS[case.precision].autocast is None:
        yield info(Casts.NONE, precision=case.precision)
    else:
        halfway = record.how == FAKE and not trace.inference and all(op.phase == "forward" for op in trace.ops)
        yield info(
            Casts.MADE, casts=len(trace.casts), bytes=bytes_moved(trace.casts), forward=halfway or None,
            fake=record.how == FAKE or None, **_cost(trace, step),
        )  # fmt: skip
    if saved := sum(len(saving.casts) for saving in savings(trace)):
        yield advise(Casts.SAVED, casts=saved)
    if inside := trace.promotions:
        ops = len({promotion.operation for promotion in inside})
        yield info(Casts.PROMOTED, ops=ops, inputs=len(inside), bytes=bytes_moved(inside))
    if step is None and record.step_samples:
        yield advise(Timing.NOISY, widest=WIDEST)
    yield from filter(None, [busy(record.fitness)])
    if trace.weights and trace.casts:
        uses = Counter(use.status for use in trace.weights)
        counts = {"cast": uses[terms.CAST], "reused": uses[terms.REUSED], "idle": uses[terms.NOT_NEEDED]}
        yield info(Casts.WEIGHTS, uses=len(trace.weights), cache=cache_bytes(trace) or None, **counts)
    for graph in record.graphs:
        if graph.error:
            yield advise(Casts.NO_GRAPH, graph.graph, error=graph.error)
        elif graph.graph != terms.AUTOGRAD:
            fates, eager = Counter(cast.fate for cast in graph.casts), len(_model_casts(trace, graph))
            counts = {fate: fates[fate] for fate in (terms.KEPT, terms.FUSED, terms.FOLDED) if fates[fate]}
            yield info(Casts.GRAPH, graph.graph, casts=len(graph.casts), eager=eager, **counts)
    for (name, sources, results), count in casts_inside(trace).items():
        yield info(Casts.INSIDE, op=name, given=" and ".join(sources), made=" and ".join(results), count=count)
    names = Counter(op.name for op in trace.ops)
    if others := [name for name in names if name.partition(".")[0] not in SEEN_INSIDE]:
        short = few(name.removeprefix("higher_order.") for name in others)
        yield info(Casts.UNSEEN, names=short, ops=sum(names[name] for name in others))


def _cost(trace: CastTrace, step: float | None) -> dict[str, float | None]:
    """Return the traced seconds of the casts, their share, and this share of the untraced `step` as an estimate."""
    traced, of_casts = _seconds(trace, trace.ops), _seconds(trace, trace.casts)
    if not traced or of_casts is None or not trace.casts:
        return {}
    share, known = of_casts / traced, step is not None and traced <= SLOWEST * step
    return {"share": share, "seconds": of_casts, "step": share * step if known and step else None}


class CastRow(NamedTuple):
    """A cast, the op that it is, and the op that it was made for (None: it is for no op, a copy that is stored).

    A promotion is inside the op that it is for.
    """

    cast: Any
    op: Operation
    user: Operation | None


def _cast_rows(trace: CastTrace) -> list[CastRow]:
    """Return the casts in the order of running, each with the op that it was made for."""
    users = zip(trace.casts, cast_users(trace), strict=True)
    return [CastRow(cast, trace.ops[cast.index], user) for cast, user in users]


def by_origin(record: CastPass) -> list[Row]:
    """Return the casts by value and origin, in the order of `SUBJECTS`."""
    groups = _grouped(record.trace, ("what", "origin"), lambda row: (row.cast.what, row.cast.origin))
    return sorted(groups, key=lambda group: terms.SUBJECTS.index(group["what"]))


def by_op(record: CastPass, *, inside: bool = False) -> list[Row]:
    """Return the casts, or the conversions `inside` ops, by consuming op ("" without one) and calling function."""
    return _grouped(
        record.trace,
        ("op", "function"),
        lambda row: (row.user.name if row.user else "", (row.user or row.op).function or ""),
        inside=inside,
    )


def _grouped(
    trace: CastTrace, names: tuple[str, str], key: Callable[[CastRow], tuple[str, str]], *, inside: bool = False
) -> list[Row]:
    """Return groups of casts, the most expensive first, or of conversions `inside` ops, which have no own time."""
    ops, groups = trace.ops, list[Row]()
    promoting = [CastRow(cast, ops[cast.operation], ops[cast.operation]) for cast in trace.promotions]
    for common, rows in by_key(promoting if inside else _cast_rows(trace), key).items():
        casts, phases = [row.cast for row in rows], Counter(row.op.phase for row in rows)
        groups.append(
            {
                **dict(zip(names, common, strict=True)),
                "casts": len(casts),
                "forward": phases["forward"],
                "backward": phases["backward"],
                "bytes_moved": bytes_moved(casts),
                "seconds": None if inside else _seconds(trace, casts),
                "dtypes": ", ".join(dict.fromkeys(map(_ways, casts))),
            }
        )
    return sorted(groups, key=lambda row: (-(row["seconds"] or 0), -row["bytes_moved"], *itemgetter(*names)(row)))


def _ways(cast: Any) -> str:
    return f"{cast.from_dtype} → {cast.to_dtype}"


def _seconds(trace: CastTrace, casts: Iterable[Any]) -> float | None:
    """Return the traced seconds of ops or casts; None where they were not timed."""
    return sum((cast.seconds or 0.0 for cast in casts), 0.0) if trace.timed else None


def by_weight(record: CastPass) -> list[Row]:
    """Return the uses of each weight in the forward pass, the bytes of its casts, and those in autocast's cache."""
    uses = Counter((use.name, use.status) for use in record.trace.weights)
    casts = by_key(record.trace.casts, lambda cast: (cast.what, cast.name))
    rows = []
    for name in dict.fromkeys(use.name for use in record.trace.weights):
        weight_casts = casts.get((terms.WEIGHT, name), [])
        kept = {cast.to_dtype: cast.bytes_written for cast in weight_casts if cast.cached}
        rows.append(
            {
                "cast": uses[name, terms.CAST],
                "reused": uses[name, terms.REUSED],
                "not_needed": uses[name, terms.NOT_NEEDED],
                "cast_bytes": bytes_moved(weight_casts),
                "cache_bytes": sum(kept.values()),
                "name": name,
            }
        )
    return rows


def by_module(record: CastPass) -> list[Row]:
    """Return the dtypes of modules, equal ones together, with their casts, which are in a module's first row."""
    casts = by_key(record.trace.casts, lambda cast: cast.module)
    rows = []
    sides_of = attrgetter("inputs", "outputs", "parameters")
    kinds = by_key(record.trace.modules, lambda row: (row.kind, *(", ".join(dict.fromkeys(s)) for s in sides_of(row))))
    for sides, calls in kinds.items():
        names = list(dict.fromkeys(same.module for same in calls))
        module_casts = [cast for name in names for cast in casts.pop(name, [])]
        rows.append(
            {
                **dict(zip(("kind", "inputs", "outputs", "parameters"), sides, strict=True)),
                "calls": sum(same.calls for same in calls),
                "casts": len(module_casts),
                "cast_bytes": bytes_moved(module_casts),
                "cast_seconds": _seconds(record.trace, module_casts),
                "module": ", ".join(names),
            }
        )
    return rows


DTYPE, ADDED, GONE, OUTSIDE = "dtype", "added", "gone", "outside"
"""A module's last op has another dtype; casts of the graph alone; of eager alone; in a module left to eager mode."""


def differences(record: CastPass) -> list[Row]:
    """Return the casts that only a graph or only the eager step makes, in the phases of the graph, without the loss."""
    compared = [graph for graph in record.graphs if not graph.error and graph.graph != terms.AUTOGRAD]
    return [{"graph": graph.graph} | row for graph in compared for row in compare_graph(record.trace, graph)]


def compare_graph(trace: CastTrace, graph: GraphTrace) -> list[Row]:
    """Return the casts that a graph or the eager step alone makes, after modules whose last op gives another dtype."""
    present = {operation.module for operation in graph.ops} | {cast.module for cast in graph.casts} | {""}
    eager = Counter(map(_cast_key, _model_casts(trace, graph)))
    compiled = Counter(map(_cast_key, graph.casts))
    added = Counter(_cast_key(cast) for cast in graph.casts if cast.fate != terms.FOLDED) - eager
    eager_dtypes, graph_dtypes = _last_dtypes(_model_ops(trace)), _last_dtypes(graph.ops)
    differences = [
        ((DTYPE, module, "forward", "its last op", f"{graph_dtypes[module]}, not {eager_dtypes[module]}"), "")
        for module in (eager_dtypes if trace.inference else ())  # training ends with running statistics
        if graph_dtypes.get(module, eager_dtypes[module]) != eager_dtypes[module]
    ]
    differences += [
        ((OUTSIDE if kind == GONE and module not in present else kind, module, phase, role, dtypes), name)
        for casts, kind in ((added, ADDED), (eager - compiled, GONE))
        for name, module, phase, role, dtypes in casts.elements()
    ]
    return [
        {
            "kind": kind,
            "module": module,
            "phase": phase,
            "what": " ".join(filter(None, [role, few(name for _, name in same if name)])),
            "casts": len(same) if kind != DTYPE else 0,
            "dtypes": dtypes,
        }
        for (kind, module, phase, role, dtypes), same in by_key(differences, itemgetter(0)).items()
    ]


def _last_dtypes(ops: Iterable[Operation]) -> dict[str, str]:
    """Return the output dtype of each module's last floating-point op in the forward pass."""
    last: dict[str, str] = {}
    for op in ops:
        inputs, outputs = floating(op.inputs), floating(op.outputs)
        if op.phase == "forward" and inputs and outputs and terms.plain_name(op.name) not in MOVES:
            last[op.module] = outputs[0]
    return last


def _cast_key(cast: Cast | GraphCast) -> tuple[str, ...]:
    """Return the key that equal casts share: stored tensors by name, other values by module."""
    stored = cast.what in (terms.WEIGHT, terms.BUFFER)
    role = cast.what if stored or cast.what == terms.GRADIENT else "value"
    return cast.name if stored else "", cast.module, cast.phase, role, _ways(cast)


def _model_ops(trace: CastTrace) -> list[Operation]:
    """Return the ops of the model's own call and of its backward pass; the loss is in no graph."""
    end = len(trace.ops) if trace.model_ops is None else trace.model_ops
    makers = {cast.index: cast.producer for cast in trace.casts}

    def within(op: Operation) -> bool:
        maker = makers.get(op.index) if op.forward is None else None
        forward = trace.ops[maker].forward if maker is not None else op.forward
        return op.recomputed or (op.index if op.phase == "forward" else forward or 0) < end

    return list(filter(within, trace.ops))


def _model_casts(trace: CastTrace, graph: GraphTrace) -> list[Cast]:
    """Return the casts that a graph can have: the model's own, in the phases of the graph."""
    within = {operation.index for operation in _model_ops(trace)}
    phases = {operation.phase for operation in graph.ops}
    return [cast for cast in trace.casts if cast.phase in phases and cast.index in within]


def _short(name: str) -> str:
    """Return the name of an op or a function as people write it: "addmm", "F.linear"."""
    return name.removeprefix("aten.").replace("torch.nn.functional.", "F.").removeprefix("torch.")


def _modules(row: Row) -> str:
    return few([module or "the model itself" for module in row["module"].split(", ")], 2)


def _flow(row: Row) -> str:
    """Return the dtypes that went in and out of an op, each once: "bf16, fp32 → bf16"."""
    return " → ".join(", ".join(dict.fromkeys(row[side].split(", "))) for side in ("inputs", "outputs"))


def _place(row: Row) -> str:
    """Return the module of an op or the value it casts, the origin unless autocast, and the line of code."""
    role, name = row["what"], row["tensor_name"]
    place = row["module"] if role is None else f"cast of {role if name == role else f'{role} {name}'.strip()}"
    remarks = [
        row["origin"],
        "put in the cache" if row["cached"] else "",
        "/".join((row["source"] or "").split("/")[-2:]),
    ]
    remarks_text = ", ".join(remark for remark in remarks if remark and remark != terms.AUTOCAST)
    return f"{place} ({remarks_text})" if remarks_text else place


def _columns(*columns: tuple[Any, ...]) -> list[Column[Row]]:
    """Return columns, each from a key, a heading, a unit and the text of its cells."""
    columns_made = [Column(key, itemgetter(key), *how) for key, *how in columns]
    return [dataclasses.replace(column, rare=column.key.endswith("seconds")) for column in columns_made]


ALL = _columns(*((name,) for name in (*CAST_COLUMNS, "for_op", "function", "source")))
COUNTS = _columns(
    ("casts", "casts", "whole"), ("forward",), ("backward",), ("bytes_moved", "moved", "B"), ("seconds", "traced", "s"),
    ("dtypes", "dtypes"),
)  # fmt: skip
"""Of casts that have something in common."""
ORIGINS = [*_columns(("what", "what"), ("origin", "asked for by")), *COUNTS]
OPS = [
    *_columns(
        ("op", "for op", "", lambda row: _short(row["op"]) or STORED),
        ("function", "called as", "", lambda row: _short(row["function"]) or UNDEFINED),
    ),
    *COUNTS,
]
INSIDE = [dataclasses.replace(column, head="inputs") if column.key == "casts" else column for column in OPS]
MODULES = _columns(
    ("kind", "kind"), ("inputs", "in"), ("outputs", "out"), ("parameters", "weights"), ("calls", "calls", "whole"),
    ("casts", "casts", "whole"), ("cast_bytes", "moved", "B"), ("cast_seconds", "traced", "s"),
    ("module", "module", "", _modules),
)  # fmt: skip
WEIGHTS = _columns(
    ("cast", "cast", "whole"), ("reused", "reused", "whole"), ("not_needed", "not needed", "whole"),
    ("cast_bytes", "moved", "B"), ("cache_bytes", "cached", "B"), ("name", "weight"),
)  # fmt: skip
SAVINGS = _columns(
    ("kind",), ("what", "what"), ("names", "names", "", lambda row: few(filter(None, row["names"]))),
    ("casts", "casts", "whole"), ("bytes_moved", "moved", "B"), ("seconds", "traced", "s"),
    ("to_dtype", "change", "", lambda row: f"{CHANGES[row['kind']]} {row['to_dtype']}"),
)  # fmt: skip
OTHERWISE = _columns(
    ("graph", "graph"), ("kind", "kind"), ("module", "module", "", _modules), ("phase", "phase"), ("what", "what"),
    ("casts", "casts", "whole"), ("dtypes", "dtypes"),
)  # fmt: skip
UNDONE = _columns(
    ("name", "gradient of", "", lambda row: row["name"] or "an activation"), ("dtypes", "dtypes"),
    ("elements", "elements", "whole"),
)  # fmt: skip
STEP = _columns(
    ("index", "#", "whole", lambda row: f"{row['index']}"), ("phase", "phase"),
    ("op", "op", "", lambda row: _short(row["name"])),
    ("dtypes", "dtypes", "", _flow),
    ("seconds", "traced", "s"),
    ("place", "module, or what is cast", "", _place),
)  # fmt: skip


def _request(session: "Session[CastsAsked]", planned: "PlannedCase") -> Tracing:
    """Return a request for a case's casts, with the graphs of the paths selected and, in training, autograd's."""
    paths = [path for path in dict.fromkeys(session.prepared.selection.paths) if path in GRAPHS]
    graphs = [*paths, *([terms.AUTOGRAD] if planned.case.phase == "training" else [])]
    return Tracing(sources=session.asked.sources, graphs=graphs)


STUDY: Study[CastsAsked, CastPass] = Study(
    kind=CASTS,
    help="""\
Trace one step of each case: every cast with its tensor, op and cost, and casts that could be saved.

A device that is not here is stood in for by fake tensors: the casts are seen, no hardware is. The run is stored:
ampbench show RUN prints it again, with --all every row.

\b
Examples:
  ampbench explain casts model.py:make
  ampbench explain casts mlp --phase training --sources
  ampbench explain casts resnet50 --device cuda
  ampbench explain casts decoder_lm --path compiled --format json
""",
    doing="tracing",
    asked=CastsAsked,
    task=TASK,
    selects=Selects(
        paths=GRAPHS,
        among=[name for name, row in PRECISIONS.items() if not (row.same_ops or row.emulated)],
        absent=True,
    ),
    request=_request,
    title="Casts",
    remarks=lambda record: [
        *record.notes,
        *(f"{graph.graph}: {note}" for graph in record.graphs for note in graph.notes),
    ],
    tables=(
        Table(
            "casts", ALL,
            lambda record: [
                structs.asdict(cast)
                | {"for_op": user.name if user else None, "function": (user or op).function, "source": op.source}
                for cast, op, user in _cast_rows(record.trace)
            ],
        ),
        Table("origins", ORIGINS, by_origin, "Where they come from"),
        Table(
            "savings", SAVINGS,
            lambda record: [vars(row) | {"casts": len(row.casts)} for row in savings(record.trace)],
            "What could be saved",
            "store: no op reads the value uncast; keep: autocast's cache does not hold it; stay: it is cast and back",
        ),
        Table("ops", OPS, by_op, "Casts per op"),
        Table(
            "promotions", INSIDE, partial(by_op, inside=True), "Inputs that ops convert inside", "in no count of casts",
        ),
        Table("modules", MODULES, by_module, "Dtypes in and out of modules", folded=True),
        Table("weights", WEIGHTS, by_weight, "Weights", "uses in the forward pass; cached: by autocast", folded=True),
        Table(
            "differences", OTHERWISE, differences, "What other graphs do otherwise",
            "dtype: what a module gives; added: casts of the graph alone; gone: of eager mode alone; outside: in a "
            "module that the graph leaves to eager mode", folded=True,
        ),
        Table(
            "autograd", UNDONE,
            lambda record: [
                structs.asdict(cast) | {"dtypes": _ways(cast)}
                for graph in record.graphs if graph.graph == terms.AUTOGRAD for cast in graph.casts
            ],
            "Casts of the autograd graph in their order", folded=True,
        ),
        Table("", STEP, lambda record: op_rows(record.trace), "Every op in order", folded=True),
    ),
    conclusions=conclusions,
)  # fmt: skip
