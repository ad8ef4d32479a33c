"""What views draw with: text, colours, charts.

Text of unknown origin (names, reasons, environment strings) made fit to stand on a page.

Escaping is the template engine's; here goes what HTML lets through and a reader should not meet: characters that turn
the direction of the text around them, control characters, halves of characters, megabytes.

What a section of the page is, as data: what its template reads, and its charts.

One colour and one shape per precision, the same in every chart and cell, in light and in dark.

What the charts' Vega-Lite specifications have in common.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from markupsafe import Markup, escape

from ampbench.base.precisions import PRECISIONS, ordered

LONGEST = 2000
"""A text takes so many characters at most, the note of how many there were among them."""

_UNFIT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff"  # direction (Unicode UAX 9), invisible characters
    "\ud800-\udfff\ufffe\uffff]"
)

_TWO_UNITS = re.compile("[\U00010000-\U0010ffff]")
_JOINT = re.compile(r"[_/\[,](?=\w)")


def fit(text: str) -> str:
    """Return `text` with unfit characters written out ("\\u202e") and cut to `LONGEST`; what is fit stays as it is."""
    if text.isprintable() and len(text) <= LONGEST:  # nearly all are; Python counts every unfit character as not
        return text
    written = _UNFIT.sub(lambda found: found[0].encode("unicode_escape").decode(), text[: LONGEST + 1])
    if len(written) <= LONGEST:
        return written
    note = f"… ({len(text):,} characters)"
    return written[: LONGEST - len(note)] + note


def breakable(text: str) -> Markup:
    """Return a name or a path as markup whose lines may end after "_", "/", "[" and ",": there rather than anywhere."""
    return Markup(_JOINT.sub(r"\g<0><wbr>", str(escape(fit(text)))))


def drawable(text: str) -> str:
    """Return `text` fit for a chart, whose labels are cut between two halves of a character: those have none left.

    Vega counts in units of UTF-16, so every character that takes two of them is written out ("\\U0001f680").
    """
    return fit(_TWO_UNITS.sub(lambda found: found[0].encode("unicode_escape").decode(), text))


def fitted(value: Any, made: Callable[[str], str] = fit) -> Any:
    """Return plain nested data with every text in it, keys among them, `made` fit; markup is left as it is."""
    if value is None or isinstance(value, Markup | int | float):
        return value
    if isinstance(value, str):
        return made(value)
    if isinstance(value, dict):
        return {fitted(key, made): fitted(item, made) for key, item in value.items()}
    return [fitted(item, made) for item in value] if isinstance(value, list | tuple) else value


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
    """A chart: a Vega-Lite `spec` without data, size and theme, which `charts` adds.

    `id` is unique on the page, `alt` says in words what the chart shows and its main finding, for those who cannot see
    it; of a chart with `choices` it says what holds whatever is chosen. `dataset` names rows among `View.datasets`.
    Where `choose` names a field, only the rows with one value of it are drawn: the first of `choices`, and with
    JavaScript the one that the reader picks. `height` is in pixels: of the drawing or, where `lines` names a field, of
    each of the field's values, one under the other.
    """

    id: str
    title: str
    alt: str
    spec: Mapping[str, Any]
    dataset: str
    height: int = 320
    lines: str = ""
    choose: str = ""
    choices: Sequence[Choice] = ()

    @property
    def words(self) -> str:
        """Return what the chart shows in words, as it is drawn first."""
        return " ".join(part for part in (*(one.alt for one in self.choices[:1]), self.alt) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A section of the page: heading `title`, anchor `id`, `template` and the `content` that it reads by name.

    Where it `leads` the page its template writes the heading, an h1 with the id `ID-title`; else the page does.
    Names in `content` must not hide what every template is given: `view`, `views`, `sections`, `figures`.
    """

    id: str
    title: str
    template: str
    content: Mapping[str, Any] = field(default_factory=dict)
    charts: Sequence[Chart] = ()
    datasets: Mapping[str, Rows] = field(default_factory=dict)
    leads: bool = False


OWN = (
    ("#7570B3", "#9d99d6", "arrow"),
    ("#A6761D", "#c8963a", "M-0.35,-1L0.35,-1L0.35,1L-0.35,1Z"),
    ("#A0225A", "#e07aa8", "M-1,-0.35L1,-0.35L1,0.35L-1,0.35Z"),
)
"""The colours, on light and on dark, and the shapes of users' own precisions, in the order of their names."""


def colour_variables(dark: bool = False) -> str:
    """Return the CSS declarations of the precisions' colours, `--fp32: #000000; ...`."""
    rows = [row for row in PRECISIONS.values() if row.colour]
    shades = {row.name: (row.on_dark if dark else row.on_light) or row.colour for row in rows}
    shades |= {f"own-{place}": colours[dark] for place, colours in enumerate(OWN, 1)}
    return " ".join(f"--{name}: {shade};" for name, shade in shades.items())


def colour_rules() -> str:
    """Return the CSS rules that give what is marked with a precision (`data-precision`) its colour, as `--c`."""
    return "\n".join(
        f'[data-precision="{name}"] {{ --c: var(--{name}); }}' for name, row in PRECISIONS.items() if row.colour
    )


def encoded(names: Iterable[str]) -> dict[str, Any]:
    """Return the Vega-Lite encoding of the field `precision` by colour and shape, for those of `names` that exist.

    Others are users' own, or those of foreign runs: they take the colours of `OWN`, and are grey when these are taken.
    """
    domain = ordered(names)
    looks = {name: (f"var(--{name})", row.shape) for name, row in PRECISIONS.items() if row.colour}
    spare = iter([(f"var(--own-{place})", shape) for place, (_, _, shape) in enumerate(OWN, 1)])
    for name in domain:
        if name not in looks:
            looks[name] = next(spare, ("var(--faint)", "triangle-left"))
    field = {"field": "precision", "type": "nominal", "title": "precision", "legend": {"title": None}}
    return {
        "color": {**field, "scale": {"domain": domain, "range": [looks[name][0] for name in domain]}},
        "shape": {**field, "scale": {"domain": domain, "range": [looks[name][1] for name in domain]}},
    }


DASHED: Mapping[str, Any] = MappingProxyType({"type": "rule", "strokeDash": [4, 3]})
"""The mark of a line that is no data: a limit, a change, what others are compared with."""

_TIMES: Mapping[float, str] = MappingProxyType({60: "min", 1: "s", 1e-3: "ms", 1e-6: "us"})
_SIZES: Mapping[float, str] = MappingProxyType({1024**3: "GiB", 1024**2: "MiB", 1024: "KiB"})


def tooltip(**titles: str) -> list[dict[str, str]]:
    """Return the tooltip that tells the fields `titles` as they stand in the data, each under its title."""
    return [{"field": field, "type": "nominal", "title": title} for field, title in titles.items()]


def budget_rule(limit: float, axis: Literal["x", "y"]) -> list[dict[str, Any]]:
    """Return the layers that draw an error budget across a log axis, and name it; none where it has no place there."""
    if not 0 < limit < math.inf:
        return []
    data = {"values": [{"limit": limit, "text": f"error budget {limit:g}"}]}
    place = {axis: {"field": "limit", "type": "quantitative"}}
    # at the end of the rule: above it at the right, or beside its top
    end = {"x": {"value": "width"}} if axis == "y" else {"y": {"value": 0}}
    beside = {"dy": -3, "baseline": "bottom"} if axis == "y" else {"dx": -4, "baseline": "top"}
    label = {"type": "text", "align": "right", **beside}
    return [
        {"data": data, "mark": dict(DASHED), "encoding": place},
        {"data": data, "mark": label, "encoding": {**place, **end, "text": {"field": "text"}}},
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
