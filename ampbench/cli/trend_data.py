"""A trend for machines: JSON with everything, CSV with a row a point."""

import json
from dataclasses import asdict
from typing import Any

from ampbench.cli.data import csv_text, plain
from ampbench.trends import Change, Lost, Point, Series, Shift, Trend

_CASE = ("workload", "family", "precision", "device", "phase", "path", "batch_size", "input_dtype", "memory_format")
_POINT = ("value", "low", "high", "runs")
_CSV_CASE = ("case_id", "workload", "version", "precision", "device", "phase", "path")
_CSV_PLACE = ("program", "host", "cpu", "device_name", "threads", "torch_version", "commit")
CSV_FIELDS = (
    *_CSV_CASE, "metric", "unit", *_CSV_PLACE, "settings", "numbers", "x", "x_label", *_POINT, "run_ids", "missing",
    "change", "what",
)  # fmt: skip
"""What a point is in CSV; `change` and `what` are those of the change point at it, if there is one."""


def trend_json(trend: Trend) -> str:
    """Return a trend as one JSON object, a line per series; null where a number is undefined (docs/trends.md)."""
    places = list(trend.runs)
    head: dict[str, Any] = {
        "axis": trend.axis,
        "left_out": dict(trend.left_out),
        "notes": list(trend.notes),
        "places": [asdict(one) | {"settings": dict(one.settings), "runs": trend.runs[one]} for one in places],
        "x": _xs(trend),
        "shifts": [_shift(one, places.index(one.place)) for one in trend.shifts],
        "lost": [_lost(one, places.index(one.place)) for one in trend.lost],
    }
    series = ",\n".join(_dumped(_series(one, places.index(one.place))) for one in trend.series)
    lines = [*(f"{json.dumps(key)}: {_dumped(value)}" for key, value in head.items()), f'"series": [\n{series}\n]']
    return "{\n" + ",\n".join(lines) + "\n}\n"


def trend_csv(trend: Trend) -> str:
    """Return the points of a trend as CSV, gaps among them; run ids are joined by blanks, as are settings."""
    rows = []
    for one in trend.series:
        changes = {change.x: change for change in one.changes}
        for point in one.points:
            change = changes.get(point.x)
            rows.append(
                [
                    *(getattr(one.case, name) for name in _CSV_CASE),
                    one.metric.name,
                    one.metric.column.unit,
                    *(getattr(one.place, name) for name in _CSV_PLACE),
                    " ".join(f"{name}={value}" for name, value in one.place.settings),
                    one.numbers,
                    point.x.value,
                    point.x.label,
                    *(getattr(point, name) for name in _POINT),
                    " ".join(point.run_ids),
                    point.missing,
                    change.direction if change else "",
                    change.what if change else "",
                ]
            )
    return csv_text(CSV_FIELDS, rows)


def _xs(trend: Trend) -> list[dict[str, str]]:
    """Return every x once; each series has those of its place in their order."""
    measured = [point.x for group in trend.places.values() for point in group[0].points]
    return [asdict(x) for x in dict.fromkeys([*measured, *(one.x for one in trend.lost)])]


def _lost(one: Lost, place: int) -> dict[str, Any]:
    case = {"case_id": one.case.case_id, "version": one.case.version}
    return {**case, "place": place, "x": one.x.value, "reason": one.reason}


def _shift(one: Shift, place: int) -> dict[str, Any]:
    numbers = {"ratio": one.ratio, "cases": one.cases, "alike": one.alike}
    return {"place": place, "x": one.x.value, "last": one.last.value, **numbers}


def _series(one: Series, place: int) -> dict[str, Any]:
    return {
        "case_id": one.case.case_id,
        **{name: getattr(one.case, name) for name in _CASE},
        "version": one.case.version,
        "parameters": dict(one.case.parameters),
        "metric": one.metric.name,
        "column": one.metric.column.name,
        "unit": one.metric.column.unit,
        "better": one.metric.column.better,
        "place": place,
        "numbers": one.numbers,
        "rule": one.rule.value,
        "note": one.note,
        "changes": [_change(change) for change in one.changes],
        "points": [_point(point) for point in one.points],
    }


def _point(point: Point) -> dict[str, Any]:
    numbers = {name: plain(getattr(point, name)) for name in _POINT}
    each = [{name: plain(value) for name, value in asdict(one).items()} for one in point.each]
    told = {"disturbed": point.disturbed, "missing": point.missing}
    return {"x": point.x.value, **numbers, "run_ids": list(point.run_ids), "each": each, **told}


def _change(change: Change) -> dict[str, Any]:
    numbers = {name: plain(getattr(change, name)) for name in ("before", "after", "ratio", "low", "high")}
    return {
        "x": change.x.value,
        "last": change.last.value,
        **numbers,
        "direction": change.direction,
        "other_function": change.other_function,
        "what": change.what,
    }


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
