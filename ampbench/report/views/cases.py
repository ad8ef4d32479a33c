"""The section of cases: each once, with numbers, verdicts, failures and skips, and their changes drawn in it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ampbench.core.metrics import GATED, METRICS
from ampbench.core.precisions import PRECISIONS, ordered
from ampbench.core.units import UNDEFINED, counted, format_limit, times
from ampbench.judge import notes
from ampbench.judge.times import TIME
from ampbench.records.changes import EQUAL, OUTCOME, Change, ChangeCode, ChangeStatus
from ampbench.records.labels import common_traits
from ampbench.report.facts import reasons
from ampbench.report.material import Material, Shown, ShownCase
from ampbench.show.changes import (
    brief,
    change_text,
    interval_text,
    metric_label,
    reason,
    remarks,
    threshold_text,
    value_text,
)
from ampbench.show.comparison import CHANGE_LEGEND, KINDS, WORST_FIRST
from ampbench.show.page import View
from ampbench.show.results import COLUMNS, Column, metric_column
from ampbench.show.rows import Row, grouped, judged_error, number, precision_label
from ampbench.show.wording import words

LEAST_TIMES = math.log(2)
"""The scale of times is at least twofold, so that what hardly differs does not look far apart."""
LEAST_LIMIT = 0.1
"""Changes are drawn to 10% at least, or to `THRESHOLDS` times the threshold; what lies beyond is at the edge."""
THRESHOLDS = 5

Scale = tuple[float, float]
"""The natural logarithms of the values at the left and the right edge."""


def time_scale(rows: Iterable[Row]) -> Scale | None:
    """Return the scale on which the times of `rows` are drawn, with their intervals; None where there is no time."""
    columns = ("seconds_low", "seconds_median", "seconds_high")
    logs = [log for row in rows for column in columns if (log := _log(row[column])) is not None]
    if not logs:
        return None
    middle, half = (min(logs) + max(logs)) / 2, max(LEAST_TIMES, max(logs) - min(logs)) / 2
    return middle - half, middle + half


def time_bar(row: Row, scale: Scale | None) -> str:
    """Return a row's time and its interval on `scale`, "" where there is none."""
    logs = [_log(row[name]) for name in ("seconds_median", "seconds_low", "seconds_high")]
    if scale is None or logs[0] is None:
        return ""
    middle, low, high = (None if log is None else (log - scale[0]) / (scale[1] - scale[0]) for log in logs)
    return _bar(middle or 0.0, low, high)


def change_limit(findings: Iterable[Change]) -> float:
    """Return the change at the edges of a column of changes."""
    return (
        max((THRESHOLDS * one.threshold for one in findings if math.isfinite(one.threshold)), default=0) or LEAST_LIMIT
    )


def change_bar(one: Change, limit: float) -> str:
    """Return a change and its interval between `-limit` and `limit`, and half the width of the threshold's band."""
    if one.change is None or math.isnan(one.change):
        return ""
    exact = one.low is None or one.high is None or one.low == one.high
    middle, low, high = ((end / limit + 1) / 2 for end in (one.change, one.low or 0.0, one.high or 0.0))
    bar = _bar(middle, None, None) if exact else _bar(middle, low, high)
    return f"{bar};--t:{_share(one.threshold / limit / 2)}"


def _bar(middle: float, low: float | None, high: float | None) -> str:
    """Return shares of the width as CSS; without both ends there is no interval."""
    bar = f"--m:{_share(middle)}"
    return bar if low is None or high is None else f"{bar};--l:{_share(low)};--h:{_share(high)}"


def _share(value: float) -> str:
    return f"{round(100 * min(max(value, 0.0), 1.0), 3):.3g}%"


def _log(value: object) -> float | None:
    """Return the logarithm of a time, None where it is none."""
    seconds = number(value)
    return math.log(seconds) if seconds is not None and 0 < seconds < math.inf else None


class Cell(NamedTuple):
    """A cell: its text, a second line, the CSS variables of its bar, and what it is sorted by if not the text.

    `left`: it is words, set to the left.
    """

    text: str
    more: str = ""
    bar: str = ""
    key: str = ""
    left: bool = False


class Said(NamedTuple):
    """What a comparison says of a case: a verdict, and a sentence about the metrics that have it."""

    verdict: str
    sentence: str


def verdicts_of(case: ShownCase) -> list[Said]:
    """Return what the comparison says of a case, the worst first; metrics of which it says the same are told together.

    That nothing changed needs no reason, nor how far what luck has no part in did: the numbers stand beside it.
    """
    together: dict[tuple[ChangeStatus, str], list[Change]] = {}
    for one in sorted(case.findings, key=lambda one: WORST_FIRST.index(one.status)):
        why = "; ".join(part for part in (_reason(one), *remarks(one)) if part)
        together.setdefault((one.status, why), []).append(one)
    said = []
    for (verdict, why), findings in together.items():
        names = [metric_label(one.metric) for one in findings]
        if verdict is ChangeStatus.UNCHANGED and not why:
            moved = {one.kind for one in case.findings if one.status is not ChangeStatus.UNCHANGED}
            # a kind of which something did change is told metric by metric
            names = [kind for kind in KINDS if kind not in moved and any(one.kind == kind for one in findings)]
            names += [metric_label(one.metric) for one in findings if one.kind in moved]
        what = ", ".join(name for name in names if name != OUTCOME)
        said.append(Said(verdict.value, ": ".join(part for part in (what, why) if part)))
    return said


def _reason(one: Change) -> str:
    """Return why a finding has its verdict, as far as the columns of changes do not say it."""
    if one.status is ChangeStatus.UNCHANGED:
        return ""
    if one.code is ChangeCode.BEYOND_THRESHOLD and one.kind != "time" and change_text(one):
        return threshold_text(one) if one.threshold else ""
    return brief(one) if one.metric == OUTCOME else reason(one)  # the row says why a case failed or was skipped


def change_limits(cases: Iterable[ShownCase]) -> dict[str, float | None]:
    """Return the metrics of which any change is shown, and to where it is drawn; None where luck has no part in it."""
    findings: dict[str, list[Change]] = {}
    for case in cases:
        for one in case.findings:
            findings.setdefault(one.metric, []).append(one)
    moved = [
        name
        for name in GATED
        if any(one.change is not None and not abs(one.change) <= EQUAL for one in findings.get(name, ()))
    ]
    return {name: change_limit(findings[name]) if GATED[name].kind == "time" else None for name in moved}


def change_cells(findings: Sequence[Change], limits: Mapping[str, float | None]) -> list[Cell]:
    """Return the cells of the columns of changes."""
    by_metric = {one.metric: one for one in findings}
    cells = []
    for metric, edge in limits.items():
        one = by_metric.get(metric)
        text = change_text(one) if one else ""
        if one is None or one.change is None or not text:
            cells.append(Cell(UNDEFINED))
            continue
        ends = interval_text(one)
        was = "" if one.baseline is None else f"was {value_text(metric, one.baseline)}"
        more = ", ".join(part for part in (ends, was) if part)
        bar = "" if edge is None else change_bar(one, edge)
        cells.append(Cell(text, more, bar, "" if text[-1] == "%" else f"{one.change:g}"))
    return cells


FLOOR = Column("×floor", ("output_floor_ratio", "output_worst_floor_ratio"), lambda row: (_floor(row), ""))
FURTHER = (
    "items_per_second", "speedup_vs_tf32", "speedup_vs_default", "energy_per_step",
    "ceiling_share", "busy_share", "bytes_per_parameter", "argmax_agreement", "grad_rel_l2",
)  # fmt: skip
"""The metrics of cases beside those that decide."""

FILTERS = ("precision", "phase", "device", "outcome", "verdict")
"""What a reader may filter by, where the cases differ in it."""


class Head(NamedTuple):
    """A column's header. `order` are the values of a column that has an order of its own, `text` is set to the left.

    `means` is told under the pointer.
    """

    key: str
    title: str
    order: str = ""
    text: bool = False
    means: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row of the table. `data` are its values by the name of a filter; `first`: it is the first of its group.

    `linked`: its rounds are shown elsewhere on the page. A case that is not `ok` has a `reason`, and neither `changes`
    nor `cells`. `why` says what accounts for its verdicts.
    """

    case: ShownCase
    run: str
    precision: str
    advised: bool
    first: bool
    linked: bool
    data: Mapping[str, str]
    said: Sequence[Said] = ()
    changes: Sequence[Cell] = ()
    cells: Sequence[Cell] = ()
    reason: str = ""
    why: Sequence[str] = ()


def cases(material: Material) -> View | None:
    """Return the view; None where there is no case at all."""
    if not material.cases:
        return None
    lines: list[Line] = []
    skips: list[tuple[str, list[ShownCase]]] = []
    measured = [one.row for one in material.cases if one.row["outcome"] == "ok"]
    shown_columns = columns_of(measured)
    limits = change_limits(material.cases)
    by_run: dict[int, dict[str, ShownCase]] = {}
    for one in material.cases:
        by_run.setdefault(id(one.shown), {})[one.row["case_id"]] = one
    for shown in material.shown:
        own, run = by_run.get(id(shown), {}), shown.name
        aside = _set_aside(own)
        prefix = f"{run}, " if len(material.shown) > 1 else ""
        skips += [(prefix + said, [own[case_id] for case_id in ids]) for said, ids in aside]
        hidden = {case_id for _, ids in aside for case_id in ids}
        lines += _lines(shown, run, own, hidden, shown_columns, limits)
    return View(
        id="cases",
        title="Cases",
        template="cases.html",
        content={
            "lines": _told_apart(lines),
            "counted": _counted(len(lines), material.cases),
            "heads": _heads(material, shown_columns, limits),
            "several": len(material.shown) > 1,
            "compared": bool(material.comparisons),
            "width": max(len(limits) + len(shown_columns), 1),
            "filters": " ".join(FILTERS),
            "change_legend": CHANGE_LEGEND if limits else "",
            "drawn": any(edge is not None for edge in limits.values()),
            "timed": any(cell.bar for line in lines for cell in line.cells),
            "skips": skips,
        },
    )


def _counted(rows: int, cases: Sequence[ShownCase]) -> str:
    """Say how many cases the table has, what they share, and that others are told of below."""
    common = common_traits(one.case for one in cases)
    said, aside = counted(rows, "case"), ""
    if rows < len(cases):
        said = f"{rows:,} of {counted(len(cases), 'case')}"
        aside = "; why the others were skipped stands below the table"
    return f"{said}{', all ' if common else ''}{common}{aside}"


def _set_aside(own: Mapping[str, ShownCase]) -> list[tuple[str, list[str]]]:
    """Return lines that tell of skipped cases once, each with the ids of those that it tells of.

    A skip that a comparison has more to say of than that nothing ran stays a row.
    """
    rows = [one.row for one in own.values() if all(finding.code is ChangeCode.NOT_RUN for finding in one.findings)]
    reasons: dict[str, list[str]] = {}
    for members in grouped(rows).values():
        for row in members:
            if row["outcome"] == "skipped":
                reasons.setdefault(row["reason"], []).append(row["case_id"])
    return list(zip(map(words, notes.skips(rows)), reasons.values(), strict=True))


def _heads(material: Material, shown_columns: Sequence[Column], limits: Mapping[str, float | None]) -> list[Head]:
    known = ordered((*PRECISIONS, *(one.row["precision"] for one in material.cases)))
    heads = [Head("case", "case", text=True)]
    heads += [Head("verdict", "verdict", "|".join(WORST_FIRST), text=True)] if material.comparisons else []
    heads += [Head("run", "run", text=True)] if len(material.shown) > 1 else []
    heads.append(Head("precision", "precision", "|".join(known), text=True))
    for metric, edge in limits.items():
        label = metric_label(metric)
        drawn = "" if edge is None else f", drawn to ±{format_limit(edge)}"
        heads.append(Head(f"{label.replace(' ', '-')}-change", f"{label} change{drawn}"))
    for one in shown_columns:
        means = "; ".join(METRICS[name].summary for name in one.metrics)
        heads.append(Head(_key(one), one.head, text=one is COLUMNS[-1], means=means))
    return heads if shown_columns else [*heads, Head("outcome", "outcome", text=True)]


def _key(column: Column) -> str:
    """Return what the page's address calls a column: "time" of "time/step"."""
    return column.head.partition("/")[0].replace(" ", "-") if column is not COLUMNS[-1] else "judged"


def _lines(
    shown: Shown,
    run: str,
    own: Mapping[str, ShownCase],
    hidden: set[str],
    shown_columns: Sequence[Column],
    limits: Mapping[str, float | None],
) -> list[Line]:
    """Return the rows of one run, group by group; of a comparison, those with the worst verdicts first."""
    lines = []
    groups = grouped(one.row for one in own.values())
    for group, members in sorted(
        groups.items(), key=lambda each: min(_badness(own[row["case_id"]]) for row in each[1])
    ):
        scale = time_scale(members)
        advice = shown.advice.get(group)
        first = True
        for row in members:
            if row["case_id"] in hidden:
                continue
            case, label, ok = own[row["case_id"]], precision_label(row), row["outcome"] == "ok"
            said = verdicts_of(case)
            verdicts = dict.fromkeys(one.verdict for one in said)
            if len(verdicts) > 1:
                verdicts.pop(ChangeStatus.UNCHANGED, None)  # what moved is what such a case is looked for by
            lines.append(
                Line(
                    case=case,
                    run=run,
                    precision=label,
                    advised=bool(advice and advice.case_id == row["case_id"]),
                    first=first,
                    linked=bool(row["rounds"]),
                    data={name: row[name] for name in FILTERS[:-1]} | {"verdict": "|".join(verdicts)},
                    said=said,
                    changes=change_cells(case.findings, limits) if ok else (),
                    cells=[_cell(one, case, scale) for one in shown_columns] if ok else (),
                    reason="" if ok else f"{row['outcome']}: {row['reason']}",
                    why=reasons(case),
                )
            )
            first = False
    return lines


def _badness(case: ShownCase) -> int:
    """Return the place of a case's worst verdict among them; without a comparison all have one."""
    return min((WORST_FIRST.index(one.status) for one in case.findings), default=len(WORST_FIRST))


def _told_apart(lines: list[Line]) -> list[Line]:
    """Return the lines with those filters only in which they differ; the precision's also colours its row."""
    differing = [name for name in FILTERS if name == "precision" or len({line.data[name] for line in lines}) > 1]
    return [replace(line, data={name: line.data[name] for name in differing if line.data[name]}) for line in lines]


def _floor(row: Row) -> str:
    """Return how many times the error of merely rounding the error is that is judged."""
    value = judged_error(row, "floor_ratio")
    return "" if value is None else times(value)


def columns_of(measured: Sequence[Row]) -> list[Column]:
    """Return the verdict, which no window is too narrow for, and the columns of numbers that any measured row has."""
    columns = [COLUMNS[-1], *COLUMNS[1:-1], FLOOR, *map(metric_column, FURTHER)]
    return [column for column in columns if any(any(column.cell(row)) for row in measured)]


def _cell(column: Column, case: ShownCase, scale: Scale | None) -> Cell:
    """Return a cell: what stands beside its number below that, so that numbers align; a time has its bar there."""
    text, beside = column.cell(case.row)
    bar = time_bar(case.row, scale) if TIME in column.metrics else ""
    return Cell(text or UNDEFINED, beside, bar, left=column is COLUMNS[-1])
