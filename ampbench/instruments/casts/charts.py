"""What autocast and others cast in a step, what that costs, and what could be saved of it, on the page.

Its chart is a timeline: the ops of a traced step in their order, the casts below them, what they compute in as colour;
where there are too many, short neighbours as one span.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from types import MappingProxyType
from typing import Any

from ampbench.base.units import UNDEFINED, counted, format_bytes, format_seconds, format_share
from ampbench.instruments.casts import show
from ampbench.instruments.casts.findings import casts_said, saved_by
from ampbench.present.charts import CHOICES, Chart, Choice, Rows, label_expression, tooltip
from ampbench.present.document import Block, as_sentence
from ampbench.present.page import Detail, Held, Overview, Part, Told, cut, sentences_of, told_part
from ampbench.records.cast_tables import Saving, Totals, savings, totals
from ampbench.records.casts import Cast, CastPass, CastTrace, CheckedSaving, Operation, casts_inside
from ampbench.records.paired import saving_said
from ampbench.records.rules import FAKE


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced(Told[CastPass]):
    """A case that a run traced: what its casts add up to, and what could be saved, the largest first."""

    whole: Totals
    savings: Sequence[Saving]

    @property
    def said(self) -> str:
        """What its casts cost, in a line."""
        return casts_said(self.found, self.case, self.whole, self.savings)

    @property
    def fake(self) -> bool:
        """Whether fake tensors stood in, so that nothing ran on hardware."""
        return self.found.how == FAKE


def traced(told: Sequence[Told[CastPass]]) -> list[Traced]:
    """Return the traced cases, those first whose casts take the most time or, untimed, move the most bytes."""
    cases = [
        Traced(
            number=one.number,
            name=one.name,
            case=one.case,
            run=one.run,
            found=one.found,
            whole=totals(one.found.trace),
            savings=savings(one.found.trace),
        )
        for one in told
    ]
    return sorted(cases, key=lambda one: (-(one.whole.seconds or 0.0), -one.whole.bytes_moved, one.number))


CAST, OTHER = "cast", "no floats"
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
"""So many names of what a span holds are told."""
GROWTH = 1.5
"""The longest span grows by so much until there are few enough of them."""


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
    """Return what is drawn as one: each op or, of more than `most`, neighbours of one kind that end soon after another.

    How soon is the least that makes them few enough.
    """
    spans = [[step] for step in steps]
    longest = steps[-1].end / most if steps else 0.0
    while len(spans) > most:
        spans = _merged(steps, longest)
        if longest >= steps[-1].end:
            break  # as few as there are lines and kinds
        longest *= GROWTH
    return spans


def row_of(span: Sequence[Step], timed: bool, wide: float) -> dict[str, Any]:
    """Return a span as a row of the chart; one that is longer than `wide` is marked as wide."""
    first, ops = span[0], [step.op for step in span]
    casts = [step.cast for step in span if step.cast]
    seconds = sum(op.seconds or 0.0 for op in ops)
    return {
        "lane": first.lane,
        "place": LANES.index(first.lane),
        "kind": first.kind,
        "start": first.start,
        "end": span[-1].end,
        "wide": span[-1].end - first.start > wide,
        "op": _named(op.name for op in ops) if len(ops) == 1 else f"{len(ops):,} ops: {_named(op.name for op in ops)}",
        "function": _named(op.function for op in ops),
        "module": _named(op.module for op in ops),
        "dtypes": _named(dtypes_of(op) for op in ops),
        "time": format_seconds(seconds) if timed else UNDEFINED,
        "cast": _named((cast_said(cast) for cast in casts), "; "),
    }


def dtypes_of(op: Operation) -> str:
    """Return what went in and came out, "bf16, fp32 → bf16"; what repeats is counted."""
    return f"{_counted(op.inputs)} → {_counted(op.outputs)}"


def cast_said(cast: Cast) -> str:
    """Return what a cast was of, and what it moved: "weight fc.weight, fp32 → bf16, 1.20 MiB, by autocast"."""
    what = f"{cast.what} {cast.name}".strip()
    moved = format_bytes(cast.bytes_moved)
    kept = ", kept in its cache" if cast.cached else ""
    return f"{what}, {cast.from_dtype} → {cast.to_dtype}, {moved}, {cast.origin}{kept}"


def _merged(steps: Iterable[Step], longest: float) -> list[list[Step]]:
    """Return spans of one line and kind in the order of their beginnings; none but single ops is over `longest`."""
    spans: list[list[Step]] = []
    latest: dict[tuple[str, str], list[Step]] = {}
    for step in steps:
        key = step.lane, step.kind
        known = latest.get(key)
        if known is not None and step.end - known[0].start <= longest:
            known.append(step)
        else:
            latest[key] = [step]
            spans.append(latest[key])
    return spans


def _counted(dtypes: Sequence[str]) -> str:
    parts = [(name, len(list(group))) for name, group in groupby(dtypes)]
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in parts) or UNDEFINED


def _named(names: Iterable[str | None], between: str = ", ") -> str:
    """Return the first of different names, and how many more there are."""
    known = [name for name in dict.fromkeys(names) if name]
    more = f"{between}and {len(known) - NAMED:,} more" if len(known) > NAMED else ""
    return between.join(known[:NAMED]) + more or UNDEFINED


SPANS_OF_A_CASE = 500
"""So many spans are drawn of a step at most: an eye tells no more apart, and as SVG they take 80 KB."""
SPANS_OF_THE_PAGE = 8_000
"""So many are carried in all, spread evenly over the cases (a tenth of the page's data), ..."""
SPANS_AT_LEAST = 100
"""... but of each case at least so many."""

EDGED = 150
"""A span of over that part of the step is told from its neighbours by an edge; in a shorter one it would hide all."""

TOOLTIP = tooltip(
    op="op", function="called by", module="module", dtypes="in → out", time="duration", cast="what was cast"
)
_FROM_ZERO = f"datum.value ? ({label_expression('s')}) : '0'"
_LANE = {
    "field": "lane",
    "type": "nominal",
    "title": None,
    "sort": {"field": "place", "op": "min"},
    "scale": {"paddingInner": 0.25, "paddingOuter": 0.15},
    "axis": {"domain": False, "ticks": False, "minExtent": 100, "labelLimit": 100},
}


def timelines(cases: Sequence[Traced]) -> tuple[list[Chart], dict[str, Rows], list[str]]:
    """Return the charts of traced cases, their data, and what is to be said of how they are drawn.

    Cases with times and those without, whose ops stand side by side, have a chart each.
    """
    charts: list[Chart] = []
    datasets: dict[str, Rows] = {}
    merged = 0
    listed = [one for one in cases if one.found.trace.ops][:CHOICES]
    most = min(SPANS_OF_A_CASE, max(SPANS_AT_LEAST, SPANS_OF_THE_PAGE // max(len(listed), 1)))
    for timed in (True, False):
        own = [one for one in listed if one.found.trace.timed is timed]
        if not own:
            continue
        name = "explanation-casts" if timed else "explanation-casts-untimed"
        rows: list[dict[str, Any]] = []
        for one in own:
            steps = steps_of(one.found.trace)
            spans = spans_of(steps, most)
            merged += len(spans) < len(one.found.trace.ops)
            wide = steps[-1].end / EDGED
            rows += [{"case": str(one.number), **row_of(span, timed, wide)} for span in spans]
        datasets[name] = rows
        charts.append(_chart(name, own, rows, timed))
    said = ["Ops stand one after the other, casts on a line of their own below those of their phase."] if charts else []
    if merged:
        of = "the step" if len(listed) == 1 else f"{merged:,} of {len(listed):,} steps"
        said.append(
            f"In {of}, short neighbours that compute in one dtype are drawn as one span, {most:,} spans at most."
        )
    return charts, datasets, said


def _chart(name: str, cases: Sequence[Traced], rows: Rows, timed: bool) -> Chart:
    domain = [kind for kind in DTYPES if any(row["kind"] == kind for row in rows)]
    colour = {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": domain, "range": [f"var({DTYPES[kind]})" for kind in domain]},
        "legend": {"title": None, "columns": 3, "symbolType": "square"},
    }
    axis: dict[str, Any] = {"tickCount": 5, "labelExpr": _FROM_ZERO} if timed else {"tickMinStep": 1}
    at = {
        "type": "quantitative",
        "title": "time of the ops, one after the other" if timed else "ops, one after the other",
        "axis": axis,
        "scale": {"nice": False},
    }
    encoding = {
        "x": {**at, "field": "start"},
        "x2": {"field": "end"},
        "y": _LANE,
        "color": colour,
        "stroke": {"condition": {"test": "datum.wide", "value": "var(--card)"}, **colour},
        "tooltip": TOOLTIP,
    }
    return Chart(
        id=name,
        title="Timeline of a step" if timed else "Ops of a step, without times",
        alt="",
        spec={"mark": {"type": "bar", "strokeWidth": 0.7}, "encoding": encoding},
        dataset=name,
        height=28,
        lines="lane",
        choose="case",
        choices=[Choice(value=str(one.number), label=one.name, alt=_said(one)) for one in cases],
    )


def _said(one: Traced) -> str:
    """Return what the chart shows of a case: what its casts cost, and which of them is the longest or largest."""
    casts = one.found.trace.casts
    parts = [f"{one.name}: {counted(one.whole.ops, 'op')}, {one.said}"]
    if casts:
        timed = one.found.trace.timed
        worst = max(casts, key=lambda cast: (cast.seconds or 0.0) if timed else cast.bytes_moved)
        took = f" ({format_seconds(worst.seconds)})" if timed else ""
        parts.append(f"the {'longest' if timed else 'largest'} is of {cast_said(worst)}{took}")
    if one.fake:
        parts.append("on fake tensors, not on hardware")
    return f"{'; '.join(parts)}."


FAKE_SAID = "fake tensors, not on hardware"


def part(held: Held[CastPass]) -> Part | None:
    """Return the traced cases, those first whose casts take the most time or, untimed, move the most bytes."""
    found = traced(held.told)
    if not (found or held.untold or held.changed):
        return None
    charts, datasets, said = timelines(found)
    return told_part(
        found,
        id="casts",
        title="Casts",
        said=[*_all_said(found), *held.strangers_said("Traced"), *said],
        detail=_detail,
        sentences=_sentences,
        overview=_overview(found),
        drawn=(charts, datasets),
        changed=held.changed,
        untold=held.untold,
        without="Not traced",
        what="traced cases",
    )


def _sentences(one: Traced) -> list[str]:
    """Return what the casts of a case cost, and where it was tried what a change saves, that."""
    first, *others = sentences_of(show.section(one.case, one.found))
    tried = [as_sentence(f"{each.change}: {checked_said(each)}") for each in one.found.checked]
    return [as_sentence(f"{one.said} ({FAKE_SAID})") if one.fake else first, *others, *tried]


def checked_said(one: CheckedSaving) -> str:
    """Return what came of a change that was made and measured."""
    return f"{counted(one.casts, 'cast')} a step fewer, {saving_said(saved_by(one))}"


def _all_said(found: Sequence[Traced]) -> list[str]:
    if not found:
        return []
    worst = found[0]
    which = worst.name
    if len(found) > 1:
        which = f"Of {len(found):,} traced cases, casts cost the most in {worst.name}"
    said = [f"{which}: {worst.said}."]
    fakes = [one for one in found if one.fake]
    if fakes:
        which = "1 of the cases was" if len(fakes) == 1 else f"{len(fakes):,} of the cases were"
        which = which if len(fakes) < len(found) else "This was" if len(found) == 1 else "All were"
        said.append(f"{which} traced on {FAKE_SAID}: the casts are those of this torch, and nothing is timed.")
    if certain := [(one, each) for one in found for each in one.found.checked if saved_by(each).certain]:
        one, best = max(certain, key=lambda each: _factor(each[1]))
        said.append(f"Measured: {best.change} in {one.name}: {checked_said(best)}.")
    return said


def _factor(one: CheckedSaving) -> float:
    saved = saved_by(one)
    return saved.before / saved.after


def _overview(found: Sequence[Traced]) -> Overview:
    rows = []
    for one in found:
        whole = one.whole
        best = max(one.found.checked, key=lambda each: saved_by(each).seconds, default=None)
        cells = [
            f"{whole.casts:,}",
            format_bytes(whole.bytes_moved),
            format_seconds(whole.seconds),
            format_share(whole.share),
            f"{sum(len(saving.casts) for saving in one.savings):,}",
            f"{best.change}: {checked_said(best)}" if best else UNDEFINED,
            f"{one.case.device}: {FAKE_SAID}" if one.fake else one.case.device,
        ]
        rows.append((one.name, cells))
    headers = ["casts", "moved", "traced", "share", "to save", "best saving measured", "traced on"]
    return Overview(
        caption="Casts of a step by case, the most expensive first. Traced: the casts' own time under the trace, which "
        "slows small ops, and its share of that of all ops. To save: casts that a change would make unnecessary.",
        headers=headers,
        rows=rows,
        numbers=headers[:5],
    )


def _detail(one: Traced) -> Detail:
    found = one.found
    notes = [*casts_inside(found.trace), *found.notes]
    told = [*show.headline(found, one.case)[1:], *map(Block, notes)]
    told += show.dearest_ops(found)
    for make in (show.origins, show.weights_used, show.saved, show.ops_that_cast):
        told += [cut(each) for each in make(found, True)]
    collapsed = len(found.trace.modules) > show.FEW_MODULES
    folded = {
        "Dtypes in and out of its modules": [_modules(one, collapsed)] if found.trace.modules else [],
        "The same step in other graphs": [cut(each) for each in show.graphs(found, True)],
    }
    return Detail(
        name=one.name,
        said=f"{one.said} ({FAKE_SAID})" if one.fake else one.said,
        blocks=told,
        folded={title: members for title, members in folded.items() if members},
    )


def _modules(one: Traced, collapsed: bool) -> Block:
    table = show.module_table(one.found, collapsed=collapsed)
    shared = len(table.rows) < len(one.found.trace.modules)
    return cut(replace(table, note="modules that do the same share a row" if shared else ""))
