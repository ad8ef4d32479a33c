"""One colour and one shape per precision, the same in every chart and cell, in light and in dark."""

from collections.abc import Iterable
from typing import Any

from ampbench.precisions import PRECISIONS, ordered

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
