"""The section of a history: what `ampbench trend` prints, and for each metric a chart of one series at a time."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ampbench.core.units import counted, format_quantity
from ampbench.report.material import Material
from ampbench.show.charts import DASHED, Chart, Choice, Rows, label_expression, tooltip
from ampbench.show.document import Block, Section
from ampbench.show.page import Part, View, view_of_parts
from ampbench.trend.series import Change, Measured, Point, Series, Trend, X
from ampbench.trend.show import (
    LONGEST_LIST,
    SMALLEST_RANGE,
    Names,
    missing,
    series_names,
    size,
    summary,
    trend_document,
    what,
    where,
)

LONGEST_REASON = 200
"""So much of a commit's subject or of a reason is shown in a chart, which has many of them."""
FOLDED = 60
"""A table of more rows is folded away until it is asked for."""

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


def trends(material: Material) -> View | None:
    """Return the view, for each axis a part; None without trends."""
    return view_of_parts("trends", "Trends", map(_part, material.trends))


def _part(trend: Trend) -> Part:
    names = series_names(trend)
    charts, datasets = make_charts(trend, names)
    document = trend_document(trend, show_all=True)
    return Part(
        id=trend.axis,
        title=f"Over {axis_name(trend)}s",
        said=[f"{summary(trend)}.", *(f"Broken in the end: {failure}." for failure in document.missing)],
        charts=charts,
        datasets=datasets,
        blocks=[block for section in document.sections() for block in _blocks(section)],
    )


def _blocks(section: Section) -> list[Block]:
    """Return a section as blocks of the page: its title is a sentence, or that of a table without one."""
    titled = bool(section.blocks) and not section.blocks[0].title
    blocks = [replace(section.blocks[0], title=section.title), *section.blocks[1:]] if titled else section.blocks
    shown = [*([] if titled else [Block(section.title)]), *blocks]
    return [replace(block, folded=len(block.rows) > FOLDED) for block in shown]


def make_charts(trend: Trend, names: Names) -> tuple[list[Chart], dict[str, Rows]]:
    """Return a chart for each metric, of the series that have more than one x, and the charts' rows by name."""
    charts: list[Chart] = []
    datasets: dict[str, Rows] = {}
    by_metric: dict[str, list[Series]] = {}
    for one in sorted((one for one in trend.series if len(one.points) > 1), key=lambda one: not one.changes):
        by_metric.setdefault(one.metric.name, []).append(one)
    several = len(trend.runs) > 1
    for metric, series in by_metric.items():
        name = f"trends-{trend.axis}-{metric}"
        datasets[name] = [row for key, one in enumerate(series) for row in _rows(str(key), one)]
        called = [names[one.key] + (where(trend, one.place) if several else "") for one in series]
        label = series[0].metric.column.label
        charts.append(
            Chart(
                id=name,
                title=f"{label} over {axis_name(trend)}",
                alt=f"{sum(bool(one.changes) for one in series):,} of {len(series):,} series changed.",
                spec=_spec(trend, label, series[0].metric.column.unit, datasets[name]),
                dataset=name,
                height=260,
                choose="series",
                choices=[
                    Choice(value=str(key), label=label, alt=f"{label}: {_changes_of(one)}.")
                    for key, (one, label) in enumerate(zip(series, called, strict=True))
                ],
            )
        )
    return charts, datasets


def _changes_of(one: Series) -> str:
    said = (f"{change.direction} at {change.x.label}, {size(change)}" for change in one.changes[:LONGEST_LIST])
    return "; ".join(said) or "no change"


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
    return f"{said}; {change.direction}, {size(change)}: {what(change)[:LONGEST_REASON]}"


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


def labels_of(xs: Sequence[X]) -> list[str]:
    """Return the labels of all x; those that another has, too, are numbered."""
    seen: Counter[str] = Counter()
    labels = []
    for x in xs:
        seen[x.label] += 1
        labels.append(f"{x.label} ({seen[x.label]})" if seen[x.label] > 1 else x.label)
    return labels
