"""One colour and one shape per precision, the same in every chart and cell, in light and in dark."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ampbench.precisions import PRECISIONS, ordered

LIGHT: Mapping[str, str] = MappingProxyType({"tf32": "#858585", "fp16_pure": "#b57f00", "bf16_pure": "#3490cc"})
DARK: Mapping[str, str] = MappingProxyType({"fp32": "#f2f2f2"})
"""Colours that stand out too little from a light or a dark page (WCAG 2.2, 1.4.11: 3 to 1), in a shade that does.

The others are those of `PRECISIONS`.
"""


def colour_variables(dark: bool = False) -> str:
    """Return the CSS declarations of the precisions' colours, `--fp32: #000000; ...`."""
    colours = {name: row.colour for name, row in PRECISIONS.items()} | dict(DARK if dark else LIGHT)
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def colour_rules() -> str:
    """Return the CSS rules that give what is marked with a precision (`data-precision`) its colour, as `--c`."""
    return "\n".join(f'[data-precision="{name}"] {{ --c: var(--{name}); }}' for name in PRECISIONS)


def encoded(names: Iterable[str]) -> dict[str, Any]:
    """Return the Vega-Lite encoding of the field `precision` by colour and shape, for those of `names` that exist.

    Others, which only foreign runs can have, are grey.
    """
    domain = ordered(names)
    colours = [f"var(--{name})" if name in PRECISIONS else "var(--faint)" for name in domain]
    shapes = [PRECISIONS[name].shape if name in PRECISIONS else "triangle-left" for name in domain]
    field = {"field": "precision", "type": "nominal", "title": "precision", "legend": {"title": None}}
    return {
        "color": {**field, "scale": {"domain": domain, "range": colours}},
        "shape": {**field, "scale": {"domain": domain, "range": shapes}},
    }
