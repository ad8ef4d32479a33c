"""The sections of the trade-off (speed of each case against its error) and of sweeps (throughput by value)."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ampbench.core.precisions import BASELINE
from ampbench.core.units import counted, format_rate
from ampbench.judge import notes
from ampbench.report.material import Material
from ampbench.report.networks import Table, machines, row_names
from ampbench.show.charts import Chart, Choice, Rows, precision_encoded, quantity, speed_layers, speed_points, tooltip
from ampbench.show.page import Part, View, fit, view_of_parts
from ampbench.show.rows import Group, Row, described, number
from ampbench.show.wording import words


def tradeoff(material: Material) -> View | None:
    """Return the chart of speed against error of each machine; None where nothing has a speed beside an error."""
    charts: list[Chart] = []
    datasets: dict[str, Rows] = {}
    for place, machine in enumerate(machines(material)):
        rows = [(fit(table.label), row) for table in machine.tables for row in table.rows if row["outcome"] == "ok"]
        points = speed_points((table, row) for table, row in rows if row["precision"] != BASELINE)
        if points:
            name = f"tradeoff-{place}"
            datasets[name] = points
            title = f"Speed against error on {machine.title}" if len(machines(material)) > 1 else "Speed against error"
            layers = {"layer": speed_layers(points, material.budget.output_rel_l2)}
            charts.append(Chart(id=name, title=title, alt=_finding(points), spec=layers, dataset=name))
    part = Part(id="planes", title="", charts=charts, datasets=datasets)
    return view_of_parts("tradeoff", "Trade-off", [part] if charts else [])


def _finding(points: Rows) -> str:
    """Return how many cases are drawn, and which of those that are ok is the fastest."""
    right = [point for point in points if not point["wrong"]]
    text = f"{counted(len(points), 'case')}; a cross: refused or undecided"
    if not right:
        return f"{text}."
    best = max(right, key=lambda point: float(point["speed"]))
    named = f"{best['table']} {best['precision']}: {best['speed_text']}, error {best['error_text']}"
    return f"{text}. The fastest that is ok is {named}."


BATCH_SIZE = "batch_size"
MARGIN = 1.5
"""Intervals are cut at this factor beyond the measured throughputs: a wide one would flatten all curves."""

SWEEPS_SAID = (
    "Items per second as one parameter grows, with 95% intervals, cut where they reach far beyond all throughputs."
)


def _positive(value: Any) -> float | None:
    """Return a number that a log axis can show, None for any other."""
    known = number(value)
    return known if known is not None and 0 < known < math.inf else None


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
    return _positive(row["items_per_second"]) if row["outcome"] == "ok" else None


def _rates(place: str, sweep: Sweep, numbers: Mapping[str, float]) -> Rows:
    """Return what is drawn of a sweep: its throughputs with their intervals, those of the times turned round."""
    named = row_names(sweep.values())
    known = [(value, row, rate) for value, table in sweep.items() for row in table.rows if (rate := _rate(row))]
    least, most = min(rate for *_, rate in known) / MARGIN, max(rate for *_, rate in known) * MARGIN
    rows: list[dict[str, Any]] = []
    for value, row, rate in known:
        median, low, high = (_positive(row[f"seconds_{name}"]) for name in ("median", "low", "high"))
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
