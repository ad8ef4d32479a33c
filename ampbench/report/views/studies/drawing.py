"""What studies draw with.

Curves over the steps of a training: which points of them are drawn, their axes, and the lines themselves.

Charts that show one of several cases at a time, from what is drawn of each.

Sections of what studies found, as details of the page, and tables of all cases.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Protocol, TypeVar

from ampbench.present.document import Block, Section, as_sentence
from ampbench.report.drawing import DASHED, Chart, Choice, Rows
from ampbench.report.views.part import CHOICES, LISTED, ROWS_OF_THE_PAGE, Detail, Part, cut

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


class Numbered(Protocol):
    """What can be chosen: numbered from 0, with a name."""

    @property
    def number(self) -> int:
        """Its number on the page."""

    @property
    def name(self) -> str:
        """What it is called."""


N = TypeVar("N", bound=Numbered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing(Generic[N]):
    """A chart in the making: its data are called `name`.

    `rows` returns what is drawn of a case ([]: it has no place in the chart), `said` what that shows, in words, and
    `chart` the chart of all choices and rows. The field `marked` of rows is what the legend lists.
    """

    name: str
    rows: Callable[[N], list[dict[str, Any]]]
    said: Callable[[N, Rows], str]
    chart: Callable[[Sequence[Choice], Rows], Chart]
    marked: str = "series"


def drawn(found: Sequence[N], *drawings: Drawing[N]) -> tuple[list[Chart], dict[str, Rows], list[str]]:
    """Return the charts of cases, their data, and which of very many cases have a place in them."""
    charts: list[Chart] = []
    datasets: dict[str, Rows] = {}
    left = 0
    for drawing in drawings:
        choices: list[Choice] = []
        rows: list[dict[str, Any]] = []
        for place, one in enumerate(found):
            if place >= CHOICES or len(rows) > ROWS_OF_THE_PAGE:
                left = max(left, len(found) - place)
                break
            if own := drawing.rows(one):
                value = str(one.number)
                present = list(dict.fromkeys(row[drawing.marked] for row in own if row[drawing.marked] is not None))
                choices.append(Choice(value=value, label=one.name, alt=drawing.said(one, own), marks=present))
                rows += [{"case": value, **row} for row in own]
        if choices:
            charts.append(drawing.chart(choices, rows))
            datasets[drawing.name] = rows
    said = [f"The charts have {len(found) - left:,} of {len(found):,}, the first ones."] if left else []
    return charts, datasets, said


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A table of all cases: its `caption`, its `headers` behind that of the names, and for each row name and cells.

    A cell of several lines is a list. `numbers` are headers of columns of numbers, `wide` of those of sentences.
    """

    caption: str
    headers: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str | Sequence[str]]]]
    first: str = "case"
    numbers: Collection[str] = ()
    wide: Collection[str] = ()


def detail_of(name: str, section: Section, folded: Collection[str] = ()) -> Detail:
    """Return what a section says of a case: its first line beside the name, its tables cut, those of `folded` folded.

    A table is folded where its title begins with one of `folded`.
    """
    lines = [line_of(block) for block in section.blocks if not block.headers]
    tables = [cut(block) for block in section.blocks if block.headers]
    hidden = [block for block in tables if block.title.startswith(tuple(folded))] if folded else []
    return Detail(
        name=name,
        said=lines[0].title if lines else section.title,
        blocks=[*lines[1:], *(block for block in tables if block not in hidden)],
        folded={block.title: [block] for block in hidden},
    )


def with_overview(part: Part, overview: Overview) -> Part:
    """Return a part with a table of all cases where there are several."""
    if len({name for name, _ in overview.rows}) < 2:
        return part
    rows: list[Mapping[str, Any]] = [
        {"name": name, "cells": [[cell] if isinstance(cell, str) else list(cell) for cell in cells]}
        for name, cells in overview.rows[:LISTED]
    ]
    content = {**part.content, "rows": rows, "overview": overview}
    return replace(part, content=content, left_out=max(part.left_out, len(overview.rows) - LISTED))


def line_of(block: Block) -> Block:
    """Return a line of text; some sections give it as the note of an empty title."""
    return block if block.title else Block(as_sentence(block.note))
