"""Output for notebooks: styled lines as HTML, and a chart of speed against error."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ampbench.core.units import counted
from ampbench.show.charts import colour_variables, speed_layers, speed_points
from ampbench.show.document import written_out
from ampbench.show.rows import Row
from ampbench.show.terminal import LAYOUT, make_console

if TYPE_CHECKING:
    from rich.text import Text

STYLE = (
    ".ampbench{font:12px/1.35 monospace;overflow-x:auto;margin:0}.ampbench .bold{font-weight:bold}"
    ".ampbench .dim{opacity:.65}.ampbench .red{color:#b3261e}"
    "@media(prefers-color-scheme:dark){.ampbench .red{color:#ff8a80}}"
    '[data-jp-theme-light="true"] .ampbench .red{color:#b3261e}'
    '[data-jp-theme-light="false"] .ampbench .red{color:#ff8a80}'
)
"""Text takes the notebook's own colour; JupyterLab's theme is asked before the system's."""


def html_of(lines: Iterable["Text"]) -> str:
    """Return the lines of a terminal as an HTML fragment that needs nothing else, readable in light and in dark."""
    console = make_console()
    parts = []
    for line in lines:
        for raw, style, _ in line.render(console, end="\n"):
            text = written_out(raw, LAYOUT)
            words = [] if style is None else [word for word in ("bold", "dim") if getattr(style, word)]
            words += ["red"] if style is not None and style.color is not None and style.color.name == "red" else []
            parts.append(f'<span class="{" ".join(words)}">{escape(text)}</span>' if words else escape(text))
    return f'<style>{STYLE}</style><pre class="ampbench">{"".join(parts)}</pre>'


WIDTH = 100
"""Columns of what a program prints."""


class Printed:
    """Prints itself as text, and in a notebook as HTML, from the same styled lines."""

    def lines(self) -> "Iterable[Text]":
        """Return what is shown, in styled lines."""
        raise NotImplementedError

    def __str__(self) -> str:
        return written_out("\n".join(line.plain.rstrip() for line in self.lines()).strip("\n"), LAYOUT)

    def _repr_html_(self) -> str:
        return html_of(self.lines())


@dataclass(frozen=True, repr=False)
class Plot:
    """A chart as a Vega-Lite `spec` with its data. A notebook draws it; any viewer of Vega-Lite does."""

    spec: Mapping[str, Any]

    def __repr__(self) -> str:
        points = counted(len(self.spec["data"]["values"]), "point")
        return f"<ampbench.Plot: speed against error, {points}; a notebook draws it, .spec is Vega-Lite>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Return the chart for JupyterLab and VS Code and, where vl-convert is installed, for all others."""
        shown: dict[str, Any] = {"application/vnd.vegalite.v5+json": self.spec, "text/plain": repr(self)}
        try:
            import vl_convert
        except ImportError:
            return shown
        return {**shown, "image/svg+xml": vl_convert.vegalite_to_svg(dict(self.spec))}


def speed_against_error(rows: Sequence[Row], tables: Sequence[str], limit: float) -> Plot:
    """Return the chart of each precision's speed, with its interval, against its error; a cross marks what is not ok.

    `rows`, with their verdicts, and `tables`, the name of each row's table, go together; `limit` is the largest error.
    The colours are a page's, whose CSS variables a notebook does not have.
    """
    points = speed_points(zip(tables, rows, strict=True))
    header = {"labelOrient": "top", "labelAnchor": "start"}
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": points},
        "facet": {"row": {"field": "table", "title": None, "header": header}},
        "spec": {"width": 420, "height": 220, "layer": speed_layers(points, limit) if points else []},
        "background": "white",
    }
    colours = _colours()
    text = re.sub(r"var\((--[\w-]+)\)", lambda name: colours[name[1]], json.dumps(spec))
    return Plot(json.loads(text))


@cache
def _colours() -> dict[str, str]:
    """Return a page's colours on white by the names of their variables; of each, the sheets have that first."""
    sheet = colour_variables() + (files("ampbench.report") / "assets" / "report.css").read_text()
    return dict(reversed(re.findall(r"(--[\w-]+): (#\w+);", sheet)))
