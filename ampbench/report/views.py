"""The sections of a page: the answer, why, then numbers; with the tables and sentences of the terminal.

Trends have a chart of each metric that changed.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any

import msgspec

from ampbench.core import by_key, metrics
from ampbench.core.precisions import BASELINE
from ampbench.core.units import all_of, counted, format_percent, format_quantity
from ampbench.judge import frame, notes
from ampbench.judge.machines import networks as on_machines
from ampbench.judge.machines import told_apart
from ampbench.judge.rounds import control_ratio
from ampbench.records.kinds import KINDS, Kind
from ampbench.records.labels import (
    NOT_REACHED,
    case_labels,
    common_traits,
    few,
    outcomes_said,
)
from ampbench.records.labels import told_apart as names_apart
from ampbench.records.run import short_commit
from ampbench.report.material import Material
from ampbench.show import studies
from ampbench.show.charts import (
    DASHED,
    LABELS,
    Chart,
    Drawing,
    Picture,
    Rows,
    drawn,
    quantity,
    speed_layers,
    speed_points,
    tooltip,
)
from ampbench.show.comparison import comparison_section, verdict
from ampbench.show.comparison import warnings as doubts
from ampbench.show.document import Block, Code, Column, as_sentence, cut, table
from ampbench.show.networks import (
    brought,
    heading,
    missing,
    side_by_side,
    tables,
)
from ampbench.show.results import COLUMNS, dotted, machine, metric_column
from ampbench.show.rows import Row, place_of, run_name
from ampbench.show.studies import Subject
from ampbench.show.wording import answer, lines, words
from ampbench.store import CUT, StoredRun
from ampbench.studies.study import study_of
from ampbench.trend import Series, Trend, moment
from ampbench.trend.show import LONGEST_LIST, series_names, size, trend_document, what, where
from ampbench.trend.values import TRACKED

AT_ONCE = 25
"""The number of rows of a table of networks that are not folded."""
MOST = 1_000
"""The most rows of a table of networks."""
NAMED = 3
"""The number of runs that are named where several have the same note."""
FURTHER = (
    "speedup_vs_tf32", "speedup_vs_default", "energy_per_step", "ceiling_share", "busy_share", "argmax_agreement",
    "grad_rel_l2",
)  # fmt: skip
"""Further metrics of cases, shown after the deciding ones where any case has them."""


LISTED = 200
"""The most cases of a part, the worst or the first; a page of 10,000 cases does not repeat them all."""
DETAILED = 20
"""The most cases of a part with tables, the worst or the first; others have a line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """The details of a case on a page: its line, sentences and tables, and `code` unchanged."""

    name: str
    said: str
    blocks: Sequence[Block] = ()
    code: Code | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a section, `id` is unique: findings in sentences (`said`), charts, `blocks`, and `details` of cases.

    `finding` is the most important conclusion on all cases, in a line; "": none.
    """

    id: str
    title: str
    said: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    blocks: Sequence[Block] = ()
    details: Sequence[Detail] = ()
    finding: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A section of the page, called `title` in the navigation: its `warnings`, then its `parts`.

    A view with a `heading` leads the page. The rows called `sortable` ("cases") can be sorted and searched.
    """

    id: str
    title: str
    heading: str = ""
    warnings: Sequence[str] = ()
    parts: Sequence[Part] = ()
    sortable: str = ""

    @property
    def charts(self) -> list[Chart]:
        """The charts of all parts."""
        return [chart for part in self.parts for chart in part.charts]


def result(material: Material) -> View:
    """Return the answer: the precisions to take or the changes, its weaknesses, and the cases without a result."""
    sections = map(comparison_section, material.comparisons)
    parts = [
        Part(id=f"comparison-{place}", title=section.title, blocks=list(map(cut, section.blocks)))
        for place, section in enumerate(sections)
    ]
    lost = missing(material.rows)
    if lost.rows:
        parts.append(Part(id="missing", title="", blocks=[replace(lost, folded=True)]))
    return View(id="result", title="Result", heading=_heading(material), warnings=_warnings(material), parts=parts)


def _heading(material: Material) -> str:
    """Return the answer in a line: the changes, the precisions to take, or the first finding of a study."""
    if material.comparisons:
        return as_sentence(verdict(*material.comparisons)).removesuffix(".")
    if networks := material.networks:
        headers = dict.fromkeys(
            " · ".join(filter(None, machine(run.stored.header, network.rows[0]["device"])))
            for run in material.shown
            for network in run.networks
        )
        where = next(iter(headers)) if len(headers) == 1 else f"{len(headers)} devices"
        return f"{where}: {heading(networks)}"
    finding = next((part.finding for part in study_parts(material) if part.finding), "")
    if finding and not material.rows:
        return finding
    outcomes = Counter(row["outcome"] for row in material.rows)
    for run in material.explanations:
        outcomes.update(failed=len(run.failures), skipped=len(run.skips))
    text = all_of(contents(material)) or outcomes_said(outcomes) or "there are no cases"
    return f"Nothing was measured: {text}"


def _warnings(material: Material) -> list[str]:
    """Return notes that change a decision, each once and, with several runs, behind the runs' names."""
    rows = material.rows
    failed = sum(row["outcome"] == "failed" for row in rows)
    texts = [f"{failed:,} of {counted(len(rows), 'case')} failed"] if failed else []
    texts += [text for comparison in material.comparisons for text in doubts(comparison)]
    ended = [run.stored for run in material.shown if not material.comparisons and not run.stored.complete]
    texts += [f"run {stored.header.run} is not complete: {stored.ending}" for stored in ended]
    sides: dict[str, list[str]] = {}
    if material.baseline is not None and material.shown:
        rows = [row for row in frame.run_rows(material.baseline) if row["outcome"] != "skipped"]
        noted = notes.statements(material.baseline, rows)
        sides["baseline"] = lines(noted, material.baseline.cases, everything=False)
    for run in material.shown:
        noted = run.result.notes([row for row in run.rows if row["outcome"] != "skipped"])
        name = run.name if len(material.shown) > 1 else "candidate"
        sides.setdefault(name, []).extend(lines(noted, run.stored.cases, everything=False))
    owners: dict[str, list[str]] = {}
    for name, lines_of_side in sides.items():
        for text in lines_of_side:
            owners.setdefault(text, []).append(name)
    texts += [text if len(runs) == len(sides) else f"{few(runs, NAMED)}: {text}" for text, runs in owners.items()]
    names = {run.name for run in material.shown}
    return [as_sentence(text, names) for text in dict.fromkeys([*texts, *material.remarks])]


def networks(material: Material) -> View | None:
    """Return the precision to take of each network and why, and each precision's gain; None without a measurement."""
    measured = material.networks
    if not measured:
        return None
    hosts = {(run.stored.header.environment.host, run.stored.header.environment.cpu) for run in material.shown}
    if len(hosts) > 1:
        machines = told_apart([(run.stored, run.rows, run.result.takes) for run in material.shown])
        measured = on_machines(machines)
        document = side_by_side([machine.place for machine in machines], measured, ())
        blocks = [block for section in document.sections() for block in section.blocks]
    else:
        blocks = tables(measured)
    folding = list[Block]()
    for block in blocks:
        hidden = cut(replace(block, rows=block.rows[AT_ONCE:]), MOST)
        more = [replace(hidden, title=f"{len(block.rows) - AT_ONCE:,} more", folded=True)] if hidden.rows else []
        folding += [replace(block, rows=block.rows[:AT_ONCE]), *more]
    blocks = [*folding, *([means] if (means := brought(measured)).rows else [])]
    crossings = [text for run in material.shown for text in lines(run.result.crossings, run.stored.cases)]
    blocks += map(Block, dict.fromkeys(map(as_sentence, crossings)))
    if len(measured) <= AT_ONCE:
        takes = [(f"{network.name} {network.rows[0]['phase']}", network.take) for network in material.networks]
        why = [(name, "; ".join([answer(take.statement), *map(words, take.hints)])) for name, take in takes]
        blocks.append(Block("why, in sentences", ["network", "why"], why, folded=True))
    return View(id="networks", title="Networks", parts=[Part(id="table", title="", blocks=blocks)])


def explanation(material: Material) -> View | None:
    """Return the studies of the runs; None without any."""
    parts = study_parts(material)
    return View(id="explanation", title="Why", parts=parts) if parts else None


def cases(material: Material) -> View | None:
    """Return a table of every case that was measured or failed; None without any."""
    pairs = [(run, row) for run in material.shown for row in run.rows if row["outcome"] != "skipped"]
    if not pairs:
        return None
    of_runs = [run.stored.cases[row["case_id"]] for run, row in pairs]
    labels = case_labels(of_runs, precision=False)
    rows: list[Row] = [{**row, "case": labels[row["case_id"]], "run": run.name} for run, row in pairs]
    heads = ("case", "run") if len(material.shown) > 1 else ("case",)
    names: list[Column[Row]] = [Column("", itemgetter(head), head) for head in heads]
    block = table(
        " · ".join(filter(None, [counted(len(pairs), "case"), common_traits(of_runs)])),
        [*names, *COLUMNS[:-1], *map(metric_column, FURTHER), COLUMNS[-1]],
        rows,
        "speed and memory times fp32's, with 95% intervals; error against fp64",
    )
    block = replace(block, numbers=block.headers[len(names) + 1 : -1])
    return View(id="cases", title="Cases", parts=[Part(id="table", title="", blocks=[block])], sortable="cases")


def tradeoff(material: Material) -> View | None:
    """Return the chart of speed against error; None where no case has both."""
    named = [
        (f"{network.name} {network.rows[0]['phase']}", row)
        for network in material.networks
        for row in network.rows
        if row["outcome"] == "ok" and row["precision"] != BASELINE
    ]
    points = speed_points(named)
    if not points:
        return None
    right = [point for point in points if not point["wrong"]]
    words = f"{counted(len(points), 'case')}; a cross: refused or undecided."
    if right:
        best = max(right, key=lambda point: float(point["speed"]))
        facts = f"{best['speed_text']}, error {best['error_text']}"
        words += f" The fastest that is ok is {best['table']} {best['precision']}: {facts}."
    layers = {"layer": speed_layers(points, material.budget.output_rel_l2)}
    picture = Picture(spec=layers, rows=points, alt=words)
    part = Part(id="plane", title="", charts=[Chart(id="tradeoff", title="Speed against error", pictures=[picture])])
    return View(id="tradeoff", title="Trade-off", parts=[part])


def environment(material: Material) -> View | None:
    """Return where, when and with what versions each run was measured; None where there is no run."""
    runs = [*([material.baseline] if material.baseline else []), *material.runs]
    if not runs:
        return None
    blocks = [
        runs_block([{"run": run_name(run), **run_facts(run)} for run in runs]),
        *(
            Block(
                f"all that is recorded of {run_name(run)}",
                ["fact", "value"],
                list(dotted("", msgspec.to_builtins(run.header))),
                folded=True,
            )
            for run in runs
        ),
    ]
    return View(id="environment", title="Environment", parts=[Part(id="runs", title="", blocks=blocks)])


def runs_block(entries: Sequence[Mapping[str, str]]) -> Block:
    """Return the table of runs, without the columns that are empty in all of them."""
    heads = [head for head in entries[0] if any(entry[head] for entry in entries)]
    return Block("times in UTC", heads, [[entry[head] for head in heads] for entry in entries])


def run_facts(stored: StoredRun) -> dict[str, str]:
    """Return where, when and with what versions a run was measured, and how it went."""
    header, environment = stored.header, stored.header.environment
    rows = [] if header.explains else frame.run_rows(stored)
    devices = notes.measured_devices(rows)
    control = control_ratio(stored) if rows else None
    outcomes = Counter(row["outcome"] for row in rows)
    return {
        "began": f"{moment(header.started_at):%Y-%m-%d %H:%M}",
        "ended": " · ".join(filter(None, [stored.ending, CUT if stored.cut else ""])),
        "host": environment.host,
        "device": few(machine(header, device)[0] for device in devices) or environment.cpu,
        "torch": environment.torch_version,
        "commit": short_commit(header.commit) if header.commit else "",
        "cases": outcomes_said(outcomes),
        "rounds": f"{len(stored.rounds):,}" if stored.rounds else "",
        "control": f"{format_percent(control.apart - 1)} apart" if control else "",
    }


@lru_cache(maxsize=1)
def study_parts(material: Material) -> list[Part]:
    """Return the parts of studies that found anything in the runs on the page, in the order of `KINDS`."""
    parts = (_study_part(material, kind) for kind in KINDS.values())
    return [part for part in parts if part is not None]


def _study_part(material: Material, kind: Kind) -> Part | None:
    """Return the part of a kind of studies, the cases with the most problems first; None without any."""
    study, passes = study_of(kind.name), _passes(material, kind) if kind.of_cases else []
    labels = case_labels(run.cases[case_id] for run, case_id, _ in passes)
    names = names_apart([labels[case_id] for _, case_id, _ in passes], (run_name(run) for run, _, _ in passes))
    subjects = [
        Subject(name, record, run.cases[case_id]) for name, (run, case_id, record) in zip(names, passes, strict=True)
    ]
    if study.subjects is not None:
        subjects = [Subject(found.name, found) for found in study.subjects(material.runs, None)]
    known = {case_id for run in material.runs for case_id in studies.found_of(study, run)}
    left: dict[str, list[str]] = {}
    for run in material.explanations:
        labels = case_labels(run.cases.values()) if run.header.explains == kind.name else {}
        for case_id in [case_id for case_id in labels if case_id not in known]:
            skip, failure = run.skips.get(case_id), run.failures.get(case_id)
            left[case_id] = [labels[case_id], skip.reason if skip else failure.said if failure else NOT_REACHED]
    if not (subjects or left):
        return None
    subjects.sort(key=lambda subject: -studies.problems(study.conclusions(subject.case, subject.found)))
    details = list[Detail]()
    for place, subject in enumerate(subjects):
        section = studies.section(study, subject.case, subject.found)
        first, *further = [block for block in section.blocks if not block.headers] or [Block(section.title)]
        blocks = [*further, *(cut(block) for block in section.blocks if block.headers)] if place < DETAILED else []
        texts = study.code(subject.case, subject.found) if place < DETAILED else {}
        pasted = next((Code("To paste", text) for text in texts.values()), None)
        details.append(Detail(name=subject.name, said=first.title, blocks=blocks, code=pasted))
    charts, notes = drawn(subjects, [detail.said for detail in details], *study.charts)
    if len(details) > LISTED:
        notes.append(f"{LISTED} of {len(details):,} cases are listed.")
    measured = {place_of(run.stored.header) for run in material.shown}
    places = dict.fromkeys(place_of(run.header) for run, _, _ in passes) if measured else {}
    elsewhere = "; ".join(f"torch {torch} on {host}" for host, torch in places if (host, torch) not in measured)
    lacking = cut(Block("without a result", ["case", "reason"], list(left.values())), LISTED)
    return Part(
        id=study.kind,
        title=study.title,
        said=[*([f"Run with {elsewhere}, which measured nothing on this page."] if elsewhere else []), *notes],
        charts=charts,
        blocks=[lacking] if left else [],
        details=details[:LISTED],
        finding=next((f"{detail.name}: {detail.said}" for detail in details), ""),
    )


def contents(material: Material) -> list[str]:
    """Return the title of an explaining page, such as "casts of 3 cases" or "ceilings of cpu"."""
    texts = []
    for kind in KINDS.values():
        names = dict.fromkeys(name for run in material.runs for name in studies.found_of(study_of(kind.name), run))
        which = counted(len(_passes(material, kind)), "case") if kind.of_cases else ", ".join(names)
        texts += [f"{kind.contents} {which}"] if names else []
    return texts


def _passes(material: Material, kind: Kind) -> list[tuple[StoredRun, str, Any]]:
    """Return the findings on the cases of the page, the newest of each case, host and torch version."""
    case_ids = {id(run.stored): {row["case_id"] for row in run.rows} for run in material.shown}
    newest: dict[tuple[str, str, str], tuple[StoredRun, str, Any]] = {}
    for run in material.runs:
        wanted = case_ids.get(id(run))
        for case_id, record in studies.found_of(study_of(kind.name), run).items():
            if wanted is None or case_id in wanted:
                newest[*place_of(run.header), case_id] = run, case_id, record
    return list(newest.values())


FOLDED = 60
"""A table of more rows is folded away until it is asked for."""


def trends(material: Material) -> View | None:
    """Return the changes over each axis; None without trends."""
    parts = [_trend_part(trend) for trend in material.trends]
    return View(id="trends", title="Trends", parts=parts) if parts else None


def _trend_part(trend: Trend) -> Part:
    names, axis = series_names(trend), trend.axis.replace("_", " ")
    ordered = sorted(trend.series, key=lambda series: not series.changes)
    moving = (series for series in ordered if len(series.points) > 1)
    every = (Subject(names[series.key] + where(trend, series.place), series) for series in moving)
    by_metric = by_key(every, lambda subject: subject.found.metric.name)
    changed = [subjects for subjects in by_metric.values() if subjects[0].found.changes]
    charts, notes = list[Chart](), dict[str, None]()
    for subjects in changed or [by_metric[name] for name in by_metric if TRACKED[name].noisy]:
        column, many = subjects[0].found.metric.column, sum(bool(subject.found.changes) for subject in subjects)
        drawing: Drawing[Subject[Series]] = Drawing(
            name=f"trends-{trend.axis}-{subjects[0].found.metric.name}",
            title=f"{column.label} over {axis}",
            alt=f"{many:,} of {len(subjects):,} series changed.",
            rows=lambda subject: _trend_rows(subject.found),
            spec=partial(_trend_spec, axis, column),
        )
        texts = []
        for subject in subjects:
            changes = subject.found.changes[:LONGEST_LIST]
            parts = [f"{change.direction} at {change.x.label}, {size(change)}" for change in changes]
            texts.append(as_sentence("; ".join(parts) or "no change"))
        pictures, cut_short = drawn(subjects, texts, drawing)
        charts += pictures
        notes |= dict.fromkeys(cut_short)
    document = trend_document(trend, show_all=True)
    failures = [f"Broken in the end: {failure}." for failure in document.missing]
    blocks = list[Block]()
    for section in document.sections():
        first, *others = section.blocks
        titled = [Block(section.title), first] if first.title else [replace(first, title=section.title)]
        blocks += [replace(block, folded=len(block.rows) > FOLDED) for block in (*titled, *others)]
    return Part(id=trend.axis, title=f"Over {axis}s", said=[*failures, *notes], charts=charts, blocks=blocks)


def _trend_rows(series: Series) -> list[dict[str, Any]]:
    """Return a row for each point of a series, with the ends of its interval or, of several runs, of their values."""
    changes = {change.x: change for change in series.changes}
    labels: Counter[str] = Counter()
    rows, unit = [], series.metric.column.unit
    for point in series.points:
        labels[point.x.label] += 1
        again = labels[point.x.label]  # others of the label are numbered
        several = len(point.each) > 1
        ends = [end for run in point.each for end in ([run.value] if several else [run.value, run.low, run.high])]
        known = [end for end in ends if point.value is not None and end is not None and math.isfinite(end)]
        low, high = min(known, default=None), max(known, default=None)
        between = "" if low == high else f" ({format_quantity(low, unit)} to {format_quantity(high, unit)})"
        text = f"{format_quantity(point.value, unit)}{between}, {counted(len(point.each), 'run')}"
        change = changes.get(point.x)
        rows.append(
            {
                "x": f"{point.x.label} ({again})" if again > 1 else point.x.label,
                "value": point.value,
                "low": low,
                "high": high,
                "text": "no value" if point.value is None else text,
                "change": f"{change.direction} {size(change)}: {what(change)}" if change else "",
            }
        )
    return rows


def _trend_spec(axis: str, column: metrics.Column, rows: Rows) -> Mapping[str, Any]:
    """Return the line of one series: intervals, points, a rule at each change; a point without a value breaks it."""

    def y(field: str) -> dict[str, Any]:
        label = LABELS.get(column.unit, "format(datum.value, '.4~s')")
        return quantity(field, column.label, {}, {"labelExpr": label, "tickCount": 5})

    labels, xs = {"labelAngle": -30, "labelLimit": 120}, [row["x"] for row in rows]
    layers: list[tuple[Mapping[str, Any], dict[str, Any]]] = [
        ({"type": "rule", "strokeWidth": 5, "opacity": 0.3}, {"y": y("low"), "y2": {"field": "high"}}),
        ({"type": "line", "invalid": "break-paths-show-domains"}, {"y": y("value")}),
        ({"type": "point", "opacity": 1, "size": 80}, {"y": y("value")}),
    ]
    return {
        "encoding": {
            "x": {"field": "x", "type": "ordinal", "title": axis, "axis": labels, "scale": {"domain": xs}},
            "tooltip": tooltip(x=axis, text=column.label, change="change"),
        },
        "layer": [
            {"transform": [{"filter": "datum.change"}], "mark": dict(DASHED)},
            *({"mark": {**mark, "color": "var(--link)"}, "encoding": at} for mark, at in layers),
        ],
    }
