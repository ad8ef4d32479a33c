"""Charts, as Vega-Lite specifications without data, size and theme, which whoever draws them adds.

One colour and one shape per precision, the same in every chart and cell, in light and in dark; curves over the steps of
a training.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from ampbench.core.precisions import ordered
from ampbench.core.units import FORMATS, format_error, times
from ampbench.show.rows import Row, deciding_error, is_wrong, number
from ampbench.show.wording import verdict_words

N = TypeVar("N")
"""A case with a `name` on the page."""

PICTURED = 4
"""The number of cases drawn of a chart that shows one at a time, the first cases."""

Rows = Sequence[Mapping[str, Any]]
"""Rows of data for charts: plain values by name, None where undefined; all rows of a dataset have the same names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing of `rows` by a Vega-Lite `spec` without data, size and theme, which whoever draws it adds.

    `label` names the case that it shows ("": all), and `alt` describes it for readers who cannot see it.
    """

    spec: Mapping[str, Any]
    rows: Rows
    label: str = ""
    alt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart of one picture, or of one for each of several cases; `id` is unique on the page.

    `alt` holds for all pictures, with the main finding. `height` is in pixels.
    """

    id: str
    title: str
    pictures: Sequence[Picture]
    alt: str = ""
    height: int = 320


LOOKS: Mapping[str, tuple[str, str, str]] = {
    "fp32": ("#000000", "#f2f2f2", "circle"),
    "default": (
        "#8C5A2B",
        "#c08a52",
        "M0,-1L0.29,-0.4L0.95,-0.31L0.47,0.15L0.59,0.81L0,0.5L-0.59,0.81L-0.47,0.15L-0.95,-0.31L-0.29,-0.4Z",
    ),
    "tf32": ("#858585", "#999999", "cross"),
    "fp32_bf16_products": ("#8a8300", "#F0E442", "M-1,-1L1,-1L-1,1L1,1Z"),
    "fp16_autocast": ("#D55E00", "#D55E00", "square"),
    "bf16_autocast": ("#0072B2", "#0072B2", "triangle-up"),
    "fp16_master": (
        "#c0679a",
        "#CC79A7",
        "M-0.9,-0.9L0.9,-0.9L0.9,-0.2L0.35,-0.2L0.35,0.9L-0.35,0.9L-0.35,-0.2L-0.9,-0.2Z",
    ),
    "bf16_master": ("#009E73", "#009E73", "triangle-right"),
    "fp16_pure": ("#b57f00", "#E69F00", "diamond"),
    "bf16_pure": ("#3490cc", "#56B4E9", "triangle-down"),
}
"""Each precision's colour on light and on dark pages, and its shape in Vega.

From the Okabe-Ito palette, which colour-blind readers can tell apart, shaded where the contrast with the page
is below 3 to 1 (WCAG 2.2, 1.4.11).
"""
_FURTHER = tuple(
    (f"--series-{place}", shape)
    for place, shape in enumerate(
        ("arrow", "M-0.35,-1L0.35,-1L0.35,1L-0.35,1Z", "M-1,-0.35L1,-0.35L1,0.35L-1,0.35Z", "M-1,-1L1,1L-1,1L1,-1Z",
         "M-1,-1L0,-0.4L1,-1L0.4,0L1,1L0,0.4L-1,1L-0.4,0Z", "M0,-1L0.5,0L0,1L-0.5,0Z", "M-1,0L0,-0.5L1,0L0,0.5Z"), 1,
    )
)  # fmt: skip
"""The colours and shapes of all other names, such as users' own precisions, in their order."""
KNOWN: Mapping[str, tuple[str, str]] = {
    "fp64": ("--dtype-fp64", "triangle-left"),
    **{name: (f"--{name}", shape) for name, (_, _, shape) in LOOKS.items()},
}
"""The colour and shape of the names that look the same wherever they are drawn."""


def colour_variables(dark: bool = False) -> str:
    """Return the CSS declarations of the precisions' colours, `--fp32: #000000; ...`."""
    shades = {name: colours[dark] for name, colours in LOOKS.items()}
    return " ".join(f"--{name}: {shade};" for name, shade in shades.items())


def looks_encoded(
    field: str, names: Sequence[str], looks: Mapping[str, tuple[str, str]] = KNOWN, **legend: Any
) -> dict[str, Any]:
    """Return the Vega-Lite encoding of a field by a colour and a shape for each of its values `names`.

    Names without an entry in `looks` take the next of `_FURTHER`.
    """
    further = [name for name in names if name not in looks]
    looks = {**looks, **{name: _FURTHER[place % len(_FURTHER)] for place, name in enumerate(further)}}
    legend = {"title": None, "columns": 2, "columnPadding": 30, "labelLimit": 260, **legend}
    channel = {"field": field, "type": "nominal", "legend": legend}
    return {
        "color": {**channel, "scale": {"domain": list(names), "range": [f"var({looks[name][0]})" for name in names]}},
        "shape": {**channel, "scale": {"domain": list(names), "range": [looks[name][1] for name in names]}},
    }


def quantity(field: str, title: str, scale: Mapping[str, Any], axis: Mapping[str, Any]) -> dict[str, Any]:
    """Return the encoding of a field of numbers by its place on an axis."""
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


DASHED: Mapping[str, Any] = MappingProxyType({"type": "rule", "strokeDash": [4, 3]})
"""The mark of a line that is no data: a limit, a change or a baseline."""

LABELS: Mapping[str, str] = MappingProxyType(
    {
        "s": "format(datum.value, '.4~s') + 's'",
        "B": "format(datum.value / 1048576, ',.4~r') + ' MiB'",
        "ratio": "format(datum.value, '.4~r') + 'x'",
        "error": "datum.value ? format(datum.value, '.3~e') : '0'",
        "share": "format(datum.value, '.3~%')",
    }
)
"""The Vega expressions that write the numbers of an axis, by their unit; other units have SI prefixes."""


def tooltip(**titles: str) -> list[dict[str, str]]:
    """Return the tooltip of the fields in `titles`, each under its title."""
    return [{"field": field, "type": "nominal", "title": title} for field, title in titles.items()]


SLOWEST = 0.25
"""Below this many times the speed of fp32 points stand at the edge: emulated halves take thirty times as long, and on a
scale that shows that, nobody can tell 1.2 from 1.5."""
SPANNED = 200
"""Up to this number of points they have intervals; more lines could not be distinguished."""


def speed_points(rows: Iterable[tuple[str, Row]]) -> list[dict[str, Any]]:
    """Return the points of pairs of table and row (with its verdict) that have a speed and an error."""
    points = []
    for table, row in rows:
        error, speed = deciding_error(row), number(row["speedup_vs_fp32"])
        if error and speed and math.isfinite(error):
            low, high = number(row["speedup_low"]), number(row["speedup_high"])
            between = "" if low is None or high is None else f" ({times(low)} to {times(high)})"
            known = {"table": table, "precision": row["precision"], "verdict": verdict_words(row)}
            known |= {"wrong": is_wrong(row), "error": error, "speed": speed, "low": low, "high": high}
            points.append(known | {"error_text": format_error(error), "speed_text": f"{times(speed)}{between}"})
    return points


def speed_layers(points: Rows, limit: float) -> list[dict[str, Any]]:
    """Return the layers of speed against error, and its `limit`: a point a row, crossed out where it is not ok."""
    log = {"type": "log", "nice": False, "padding": 20}
    speeds = [point[name] for point in points for name in ("speed", "low", "high") if point[name] is not None]
    domain = [max(SLOWEST, min(0.5, *speeds)), max(1.5, *speeds)]
    x = quantity("speed", "speed, times fp32 (faster →)", log | {"clamp": True, "domain": domain}, {"format": "~g"})
    y = quantity("error", "output error (↓ more exact)", log, {"format": ".0e", "tickCount": 5})
    at = {"x": x, "y": y}
    budget = {"values": [{"limit": limit, "text": f"error budget {limit:g}"}]}
    across = {"y": {**y, "field": "limit"}}
    name = {"type": "text", "fontSize": 11, "align": "left", "baseline": "bottom", "dx": 3, "dy": -2}
    named = {**across, "x": {"value": 0}, "text": {"field": "text"}}
    limits: list[dict[str, Any]] = [
        {"data": budget, "mark": dict(DASHED), "encoding": across},
        {"data": budget, "mark": name, "encoding": named},
    ]
    looks = looks_encoded("precision", ordered({point["precision"] for point in points}))
    tips = tooltip(table="table", precision="precision", verdict="verdict", speed_text="speed", error_text="error")
    ends = {**at, "x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": looks["color"]}
    point = {"type": "point", "filled": False, "size": 36, "strokeWidth": 1.5, "opacity": 1}
    cross = {"type": "text", "text": "×", "fontSize": 18, "color": "var(--regressed)"}
    interval = {"mark": "rule", "transform": [{"filter": "isValid(datum.low)"}], "encoding": ends}
    return [
        *([interval] if len(points) <= SPANNED else []),
        {"mark": point, "encoding": {**at, **looks, "tooltip": tips}},
        {"mark": cross, "transform": [{"filter": "datum.wrong"}], "encoding": at},
        *(limits if 0 < limit < math.inf else []),
    ]


POINTS = 100
"""The most points of a curve; further neighbours are averaged."""
MARKED = 8
"""The points of a curve with a shape, which distinguishes curves without colour."""
_WIDE = 20.0
"""Positive values with a larger ratio of maximum to minimum have a log axis."""


def thinned_curve(values: Sequence[float | None]) -> list[tuple[float, float | None]]:
    """Return the points of a curve of the values of steps from 1.

    Of more than `POINTS`, neighbours are put together: the middle of their steps, and their mean; None where one of
    them is.
    """
    size = max(1, math.ceil(len(values) / POINTS))
    points: list[tuple[float, float | None]] = []
    for start in range(0, len(values), size):
        part = values[start : start + size]
        known = [value for value in part if value is not None and math.isfinite(value)]
        points.append((start + (len(part) + 1) / 2, math.fsum(known) / len(known) if len(known) == len(part) else None))
    return points


def marked(rows: Iterable[dict[str, Any]]) -> None:
    """Set in rows, ordered by series, which points have a shape: different steps in each series."""
    for place, (_, series) in enumerate(groupby(rows, key=itemgetter("series"))):
        points = list(series)
        stride = max(1, len(points) // MARKED)
        for step, row in enumerate(points):
            row["mark"] = step % stride == place % stride


def curves(
    name: str,
    title: str,
    axis: str,
    legend: str,
    series: Callable[[Any], Iterable[tuple[str, Sequence[float | None] | Mapping[float, float | None]]]],
    *,
    alt: str,
    unit: str = "loss",
) -> "Drawing[Any]":
    """Return a chart of curves over steps: `series` gives the names and the values of each step of a case's record.

    Values of some steps alone are a mapping. A line breaks where a value is None. Values that are positive and of
    several sizes are drawn on a log axis. `axis` names the values, which are in `unit`, and `legend` the series.
    """

    def rows(case: Any) -> list[dict[str, Any]]:
        points: list[dict[str, Any]] = [
            {"series": label, "step": step, "value": value, "text": FORMATS[unit](value), "mark": False}
            for label, values in series(case.found)
            for step, value in (values.items() if isinstance(values, Mapping) else thinned_curve(values))
        ]
        marked(points)
        return points if any(row["value"] is not None for row in points) else []

    def spec(points: Rows) -> dict[str, Any]:
        names = list(dict.fromkeys(row["series"] for row in points))
        looks = looks_encoded("series", names, columns=3)
        known = [row["value"] for row in points if row["value"] is not None]
        wide = bool(known) and min(known) > 0 and max(known) > _WIDE * min(known)
        steps = {"tickMinStep": 1, "tickCount": 6, "format": ",~r", "labelSeparation": 8}
        x = quantity("step", "step", {"zero": False, "nice": False, "padding": 8}, steps)
        scale = {"type": "log", "nice": False, "padding": 8} if wide else {"zero": False, "padding": 8}
        title = f"{axis} (log scale)" if wide else axis
        at = {"x": x, "y": quantity("value", title, scale, {"format": ".2~g", "tickCount": 5, "minExtent": 46})}
        line = {"type": "line", "invalid": "break-paths-show-domains", "strokeWidth": 1.75}
        tips = tooltip(series=legend, step="around step", text=axis)
        shapes = {
            "transform": [{"filter": "datum.mark && isValid(datum.value)"}],
            "mark": {"type": "point", "size": 50, "opacity": 1},
            "encoding": {**at, **looks, "tooltip": tips},
        }
        return {"layer": [{"mark": line, "encoding": {**at, "color": looks["color"]}}, shapes]}

    return Drawing(name=name, title=title, alt=alt, rows=rows, spec=spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing(Generic[N]):
    """A chart before it has data: `name` is its id, other fields are as in `Chart`.

    `rows` returns the rows of a case's picture; a case without rows is not drawn. `spec` returns its specification.
    """

    name: str
    title: str
    rows: Callable[[N], list[dict[str, Any]]]
    spec: Callable[[Rows], Mapping[str, Any]]
    alt: str = ""


def drawn(cases: Sequence[Any], first_lines: Sequence[str], *drawings: Drawing[Any]) -> tuple[list[Chart], list[str]]:
    """Return the charts of cases, and a note where only the first cases are drawn.

    Each picture of a case has its line of `first_lines`.
    """
    charts: list[Chart] = []
    for drawing in drawings:
        pictures = [
            Picture(spec=drawing.spec(rows), rows=rows, label=case.name, alt=f"{case.name}. {words}")
            for case, words in zip(cases[:PICTURED], first_lines, strict=False)
            if (rows := drawing.rows(case))
        ]
        if pictures:
            charts.append(Chart(id=drawing.name, title=drawing.title, alt=drawing.alt, pictures=pictures, height=260))
    cut_short = [f"The charts have {PICTURED} of {len(cases):,}, the first ones."] if len(cases) > PICTURED else []
    return charts, cut_short if charts else []
