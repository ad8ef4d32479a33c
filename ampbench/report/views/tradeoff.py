"""The section of the trade-off: speed and memory of each case against its error."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ampbench.core.precisions import BASELINE
from ampbench.core.units import UNDEFINED, counted, format_error, times
from ampbench.report.answers import Machine, Table, machines
from ampbench.report.material import Material, ShownCase
from ampbench.show.charts import Chart, Rows, budget_rule, precision_encoded, quantity, tooltip
from ampbench.show.page import View, fit
from ampbench.show.rows import judged_error, number

SLOWEST = 0.25
"""Below this many times the speed of fp32 points stand at the edge: emulated halves take thirty times as long, and on a
scale that shows that, nobody can tell 1.2 from 1.5."""
LEAST_SPAN = (0.5, 1.5)
"""What axes of ratios show at least, so that what hardly differs does not look far apart."""
LEAST_ERRORS = 10.0
"""The axis of errors reaches at least so many times below and above their middle: two decades."""
JOINED = 40
"""The points of so many tables are joined and have their intervals; the lines of more cannot be told apart."""

_POINT = {"type": "point", "filled": False, "size": 36, "strokeWidth": 1.5, "opacity": 1}
"""Hollow, so that points on top of each other can be told apart; few and short attributes: there may be 10,000."""
_LINE = {"type": "line", "color": "var(--faint)", "strokeWidth": 1, "opacity": 0.6}
_INTERVAL = {"type": "rule", "strokeWidth": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plane:
    """What stands against the error in a chart: the `column`, which way is better, and the words for it."""

    name: str
    column: str
    axis: str
    best: str
    least: float
    """Points of a smaller ratio stand at the edge of the chart."""
    sign: float
    """What makes less of it better."""


_PLANES = (
    _Plane(
        name="speed",
        column="speedup_vs_fp32",
        axis="speed, times fp32 (faster →)",
        best="the fastest",
        least=SLOWEST,
        sign=-1,
    ),
    _Plane(
        name="memory",
        column="memory_ratio_vs_fp32",
        axis="peak memory, times fp32 (← less)",
        best="the one with the least memory",
        least=0.0,
        sign=1,
    ),
)


@dataclass(frozen=True, slots=True)
class _Point:
    """A case in a plane: its `ratio` to fp32, and its output error, which is 0 where it is exact."""

    case: ShownCase
    ratio: float
    error: float


_Members = tuple[Table, list[ShownCase]]
"""A table, and its cases that are shown."""


def tradeoff(material: Material) -> View | None:
    """Return the view; None where no precision but fp32 has an error beside its speed or memory."""
    limit = material.budget.output_rel_l2
    parts: list[dict[str, Any]] = []
    datasets: dict[str, Rows] = {}
    found = _by_machine(material)
    for place, (machine, tables) in enumerate(found):
        cases = [case for _, members in tables for case in members]
        placed = {plane: _placed(cases, plane) for plane in _PLANES}
        planes = {plane: points for plane, points in placed.items() if any(one.error > 0 for one in points)}
        rows = _rows(tables)
        for plane, points in planes.items():
            datasets[f"tradeoff-{place}"] = rows
            chart = Chart(
                id=f"tradeoff-{plane.name}-{place}",
                title=f"{plane.name.capitalize()} against error" + (f" on {machine.title}" if len(found) > 1 else ""),
                alt=_finding(plane, points, limit),
                spec=_spec(plane, rows, limit),
                dataset=f"tradeoff-{place}",
            )
            parts.append({"chart": chart, "remark": _not_drawn(plane, cases, points)})
    if not parts:
        return None
    return View(
        id="tradeoff",
        title="Trade-off",
        template="tradeoff.html",
        content={
            "parts": parts,
            "intervals": any("x2" in layer["encoding"] for part in parts for layer in part["chart"].spec["layer"]),
        },
        charts=[part["chart"] for part in parts],
        datasets=datasets,
    )


def _by_machine(material: Material) -> list[tuple[Machine, list[_Members]]]:
    """Return the cases measured in another precision than fp32 by machine, and by the tables of each."""
    cases = {
        (id(case.shown), case.row["case_id"]): case
        for case in material.cases
        if case.row["outcome"] == "ok" and case.row["precision"] != BASELINE
    }
    found = []
    for machine in machines(material):
        tables = []
        for table in machine.tables:
            keys = [(id(table.shown), row["case_id"]) for row in table.rows]
            if own := [cases[key] for key in keys if key in cases]:
                tables.append((table, own))
        if tables:
            found.append((machine, tables))
    return found


def _placed(cases: Iterable[ShownCase], plane: _Plane) -> list[_Point]:
    """Return the cases that have a place in the plane, the exact ones too."""
    found = ((one, positive(one.row[plane.column]), judged_error(one.row)) for one in cases)
    return [
        _Point(one, ratio, error)
        for one, ratio, error in found
        if ratio is not None and error is not None and 0 <= error < math.inf
    ]


def positive(value: Any) -> float | None:
    """Return a number that a log axis can show, None for any other."""
    known = number(value)
    return known if known is not None and 0 < known < math.inf else None


def _rows(tables: Iterable[_Members]) -> Rows:
    """Return what is drawn of a machine: cases with an error above 0, and beside each number the text of it."""
    rows: list[dict[str, Any]] = []
    for table, cases in tables:
        for one in cases:
            error = positive(judged_error(one.row))
            if error is not None:
                low, high = number(one.row["speedup_low"]), number(one.row["speedup_high"])
                row: dict[str, Any] = {"table": fit(table.label), "precision": fit(one.row["precision"])}
                row["case"], row["error"], row["error_text"] = one.name, error, format_error(error)
                row |= {plane.name: positive(one.row[plane.column]) for plane in _PLANES}
                row |= {f"{plane.name}_text": _times(row[plane.name]) for plane in _PLANES}
                row |= {"speed_low": low, "speed_high": high}
                if low is not None and high is not None:
                    row["speed_text"] += f" ({times(low)} to {times(high)})"
                rows.append(row)
    return rows


def _spec(plane: _Plane, rows: Rows, limit: float) -> dict[str, Any]:
    """Return the chart: the points of each table joined by their errors, intervals of speed, and the error budget."""
    scale = {"type": "log", "round": True, "nice": False, "padding": 20}  # whole pixels take fewer bytes
    low, high = f"{plane.name}_low", f"{plane.name}_high"
    spanned = [row[low] for row in rows if row.get(low) is not None]
    ratios = [*spanned, *(row[field] for row in rows for field in (plane.name, high) if row.get(field) is not None)]
    domain = [max(plane.least, min(LEAST_SPAN[0], *ratios)), max(LEAST_SPAN[1], *ratios)]
    errors = [row["error"] for row in rows]
    middle, half = math.sqrt(min(errors) * max(errors)), max(math.sqrt(max(errors) / min(errors)), LEAST_ERRORS)
    axes = {
        "x": quantity(plane.name, plane.axis, scale | {"clamp": True, "domain": domain}, {"format": "~g"}),
        "y": quantity(
            "error",
            "output error (↓ more exact)",
            scale=scale | {"domain": [middle / half, middle * half]},
            axis={"format": ".0e", "tickCount": 5},
        ),
    }
    told = tooltip(case="case", precision="precision", speed_text="speed", error_text="error", memory_text="memory")
    coded = precision_encoded({row["precision"] for row in rows})
    marked = {**axes, **coded, "tooltip": told}
    drawn = {"filter": {"field": plane.name, "valid": True}}
    joined = {**axes, "detail": {"field": "table"}, "order": {"field": "error"}}
    lines = {"mark": _LINE, "transform": [drawn], "encoding": joined}
    span = {**axes, "x": axes["x"] | {"field": low}, "x2": {"field": high}, "color": marked["color"]}
    few = len({row["table"] for row in rows}) <= JOINED
    within = {"filter": {"field": low, "valid": True}}
    return {
        "layer": [
            *([lines] if few else []),
            *([{"mark": _INTERVAL, "transform": [within], "encoding": span}] if spanned and few else []),
            {"mark": _POINT, "transform": [drawn], "encoding": marked},
            *budget_rule(limit),
        ]
    }


def _finding(plane: _Plane, points: Sequence[_Point], limit: float) -> str:
    """Say how many cases there are, which is the best of them, and which within the error budget."""

    def cost(one: _Point) -> tuple[float, float]:
        return plane.sign * one.ratio, one.error

    best = min(points, key=cost)
    allowed = [one for one in points if one.error <= limit]
    within = min(allowed, key=cost, default=None)
    said = f"{counted(len(points), 'case')}, {len(allowed):,} within the error budget of {limit:g}"
    if len(points) == 1:
        return f"{said}: {_in_words(plane, best)}."
    said += f"; {plane.best} is {_in_words(plane, best)}"
    if within is None or within is best:
        return f"{said}."
    return f"{said}, beyond the budget; within it {_in_words(plane, within)}."


def _in_words(plane: _Plane, one: _Point) -> str:
    return (
        f"{one.case.name} with {_times(one.ratio)} the {plane.name} of fp32 and an error of {format_error(one.error)}"
    )


def _not_drawn(plane: _Plane, cases: Sequence[ShownCase], points: Sequence[_Point]) -> str:
    """Say how many measured cases of the machine the chart does not show, and why; "" where it shows all."""
    exact = sum(one.error == 0 for one in points)
    said = []
    if exact:
        said.append(f"{counted(exact, 'case')} without any error (a log axis has no 0)")
    if len(cases) > len(points):
        said.append(f"{counted(len(cases) - len(points), 'case')} without fp32 to compare with or without an error")
    slow = sum(one.ratio < plane.least for one in points)
    edge = f"{counted(slow, 'case')} of less than {times(plane.least)} the speed: at the left edge. " if slow else ""
    return f"{edge}Not drawn: {'; '.join(said)}." if said else edge.strip()


def _times(ratio: float | None) -> str:
    return UNDEFINED if ratio is None else times(ratio)
