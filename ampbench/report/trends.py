"""The section of trends: the output of `ampbench trend`, and a chart of each metric that changed."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ampbench.core.units import counted, format_quantity
from ampbench.report.material import Material
from ampbench.report.views import View
from ampbench.show.charts import DASHED, Drawing, Rows, drawn, label_expression, tooltip
from ampbench.show.document import Block, Section, as_sentence
from ampbench.show.page import Part
from ampbench.trend import Point, Series, Trend
from ampbench.trend.show import LONGEST_LIST, series_names, size, summary, trend_document, what, where
from ampbench.trend.values import TIME

LONGEST = 200
"""The most characters of a cause under the pointer of a chart, which has many of them."""
FOLDED = 60
"""A table of more rows is folded away until it is asked for."""
LEAST_SPAN = math.log(1.1)
"""The smallest range of a chart, as a logarithm: noise of a hundredth must not fill it."""

_KINDS = {
    "value": ("circle", "var(--link)"),
    "regressed": ("triangle-up", "var(--regressed)"),
    "improved": ("triangle-down", "var(--improved)"),
}
"""The shape and colour of a point by its kind."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A series of a trend under its `name`."""

    name: str
    series: Series


def trends(material: Material) -> View | None:
    """Return the changes over each axis; None without trends."""
    if not material.trends:
        return None
    return View(id="trends", title="Trends", parts=[_part(trend) for trend in material.trends])


def _part(trend: Trend) -> Part:
    names = series_names(trend)
    by_metric: dict[str, list[Curve]] = {}
    for series in sorted(trend.series, key=lambda series: not series.changes):
        if len(series.points) > 1:
            curve = Curve(names[series.key] + where(trend, series.place), series)
            by_metric.setdefault(series.metric.name, []).append(curve)
    changed = [curves for curves in by_metric.values() if curves[0].series.changes]
    of_time = [curves for curves in by_metric.values() if curves[0].series.metric.column.name == TIME]
    drawings = [drawn(curves, [*map(_changes, curves)], _drawing(trend, curves)) for curves in changed or of_time]
    document = trend_document(trend, show_all=True)
    return Part(
        id=trend.axis,
        title=f"Over {_axis(trend)}s",
        said=[
            f"{summary(trend)}.",
            *(f"Broken in the end: {failure}." for failure in document.missing),
            *dict.fromkeys(line for *_, cut_short in drawings for line in cut_short),
        ],
        charts=[chart for charts, _, _ in drawings for chart in charts],
        datasets={name: rows for _, datasets, _ in drawings for name, rows in datasets.items()},
        blocks=[block for section in document.sections() for block in _blocks(section)],
    )


def _blocks(section: Section) -> list[Block]:
    """Return a section as blocks of the page: its title is a sentence, or the title of an untitled first table."""
    titled = bool(section.blocks) and not section.blocks[0].title
    blocks = [replace(section.blocks[0], title=section.title), *section.blocks[1:]] if titled else section.blocks
    listed = [*([] if titled else [Block(section.title)]), *blocks]
    return [replace(block, folded=len(block.rows) > FOLDED) for block in listed]


def _changes(curve: Curve) -> str:
    changes = curve.series.changes[:LONGEST_LIST]
    parts = [f"{change.direction} at {change.x.label}, {size(change)}" for change in changes]
    return as_sentence("; ".join(parts) or "no change")


def _drawing(trend: Trend, curves: Sequence[Curve]) -> Drawing[Curve]:
    """Return the chart of a metric, a series at a time; changed series come first."""
    column = curves[0].series.metric.column

    def spec(rows: Rows) -> Mapping[str, Any]:
        return _spec(_axis(trend), column.label, column.unit, rows)

    return Drawing(
        name=f"trends-{trend.axis}-{curves[0].series.metric.name}",
        title=f"{column.label} over {_axis(trend)}",
        alt=f"{sum(bool(curve.series.changes) for curve in curves):,} of {len(curves):,} series changed.",
        rows=lambda curve: {"": _rows(curve.series)},
        spec=spec,
        marked=("kind",),
    )


def _rows(series: Series) -> list[dict[str, Any]]:
    """Return a row for each point of a series, with the ends of its interval or of its runs, and of the chart."""
    changes = {change.x: change for change in series.changes}
    ends = [_ends(point) for point in series.points]
    bottom, top = _range([value for pair in ends for value in pair])
    labels: Counter[str] = Counter()
    rows = []
    for point, (low, high) in zip(series.points, ends, strict=True):
        labels[point.x.label] += 1
        again = labels[point.x.label]  # others of the label are numbered
        change = changes.get(point.x)
        value = point.value if point.value is not None and math.isfinite(point.value) else None
        rows.append(
            {
                "x": f"{point.x.label} ({again})" if again > 1 else point.x.label,
                "value": value,
                "low": low,
                "high": high,
                "bottom": bottom,
                "top": top,
                "kind": change.direction if change else "value",
                "text": _text(series, point, low, high),
                "change": f"{size(change)}: {what(change)[:LONGEST]}" if change else "",
            }
        )
    return rows


def _ends(point: Point) -> tuple[float | None, float | None]:
    """Return the ends of a point's interval: of several runs the least and the largest value."""
    if point.value is None:
        return None, None
    ends = [
        end for run in point.each for end in ([run.value] if len(point.each) > 1 else [run.value, run.low, run.high])
    ]
    finite = [value for value in ends if value is not None and math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (None, None)


def _text(series: Series, point: Point, low: float | None, high: float | None) -> str:
    """Return the value of a point with its interval, and the number of its runs."""
    unit = series.metric.column.unit
    if point.value is None:
        return "no value"
    between = "" if low == high else f" ({format_quantity(low, unit)} to {format_quantity(high, unit)})"
    return f"{format_quantity(point.value, unit)}{between}, {counted(len(point.each), 'run')}"


def _range(values: Sequence[float | None]) -> tuple[float, float]:
    """Return the ends of a series' chart: its values and intervals, with a margin."""
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    if low > 0:
        half = max(math.log(high / low), LEAST_SPAN) * 0.55
        middle = (math.log(high) + math.log(low)) / 2
        return math.exp(middle - half), math.exp(middle + half)
    half = max(high - low, 0.1 * high) * 0.55 or 1.0
    return min(low, max(0.0, (low + high) / 2 - half)), (low + high) / 2 + half


def _spec(axis: str, title: str, unit: str, rows: Rows) -> Mapping[str, Any]:
    """Return the line of one series: intervals, points, a rule at each change; a point without a value breaks it."""
    logarithmic = all(row["bottom"] > 0 for row in rows)
    scale = {"nice": False, **({"type": "log"} if logarithmic else {"zero": False})}
    kinds = [kind for kind in _KINDS if any(row["kind"] == kind for row in rows)]
    looks = {"field": "kind", "type": "nominal", "legend": {"title": None}}
    shapes, colours = ([_KINDS[kind][place] for kind in kinds] for place in (0, 1))

    def y(field: str) -> dict[str, Any]:
        labels = {"labelExpr": label_expression(unit), "tickCount": 5}
        return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": labels}

    labels = {"labelAngle": -30, "labelLimit": 120}
    return {
        "encoding": {
            "x": {"field": "x", "type": "ordinal", "sort": None, "title": axis, "axis": labels},
            "tooltip": tooltip(x=axis, text=title, change="change"),
        },
        "layer": [
            # all x and the whole range, whatever is drawn above
            {"mark": {"type": "rule", "opacity": 0}, "encoding": {"y": y("bottom"), "y2": {"field": "top"}}},
            {"transform": [{"filter": "datum.kind !== 'value'"}], "mark": dict(DASHED)},
            {
                "mark": {"type": "rule", "strokeWidth": 5, "opacity": 0.3, "color": "var(--link)"},
                "encoding": {"y": y("low"), "y2": {"field": "high"}},
            },
            {
                "mark": {"type": "line", "invalid": "break-paths-show-domains", "color": "var(--link)"},
                "encoding": {"y": y("value")},
            },
            {
                "mark": {"type": "point", "opacity": 1, "size": 80},
                "encoding": {
                    "y": y("value"),
                    "shape": {**looks, "scale": {"domain": kinds, "range": shapes}},
                    "color": {**looks, "scale": {"domain": kinds, "range": colours}},
                },
            },
        ],
    }


def _axis(trend: Trend) -> str:
    """Return the name of a trend's axis."""
    return trend.axis.replace("_", " ")
