"""The section of how times spread: the rounds of a case, the baseline's beside the candidate's; every one is drawn."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ampbench.core.units import counted, format_seconds
from ampbench.judge import frame
from ampbench.judge.rounds import CAUSES, MeasuredRun, Role, unfit_rounds
from ampbench.records.changes import Change
from ampbench.report.material import Material, ShownCase
from ampbench.show.changes import reason
from ampbench.show.charts import Chart, Choice, label_expression, quantity, tooltip
from ampbench.show.comparison import CHANGED
from ampbench.show.page import Part, View, view_of_parts
from ampbench.show.rows import Row, number
from ampbench.store import StoredRun

ARMS: Mapping[str, str] = MappingProxyType(
    {"baseline": "diamond", "candidate": "circle", "round": "circle", "control": "square"}
)
"""Each arm's shape; its colour is `--arm-NAME` of distributions.css."""
EDGE = 1.25
"""The widest band drawn, in ranges of the rounds of its case: with three rounds an interval can be far wider."""
BLANK: Mapping[str, Any] = dict.fromkeys(("low", "left", "right", "high", "line", "place", "unfit"))
"""What not every row of the chart has. A row without a `line` is a run's median, with the ends of its interval and
where the band is drawn; one with it is a round."""

SAID = (
    "One line a round: the mark is its value, the fastest sample of all its builds; hollow: the machine was not fit to "
    "measure. The vertical line is the median of the rounds, the band its 95% interval. Control: the same case "
    "measured a second time. Fresh: measured to confirm a change."
)
IN_BLOCKS = "Rounds with the same number were measured in one block, at about the same time."
APART = "The two runs were measured one after the other: rounds with the same number have nothing in common."


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A round: its `number` in the file, its value in `seconds`, and why it is unfit, if it is."""

    role: Role
    number: int
    seconds: float
    unfit: str | None


@dataclass(frozen=True, slots=True)
class Side:
    """One run's part in a case: `arm` is "baseline" or "candidate", or "round" where there is only one run."""

    arm: str
    row: Row
    rounds: Sequence[Timed]


def rounds_by_case(stored: StoredRun) -> dict[str, list[Timed]]:
    """Return the rounds of each case in the order of the file; those without a time that can be drawn are left out."""
    run = MeasuredRun.of(stored)
    unfit = unfit_rounds(run)
    columns = (run.rounds.roles, run.rounds.blocks, run.rounds.seconds, unfit.cause, unfit.value)
    rounds: dict[str, list[Timed]] = {}
    for each, role, block, seconds, cause, value in zip(stored.rounds, *(one.tolist() for one in columns), strict=True):
        if 0 < seconds < math.inf:
            why = None if cause < 0 else CAUSES[cause].format(value)
            timed = Timed(role=Role(role), number=block, seconds=seconds, unfit=why)
            rounds.setdefault(each.case_id, []).append(timed)
    return rounds


def distributions(material: Material) -> View | None:
    """Return the view; None where no case has rounds, as in runs that another program kept without them."""
    found = [(case, sides) for case, sides in _sides(material) if any(side.rounds for side in sides)]
    if not found:
        return None
    found.sort(key=lambda pair: _rank(pair[0]))
    rows = [{**BLANK, "case": str(case.number), **row} for case, sides in found for row in _rows(case, sides)]
    first = [row["line"] for row in rows if row["case"] == rows[0]["case"] and row["line"]]
    chart = Chart(
        id="distributions-rounds",
        title="Rounds",
        alt="",
        spec=_spec({row["arm"] for row in rows}, max(map(len, first))),
        dataset="distributions",
        height=14,
        lines="line",
        choose="case",
        choices=[Choice(value=str(case.number), label=case.name, alt=_words(case, sides)) for case, sides in found],
    )
    said = [SAID]
    if material.comparisons:
        said.append(IN_BLOCKS if any(one.interleaved for one in material.comparisons) else APART)
    part = Part(id="rounds", title="", said=said, charts=[chart], datasets={"distributions": rows})
    return view_of_parts("distributions", "Distributions", [part])


def _sides(material: Material) -> list[tuple[ShownCase, list[Side]]]:
    baseline = material.baseline
    rounds = {id(run): rounds_by_case(run) for run in [*(one.stored for one in material.shown), baseline] if run}
    before = {row["case_id"]: row for row in frame.run_rows(baseline)} if baseline else {}
    found = []
    for case in material.cases:
        own = rounds[id(case.shown.stored)].get(case.row["case_id"], [])
        sides = [Side("round", case.row, own)]
        if baseline is not None and case.baseline_id is not None:
            old = rounds[id(baseline)].get(case.baseline_id, [])
            sides = [Side("baseline", before[case.baseline_id], old), Side("candidate", case.row, own)]
        found.append((case, sides))
    return found


def _rows(case: ShownCase, sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Return a case's rows of the chart: one a run with median and interval, and one a round from top to bottom.

    Rounds of a block stand together where both runs share blocks.
    """
    together = case.shown.comparison is not None and case.shown.comparison.interleaved
    placed: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for order, side in enumerate(sides):
        for timed in side.rounds:
            arm = "control" if timed.role is Role.CONTROL else side.arm
            fresh = timed.role is Role.CONFIRMATION
            whose = f"{side.arm} control" if arm == "control" and len(sides) > 1 and not together else arm
            place = (fresh, timed.number, order) if together else (order, timed.role, timed.number)
            line = f"{whose} {timed.number}{', fresh' if fresh else ''}"
            placed.append(
                ((*place, timed.role), {"arm": arm, "seconds": timed.seconds, "line": line, "unfit": timed.unfit})
            )
    placed.sort(key=lambda pair: pair[0])
    rounds = [row | {"place": place} for place, (_, row) in enumerate(placed)]
    seconds = [row["seconds"] for row in rounds]
    return [*(_middle(side, min(seconds) / EDGE, EDGE * max(seconds)) for side in sides if side.rounds), *rounds]


def _middle(side: Side, edge: float, limit: float) -> dict[str, Any]:
    median, low, high = (number(side.row[f"seconds_{name}"]) for name in ("median", "low", "high"))
    row: dict[str, Any] = {"arm": side.arm, "seconds": median}
    if low is not None and high is not None:
        row |= {"low": low, "left": max(low, edge), "high": high, "right": min(high, limit)}
    return row


def _spec(arms: set[str], longest: int) -> dict[str, Any]:
    """Return the chart: bands and medians behind, then rounds. The width of labels is that of the longest."""
    domain = [arm for arm in ARMS if arm in arms]
    field = {"field": "arm", "type": "nominal", "legend": {"symbolOpacity": 1} if len(domain) > 1 else None}
    colour = {"color": {**field, "scale": {"domain": domain, "range": [f"var(--arm-{arm})" for arm in domain]}}}
    shape = {"shape": {**field, "scale": {"domain": domain, "range": [ARMS[arm] for arm in domain]}}}
    line = {
        "field": "line",
        "type": "nominal",
        "title": None,
        "sort": {"field": "place", "op": "min"},
        "scale": {"type": "point", "padding": 0.6},
        # room for the labels: a reader's font may be wider than the SVG's
        "axis": {"domain": False, "ticks": False, "grid": True, "minExtent": 7 * longest},
    }
    middles, rounds = {"filter": "!isValid(datum.line)"}, {"filter": "isValid(datum.line)"}
    band = {
        "transform": [middles, {"filter": "isValid(datum.left)"}, _time_of("low"), _time_of("high")],
        "mark": {"type": "rect", "opacity": 0.16},
        "encoding": {
            "x": _at("left"), "x2": {"field": "right"}, **colour,
            "tooltip": tooltip(arm="median of", low_time="95% from", high_time="to"),
        },
    }  # fmt: skip
    median = {
        "transform": [middles, _time_of("seconds")],
        "mark": {"type": "rule", "strokeWidth": 1.5},
        "encoding": {"x": _at("seconds"), **colour, "tooltip": tooltip(arm="median of", seconds_time="is")},
    }
    fitness = {"calculate": "isValid(datum.unfit) ? 'not fit: ' + datum.unfit : 'fit'", "as": "machine"}
    values = {
        "transform": [rounds, _time_of("seconds"), fitness],
        "mark": {"type": "point", "size": 55, "opacity": 1},
        "encoding": {
            "x": _at("seconds"), "y": line, **colour, **shape, "stroke": colour["color"],
            "fillOpacity": {"condition": {"test": "isValid(datum.unfit)", "value": 0}, "value": 1},
            "tooltip": tooltip(line="round", seconds_time="value", machine="machine"),
        },
    }  # fmt: skip
    return {"layer": [band, median, values]}


def _at(field: str) -> dict[str, Any]:
    """Return a field's place on the axis of times."""
    axis = {"labelExpr": label_expression("s"), "tickCount": 5}
    return quantity(field, "time per step", {"zero": False, "nice": False, "padding": 22}, axis)


def _time_of(field: str) -> dict[str, str]:
    """Return the calculation of a field's time in words, as `field`_time."""
    return {"calculate": label_expression("s", f"datum.{field}", ".4~r"), "as": f"{field}_time"}


def _change(case: ShownCase) -> Change | None:
    """Return what the comparison says of a case's time."""
    return next((change for change in case.findings if change.kind == "time"), None)


def _rank(case: ShownCase) -> tuple[int, float]:
    """Return where a case stands in the choice: changed ones first, the largest change before others."""
    change = _change(case)
    if change is None or change.status not in CHANGED:
        return len(CHANGED), 0.0
    return CHANGED.index(change.status), -abs(math.log1p(max(change.change or 0.0, -0.999)))


def _words(case: ShownCase, sides: Sequence[Side]) -> str:
    """Return what the chart shows of a case."""
    parts = []
    for side in sides:
        median, low, high = (number(side.row[f"seconds_{name}"]) for name in ("median", "low", "high"))
        ends = "" if low is None or high is None else f" (95%: {format_seconds(low)} to {format_seconds(high)})"
        whose = "" if side.arm == "round" else f"{side.arm} "
        if side.rounds:
            parts.append(f"{whose}median {format_seconds(median)}{ends} over {counted(side.row['rounds'], 'round')}")
    change = _change(case)
    return f"{case.name}: {', '.join(parts)}{f'; {reason(change)}' if change else ''}."
