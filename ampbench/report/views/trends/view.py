"""Series over torch versions, commits or dates: where they changed, by how much, and what else differed there."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from ampbench.comparing.sentences import NOT_IN_TURNS
from ampbench.report.material import Material
from ampbench.report.view import Chart, Rows, View
from ampbench.report.views.trends.chart import axis_name, labels_of, make_charts, ordered, sparkline
from ampbench.trends import TRACKED, Place, Point, Series, Trend
from ampbench.trends.sentences import (
    LONGEST_LIST,
    Names,
    changes_in_order,
    extent,
    failures,
    gap,
    has_changed_times,
    levels,
    notes,
    place_name,
    series_names,
    shared_shifts,
    size,
    span,
    summary,
    total,
    where,
)
from ampbench.units import counted, format_quantity

COLUMNS_FOR_X = 8
"""As many x stand side by side with their values; of more, the table has the first and the last."""
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
        told[-1]["pictures"] = _pictures(trend, names)
    return View(
        id="trends",
        title="Trends",
        template="trends.html",
        content={"told": told, "not_interleaved": NOT_IN_TURNS, "folded": FOLDED},
        charts=charts,
        datasets=datasets,
    )


def _pictures(trend: Trend, names: Names) -> list[dict[str, Any]]:
    """Return a small picture of each series of times and of metrics that changed, those that changed first."""
    found: dict[str, list[dict[str, Any]]] = {}
    places = {one.place for one in trend.series}
    changed = {one.metric.name for one in trend.series if one.changes}
    for one in ordered(trend):
        if not (one.metric.noisy or one.metric.name in changed):
            continue
        first, last = _ends(one)
        cells = _cells(one, (first, last))
        found.setdefault(one.metric.name, []).append(
            {
                **sparkline(one),
                "case": names[one.key] + (where(trend, one.place) if len(places) > 1 else ""),
                "said": f"{cells[0]['text']} → {cells[1]['text']}",
                "total": total(one),
                "directions": list(dict.fromkeys(change.direction for change in one.changes)),
            }
        )
    return [{"metric": TRACKED[metric].column.label, "rows": rows} for metric, rows in found.items()]


def _told(trend: Trend, names: Names) -> dict[str, Any]:
    """Return what is said of a trend beside its charts, as its template reads it."""
    series = ordered(trend)
    alone = len(trend.series) - len(series)
    left_out = [f"left out {counted(count, 'run')} with {why}" for why, count in trend.left_out.items()]
    single = f"{counted(alone, 'series has', 'series have')} a single x, and {'is' if alone == 1 else 'are'} not shown"
    return {
        "title": _TITLES.get(trend.axis, trend.axis),
        "axis": axis_name(trend),
        "summary": summary(trend, labelled=True),
        "counted": f"{extent(trend)}: {span(trend)}",
        "warn": has_changed_times(trend),
        "changes": _changes(trend, names),
        "count": sum(len(one.changes) for one in trend.series),
        "shifts": shared_shifts(trend),
        "failures": failures(trend, labelled=True),
        "notes": [*notes(trend), *left_out, *([single] if alone else [])],
        "tables": [_table(trend, place, series, names) for place in dict.fromkeys(one.place for one in series)],
    }


def _changes(trend: Trend, names: Names) -> list[dict[str, Any]]:
    """Return the changes: those of one cause at one x together, under what the runs on both sides differ in."""
    groups = []
    pairs = changes_in_order(trend)
    for (place, x, what), group in groupby(pairs, key=lambda pair: (pair[0].place, pair[1].x, pair[1].what)):
        said = what or "no difference is recorded"
        named = f"{x.label} {x.title}".strip() if trend.axis == "commit" and x.title not in said else x.label
        rows = [
            {
                "case": names[one.key],
                "metric": one.metric.column.label,
                "before": levels(one, change)[0],
                "after": levels(one, change)[1],
                "size": size(change),
                "direction": change.direction,
            }
            for one, change in group
        ]
        groups.append({"x": named, "where": where(trend, place), "what": said, "rows": rows})
    return groups


def _table(trend: Trend, place: Place, series: Sequence[Series], names: Names) -> dict[str, Any]:
    """Return the series of a place: all values where the x are few, else the first and the last, and the changes."""
    own = [one for one in series if one.place == place]
    xs = [point.x for point in own[0].points]
    wide = len(xs) <= COLUMNS_FOR_X
    gaps = Counter(point.missing for one in own for point in one.points if point.value is None)
    caption = f"{place_name(place)}: {counted(len(own), 'series', 'series')} of {counted(trend.runs[place], 'run')}"
    return {
        "caption": caption,
        "heads": list(zip(labels_of(xs), (x.title for x in xs), strict=True)) if wide else [],
        "rows": [
            {
                "case": names[one.key],
                "metric": one.metric.column.label,
                "cells": _cells(one, one.points if wide else _ends(one)),
                "total": total(one),
                "changes": [] if wide else [f"{change.x.label} {size(change)}" for change in one.changes],
                "directions": [] if wide else [change.direction for change in one.changes],
            }
            for one in own
        ],
        "gaps": [f"{why} ({counted(count, 'value')})" for why, count in gaps.most_common(LONGEST_LIST)],
        "more_gaps": max(0, len(gaps) - LONGEST_LIST),
    }


def _ends(one: Series) -> list[Point]:
    """Return the first and the last point that have a value; the last of all where it is not finite."""
    last = one.points[-1] if one.points[-1].undefined else one.measured[-1]
    return [one.measured[0], last]


def _cells(one: Series, points: Iterable[Point]) -> list[dict[str, str]]:
    directions = {change.x: change.direction for change in one.changes}
    return [
        {
            "text": gap(point.missing) if point.value is None else format_quantity(point.value, one.metric.column.unit),
            "why": point.missing,
            "direction": directions.get(point.x, ""),
        }
        for point in points
    ]
