"""Throughput over a swept parameter, and where precisions cross."""

from collections.abc import Sequence
from typing import Any

from ampbench import notes
from ampbench.precisions import BASELINE
from ampbench.report import palette
from ampbench.report.material import Material
from ampbench.report.text import fit
from ampbench.report.vega import DASHED, tooltip
from ampbench.report.view import Chart, Choice, Rows, View
from ampbench.report.views.sweeps.crossings import Level, find_crossings, in_words
from ampbench.report.views.sweeps.swept import BATCH_SIZE, Sweep, find_sweeps
from ampbench.units import UNDEFINED, format_rate

MARGIN = 1.5
"""Intervals are drawn to so many times beyond the throughputs measured: a wide one would flatten all curves."""


def sweeps(material: Material) -> View | None:
    """Return the view; None where no precision was measured at two values of a parameter."""
    parts: list[dict[str, Any]] = []
    datasets: dict[str, Rows] = {}
    for parameter, found in find_sweeps(material).items():
        name = f"sweeps-{len(parts)}"
        datasets[name] = [row for place, one in enumerate(found) for row in _rows(str(place), one)]
        chart = Chart(
            id=name,
            title=f"Throughput by {_called(parameter)}",
            alt=f"{len(found) - 1} more can be chosen; the tables say the same of each." if len(found) > 1 else "",
            spec=_spec(_called(parameter), found, datasets[name]),
            dataset=name,
            choose="sweep",
            choices=[Choice(value=str(place), label=one.title, alt=_finding(one)) for place, one in enumerate(found)],
        )
        parts.append({"chart": chart, "parameter": _called(parameter), "sweeps": [_table(one) for one in found]})
    if not parts:
        return None
    return View(
        id="sweeps",
        title="Sweeps",
        template="sweeps.html",
        content={"parts": parts},
        charts=[part["chart"] for part in parts],
        datasets=datasets,
    )


def _called(parameter: str) -> str:
    """Return a parameter as it is called in a sentence."""
    return "batch size" if parameter == BATCH_SIZE else fit(parameter)


def _rows(place: str, sweep: Sweep) -> Rows:
    """Return what is drawn of a sweep: its throughputs, and where precisions certainly cross fp32."""
    rates = [level.rate for levels in sweep.levels.values() for level in levels.values()]
    least, most = min(rates) / MARGIN, max(rates) * MARGIN
    rows: list[dict[str, Any]] = []
    for value in sweep.groups:
        for name, levels in sweep.levels.items():
            if (level := levels.get(value)) is not None:
                rows.append(
                    {
                        "sweep": place,
                        "kind": "measured",
                        "precision": fit(sweep.rows[name][value]["precision"]),
                        "name": name,
                        "value": _tick(value),
                        "x": sweep.xs.get(value),
                        "rate": level.rate,
                        "low": level.rate if level.low is None else max(level.low, least),
                        "high": level.rate if level.high is None else min(level.high, most),
                        "text": format_rate(level.rate),
                        "interval": _interval(level) or "none",
                    }
                )
    for name, places in sweep.places.items():
        for one in find_crossings(places):
            if one.x is not None and one.rate is not None:
                crossing = {"kind": "crossing", "name": name, "x": one.x, "rate": one.rate}
                said = {
                    "value": f"between {one.before} and {one.after}",
                    "text": format_rate(one.rate),
                    "interval": UNDEFINED,
                }
                rows.append({**rows[0], "low": one.rate, "high": one.rate, **crossing, **said})
    return rows


def _tick(value: str) -> str:
    """Return a value as a mark of an axis; Vega keeps those as names in an object, where this one is taken."""
    return f"{value} " if value == "__proto__" else value


def _interval(level: Level) -> str:
    return "" if level.low is None else f"{format_rate(level.low)} to {format_rate(level.high)}"


def _spec(called: str, found: Sequence[Sweep], rows: Rows) -> dict[str, Any]:
    """Return the chart: a line per precision, its intervals and points, and the crossings with fp32."""
    xs = found[0].xs
    whole = all(one.is_integer() for one in xs.values())
    log = {"type": "log", "nice": False, "padding": 16}
    x: dict[str, Any] = {"field": "value", "type": "ordinal", "sort": None, "title": called, "axis": {"labelAngle": 0}}
    if xs:
        scale = {**log, "base": 2} if whole else log
        axis = {"format": "," if whole else "~g"}
        x = {"field": "x", "type": "quantitative", "scale": scale, "axis": axis, "title": called}
    rate = {
        "field": "rate",
        "type": "quantitative",
        "scale": log,
        "axis": {"format": "~s" if min(row["rate"] for row in rows) >= 1 else "~g", "tickCount": 5},
        "title": "items per second (↑ faster)",
    }
    look = palette.encoded({row["precision"] for row in rows})
    colour, detail = {"color": look["color"]}, {"detail": {"field": "name", "type": "nominal"}}
    # a title becomes part of an expression, where a parameter's name, which is a user's, has no place
    told = tooltip(name="precision", value="at", text="items per second", interval="95% interval")
    measured = {"filter": {"field": "kind", "equal": "measured"}}
    ends = {"y": {**rate, "field": "low"}, "y2": {"field": "high"}}
    ring = {"type": "point", "filled": False, "size": 220, "color": "var(--ink)", "opacity": 1}
    # not a filter: Vega complains of a layer without rows, which a sweep without a crossing has
    crossing = {"condition": {"test": {"field": "kind", "equal": "crossing"}, "value": 1.5}, "value": 0}
    dot = {"type": "point", "filled": False, "size": 60, "strokeWidth": 2, "opacity": 1}
    return {
        "layer": [
            {
                "transform": [measured],
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {"x": x, "y": rate, **colour, **detail},
            },
            {
                "transform": [measured],
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": {"x": x, **ends, **colour, **detail},
            },
            {"mark": dict(DASHED), "encoding": {"x": x, "y": rate, "y2": {"value": "height"}, "strokeWidth": crossing}},
            {"mark": ring, "encoding": {"x": x, "y": rate, "strokeWidth": crossing, "tooltip": told}},
            {"transform": [measured], "mark": dot, "encoding": {"x": x, "y": rate, **look, "tooltip": told}},
        ]
    }


def _against(sweep: Sweep, name: str) -> str:
    """Say how a precision's throughput stands to that of fp32, "" where both have no value in common."""
    return in_words(sweep.places[name], _called(sweep.swept), BASELINE) if name in sweep.places else ""


def _finding(sweep: Sweep) -> str:
    """Say how the precisions of a sweep stand to fp32."""
    said = [f"{name} {_against(sweep, name)}" for name in sweep.places] or ["no precision to compare with fp32"]
    return f"{sweep.title}, against fp32: {'; '.join(said)}."


def _table(sweep: Sweep) -> dict[str, Any]:
    """Return the table of a sweep: a row for each precision, how it stands to fp32, and its throughput by value."""
    lines = []
    for name, members in sweep.rows.items():
        cells = []
        for value in sweep.groups:
            level, row = sweep.levels[name].get(value), members.get(value)
            outcome = row["outcome"] if row and row["outcome"] != "ok" else ""
            cells.append(
                {
                    "rate": format_rate(level.rate if level else None),
                    "interval": _interval(level) if level else "",
                    "outcome": outcome,
                }
            )
        precision = next(iter(members.values()))["precision"]
        lines.append({"precision": precision, "name": name, "against": _against(sweep, name), "cells": cells})
    advice = {group: sweep.shown.advice[group] for group in sweep.groups.values() if group in sweep.shown.advice}
    remarks = notes.sweep_remarks(advice, [sweep.swept])
    return {"title": sweep.title, "values": list(sweep.groups), "lines": lines, "remarks": remarks}
