"""The sections of the trade-off (speed and memory of each case against its error) and of sweeps (throughput by value).

Speeds and throughputs stand on log axes: what a log axis cannot show is not drawn.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ampbench.core.precisions import BASELINE
from ampbench.core.units import UNDEFINED, counted, format_error, format_rate, times
from ampbench.judge import notes
from ampbench.report.material import Material
from ampbench.report.networks import Machine, Table, machines, row_names
from ampbench.show.charts import Chart, Choice, Rows, budget_rule, precision_encoded, quantity, tooltip
from ampbench.show.page import Part, View, fit, view_of_parts
from ampbench.show.rows import Group, Row, described, judged_error, number
from ampbench.show.wording import words

SLOWEST = 0.25
"""Below this many times the speed of fp32 points stand at the edge: emulated halves take thirty times as long, and on a
scale that shows that, nobody can tell 1.2 from 1.5."""
LEAST_SPAN = (0.5, 1.5)
"""What axes of ratios show at least, so that what hardly differs does not look far apart."""
LEAST_ERRORS = 10.0
"""The least reach of the axis of errors, as a factor below and above their middle: two decades in all."""
JOINED = 40
"""Up to this number of tables, points are joined and have intervals; more lines could not be distinguished."""

_POINT = {"type": "point", "filled": False, "size": 36, "strokeWidth": 1.5, "opacity": 1}
"""Hollow, so that points on top of each other can be told apart; few and short attributes: there may be 10,000."""
_LINE = {"type": "line", "color": "var(--faint)", "strokeWidth": 1, "opacity": 0.6}
_INTERVAL = {"type": "rule", "strokeWidth": 1}

TRADEOFF_SAID = (
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
                    spec=_plane_spec(plane, rows, limit),
                    dataset=f"tradeoff-{place}",
                )
                charts.append(chart)
    part = Part(id="planes", title="", said=[TRADEOFF_SAID], charts=charts, datasets=datasets)
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


def _plane_spec(plane: _Plane, rows: Rows, limit: float) -> dict[str, Any]:
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


BATCH_SIZE = "batch_size"
MARGIN = 1.5
"""Intervals are cut at this factor beyond the measured throughputs: a wide one would flatten all curves."""

SWEEPS_SAID = (
    "Items per second as one parameter grows, with 95% intervals, cut where they reach far beyond all throughputs."
)

Sweep = Mapping[str, Table]
"""Tables of one run that differ in one parameter alone, by its value."""


def sweeps(material: Material) -> View | None:
    """Return the view; None where no precision was measured at two values of a parameter."""
    swept = dict.fromkeys(name for shown in material.shown for name in shown.stored.header.selection.sweeps)
    return view_of_parts(
        "sweeps",
        "Sweeps",
        [_sweep_part(f"sweeps-{place}", material, name) for place, name in enumerate({BATCH_SIZE: None} | swept)],
    )


def _sweep_part(name: str, material: Material, parameter: str) -> Part | None:
    found = find_sweeps(material, parameter)
    if not found:
        return None
    called = "batch size" if parameter == BATCH_SIZE else fit(parameter)
    numbers = _numbers(value for sweep in found.values() for value in sweep)
    rows = [row for at, sweep in enumerate(found.values()) for row in _rates(str(at), sweep, numbers)]
    chart = Chart(
        id=name,
        title=f"Throughput by {called}",
        alt=f"{counted(len(found), 'sweep')} can be chosen." if len(found) > 1 else "",
        spec=_curves(called, rows, numbers),
        dataset=name,
        choose="sweep",
        choices=[
            Choice(value=str(place), label=title, alt=_takes(sweep, parameter))
            for place, (title, sweep) in enumerate(found.items())
        ],
    )
    return Part(id=name, title="", said=[SWEEPS_SAID], charts=[chart], datasets={name: rows})


def find_sweeps(material: Material, parameter: str) -> dict[str, Sweep]:
    """Return the sweeps of a parameter by title; each is of one run: cases of two were not measured in turns."""
    found: dict[str, dict[str, Table]] = {}
    for machine in machines(material):
        for table in machine.tables:
            value = notes.swept_value(table.group, parameter)
            if value is not None and any(map(_rate, table.rows)):
                rest = _rest(table.group, parameter)
                run = [table.shown.name] if len(material.shown) > 1 else []
                found.setdefault(" · ".join([rest.workload, described(rest), *run]), {})[value] = table
    return {title: _in_order(values) for title, values in found.items() if len(values) > 1}


def _rest(group: Group, parameter: str) -> Group:
    """Return what the cases of a sweep share: the group without the parameter."""
    if parameter == BATCH_SIZE:
        return replace(group, batch_size=None)
    pairs = group.parameters.split(",")
    return replace(group, parameters=",".join(pair for pair in pairs if not pair.startswith(f"{parameter}=")))


def _in_order(values: Sweep) -> Sweep:
    numbers = _numbers(values)
    return {value: values[value] for value in sorted(values, key=lambda value: numbers.get(value, 0.0))}


def _numbers(values: Iterable[str]) -> dict[str, float]:
    """Return values as numbers for a log axis; empty where one of them is no number above 0."""
    try:
        numbers = {value: float(value) for value in values}
    except ValueError:
        return {}
    return numbers if all(0 < value < math.inf for value in numbers.values()) else {}


def _takes(sweep: Sweep, parameter: str) -> str:
    """Return what to take at each value, as `ampbench show` says it."""
    takes = {table.group: advice for table in sweep.values() if (advice := table.advice) is not None}
    return " ".join(map(words, notes.sweep_notes(takes, [parameter])))


def _rate(row: Row) -> float | None:
    return positive(row["items_per_second"]) if row["outcome"] == "ok" else None


def _rates(place: str, sweep: Sweep, numbers: Mapping[str, float]) -> Rows:
    """Return what is drawn of a sweep: its throughputs with their intervals, those of the times turned round."""
    named = row_names(sweep.values())
    known = [(value, row, rate) for value, table in sweep.items() for row in table.rows if (rate := _rate(row))]
    least, most = min(rate for *_, rate in known) / MARGIN, max(rate for *_, rate in known) * MARGIN
    rows: list[dict[str, Any]] = []
    for value, row, rate in known:
        median, low, high = (positive(row[f"seconds_{name}"]) for name in ("median", "low", "high"))
        ends = (rate * median / high, rate * median / low) if median and low and high else None
        rows.append(
            {
                "sweep": place,
                "precision": fit(row["precision"]),
                "name": named(row),
                # Vega keeps texts as names in an object, where one is taken
                "value": numbers.get(value, f"{value} " if value == "__proto__" else value),
                "rate": rate,
                "low": max(ends[0], least) if ends else rate,
                "high": min(ends[1], most) if ends else rate,
                "text": format_rate(rate),
                "interval": " to ".join(map(format_rate, ends)) if ends else "none",
            }
        )
    return rows


def _curves(called: str, rows: Rows, numbers: Mapping[str, float]) -> dict[str, Any]:
    """Return the chart: a line per precision, its intervals and points; values that are no numbers in their order."""
    log = {"type": "log", "nice": False, "padding": 16}
    whole = all(value.is_integer() for value in numbers.values())
    x: dict[str, Any] = {"field": "value", "type": "ordinal", "sort": None, "title": called, "axis": {"labelAngle": 0}}
    if numbers:
        x = quantity("value", called, {**log, "base": 2} if whole else log, {"format": "," if whole else "~g"})
    axis = {"format": "~s" if min(row["rate"] for row in rows) >= 1 else "~g", "tickCount": 5}
    rate = quantity("rate", "items per second (↑ faster)", log, axis)
    look = precision_encoded({row["precision"] for row in rows})
    lines = {"x": x, "color": look["color"], "detail": {"field": "name", "type": "nominal"}}
    # a title becomes part of an expression, where a parameter's name, which is a user's, has no place
    told = tooltip(name="precision", value="at", text="items per second", interval="95% interval")
    dot = {"type": "point", "filled": False, "size": 60, "strokeWidth": 2, "opacity": 1}
    return {
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {**lines, "y": rate}},
            {
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": {**lines, "y": {**rate, "field": "low"}, "y2": {"field": "high"}},
            },
            {"mark": dot, "encoding": {"x": x, "y": rate, **look, "tooltip": told}},
        ]
    }
