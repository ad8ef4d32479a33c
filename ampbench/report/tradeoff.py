"""The section of the trade-off: speed and memory of each case against its error."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ampbench.core.precisions import BASELINE
from ampbench.core.units import UNDEFINED, counted, format_error, times
from ampbench.report.answers import Machine, Table, machines
from ampbench.report.material import Material
from ampbench.show.charts import Chart, Rows, budget_rule, precision_encoded, quantity, tooltip
from ampbench.show.page import Part, View, fit, view_of_parts
from ampbench.show.rows import Row, judged_error, number

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

SAID = (
    "One point a case; fp32 would stand at 1x. A faint line joins the precisions of one workload and phase, from the "
    "most exact to the least: choose along it, never between workloads. Horizontal lines: 95% intervals of the speed."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plane:
    """What stands against the error in a chart: the `column`, its axis, and what is at the edge."""

    name: str
    column: str
    axis: str
    least: float = 0.0


_PLANES = (
    _Plane(name="speed", column="speedup_vs_fp32", axis="speed, times fp32 (faster →)", least=SLOWEST),
    _Plane(name="memory", column="memory_ratio_vs_fp32", axis="peak memory, times fp32 (← less)"),
)


def tradeoff(material: Material) -> View | None:
    """Return the view; None where no precision but fp32 has an error beside its speed or memory."""
    limit = material.budget.output_rel_l2
    charts: list[Chart] = []
    datasets: dict[str, Rows] = {}
    several = len(machines(material)) > 1
    for place, machine in enumerate(machines(material)):
        measured = _measured(machine)
        rows = [point for table, row in measured if (point := _point(table, row))]
        for plane in _PLANES:
            points = [point for point in rows if point[plane.name] is not None]
            if points:
                datasets[f"tradeoff-{place}"] = rows
                chart = Chart(
                    id=f"tradeoff-{plane.name}-{place}",
                    title=f"{plane.name.capitalize()} against error" + (f" on {machine.title}" if several else ""),
                    alt=_finding(plane, points, len(measured), limit),
                    spec=_spec(plane, rows, limit),
                    dataset=f"tradeoff-{place}",
                )
                charts.append(chart)
    part = Part(id="planes", title="", said=[SAID], charts=charts, datasets=datasets)
    return view_of_parts("tradeoff", "Trade-off", [part] if charts else [])


def _measured(machine: Machine) -> list[tuple[Table, Row]]:
    """Return the cases of a machine that were measured in another precision than fp32."""
    every = [(table, row) for table in machine.tables for row in table.rows]
    return [(table, row) for table, row in every if row["outcome"] == "ok" and row["precision"] != BASELINE]


def positive(value: Any) -> float | None:
    """Return a number that a log axis can show, None for any other."""
    known = number(value)
    return known if known is not None and 0 < known < math.inf else None


def _point(table: Table, row: Row) -> dict[str, Any] | None:
    """Return what is drawn of a case, beside each number the text of it; None without an error above 0."""
    error = positive(judged_error(row))
    if error is None:
        return None
    low, high = number(row["speedup_low"]), number(row["speedup_high"])
    point: dict[str, Any] = {"table": fit(table.label), "precision": fit(row["precision"])}
    point |= {"error": error, "error_text": format_error(error)}
    for plane in _PLANES:
        ratio = positive(row[plane.column])
        point |= {plane.name: ratio, f"{plane.name}_text": UNDEFINED if ratio is None else times(ratio)}
    if low is not None and high is not None:
        point["speed_text"] += f" ({times(low)} to {times(high)})"
    return point | {"speed_low": low, "speed_high": high}


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
    told = tooltip(table="table", precision="precision", speed_text="speed", error_text="error", memory_text="memory")
    coded = precision_encoded({row["precision"] for row in rows})
    drawn = {"filter": {"field": plane.name, "valid": True}}
    joined = {**axes, "detail": {"field": "table"}, "order": {"field": "error"}}
    lines = {"mark": _LINE, "transform": [drawn], "encoding": joined}
    span = {**axes, "x": axes["x"] | {"field": low}, "x2": {"field": high}, "color": coded["color"]}
    few = len({row["table"] for row in rows}) <= JOINED
    within = {"filter": {"field": low, "valid": True}}
    return {
        "layer": [
            *([lines] if few else []),
            *([{"mark": _INTERVAL, "transform": [within], "encoding": span}] if spanned and few else []),
            {"mark": _POINT, "transform": [drawn], "encoding": {**axes, **coded, "tooltip": told}},
            *budget_rule(limit),
        ]
    }


def _finding(plane: _Plane, points: Sequence[dict[str, Any]], measured: int, limit: float) -> str:
    """Say how many cases are drawn, which within the error budget is the best, and what has no place in the chart."""
    allowed = [point for point in points if point["error"] <= limit]
    said = f"{counted(len(points), 'case')}, {len(allowed):,} within the error budget of {limit:g}"
    if allowed:
        best = (max if plane.name == "speed" else min)(allowed, key=lambda point: point[plane.name])
        said += f"; the best of these is {best['table']} {best['precision']}: {best[f'{plane.name}_text']}"
        said += f", error {best['error_text']}"
    slow = sum(point[plane.name] < plane.least for point in points)
    edge = f" At the left edge: {counted(slow, 'case')} below {times(plane.least)}." if slow else ""
    lacking = measured - len(points)
    rest = f" Not drawn: {counted(lacking, 'case')} without an error above 0 or without fp32 to compare with."
    return f"{said}.{edge}{rest if lacking else ''}"
