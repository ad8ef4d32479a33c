"""One colour and one shape per precision, the same in every chart and cell, in light and in dark."""

from collections.abc import Iterable
from typing import Any

from ampbench.precisions import PRECISIONS, ordered


def colour_variables(dark: bool = False) -> str:
    """Return the CSS declarations of the precisions' colours, `--fp32: #000000; ...`."""
    shades = {row.name: row.on_dark if dark else row.on_light for row in PRECISIONS.values()}
    return " ".join(f"--{name}: {shade or PRECISIONS[name].colour};" for name, shade in shades.items())


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
