"""What the charts' Vega-Lite specifications have in common."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

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
