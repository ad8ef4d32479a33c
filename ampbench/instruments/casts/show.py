"""What was cast in a step: the document of a cast pass, totals, savings and tables.

Numbers without a value are "–"; times are left out where nothing was timed. Those in tables are traced ones.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import Any

from ampbench.core.precisions import PRECISIONS
from ampbench.core.units import UNDEFINED, counted, format_bytes, format_seconds
from ampbench.instruments.casts import findings, tables
from ampbench.instruments.casts.findings import (
    casts_inside,
    casts_said,
    compare_graph,
    graph_sentence,
    saved_by,
    times_said,
)
from ampbench.instruments.casts.tables import CastGroup, ModuleGroup, WeightRow, cast_users, totals
from ampbench.records import cast_tables
from ampbench.records.case import Case, Environment
from ampbench.records.cast_tables import Saving, cache_bytes, savings
from ampbench.records.casts import (
    AUTOCAST,
    AUTOGRAD,
    CAST,
    NOT_NEEDED,
    REUSED,
    SUBJECTS,
    By,
    Cast,
    CastPass,
    CastTrace,
    CheckedSaving,
    Operation,
)
from ampbench.records.labels import device_statement, emulated_of
from ampbench.records.rules import FAKE
from ampbench.show.charts import Drawing, Rows, label_expression, tooltip
from ampbench.show.data import record_data
from ampbench.show.document import (
    Block,
    Column,
    Document,
    Section,
    as_sentence,
    first_rows,
    picked,
    records,
    table,
)
from ampbench.show.page import Held, Part, Told, told_part
from ampbench.show.studies import case_title, document_of_cases
from ampbench.store import StoredRun
from ampbench.studies.paired import saving_said

SHOWN, ORDERED = 8, 40
"""So many rows are shown, the most telling ones, or those of a table in the order of running, unless all are asked
for."""
FEW_OPS, FEW_MODULES = 16, 12
"""A step of so few ops is told op by op, a network of so few modules one by one."""

DEAREST = 10
"""So many ops that take the most time are listed beside the timeline."""
STORED = "only stored"
"""What stands for the op that uses a copy where none does, as with a gradient that is kept."""


GROUPS: Sequence[Column[CastGroup]] = (
    Column("casts", lambda group: group.casts, "casts", "whole"),
    Column("forward", lambda group: group.forward, "forward", "whole"),
    Column("backward", lambda group: group.backward, "backward", "whole"),
    Column("dtypes", lambda group: ", ".join(group.dtypes), "dtypes"),
    Column("bytes_moved", lambda group: group.bytes_moved, "moved", "B"),
    Column("seconds", lambda group: group.seconds, "traced", "s"),
)
"""Of casts that have something in common."""

TENSORS: Sequence[Column[CastGroup]] = (
    Column("what", lambda group: group.keys[0], "what"),
    Column("name", lambda group: group.keys[1], "tensor"),
    *GROUPS,
)
"""Of the casts of one tensor."""


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} and {len(names) - 1:,} more"


def _named(group: ModuleGroup) -> str:
    return _few([module or "the model itself" for module in group.modules])


def _dtypes(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _flow(op: Operation) -> str:
    """Return the dtypes that went in and came out, each once: "bf16, fp32 → bf16"."""
    return f"{_dtypes(op.inputs)} → {_dtypes(op.outputs)}"


def _side(name: str, head: str) -> Column[ModuleGroup]:
    """Return the column of dtypes on one side of modules, for people each once."""
    side = attrgetter(name)
    return Column(name, lambda group: ", ".join(side(group)), head, said=lambda group: _dtypes(side(group)))


def _if_cast(name: str, write: Callable[[float | None], str]) -> Callable[[ModuleGroup], str]:
    return lambda group: write(getattr(group, name)) if group.casts else ""


MODULES: Sequence[Column[ModuleGroup]] = (
    Column("module", lambda group: ", ".join(group.modules), "module", said=_named),
    Column("kind", lambda group: group.kind, "kind"),
    _side("inputs", "in"),
    _side("outputs", "out"),
    _side("parameters", "weights"),
    Column("calls", lambda group: group.calls, "calls", "whole"),
    Column("casts", lambda group: group.casts, "casts", "whole"),
    Column("cast_bytes", lambda group: group.cast_bytes, "moved", "B", _if_cast("cast_bytes", format_bytes)),
    Column("cast_seconds", lambda group: group.cast_seconds, "traced", "s", _if_cast("cast_seconds", format_seconds)),
)
"""Of modules that do the same to dtypes: dtypes in and out, and the casts that ran directly in them.

One that was called with several dtypes has a row for each; its casts are in the first.
"""


WEIGHTS: Sequence[Column[WeightRow]] = (
    Column("", lambda row: row.cast, "cast", "whole"),
    Column("", lambda row: row.reused, "reused", "whole"),
    Column("", lambda row: row.not_needed, "not needed", "whole"),
    Column("", lambda row: row.cast_bytes, "moved", "B", lambda row: format_bytes(row.cast_bytes) if row.cast else ""),
    Column(
        "", lambda row: row.cache_bytes, "cached", "B",
        lambda row: format_bytes(row.cache_bytes) if row.cache_bytes else "",
    ),
    Column("", lambda row: row.name, "weight"),
)  # fmt: skip

SAVINGS: Sequence[Column[Saving]] = (
    Column("", lambda row: len(row.casts), "casts", "whole"),
    Column("", lambda row: row.bytes_moved, "moved", "B"),
    Column("", lambda row: row.seconds, "traced", "s", rare=True),
    Column("", lambda row: row.advice, "change"),
)


def _tried(one: CheckedSaving) -> str:
    said = [saving_said(saved_by(one)), "outputs identical to the bit" if one.identical else "outputs differ"]
    if one.peak_bytes_before is not None and one.peak_bytes_after is not None:
        said.append(f"peak memory {format_bytes(one.peak_bytes_before)} → {format_bytes(one.peak_bytes_after)}")
    return "; ".join(said)


CHECKED: Sequence[Column[CheckedSaving]] = (
    Column("", lambda one: one.casts, "casts", "whole"),
    Column("", lambda one: one.bytes_moved, "moved", "B"),
    Column("", lambda one: f"{one.change}: {_few(one.names)}" if one.names else one.change, "change"),
    Column("", _tried, "a step"),
)


def section(case: Case, found: CastPass, by: By = By.SUMMARY, *, everything: bool = False) -> Section:
    """Return what `found` says of `case`: what it adds up to and, `by` what, the tables.

    Without `everything`, long tables end after the rows that say most, and modules that do the same share a row.
    """
    chosen = _SUMMARY if by is By.SUMMARY else _TABLES[by]
    blocks = [*headline(found, case), *(block for make in chosen for block in make(found, everything)), *_notes(found)]
    remark = " · fake tensors, not on hardware" if found.how == FAKE else ""
    return Section(case_title(case) + remark, blocks)


def headline(found: CastPass, case: Case) -> list[Block]:
    """Return how many casts there are and what they cost, what the step costs, and what is in doubt of that."""
    whole = totals(found.trace)
    lines = [casts_said(found, case, whole), *times_said(found, whole)]
    if found.peak_bytes is not None:
        lines.append(f"peak memory {format_bytes(found.peak_bytes)} ({found.memory_source})")
    return [Block(as_sentence(line)) for line in lines]


def origins(found: CastPass, everything: bool = False) -> list[Block]:  # noqa: ARG001 - as the other tables
    """Return what was cast and who asked for it."""
    groups = tables.by_origin(found.trace)
    names: list[Column[CastGroup]] = [
        Column("", lambda group: group.keys[0], "what"),
        Column("", lambda group: group.keys[1], "asked for by"),
    ]
    return [_of_groups("Where they come from", names, groups)] if groups else []


def weights_used(found: CastPass, everything: bool = False) -> list[Block]:  # noqa: ARG001
    """Return in a line how weights reached the ops that use them, and what autocast's cache holds."""
    counts = totals(found.trace).weights
    if not counts or not found.trace.casts:
        return []
    uses = counted(sum(counts.values()), "use of a weight", "uses of weights")
    said = [f"{counts.get(CAST, 0):,} cast", f"{counts.get(REUSED, 0):,} reused from autocast's cache"]
    said.append(f"{counts.get(NOT_NEEDED, 0):,} not needed")
    held = cache_bytes(found.trace)
    kept = f"keeps {format_bytes(held)} alive until autocast's region ends" if held else "holds nothing"
    return [Block(f"{uses}: {', '.join(said)}; the cache {kept}.")]


def saved(found: CastPass, everything: bool = False) -> list[Block]:
    """Return what could be saved, as the trace says, and what measuring made of it."""
    blocks = []
    if rows := savings(found.trace):
        note = "what these casts cost; what a change saves is to be measured" if not found.checked else ""
        blocks.append(_cut(table("What could be saved", SAVINGS, rows, note), everything))
    if found.checked:
        blocks.append(table("Tried and measured", CHECKED, found.checked))
    return blocks


def ops_that_cast(found: CastPass, everything: bool = False) -> list[Block]:
    """Return the casts per op that used the copies."""
    groups = tables.by_operation(found.trace)
    names: list[Column[CastGroup]] = [
        Column("", lambda group: _op(group.keys[0]) or STORED, "for op"),
        Column("", lambda group: _called(group.keys[1]), "called as"),
    ]
    return [_cut(_of_groups("Casts per op", names, groups), everything)] if groups else []


def dearest_ops(found: CastPass) -> list[Block]:
    """Return the ops, casts among them, that take the most time under the trace, all calls of each together."""
    if not found.trace.timed:
        return []
    spent: dict[tuple[str, str], list[float]] = {}
    for op in found.trace.ops:
        spent.setdefault((_op(op.name), _flow(op)), []).append(op.seconds or 0.0)
    whole = sum(map(sum, spent.values()))
    ranked = sorted(spent.items(), key=lambda one: -sum(one[1]))
    columns: list[Column[tuple[tuple[str, str], list[float]]]] = [
        Column("", lambda one: one[0][0], "op"),
        Column("", lambda one: one[0][1], "dtypes"),
        Column("", lambda one: len(one[1]), "calls", "whole"),
        Column("", lambda one: sum(one[1]), "traced", "s"),
        Column("", lambda one: sum(one[1]) / whole, "share", "share"),
    ]
    note = f"{DEAREST} of {len(ranked):,}" if len(ranked) > DEAREST else ""
    return [table("Ops that take the most time", columns, ranked[:DEAREST], note)] if whole else []


def tensors(found: CastPass, everything: bool = False) -> list[Block]:
    """Return the casts per tensor."""
    groups = tables.by_tensor(found.trace)
    nameless = Counter(what for what, _ in {(cast.what, cast.tensor) for cast in found.trace.casts if not cast.name})
    what, name = picked(TENSORS, "what", "name")
    name = replace(name, said=lambda group: group.keys[1] or f"{nameless[group.keys[0]]:,} without a name")
    return [_cut(_of_groups("Casts per tensor", [what, name], groups), everything)] if groups else []


def modules(found: CastPass, everything: bool = False) -> list[Block]:
    """Return the dtypes in and out of each module, with the casts that ran directly in it."""
    collapsed = not everything and len(found.trace.modules) > FEW_MODULES
    shown = module_table(found, collapsed=collapsed)
    note = "those that do the same share a row; --all lists each" if collapsed else ""
    return [replace(shown, note=note)] if shown.rows else []


def module_table(found: CastPass, *, collapsed: bool) -> Block:
    """Return a row per module or, `collapsed`, per kind of module that does the same to dtypes."""
    groups = tables.module_groups(found.trace, collapsed=collapsed)
    timed = ["cast_seconds"] if found.trace.timed else []
    keys = ("kind", "inputs", "outputs", "parameters", "calls", "casts", "cast_bytes", *timed, "module")
    return table("Dtypes in and out of modules", picked(MODULES, *keys), groups)


def few_ops(found: CastPass, everything: bool = False) -> list[Block]:
    """Return every op in order where there are few."""
    return every_op(found, everything) if len(found.trace.ops) <= FEW_OPS else []


def every_op(found: CastPass, everything: bool = False) -> list[Block]:
    """Return the ops in the order of running, each with its module or, a cast, with what it casts."""
    casts = {cast.index: cast for cast in found.trace.casts}

    def where(op: Operation) -> str:
        cast = casts.get(op.index)
        return (f"cast of {_tensor(cast)}" if cast else op.module) + _place(op.source)

    columns: list[Column[Operation]] = [
        Column("", lambda op: op.index, "#", "whole", lambda op: f"{op.index}"),
        *_phase(found.trace),
        Column("", lambda op: _op(op.name), "op"),
        Column("", _flow, "dtypes"),
        Column("", lambda op: op.seconds, "traced", "s", rare=True),
        Column("", where, "module, or what is cast"),
    ]
    ops = found.trace.ops
    return [table("Every op in order", columns, ops, shown=None if everything else ORDERED)] if ops else []


def every_cast(found: CastPass, everything: bool = False) -> list[Block]:
    """Return the casts in the order of running."""
    trace = found.trace
    users = dict(zip((cast.index for cast in trace.casts), cast_users(trace), strict=True))

    def used(cast: Cast) -> str:
        user = users[cast.index]
        return _op(user.name) if user is not None else STORED

    columns: list[Column[Cast]] = [
        Column("", lambda cast: cast.index, "#", "whole", lambda cast: f"{cast.index}"),
        *_phase(trace),
        Column("", lambda cast: f"{cast.from_dtype} → {cast.to_dtype}", "dtypes"),
        Column("", lambda cast: cast.bytes_moved, "moved", "B"),
        Column("", lambda cast: cast.seconds, "traced", "s", rare=True),
        Column("", used, "for op"),
        Column("", lambda cast: _tensor(cast) + _place(trace.ops[cast.index].source), "what is cast"),
    ]
    shown = None if everything else ORDERED
    return [table("Every cast in order", columns, trace.casts, shown=shown)] if trace.casts else []


def _phase(trace: CastTrace) -> list[Column[Any]]:
    """Return the column of phases, where there are several."""
    return [Column("", attrgetter("phase"), "phase")] if len({op.phase for op in trace.ops}) > 1 else []


def weights(found: CastPass, everything: bool = False) -> list[Block]:
    """Return how each weight reached the ops that use it in the forward pass."""
    note = "uses in the forward pass; cached: the copies that autocast keeps until its region ends"
    rows = tables.by_weight(found.trace)
    return [*weights_used(found), table("Weights", WEIGHTS, rows, note, shown=None if everything else ORDERED)]


def graphs(found: CastPass, everything: bool = False) -> list[Block]:
    """Return what the other graphs of the same step make of its casts, and where dtypes flow otherwise."""
    if not found.graphs:
        return []
    said = [[graph.graph, graph_sentence(found.trace, graph)] for graph in found.graphs]
    blocks = [Block("The same step in other graphs", ["graph", "against eager"], said)]
    for graph in found.graphs:
        differences = [] if graph.error else compare_graph(found.trace, graph)
        cells = [[one.kind, one.said] for one in differences]
        if cells:
            title = f"What the {graph.graph} graph does otherwise"
            blocks.append(_cut(Block(title, ["kind", "what differs"], cells), everything))
        if graph.graph == AUTOGRAD and graph.casts:
            listed = [
                [cast.name or "an activation", f"{cast.from_dtype} → {cast.to_dtype}", f"{cast.elements:,}"]
                for cast in graph.casts
            ]
            title = "Casts of the autograd graph in their order"
            blocks.append(_cut(Block(title, ["gradient of", "dtypes", "elements"], listed), everything))
        blocks += [Block(as_sentence(f"{graph.graph}: {note}")) for note in graph.notes]
    return blocks


_Make = Callable[[CastPass, bool], list[Block]]
_SUMMARY: Sequence[_Make] = (origins, weights_used, saved, ops_that_cast, modules, tensors, few_ops, graphs)
_TABLES: dict[By, Sequence[_Make]] = {
    By.OP: (ops_that_cast, every_op),
    By.MODULE: (modules,),
    By.TENSOR: (tensors,),
    By.CAST: (every_cast,),
    By.WEIGHT: (weights,),
}


def _of_groups(title: str, names: Sequence[Column[CastGroup]], groups: Sequence[CastGroup]) -> Block:
    """Return a table of casts that have something in common, which `names` tell; of one phase alone without that."""
    phases = ["forward", "backward"] if any(group.backward for group in groups) else []
    timed = ["seconds"] if any(group.seconds is not None for group in groups) else []
    return table(title, [*names, *picked(GROUPS, "casts", *phases, "bytes_moved", *timed, "dtypes")], groups)


def _called(function: str) -> str:
    return function.replace("torch.nn.functional.", "F.").removeprefix("torch.") or UNDEFINED


def _notes(found: CastPass) -> list[Block]:
    return [Block(as_sentence(note)) for note in [*casts_inside(found.trace), *found.notes]]


def _cut(block: Block, everything: bool) -> Block:
    return block if everything else first_rows(block, SHOWN)


def _op(name: str) -> str:
    return name.removeprefix("aten.")


def _place(source: str | None) -> str:
    """Return " (folder/file.py:12)" for a line's place; machine formats have the whole path."""
    return f" ({'/'.join(source.split('/')[-2:])})" if source else ""


def _tensor(cast: Cast) -> str:
    """Return what is cast, and who asked where it was not autocast."""
    remarks = [*([] if cast.origin == AUTOCAST else [cast.origin]), *(["put in the cache"] if cast.cached else [])]
    name = cast.what if cast.name == cast.what else f"{cast.what} {cast.name}".strip()
    return f"{name} ({', '.join(remarks)})" if remarks else name


def document(stored: StoredRun, case_ids: Sequence[str], *, everything: bool = False, by: By | None = None) -> Document:
    """Return what a run saw of the cases `case_ids`: `by` what (default: the summary; of flat rows: each cast).

    Nested data have the table `by` beside the pass, if one is asked for: all of them are derived from the pass.
    """

    def shown(case: Case, found: CastPass) -> Section:
        made = section(case, found, by or By.SUMMARY, everything=everything)
        emulated = _emulation(case, stored.header.environment) if found.how != FAKE else ""
        return Section(made.title, [*made.blocks, *([Block(emulated)] if emulated else [])])

    columns, rows = FOR_MACHINES[by or By.CAST]
    return document_of_cases(
        stored, case_ids, stored.of(CastPass),
        section=shown, data=lambda case, found: _data(found, case, by), columns=columns, rows=rows,
    )  # fmt: skip


def _emulation(case: Case, environment: Environment) -> str:
    """Return what is to be said of a case whose device only emulates the dtype that it computes in; "": nothing."""
    device = environment.device(case.device)
    if device is None or case.precision not in PRECISIONS or not emulated_of(device, [case.precision]):
        return ""
    return device_statement(device, environment, [case.precision])


def _data(found: CastPass, case: Case, by: By | None) -> dict[str, Any]:
    whole, savings = tables.totals(found.trace), cast_tables.savings(found.trace)
    shown = {by.value: FOR_MACHINES[by]} if by is not None and by is not By.SUMMARY else {}
    return {
        "sentence": findings.casts_said(found, case, whole, savings),
        "totals": _totals(whole),
        "costs": asdict(findings.costs(found, whole)),
        "checked": [{"change": one.change, **asdict(saved_by(one))} for one in found.checked],
        "savings": [asdict(saving) for saving in savings],
        "tables": {name: records(columns, rows(found)) for name, (columns, rows) in shown.items()},
        "graphs": [
            {
                "graph": graph.graph,
                "sentence": f"{graph.graph}: {findings.graph_sentence(found.trace, graph)}",
                "differences": [asdict(one) for one in findings.compare_graph(found.trace, graph)],
            }
            for graph in found.graphs
        ],
        "casts": record_data(found),
    }


def _totals(whole: tables.Totals) -> dict[str, Any]:
    found = {field.name: getattr(whole, field.name) for field in fields(whole)}
    return found | {"bytes_moved": whole.bytes_moved}


def _summary(found: CastPass) -> dict[str, Any]:
    whole = tables.totals(found.trace)
    saved = [index for saving in cast_tables.savings(found.trace) for index in saving.casts]
    known = findings.costs(found, whole)
    counts = {f"casts_of_{what}": whole.by_what.get(what, 0) for what in SUBJECTS}
    return {
        "how": found.how,
        "ops": whole.ops,
        "casts": whole.casts,
        **counts,
        "could_be_saved": len(saved),
        "bytes_read": whole.bytes_read,
        "bytes_written": whole.bytes_written,
        **asdict(known) | {"doubts": "; ".join(known.doubts)},
        "cache_bytes": whole.cache_bytes,
        "peak_memory_bytes": found.peak_bytes,
        "memory_source": found.memory_source,
    }


def _keyed(keys: Iterable[str]) -> Sequence[Column[dict[str, Any]]]:
    return [Column(key, itemgetter(key)) for key in keys]


FOR_MACHINES: Mapping[By, tuple[Sequence[Column[Any]], Callable[[CastPass], Sequence[Any]]]] = {
    By.SUMMARY: (
        _keyed(_summary(CastPass(case_id="", how="", trace=CastTrace()))),
        lambda found: [_summary(found)],
    ),
    By.OP: (_keyed(cast_tables.OP_COLUMNS), lambda found: cast_tables.op_rows(found.trace)),
    By.MODULE: (MODULES, lambda found: tables.module_groups(found.trace, collapsed=False)),
    By.TENSOR: (TENSORS, lambda found: tables.by_tensor(found.trace)),
    By.CAST: ([Column(name, attrgetter(name)) for name in cast_tables.CAST_COLUMNS], lambda found: found.trace.casts),
    By.WEIGHT: (_keyed(tables.WEIGHT_COLUMNS), lambda found: tables.weight_rows(found.trace)),
}
"""The columns and the rows of each table as machines read it."""


OTHER = "no floats"
DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "fp64": "--dtype-fp64",
        "fp32": "--fp32",
        "bf16": "--bf16_autocast",
        "fp16": "--fp16_autocast",
        OTHER: "--faint",
        CAST: "--cast",
    }
)
"""What an op computes in, with the CSS variable of its colour: that of the precision that is named after the dtype."""

PHASES = ("forward", "backward", "optimizer")
NAMED = 3
"""The most names of ops that are shown of a span."""
GROWTH = 1.5
"""The parts of a step whose ops are drawn as one grow by so much until there are few enough of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An op and its place in the step: in seconds from its beginning or, untimed, in ops."""

    op: Operation
    cast: Cast | None
    start: float
    end: float

    @property
    def lane(self) -> str:
        """The line that it is drawn on: that of its phase, or below it that of the phase's casts."""
        phase = self.op.phase if self.op.phase in PHASES else "other"
        return f"{phase} casts" if self.cast else phase

    @property
    def kind(self) -> str:
        """Whether it is a cast, else what it computes in: the dtype of its first floating input, or else output."""
        if self.cast:
            return CAST
        return next((dtype for dtype in (*self.op.inputs, *self.op.outputs) if dtype in DTYPES), OTHER)


LANES = tuple(f"{phase}{which}" for phase in (*PHASES, "other") for which in ("", " casts"))
"""The lines of the drawing from top to bottom, those that occur."""


def steps_of(trace: CastTrace) -> list[Step]:
    """Return the ops of a trace in order, one after the other."""
    casts = {cast.index: cast for cast in trace.casts}
    found, at = [], 0.0
    for op in trace.ops:
        end = at + ((op.seconds or 0.0) if trace.timed else 1.0)
        found.append(Step(op=op, cast=casts.get(op.index), start=at, end=end))
        at = end
    return found


def spans_of(steps: Sequence[Step], most: int) -> list[list[Step]]:
    """Return the spans to draw: one an op or, beyond `most` ops, one for all ops of a kind in each part of the step.

    The parts are the shortest that make them few enough.
    """
    spans = [[step] for step in steps]
    whole = (steps[-1].end if steps else 0.0) or 1.0
    part = whole / most
    while len(spans) > most and part <= GROWTH * whole:  # then, as few as there are lines and kinds
        members: dict[tuple[str, str, float], list[Step]] = {}
        for step in steps:
            members.setdefault((step.lane, step.kind, step.start // part), []).append(step)
        spans = list(members.values())
        part *= GROWTH
    return spans


def row_of(span: Sequence[Step], timed: bool, wide: float) -> dict[str, Any]:
    """Return a span as a row of the chart; one that is longer than `wide` is marked as wide."""
    first, ops = span[0], [step.op for step in span]
    seconds = sum(op.seconds or 0.0 for op in ops)
    return {
        "lane": first.lane,
        "place": LANES.index(first.lane),
        "kind": first.kind,
        "start": first.start,
        "end": span[-1].end,
        "wide": span[-1].end - first.start > wide,
        "op": (f"{len(ops):,} ops: " if len(ops) > 1 else "") + _first_names(op.name for op in ops),
        "function": _first_names(op.function for op in ops),
        "module": _first_names(op.module for op in ops),
        "dtypes": _first_names(map(_flow, ops)),
        "time": format_seconds(seconds) if timed else UNDEFINED,
        "cast": _first_names(
            (
                f"{_tensor(cast)}, {_flow(step.op)}, {format_bytes(cast.bytes_moved)}"
                for step in span
                if (cast := step.cast)
            ),
            "; ",
        ),
    }


def _first_names(names: Iterable[str | None], between: str = ", ") -> str:
    """Return the first of different names, and how many more there are."""
    known = [name for name in dict.fromkeys(names) if name]
    more = f"{between}and {len(known) - NAMED:,} more" if len(known) > NAMED else ""
    return between.join(known[:NAMED]) + more or UNDEFINED


SPANS_OF_A_CASE = 300
"""The most spans of a step that are drawn: an eye cannot separate more."""
EDGED = 150
"""Spans longer than 1/150 of the step have an edge; in shorter ones the edge would hide the span."""


def _span_rows(one: Told[CastPass], timed: bool) -> dict[str, list[dict[str, Any]]]:
    """Return the spans of a step whose ops have times or have none; those stand side by side."""
    trace = one.found.trace
    if not trace.ops or trace.timed is not timed:
        return {}
    steps = steps_of(trace)
    return {"": [row_of(span, timed, steps[-1].end / EDGED) for span in spans_of(steps, SPANS_OF_A_CASE)]}


def _span_spec(rows: Rows, timed: bool) -> dict[str, Any]:
    domain = [kind for kind in DTYPES if any(row["kind"] == kind for row in rows)]
    colour = {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": domain, "range": [f"var({DTYPES[kind]})" for kind in domain]},
        "legend": {"title": None, "columns": 3, "symbolType": "square"},
    }
    from_zero = f"datum.value ? ({label_expression('s')}) : '0'"
    at = {
        "type": "quantitative",
        "title": "time of the ops, one after the other" if timed else "ops, one after the other",
        "axis": {"tickCount": 5, "labelExpr": from_zero} if timed else {"tickMinStep": 1},
        "scale": {"nice": False},
    }
    lane = {
        "field": "lane",
        "type": "nominal",
        "title": None,
        "sort": {"field": "place", "op": "min"},
        "scale": {"paddingInner": 0.25, "paddingOuter": 0.15},
        "axis": {"domain": False, "ticks": False, "minExtent": 100, "labelLimit": 100},
    }
    told = tooltip(
        op="op", function="called by", module="module", dtypes="in → out", time="duration", cast="what was cast"
    )
    encoding = {
        "x": {**at, "field": "start"},
        "x2": {"field": "end"},
        "y": lane,
        "color": colour,
        "stroke": {"condition": {"test": "datum.wide", "value": "var(--card)"}, **colour},
        "tooltip": told,
    }
    return {"mark": {"type": "bar", "strokeWidth": 0.7}, "encoding": encoding}


_DRAWINGS = [
    Drawing(
        name="explanation-casts" if timed else "explanation-casts-untimed",
        title="Timeline of a step" if timed else "Ops of a step, without times",
        alt="Ops stand one after the other, casts on a line of their own below those of their phase. Of more than "
        f"{SPANS_OF_A_CASE} spans, short neighbours that compute in one dtype are drawn as one.",
        rows=partial(_span_rows, timed=timed),
        spec=partial(_span_spec, timed=timed),
        height=28,
        lines="lane",
        marked=("kind",),
    )
    for timed in (True, False)
]


def part(held: Held[CastPass]) -> Part | None:
    """Return the traced cases, those first whose casts take the most time or, untimed, move the most bytes."""

    def cost(one: Told[CastPass]) -> tuple[float, int]:
        whole = totals(one.found.trace)
        return whole.seconds or 0.0, whole.bytes_moved

    return told_part(
        held,
        sorted(held.told, key=cost, reverse=True),
        _on_page,
        id="casts",
        title="Casts",
        caption="What the casts of a step cost, the most expensive first",
        verb="Traced",
        drawings=_DRAWINGS,
        folding=["Dtypes in and out", "The same step", "What the", "Casts of the autograd graph"],
        without="Not traced",
        what="traced cases",
    )


def _on_page(one: Told[CastPass]) -> Section:
    """Return the summary of a case with what came of each change that was tried, and the ops that take the most."""
    found = one.found
    tried = [f"{each.change}: {counted(each.casts, 'cast')} a step fewer, {_tried(each)}" for each in found.checked]
    first, *others = headline(found, one.case)
    fake = f"{first.title.removesuffix('.')} (fake tensors, not on hardware)."
    lines = [Block(fake) if found.how == FAKE else first, *others, *(Block(as_sentence(line)) for line in tried)]
    tables = [
        *dearest_ops(found),
        *origins(found),
        *weights_used(found),
        *saved(found, True),
        *ops_that_cast(found, True),
    ]
    return Section(one.name, [*lines, *tables, *modules(found), *graphs(found, True), *_notes(found)])
