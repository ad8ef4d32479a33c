"""The section of a history: series over versions, commits or dates, where they changed, what else differed there.

There is a chart for each metric, of which the reader chooses the series.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ampbench.core.units import counted, format_quantity
from ampbench.records.labels import few
from ampbench.report.material import Material
from ampbench.show.charts import DASHED, Chart, Choice, Rows, label_expression, tooltip
from ampbench.show.comparison import NOT_IN_TURNS
from ampbench.show.page import View
from ampbench.trend.series import TRACKED, Change, Measured, Place, Point, Series, Trend, X
from ampbench.trend.show import (
    LONGEST_LIST,
    NO_DIFFERENCE,
    Names,
    change_blocks,
    changes_in_order,
    extent,
    failures,
    has_changed_times,
    missing,
    notes,
    place_name,
    series_block,
    series_names,
    shared_shifts,
    size,
    span,
    summary,
    where,
)

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
    of = counted(len(series), "series", "series")
    if not pairs:
        return f"No change in {of}."
    said = few((f"{names[one.key]} {_change(change)}" for one, change in pairs), LONGEST_LIST)
    return f"{len({one.key for one, _ in pairs})} of {of} changed: {said}."


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
    said = _number_said(one, each.value, each.low, each.high)
    return f"{said}; not judged: {each.disturbed}" if each.disturbed else said


def _number_said(one: Series, value: float, low: float | None, high: float | None) -> str:
    """Return a value of a series with its interval, where there is one."""
    said, *ends = (format_quantity(each, one.metric.column.unit) for each in (value, low, high))
    return said if low is None or high is None else f"{said} ({' to '.join(ends)})"


def _said(one: Series, point: Point, change: Change | None) -> str:
    """Return a point in words: its value with the interval, the runs behind it, the change found there."""
    if point.value is None:
        said = missing(point)[:LONGEST_REASON]
    else:
        said = _number_said(one, point.value, point.low, point.high)
    said += f", {counted(point.runs, 'run')}" if point.runs else ""
    if change is None:
        return said
    return f"{said}; {change.direction}, {size(change)}: {change.what[:LONGEST_REASON] or NO_DIFFERENCE}"


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


FOLDED = 60
"""A table of more rows is folded away until it is asked for."""

_TITLES = {"torch_version": "Over torch versions", "commit": "Over commits", "date": "Over dates"}


def trends(material: Material) -> View | None:
    """Return for each axis its changes, a chart per metric and the table of its series; None without trends."""
    if not material.trends:
        return None
    charts: list[Chart] = []
    datasets: dict[str, Rows] = {}
    told = []
    for trend in material.trends:
        names = series_names(trend)
        drawn, rows = make_charts(trend, names)
        charts += drawn.values()
        datasets |= rows
        changed = {one.metric.name for one in trend.series if one.changes}
        told.append(
            _told(trend, names)
            | {
                "charts": [chart for metric, chart in drawn.items() if metric in changed],
                "unchanged": {
                    TRACKED[metric].column.label: chart for metric, chart in drawn.items() if metric not in changed
                },
            }
        )
    return View(
        id="trends",
        title="Trends",
        template="trends.html",
        content={"told": told, "not_interleaved": NOT_IN_TURNS, "folded": FOLDED},
        charts=charts,
        datasets=datasets,
    )


def _told(trend: Trend, names: Names) -> dict[str, Any]:
    """Return what is said of a trend beside its charts, as its template reads it."""
    series = ordered(trend)
    by_place: dict[Place, list[Series]] = {}
    for one in series:
        by_place.setdefault(one.place, []).append(one)
    alone = len(trend.series) - len(series)
    left_out = [f"left out {counted(count, 'run')} with {why}" for why, count in trend.left_out.items()]
    single = f"{counted(alone, 'series has', 'series have')} a single x, and {'is' if alone == 1 else 'are'} not shown"
    return {
        "title": _TITLES.get(trend.axis, trend.axis),
        "axis": axis_name(trend),
        "summary": summary(trend),
        "counted": f"{extent(trend)}: {span(trend)}",
        "warn": has_changed_times(trend),
        "changes": change_blocks(trend, names),
        "count": sum(len(one.changes) for one in trend.series),
        "shifts": shared_shifts(trend),
        "failures": failures(trend),
        "notes": [*notes(trend), *left_out, *([single] if alone else [])],
        "tables": [
            (series_block(_caption(trend, place, own), own, names), _gaps(own)) for place, own in by_place.items()
        ],
    }


def _caption(trend: Trend, place: Place, series: Sequence[Series]) -> str:
    return f"{place_name(place)}: {counted(len(series), 'series', 'series')} of {counted(trend.runs[place], 'run')}"


def _gaps(series: Sequence[Series]) -> str:
    """Return why the points without a value have none, the most common reasons first."""
    gaps = Counter(missing(point) for one in series for point in one.points if point.value is None)
    return few([f"{why} ({counted(count, 'value')})" for why, count in gaps.most_common()], LONGEST_LIST)
