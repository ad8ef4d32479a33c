"""The section of how times spread: the rounds of a case, the baseline's beside the candidate's; every one is drawn."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from ampbench.core.units import counted, format_seconds
from ampbench.judge import frame
from ampbench.judge.fitness import CAUSES, unfit_rounds
from ampbench.judge.rounds import MeasuredRun, Role
from ampbench.records.changes import Change
from ampbench.report.material import Material, ShownCase
from ampbench.show.changes import reason
from ampbench.show.charts import Chart, Choice, label_expression, quantity, tooltip
from ampbench.show.comparison import CHANGED
from ampbench.show.page import View
from ampbench.show.rows import Row, number
from ampbench.store import StoredRun


class One(NamedTuple):
    """A round: its `number` in the file, its value in `seconds`, and why it is unfit, if it is."""

    role: Role
    number: int
    seconds: float
    unfit: str | None


def rounds_by_case(stored: StoredRun) -> dict[str, list[One]]:
    """Return the rounds of each case in the order of the file; those without a time that can be drawn are left out."""
    run = MeasuredRun.of(stored)
    unfit = unfit_rounds(run)
    columns = (run.rounds.roles, run.rounds.blocks, run.rounds.seconds, unfit.cause, unfit.value)
    rounds: dict[str, list[One]] = {}
    for each, role, block, seconds, cause, value in zip(
        stored.rounds, *(column.tolist() for column in columns), strict=True
    ):
        if 0 < seconds < math.inf:
            why = None if cause < 0 else CAUSES[cause].format(value)
            rounds.setdefault(each.case_id, []).append(One(Role(role), block, seconds, why))
    return rounds


ARMS: Mapping[str, str] = MappingProxyType(
    {"baseline": "diamond", "candidate": "circle", "round": "circle", "control": "square"}
)
"""Each arm's shape; its colour is `--arm-NAME` of distributions.css."""

EDGE = 1.25
"""A band is drawn to so many times beyond the rounds of its case: with three rounds it can be far wider."""

BLANK: Mapping[str, Any] = dict.fromkeys(("low", "left", "right", "high", "line", "place", "unfit"))
"""What not every row of the chart has. A row without a `line` is a run's median, with the ends of its interval and
where the band is drawn; one with it is a round."""


class _Line(NamedTuple):
    """A round in the drawing: `arm` decides its colour, `label` its line."""

    arm: str
    label: str
    one: One


@dataclass(frozen=True, slots=True)
class Side:
    """One run's part in a case: `arm` is "baseline" or "candidate", or "round" where there is only one run."""

    arm: str
    row: Row
    rounds: Sequence[One]


def rows_of(case: ShownCase, sides: Sequence[Side]) -> tuple[list[dict[str, Any]], list[_Line]]:
    """Return a case's rows of the chart, one a run with median and interval and one a round, and its rounds."""
    lines = _lines(case, sides)
    seconds = [line.one.seconds for line in lines]
    rows = [_middle(side, min(seconds) / EDGE, EDGE * max(seconds)) for side in sides if side.rounds]
    for place, (arm, label, one) in enumerate(lines):
        rows.append({"arm": arm, "seconds": one.seconds, "line": label, "unfit": one.unfit, "place": place})
    return [{**BLANK, "case": str(case.number), **row} for row in rows], lines


def _middle(side: Side, edge: float, limit: float) -> dict[str, Any]:
    row: dict[str, Any] = {"arm": side.arm, "seconds": number(side.row["seconds_median"])}
    low, high = number(side.row["seconds_low"]), number(side.row["seconds_high"])
    if low is not None and high is not None:
        row |= {"low": low, "left": max(low, edge), "high": high, "right": min(high, limit)}
    return row


def _spec(arms: set[str], longest: int) -> dict[str, Any]:
    """Return the chart: bands and medians behind, then rounds. The longest label has so many letters."""
    domain = [arm for arm in ARMS if arm in arms]
    field = {"field": "arm", "type": "nominal", "legend": {"symbolOpacity": 1} if len(domain) > 1 else None}
    colours = {"domain": domain, "range": [f"var(--arm-{arm})" for arm in domain]}
    colour = {"color": {**field, "scale": colours}}
    shape = {"shape": {**field, "scale": {"domain": domain, "range": [ARMS[arm] for arm in domain]}}}
    on_line = {"x": _at("seconds"), "y": _line_axis(longest), **colour}
    middles, rounds = {"filter": "!isValid(datum.line)"}, {"filter": "isValid(datum.line)"}
    band: dict[str, Any] = {
        "transform": [middles, {"filter": "isValid(datum.left)"}, _said("low"), _said("high")],
        "mark": {"type": "rect", "opacity": 0.16},
        "encoding": {"x": _at("left"), "x2": {"field": "right"}, **colour},
    }
    band["encoding"]["tooltip"] = tooltip(arm="median of", low_time="95% from", high_time="to")
    told = tooltip(arm="median of", seconds_time="is")
    median = {
        "transform": [middles, _said("seconds")],
        "mark": {"type": "rule", "strokeWidth": 1.5},
        "encoding": {"x": _at("seconds"), **colour, "tooltip": told},
    }
    fitness = {"calculate": "isValid(datum.unfit) ? 'not fit: ' + datum.unfit : 'fit'", "as": "machine"}
    hollow = {"condition": {"test": "isValid(datum.unfit)", "value": 0}, "value": 1}
    told = tooltip(line="round", seconds_time="value", machine="machine")
    values = {
        "transform": [rounds, _said("seconds"), fitness],
        "mark": {"type": "point", "size": 55, "opacity": 1},
        "encoding": {**on_line, **shape, "stroke": colour["color"], "fillOpacity": hollow, "tooltip": told},
    }
    return {"layer": [band, median, values]}


def _at(field: str) -> dict[str, Any]:
    """Return a field's place on the axis of times."""
    axis = {"labelExpr": label_expression("s"), "tickCount": 5}
    return quantity(field, "time per step", {"zero": False, "nice": False, "padding": 22}, axis)


def _line_axis(longest: int) -> dict[str, Any]:
    """Return the axis of rounds; the longest label of what is drawn first has so many letters.

    Room is kept for them, as a reader's font may be wider than the SVG's.
    """
    return {
        "field": "line",
        "type": "nominal",
        "title": None,
        "sort": {"field": "place", "op": "min"},
        "scale": {"type": "point", "padding": 0.6},
        "axis": {"domain": False, "ticks": False, "grid": True, "minExtent": 7 * longest},
    }


def _said(field: str) -> dict[str, str]:
    """Return the calculation of a field's time in words, as `field`_time."""
    return {"calculate": label_expression("s", f"datum.{field}", ".4~r"), "as": f"{field}_time"}


def _lines(case: ShownCase, sides: Sequence[Side]) -> list[_Line]:
    """Return the rounds of a case from top to bottom: those of a block together where both runs share blocks."""
    found = []
    together = case.shown.comparison is not None and case.shown.comparison.interleaved
    for order, side in enumerate(sides):
        for one in side.rounds:
            name = "control" if one.role is Role.CONTROL else side.arm
            told = f"{side.arm} control" if name == "control" and len(sides) > 1 and not together else name
            fresh = one.role is Role.CONFIRMATION
            label = f"{told} {one.number}{', fresh' if fresh else ''}"
            found.append(((order, one.role, one.number), (fresh, one.number, order, one.role), _Line(name, label, one)))
    found.sort(key=lambda each: each[1] if together else each[0])
    return [line for *_, line in found]


def distributions(material: Material) -> View | None:
    """Return the view; None where no case has rounds, as in runs that another program kept without them."""
    baseline = material.baseline
    rounds = {id(run): rounds_by_case(run) for run in [*(one.stored for one in material.shown), baseline] if run}
    before = {row["case_id"]: row for row in frame.run_rows(baseline)} if baseline else {}
    found: list[tuple[ShownCase, list[Side]]] = []
    for case in material.cases:
        own = rounds[id(case.shown.stored)].get(case.row["case_id"], [])
        sides = [Side("round", case.row, own)]
        if baseline is not None and case.baseline_id is not None:
            old = rounds[id(baseline)].get(case.baseline_id, [])
            sides = [Side("baseline", before[case.baseline_id], old), Side("candidate", case.row, own)]
        if any(side.rounds for side in sides):
            found.append((case, sides))
    if not found:
        return None
    found.sort(key=lambda one: _rank(one[0]))
    rows: list[dict[str, Any]] = []
    every: list[_Line] = []
    longest = 0
    for case, sides in found:
        own_rows, lines = rows_of(case, sides)
        rows += own_rows
        every += lines
        longest = longest or max(len(line.label) for line in lines)
    chart = Chart(
        id="distributions-rounds",
        title="Rounds",
        alt="",
        spec=_spec({line.arm for line in every}, longest),
        dataset="distributions",
        height=14,
        lines="line",
        choose="case",
        choices=[Choice(value=str(case.number), label=case.name, alt=_case_said(case, sides)) for case, sides in found],
    )
    return View(
        id="distributions",
        title="Distributions",
        template="distributions.html",
        content={"legend": _legend([case for case, _ in found], every)},
        charts=[chart],
        datasets={"distributions": rows},
    )


def _finding(case: ShownCase) -> Change | None:
    """Return what the comparison says of a case's time."""
    return next((one for one in case.findings if one.kind == "time"), None)


def _rank(case: ShownCase) -> tuple[int, float]:
    """Return where a case stands in the choice: changed ones first, the largest change before others."""
    found = _finding(case)
    if found is None or found.status not in CHANGED:
        return len(CHANGED), 0.0
    return CHANGED.index(found.status), -abs(math.log1p(max(found.change or 0.0, -0.999)))


def _case_said(case: ShownCase, sides: Sequence[Side]) -> str:
    """Return what the chart shows of a case."""
    parts = [_summary_said(side) for side in sides if side.rounds]
    found = _finding(case)
    return f"{case.name}: {', '.join(parts)}{f'; {reason(found)}' if found else ''}."


def _summary_said(side: Side) -> str:
    median, low, high = (number(side.row[f"seconds_{name}"]) for name in ("median", "low", "high"))
    ends = "" if low is None or high is None else f" (95%: {format_seconds(low)} to {format_seconds(high)})"
    whose = "" if side.arm == "round" else f"{side.arm} "
    return f"{whose}median {format_seconds(median)}{ends} over {counted(side.row['rounds'], 'round')}"


def _legend(cases: Sequence[ShownCase], lines: Sequence[_Line]) -> list[str]:
    """Return how the chart is to be read."""
    said = [
        "One line a round: the mark is its value, the fastest sample of all its builds.",
        "The vertical line is the median of the rounds, the band its 95% interval.",
    ]
    if compared := [case.shown.comparison for case in cases if case.shown.comparison]:
        said.append(
            "Rounds with the same number were measured in one block, at about the same time."
            if all(one.interleaved for one in compared)
            else "The two runs were measured one after the other: rounds with the same number have nothing in common."
        )
    if any(line.arm == "control" for line in lines):
        said.append("Control: the same case measured a second time; its rounds count for nothing else.")
    if any(line.one.role is Role.CONFIRMATION for line in lines):
        said.append("Fresh: measured to confirm a change that was seen before.")
    if unfit := sum(line.one.unfit is not None for line in lines):
        rounds = "1 round was" if unfit == 1 else f"{unfit:,} rounds were"
        said.append(f"Hollow: {rounds} measured while the machine was not fit for it.")
    return said
