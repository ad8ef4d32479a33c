"""Curves over the steps of a training: which points of them are drawn, their axes, and the lines themselves."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from ampbench.report.vega import DASHED

POINTS = 100
"""So many points has a curve at most; of more, neighbours are put together as their mean."""
MARKED = 8
"""So many points of a curve carry its shape, which tells it from others without colour."""
_WIDE = 20.0
"""Values that are all positive, the largest so many times the smallest, stand on a log axis."""

COLOURS = ("--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6", "--series-7")
SHAPES = ("square", "triangle-up", "diamond", "triangle-down", "triangle-right", "cross")
REFERENCES: Mapping[str, tuple[str, str]] = {"fp64": ("--dtype-fp64", "triangle-left"), "fp32": ("--fp32", "circle")}
"""Series that others are compared with, with their colour and shape wherever they are drawn."""


def thinned_curve(losses: Sequence[float | None], steps: int, every: int = 1) -> list[tuple[float, float | None]]:
    """Return the points of a curve of means over `every` of `steps` each: the middle of these from 1, and the mean.

    Of more than `POINTS`, neighbours are put together; None where one of them is. Those of trainings that were asked
    for as many steps have the same places, also where one ended early.
    """
    size = max(1, math.ceil(steps / every / POINTS))
    points: list[tuple[float, float | None]] = []
    for start in range(0, len(losses), size):
        own = losses[start : start + size]
        known = [loss for loss in own if loss is not None and math.isfinite(loss)]
        value = math.fsum(known) / len(known) if len(known) == len(own) else None
        points.append((start * every + (len(own) * every + 1) / 2, value))
    return points


def marked(rows: Iterable[dict[str, Any]], series: str = "series") -> None:
    """Say in rows, those of one series after the other, which points carry its shape: not the same ones in each."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row[series], []).append(row)
    longest = max(map(len, found.values()), default=0)
    stride = max(1, longest // MARKED, min(len(found), longest))
    for place, own in enumerate(found.values()):
        for number, row in enumerate(own):
            row["mark"] = number % stride == (place * stride // max(len(found), 1)) % stride


def series_encoded(names: Sequence[str], own: Mapping[str, tuple[str, str]] = REFERENCES) -> dict[str, Any]:
    """Return the encoding of the field `series` by colour and shape; those of `own` have theirs, others the next."""
    others = [name for name in names if name not in own]
    looks = {name: own[name] for name in names if name in own}
    looks |= {name: (COLOURS[place % len(COLOURS)], SHAPES[place % len(SHAPES)]) for place, name in enumerate(others)}
    legend = {"title": None, "columns": 3, "columnPadding": 40, "labelLimit": 260}
    field = {"field": "series", "type": "nominal", "legend": legend}
    return {
        "color": {**field, "scale": {"domain": list(names), "range": [f"var({looks[name][0]})" for name in names]}},
        "shape": {**field, "scale": {"domain": list(names), "range": [looks[name][1] for name in names]}},
    }


def steps_axis(title: str = "step", logarithmic: bool = False) -> dict[str, Any]:
    """Return the encoding of the field `step` along x."""
    scale = {"type": "log", "nice": False} if logarithmic else {"zero": False, "nice": False}
    axis = {"tickMinStep": 1, "tickCount": 6, "format": "~s" if logarithmic else ",~r", "labelSeparation": 8}
    return {
        "field": "step",
        "type": "quantitative",
        "title": f"{title} (log scale)" if logarithmic else title,
        "scale": {**scale, "padding": 8},
        "axis": axis,
    }


def values_axis(field: str, title: str, values: Iterable[float | None]) -> dict[str, Any]:
    """Return the encoding of `field` along y: on a log axis where `values` are positive and of several sizes."""
    known = [value for value in values if value is not None]
    wide = bool(known) and min(known) > 0 and max(known) > _WIDE * min(known)
    return {
        "field": field,
        "type": "quantitative",
        "title": f"{title} (log scale)" if wide else title,
        "scale": {"type": "log", "nice": False, "padding": 8} if wide else {"zero": False, "padding": 8},
        "axis": {"format": ".2~g", "tickCount": 5, "minExtent": 46},
    }


def curve_layers(
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    looks: Mapping[str, Any],
    told: Sequence[Mapping[str, Any]],
    line: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return the layers of a curve for each series: its line, and the points that carry its shape.

    A line breaks where a value is None, points tell the fields of `told`. `looks` are colour and shape, `line` further
    properties of the line's mark.
    """
    mark = {"type": "line", "invalid": "break-paths-show-domains", "strokeWidth": 1.75, **(line or {})}
    colour = {"color": looks["color"], **({"strokeDash": looks["strokeDash"]} if "strokeDash" in looks else {})}
    points = {"type": "point", "size": 50, "opacity": 1}
    shown = [{"filter": f"datum.mark && isValid(datum.{y['field']})"}]
    own = {name: channel for name, channel in looks.items() if name != "strokeDash"}
    return [
        {"mark": mark, "encoding": {"x": x, "y": y, **colour}},
        {"transform": shown, "mark": points, "encoding": {"x": x, "y": y, **own, "tooltip": list(told)}},
    ]


def limit_layers(axis: Literal["x", "y"], channel: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the layers of the rows that have a `limit`: a dashed line across `axis`, with its `text` at its start.

    `channel` is the encoding of `axis` by the chart's own layers. A limit along y is named above its line, at the
    left; one along x beside its line, at the top.
    """
    limits = [{"filter": "isValid(datum.limit)"}]
    at = {axis: {**channel, "field": "limit"}}
    words: dict[str, Any] = {"type": "text", "fontSize": 11}
    if axis == "y":
        words |= {"align": "left", "baseline": "bottom", "dx": 3, "dy": -2}
        start = {"x": {"value": 0}}
    else:
        words |= {"align": "right", "baseline": "top", "angle": 270, "dy": 3}
        start = {"y": {"value": 0}}
    return [
        {"transform": limits, "mark": dict(DASHED), "encoding": at},
        {"transform": limits, "mark": words, "encoding": {**at, **start, "text": {"field": "text"}}},
    ]
