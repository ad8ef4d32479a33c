"""The charts of a trend: one per metric, of which the reader chooses the series."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ampbench.report.vega import DASHED, label_expression, tooltip
from ampbench.report.view import Chart, Choice, Rows
from ampbench.trends import Change, Measured, Point, Series, Trend, X
from ampbench.trends.sentences import LONGEST_LIST, Names, changes_in_order, size, where
from ampbench.units import counted, format_quantity

SMALLEST_RANGE = math.log(1.1)
"""A chart spans at least a tenth of its values, so that noise does not look like news; as curves on a terminal do."""
LONGEST_REASON = 200
"""So much of a commit's subject or of a reason is shown in a chart, which has many of them."""

_VALUE, _GAP, _RUN, _DISTURBED = "median of runs", "no value", "one run", "disturbed run"
_KINDS = {
    _RUN: ("circle", "var(--link)", "transparent"),
    _DISTURBED: ("circle", "transparent", "var(--link)"),
    _VALUE: ("diamond", "var(--link)", "var(--link)"),
    "regressed": ("triangle-up", "var(--regressed)", "var(--regressed)"),
    "improved": ("triangle-down", "var(--improved)", "var(--improved)"),
    _GAP: ("circle", "transparent", "var(--faint)"),
}
"""The marks of a point by what it is: shape, fill and outline; a gap is hollow, at the foot of the chart. Of several
runs at one x each is a mark of its own, beside that of their median, which has the changes."""


def make_charts(trend: Trend, names: Names) -> tuple[dict[str, Chart], dict[str, Rows]]:
    """Return by metric the charts of series that have more than one x, and the charts' rows by name."""
    charts: dict[str, Chart] = {}
    datasets: dict[str, Rows] = {}
    by_metric: dict[str, list[Series]] = {}
    for one in ordered(trend):
        by_metric.setdefault(one.metric.name, []).append(one)
    for metric, series in by_metric.items():
        name = f"trends-{trend.axis}-{metric}"
        rows = [row for key, one in enumerate(series) for row in _rows(str(key), one)]
        places = len({one.place for one in series})
        called = [names[one.key] + (where(trend, one.place) if places > 1 else "") for one in series]
        datasets[name] = rows
        charts[metric] = Chart(
            id=name,
            title=f"{series[0].metric.column.label} over {axis_name(trend)}",
            alt=_alt(trend, metric, series, called),
            spec=_spec(trend, series[0].metric.column.label, series[0].metric.column.unit, rows),
            dataset=name,
            height=260,
            choose="series",
            choices=[
                Choice(value=str(key), label=label, alt=f"{label}: {_changes_of(one)}.")
                for key, (one, label) in enumerate(zip(series, called, strict=True))
            ],
        )
    return charts, datasets


def _alt(trend: Trend, metric: str, series: Sequence[Series], called: Sequence[str]) -> str:
    """Return which series changed, and how, in words."""
    names = dict(zip((one.key for one in series), called, strict=True))
    pairs = [(one, change) for one, change in changes_in_order(trend) if one.metric.name == metric]
    changed = len({one.key for one, _ in pairs})
    said = [f"{names[one.key]} {_change(change)}" for one, change in pairs]
    more = f" and {len(said) - LONGEST_LIST} more" if len(said) > LONGEST_LIST else ""
    if changed:
        found = f"{changed} of {counted(len(series), 'series', 'series')} changed: "
    else:
        found = f"No change in {counted(len(series), 'series', 'series')}"
    return f"{found}{'; '.join(said[:LONGEST_LIST])}{more}."


def _changes_of(one: Series) -> str:
    return "; ".join(_change(change) for change in one.changes[:LONGEST_LIST]) or "no change"


def _change(change: Change) -> str:
    return f"{change.direction} at {change.x.label}, {size(change)}"


def _rows(key: str, one: Series) -> Rows:
    """Return a row for each point of a series, and one for each of its runs where there are several.

    `at` is where its mark stands, a gap's at the foot of the chart; an interval that does not exist ends there, too.
    """
    changes = {change.x: change for change in one.changes}
    bottom, top = _range(one)
    rows = []
    for label, point in zip(labels_of([point.x for point in one.points]), one.points, strict=True):
        change = changes.get(point.x)
        at = _finite(bottom if point.value is None else point.value)
        rows.append(
            {
                "series": key,
                "x": label,
                "title": point.x.title[:LONGEST_REASON],
                "value": _finite(point.value),
                "at": at,
                "low": at if point.low is None or len(point.each) > 1 else _finite(point.low),
                "high": at if point.high is None or len(point.each) > 1 else _finite(point.high),
                "bottom": _finite(bottom),
                "top": _finite(top),
                "several": False,
                "kind": _kind(point, change),
                "said": _said(one, point, change),
            }
        )
        if len(point.each) < 2:
            continue
        for each in point.each:
            own = _finite(each.value)
            rows.append(
                rows[-1]
                | {
                    "title": each.run,
                    "value": own,
                    "at": own,
                    "low": own if each.low is None else _finite(each.low),
                    "high": own if each.high is None else _finite(each.high),
                    "several": True,
                    "kind": _DISTURBED if each.disturbed else _RUN,
                    "said": _said_of_a_run(one, each),
                }
            )
    return rows


def _kind(point: Point, change: Change | None) -> str:
    if change is not None:
        return change.direction
    if point.value is None:
        return _GAP
    return _VALUE if len(point.each) > 1 else _DISTURBED if point.disturbed else _RUN


def _said_of_a_run(one: Series, each: Measured) -> str:
    unit = one.metric.column.unit
    said = format_quantity(each.value, unit)
    if each.low is not None and each.high is not None:
        said += f" ({format_quantity(each.low, unit)} to {format_quantity(each.high, unit)})"
    return f"{said}; not judged: {each.disturbed}" if each.disturbed else said


def _said(one: Series, point: Point, change: Change | None) -> str:
    """Return a point in words: its value with the interval, the runs behind it, the change found there."""
    unit = one.metric.column.unit
    if point.value is None:
        said = point.missing[:LONGEST_REASON]
    else:
        said = format_quantity(point.value, unit)
        if point.low is not None and point.high is not None:
            said += f" ({format_quantity(point.low, unit)} to {format_quantity(point.high, unit)})"
    said += f", {counted(point.runs, 'run')}" if point.runs else ""
    if change is None:
        return said
    return f"{said}; {change.direction}, {size(change)}: {change.what[:LONGEST_REASON] or 'no difference is recorded'}"


def _range(one: Series) -> tuple[float, float]:
    """Return the ends of a series' chart: its values and intervals, with a margin."""
    drawn = [each for point in one.measured for each in (point.each if len(point.each) > 1 else (point,))]
    known = [value for each in drawn for value in (each.value, each.low, each.high) if value is not None]
    low, high = min(known), max(known)
    if low > 0:
        half = max(math.log(high) - math.log(low), SMALLEST_RANGE) * 0.55
        middle = (math.log(high) + math.log(low)) / 2
        return math.exp(middle - half), math.exp(min(middle + half, 700.0))
    half = max((high - low), 0.1 * high) * 0.55 or 1.0
    middle = (high + low) / 2
    return min(low, max(0.0, middle - half)), middle + half


def _finite(value: float | None) -> float | None:
    """Return a number that a chart can draw, None for any other."""
    return value if value is not None and math.isfinite(value) else None


def _spec(trend: Trend, title: str, unit: str, rows: Rows) -> Mapping[str, Any]:
    """Return the line of one series: intervals, points by kind, a rule at each change; a gap breaks the line."""
    logarithmic = all(row["bottom"] is not None and row["bottom"] > 0 for row in rows)
    scale = {"nice": False, **({"type": "log"} if logarithmic else {"zero": False})}
    labels = {"labelExpr": label_expression(unit), "tickCount": 5}
    present = {row["kind"] for row in rows}
    kinds = [kind for kind in _KINDS if kind in present]

    def by_kind(part: int) -> dict[str, Any]:
        scale = {"domain": kinds, "range": [_KINDS[kind][part] for kind in kinds]}
        return {"field": "kind", "type": "nominal", "title": None, "scale": scale}

    def y(field: str) -> dict[str, Any]:
        return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": labels}

    named = {"title": "subject" if trend.axis == "commit" else "run"} if any(row["title"] for row in rows) else {}
    changed = {"test": "datum.kind === 'regressed' || datum.kind === 'improved'", "value": 0.8}
    return {
        "encoding": {
            "x": {
                "field": "x",
                "type": "ordinal",
                "sort": None,
                "title": axis_name(trend),
                "axis": {"labelAngle": -30, "labelLimit": 120},
            },
            "tooltip": tooltip(x=axis_name(trend), **named, said=title),
        },
        "layer": [
            # all x and the whole range, whatever is drawn above
            {"mark": {"type": "rule", "opacity": 0}, "encoding": {"y": y("bottom"), "y2": {"field": "top"}}},
            {
                "mark": dict(DASHED),
                "encoding": {"opacity": {"condition": changed, "value": 0}},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 5, "opacity": 0.3, "color": "var(--link)"},
                "encoding": {"y": y("low"), "y2": {"field": "high"}},
            },
            {
                "transform": [{"filter": "!datum.several"}],
                "mark": {"type": "line", "invalid": "break-paths-show-domains", "color": "var(--link)"},
                "encoding": {"y": y("value")},
            },
            {
                "mark": {"type": "point", "opacity": 1},
                "encoding": {
                    "y": y("at"),
                    "shape": by_kind(0),
                    "fill": by_kind(1),
                    "stroke": by_kind(2),
                    "size": {"condition": {"test": "datum.several", "value": 30}, "value": 80},
                },
            },
        ],
    }


def sparkline(one: Series) -> Mapping[str, Any]:
    """Return a series as a small picture, 100 wide and 28 high: its lines, its runs, and where it changed."""
    bottom, top = _range(one)
    logarithmic = bottom > 0
    low, high = (math.log(end) if logarithmic else end for end in (bottom, top))

    def y(value: float) -> float:
        place = math.log(value) if logarithmic else value
        return round(26 - 24 * (place - low) / (high - low), 1) if high > low else 14.0

    step = 94 / max(len(one.points) - 1, 1)
    lines: list[list[str]] = [[]]
    runs, marks = [], []
    directions = {change.x: change.direction for change in one.changes}
    for number, point in enumerate(one.points):
        x = round(3 + step * number, 1)
        if point.value is None or not math.isfinite(point.value):
            lines.append([])
            continue
        lines[-1].append(f"{x},{y(point.value)}")
        runs += [(x, y(each.value)) for each in point.each if math.isfinite(each.value)]
        if point.x in directions:
            marks.append((x, y(point.value), directions[point.x]))
    return {"lines": [" ".join(line) for line in lines if line], "runs": runs, "marks": marks}


def axis_name(trend: Trend) -> str:
    """Return what a trend's axis is called."""
    return trend.axis.replace("_", " ")


def ordered(trend: Trend) -> list[Series]:
    """Return the series that have more than one x, those that changed first."""
    return sorted((one for one in trend.series if len(one.points) > 1), key=lambda one: not one.changes)


def labels_of(xs: Sequence[X]) -> list[str]:
    """Return the labels of all x; those that another has, too, are numbered."""
    seen: Counter[str] = Counter()
    labels = []
    for x in xs:
        seen[x.label] += 1
        labels.append(f"{x.label} ({seen[x.label]})" if seen[x.label] > 1 else x.label)
    return labels
