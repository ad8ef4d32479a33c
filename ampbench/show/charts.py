"""Charts, as Vega-Lite specifications without data, size and theme, which whoever draws them adds.

One colour and one shape per precision, the same in every chart and cell, in light and in dark; curves over the steps of
a training; the modules of a network in the order of running; charts that show one of several cases at a time, from what
is drawn of each.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from ampbench.core.precisions import ordered
from ampbench.core.units import FORMATS, format_error, times
from ampbench.show.rows import Row, is_wrong, judged_error, number
from ampbench.show.wording import verdict_words

T = TypeVar("T")

CHOICES = 4
"""The number of cases drawn of a chart that shows one at a time, the first cases."""

Rows = Sequence[Mapping[str, Any]]
"""Rows of data for charts: plain values by name, None where undefined; all rows of a dataset have the same names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One part of a chart's data that a reader may choose: the `value` of the field, and what it is called.

    `alt` says in words what the chart shows when it is chosen. `marks` are the names that its legends then list, of
    those that the chart has; (): all.
    """

    value: str
    label: str
    alt: str
    marks: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart: a Vega-Lite `spec` without data, size and theme, which whoever draws it adds.

    `id` is unique on the page, `alt` says in words what the chart shows and its main finding, for those who cannot see
    it; of a chart with `choices` it says what holds whatever is chosen. `dataset` names rows among `Part.datasets`.
    Where `choose` names a field, each of `choices` is drawn by itself, from the rows with its value. `height` is in
    pixels.
    """

    id: str
    title: str
    alt: str
    spec: Mapping[str, Any]
    dataset: str
    height: int = 320
    choose: str = ""
    choices: Sequence[Choice] = ()


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

From the Okabe-Ito palette, which colour-blind readers can tell apart, shaded where it stands out too little from the
page (WCAG 2.2, 1.4.11: 3 to 1).
"""
OWN = (
    ("#7570B3", "#9d99d6", "arrow"),
    ("#A6761D", "#c8963a", "M-0.35,-1L0.35,-1L0.35,1L-0.35,1Z"),
    ("#A0225A", "#e07aa8", "M-1,-0.35L1,-0.35L1,0.35L-1,0.35Z"),
)
"""The colours, on light and on dark, and the shapes of users' own precisions, in the order of their names."""


def colour_variables(dark: bool = False) -> str:
    """Return the CSS declarations of the precisions' colours, `--fp32: #000000; ...`."""
    shades = {name: colours[dark] for name, colours in LOOKS.items()}
    shades |= {f"own-{place}": colours[dark] for place, colours in enumerate(OWN, 1)}
    return " ".join(f"--{name}: {shade};" for name, shade in shades.items())


def colour_rules() -> str:
    """Return the CSS rules that give what is marked with a precision (`data-precision`) its colour, as `--c`."""
    return "\n".join(f'[data-precision="{name}"] {{ --c: var(--{name}); }}' for name in LOOKS)


def precision_encoded(names: Iterable[str]) -> dict[str, Any]:
    """Return the Vega-Lite encoding of the field `precision` by colour and shape, for those of `names` that exist.

    Others are users' own, or those of foreign runs: they take the colours of `OWN`, and are grey when these are taken.
    """
    domain = ordered(names)
    looks = {name: (f"var(--{name})", shape) for name, (_, _, shape) in LOOKS.items()}
    spare = iter([(f"var(--own-{place})", shape) for place, (_, _, shape) in enumerate(OWN, 1)])
    for name in domain:
        if name not in looks:
            looks[name] = next(spare, ("var(--faint)", "triangle-left"))
    legend = {"title": None, "columns": 2}  # fits a narrow screen
    field = {"field": "precision", "type": "nominal", "title": "precision", "legend": legend}
    return {
        "color": {**field, "scale": {"domain": domain, "range": [looks[name][0] for name in domain]}},
        "shape": {**field, "scale": {"domain": domain, "range": [looks[name][1] for name in domain]}},
    }


def quantity(field: str, title: str, scale: Mapping[str, Any], axis: Mapping[str, Any]) -> dict[str, Any]:
    """Return the encoding of a field of numbers by its place on an axis."""
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


DASHED: Mapping[str, Any] = MappingProxyType({"type": "rule", "strokeDash": [4, 3]})
"""The mark of a line that is no data: a limit, a change, what others are compared with."""

_TIMES: Mapping[float, str] = MappingProxyType({60: "min", 1: "s", 1e-3: "ms", 1e-6: "us"})
_SIZES: Mapping[float, str] = MappingProxyType({1024**3: "GiB", 1024**2: "MiB", 1024: "KiB"})


def tooltip(**titles: str) -> list[dict[str, str]]:
    """Return the tooltip that tells the fields `titles` as they stand in the data, each under its title."""
    return [{"field": field, "type": "nominal", "title": title} for field, title in titles.items()]


def budget_rule(limit: float) -> list[dict[str, Any]]:
    """Return the layers that draw an error budget across a log axis y and name it; none where it has no place there."""
    if not 0 < limit < math.inf:
        return []
    data = {"values": [{"limit": limit, "text": f"error budget {limit:g}"}]}
    place = {"y": {"field": "limit", "type": "quantitative"}}
    label = {"type": "text", "align": "right", "dy": -3, "baseline": "bottom"}
    return [
        {"data": data, "mark": dict(DASHED), "encoding": place},
        {"data": data, "mark": label, "encoding": {**place, "x": {"value": "width"}, "text": {"field": "text"}}},
    ]


def middle_cut(longest: int) -> str:
    """Return the Vega expression of a label that loses its middle where it has more than `longest` characters.

    The end of a case's name, with batch size and phase, is what tells it from others.
    """
    cut = f"slice(datum.label, 0, 10) + '…' + slice(datum.label, {11 - longest})"
    return f"length(datum.label) > {longest} ? {cut} : datum.label"


def label_expression(unit: str, value: str = "datum.value", digits: str = ".4~r") -> str:
    """Return the Vega expression that writes the number `value`, an expression itself, as text in `unit`.

    It is for the labels of axes and for values under the pointer: what `units` writes, with as many digits as needed.
    """
    match unit:
        case "s":
            return _scaled(_TIMES, value, digits, f"format({value} * 1e9, '{digits}') + ' ns'")
        case "B":
            return _scaled(_SIZES, value, digits, f"{value} + ' B'")
        case "ratio":
            return f"format({value}, '{digits}') + 'x'"
        case "error":
            return f"{value} ? format({value}, '.3~e') : '0'"
        case "share":
            return f"format({value}, '.3~%')"
    return f"format({value}, '.4~s')"


def _scaled(scales: Mapping[float, str], value: str, digits: str, smallest: str) -> str:
    """Return the expression that writes a number in the largest of `scales`, by unit, that it reaches."""
    steps = [
        f"{value} >= {scale} ? format({value} / {scale}, '{digits}') + ' {unit}'" for scale, unit in scales.items()
    ]
    return " : ".join([*steps, smallest])


SLOWEST = 0.25
"""Below this many times the speed of fp32 points stand at the edge: emulated halves take thirty times as long, and on a
scale that shows that, nobody can tell 1.2 from 1.5."""
SPANNED = 200
"""Up to this number of points they have intervals; more lines could not be distinguished."""


def speed_points(rows: Iterable[tuple[str, Row]]) -> list[dict[str, Any]]:
    """Return what is drawn of rows with their verdicts, each given with its table: those with a speed and an error."""
    points = []
    for table, row in rows:
        error, speed = judged_error(row), number(row["speedup_vs_fp32"])
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
    looks = precision_encoded({point["precision"] for point in points})
    told = tooltip(table="table", precision="precision", verdict="verdict", speed_text="speed", error_text="error")
    ends = {**at, "x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": looks["color"]}
    point = {"type": "point", "filled": False, "size": 36, "strokeWidth": 1.5, "opacity": 1}
    cross = {"type": "text", "text": "×", "fontSize": 18, "color": "var(--regressed)"}
    interval = {"mark": "rule", "transform": [{"filter": "isValid(datum.low)"}], "encoding": ends}
    return [
        *([interval] if len(points) <= SPANNED else []),
        {"mark": point, "encoding": {**at, **looks, "tooltip": told}},
        {"mark": cross, "transform": [{"filter": "datum.wrong"}], "encoding": at},
        *budget_rule(limit),
    ]


POINTS = 100
"""So many points has a curve at most; of more, neighbours are put together as their mean."""
MARKED = 8
"""So many points of a curve carry its shape, which tells it from others without colour."""
_WIDE = 20.0
"""Values that are all positive, the largest so many times the smallest, stand on a log axis."""

COLOURS = ("--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6", "--series-7")
SHAPES = ("square", "triangle-up", "diamond", "triangle-down", "triangle-right", "cross")
NAMED: Mapping[str, tuple[str, str]] = {
    "fp64": ("--dtype-fp64", "triangle-left"),
    **{name: (f"--{name}", shape) for name, (_, _, shape) in LOOKS.items()},
}
"""Series that have their colour and shape wherever they are drawn: precisions, and fp64."""


def thinned_curve(values: Sequence[float | None]) -> list[tuple[float, float | None]]:
    """Return the points of a curve of the values of steps from 1.

    Of more than `POINTS`, neighbours are put together: the middle of their steps, and their mean; None where one of
    them is.
    """
    size = max(1, math.ceil(len(values) / POINTS))
    points: list[tuple[float, float | None]] = []
    for start in range(0, len(values), size):
        own = values[start : start + size]
        known = [value for value in own if value is not None and math.isfinite(value)]
        points.append((start + (len(own) + 1) / 2, math.fsum(known) / len(known) if len(known) == len(own) else None))
    return points


def marked(rows: Iterable[dict[str, Any]]) -> None:
    """Say in rows, those of one series after the other, which points carry its shape: not the same ones in each."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["series"], []).append(row)
    longest = max(map(len, found.values()), default=0)
    stride = max(1, longest // MARKED, min(len(found), longest))
    for place, own in enumerate(found.values()):
        for step, row in enumerate(own):
            row["mark"] = step % stride == (place * stride // max(len(found), 1)) % stride


def looks_encoded(
    field: str, names: Sequence[str], looks: Mapping[str, tuple[str, str]], **legend: Any
) -> dict[str, Any]:
    """Return the encoding of a field by the colour and the shape that `looks` has for each of its values `names`."""
    channel = {"field": field, "type": "nominal", "legend": {"title": None, **legend}}
    return {
        "color": {**channel, "scale": {"domain": list(names), "range": [f"var({looks[name][0]})" for name in names]}},
        "shape": {**channel, "scale": {"domain": list(names), "range": [looks[name][1] for name in names]}},
    }


def series_encoded(names: Sequence[str], own: Mapping[str, tuple[str, str]] = NAMED) -> dict[str, Any]:
    """Return the encoding of the field `series` by colour and shape; those of `own` have theirs, others the next."""
    others = [name for name in names if name not in own]
    looks = {name: own[name] for name in names if name in own}
    looks |= {name: (COLOURS[place % len(COLOURS)], SHAPES[place % len(SHAPES)]) for place, name in enumerate(others)}
    return looks_encoded("series", names, looks, columns=3, columnPadding=40, labelLimit=260)


def curves(
    name: str,
    title: str,
    axis: str,
    legend: str,
    series: "Callable[[Any], Iterable[tuple[str, Sequence[float | None] | Mapping[int, float]]]]",
    *,
    alt: str,
    unit: str = "loss",
    logarithmic: bool = False,
) -> "Drawing[Any]":
    """Return a chart of curves over steps: of the record found of a case, `series` gives the names and their values.

    A line breaks where a value is None. Values that are positive and of several sizes stand on a log axis.

    The values are of each step, or by their steps. `axis` is what they are, in `unit`, and `legend` what tells the
    series apart.
    """

    def rows(told: Any) -> dict[str, list[dict[str, Any]]]:
        found: list[dict[str, Any]] = [
            {"series": own, "step": step, "value": value, "text": FORMATS[unit](value), "mark": False}
            for own, values in series(told.found)
            for step, value in (values.items() if isinstance(values, Mapping) else thinned_curve(values))
        ]
        marked(found)
        return {"": found} if any(row["value"] is not None for row in found) else {}

    def spec(found: Rows) -> dict[str, Any]:
        looks = series_encoded(list(dict.fromkeys(row["series"] for row in found)))
        known = [row["value"] for row in found if row["value"] is not None]
        wide = bool(known) and min(known) > 0 and max(known) > _WIDE * min(known)
        logs = {"type": "log", "nice": False, "padding": 8}
        x = quantity(
            "step",
            "step (log scale)" if logarithmic else "step",
            logs if logarithmic else {"zero": False, "nice": False, "padding": 8},
            {"tickMinStep": 1, "tickCount": 6, "format": "~s" if logarithmic else ",~r", "labelSeparation": 8},
        )
        spelled = {"labelExpr": label_expression(unit)} if unit == "B" else {}
        y = quantity(
            "value",
            f"{axis} (log scale)" if wide else axis,
            logs if wide else {"zero": False, "padding": 8},
            {"format": ".2~g", "tickCount": 5, "minExtent": 46, **spelled},
        )
        line = {"type": "line", "invalid": "break-paths-show-domains", "strokeWidth": 1.75}
        points = {"type": "point", "size": 50, "opacity": 1}
        told = tooltip(series=legend, step="around step", text=axis)
        shown = [{"filter": "datum.mark && isValid(datum.value)"}]
        return {
            "layer": [
                {"mark": line, "encoding": {"x": x, "y": y, "color": looks["color"]}},
                {"transform": shown, "mark": points, "encoding": {"x": x, "y": y, **looks, "tooltip": told}},
            ]
        }

    return Drawing(name=name, title=title, alt=alt, rows=rows, spec=spec)


def limit_layers(y: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the layers of rows that have a `limit`: a dashed line across `y`, with its `text` above at the left."""
    limits = [{"filter": "isValid(datum.limit)"}]
    at = {"y": {**y, "field": "limit"}}
    words = {"type": "text", "fontSize": 11, "align": "left", "baseline": "bottom", "dx": 3, "dy": -2}
    return [
        {"transform": limits, "mark": dict(DASHED), "encoding": at},
        {"transform": limits, "mark": words, "encoding": {**at, "x": {"value": 0}, "text": {"field": "text"}}},
    ]


MODULES = 300
"""So many modules of a network are drawn at most: of more an eye tells none from its neighbours."""

_CHARACTERS = 24
"""So many characters of a name stand at the axis: which block it is in and its own name, without what lies between."""
_WIDTH = 7.4
"""Pixels of a character at most: a browser's font may be wider than the one that was measured with."""


def modules_axis(rows: Rows) -> dict[str, Any]:
    """Return the encoding of the field `module` of `rows` along x in the order of `place`.

    Names stand upright, as many as there is room for. That is made for those of the first `case`, which is drawn into
    the page; a browser that draws another measures itself.
    """
    drawn = [row["module"] for row in rows if row["case"] == rows[0]["case"] and row["module"]]
    longest = max(map(len, drawn), default=0)
    axis = {
        "labelAngle": -90,
        "labelExpr": middle_cut(_CHARACTERS),
        "labelLimit": 0,
        "labelOverlap": "greedy",
        "labelSeparation": 1,
        "minExtent": _WIDTH * min(longest, _CHARACTERS),
        "ticks": False,
    }
    return {
        "field": "module",
        "type": "nominal",
        "sort": {"field": "place", "op": "min"},
        "title": "modules, in the order of running",
        "axis": axis,
    }


def module_points(
    rows: Rows, places: Mapping[str, Mapping[str, Any]], looks: Mapping[str, tuple[str, str]], told: Sequence[Any]
) -> list[dict[str, Any]]:
    """Return layers of points of modules, one for each field of `places`: where along y those stand that have it."""
    kinds = {row[field] for row in rows for field in places}
    names, x = [name for name in looks if name in kinds], modules_axis(rows)
    looked = {field: looks_encoded(field, names, looks, columns=2, labelLimit=260) for field in places}
    return [
        {
            "transform": [{"filter": f"isValid(datum.{field})"}],
            "mark": {"type": "point", "size": 40, "opacity": 1},
            "encoding": {"x": x, "y": y, **looked[field], "tooltip": told},
        }
        for field, y in places.items()
        if any(row[field] for row in rows)
    ]


def thinned(modules: Sequence[T], worth: Callable[[T], float], most: int = MODULES) -> list[T]:
    """Return at most `most` of `modules` in their order: those of the greatest `worth`, the first of equal ones."""
    if len(modules) <= most:
        return list(modules)
    order = sorted(range(len(modules)), key=lambda place: (-worth(modules[place]), place))
    return [modules[place] for place in sorted(order[:most])]


class Named(Protocol):
    """What has a name on the page."""

    @property
    def name(self) -> str:
        """What it is called."""


N = TypeVar("N", bound=Named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing(Generic[N]):
    """A chart in the making: its id and its data are called `name`, the other fields are as in `Chart`.

    `rows` returns what is drawn of a case, for each choice by what it is called after the case's name ("": nothing);
    without rows it has no place in the chart. `spec` returns the chart's specification for the rows of all cases. The
    fields `marked` of rows are what the legend lists.
    """

    name: str
    title: str
    rows: Callable[[N], Mapping[str, list[dict[str, Any]]]]
    spec: Callable[[Rows], Mapping[str, Any]]
    alt: str = ""
    height: int = 260
    marked: Sequence[str] = ("series",)


def drawn(
    found: Sequence[N], said: Sequence[str], *drawings: Drawing[N]
) -> tuple[list[Chart], dict[str, Rows], list[str]]:
    """Return the charts of cases, their data, and which of very many cases have a place in them.

    `said` is the first thing to know of each case, which each of its charts shows.
    """
    charts: list[Chart] = []
    datasets: dict[str, Rows] = {}
    for drawing in drawings:
        choices: list[Choice] = []
        rows: list[dict[str, Any]] = []
        for place, (one, words) in enumerate(zip(found[:CHOICES], said, strict=False)):
            chosen = {which: own for which, own in drawing.rows(one).items() if own}
            for part, (which, own) in enumerate(chosen.items()):
                value = f"{place}-{part}" if which else f"{place}"
                label = f"{one.name}: {which}" if which else one.name
                present = dict.fromkeys(row.get(field) for row in own for field in drawing.marked)
                marks = [mark for mark in present if mark is not None]
                choices.append(Choice(value=value, label=label, alt=f"{label}. {words}", marks=marks))
                rows += [{"case": value, **row} for row in own]
        if choices:
            chart = Chart(
                id=drawing.name,
                title=drawing.title,
                alt=drawing.alt,
                spec=drawing.spec(rows),
                dataset=drawing.name,
                height=drawing.height,
                choose="case",
                choices=choices,
            )
            charts.append(chart)
            datasets[drawing.name] = rows
    cut_short = [f"The charts have {CHOICES} of {len(found):,}, the first ones."] if len(found) > CHOICES else []
    return charts, datasets, cut_short if charts else []
