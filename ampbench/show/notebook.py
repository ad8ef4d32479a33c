"""What a notebook shows: styled lines as HTML, and a chart of speed against error."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from ampbench.core.units import counted
from ampbench.records.verdict import Status, Verdict
from ampbench.show.charts import budget_rule, colour_variables, label_expression, precision_encoded, quantity
from ampbench.show.document import written_out
from ampbench.show.rows import Row, judged_error
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


@dataclass(frozen=True, repr=False)
class Plot:
    """A chart as a Vega-Lite `spec` with its data. A notebook draws it; any viewer of Vega-Lite does."""

    spec: Mapping[str, Any]

    def __repr__(self) -> str:
        points = len(self.spec["data"]["values"])
        return (
            f"<ampbench.Plot: speed against error, {counted(points, 'point')}; a notebook draws it, .spec is Vega-Lite>"
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Return the chart for JupyterLab and VS Code and, where vl-convert is installed, for all others."""
        shown: dict[str, Any] = {"application/vnd.vegalite.v5+json": self.spec, "text/plain": repr(self)}
        try:
            import vl_convert
        except ImportError:
            return shown
        return {**shown, "image/svg+xml": vl_convert.vegalite_to_svg(dict(self.spec))}


def speed_against_error(rows: Sequence[Row], verdicts: Sequence[Verdict], tables: Sequence[str], limit: float) -> Plot:
    """Return the chart of each precision's speed, with its interval, against its error; what is not ok is crossed out.

    `rows`, `verdicts` and `tables`, the name of each row's table, go together; `limit` is the largest error allowed.
    """
    values = [
        {
            "table": table, "precision": verdict.label, "status": str(verdict.status), "error": judged_error(row),
            "speed": verdict.speed.value, "low": verdict.speed.low, "high": verdict.speed.high,
            "wrong": verdict.status in (Status.REFUSED, Status.UNDECIDED),
        }
        for row, verdict, table in zip(rows, verdicts, tables, strict=True)
        if verdict.speed.value is not None and judged_error(row)
    ]  # fmt: skip
    looks = precision_encoded(str(value["precision"]) for value in values)
    colours = dict(re.findall(r"(--[\w-]+): ([^;]+);", colour_variables()))
    scale = looks["color"]["scale"]
    scale["range"] = [colours.get(colour[4:-1], "#767676") for colour in scale["range"]]
    x = quantity("speed", "speed", {"zero": False, "padding": 12}, {"labelExpr": label_expression("ratio")})
    y = quantity(
        "error",
        "error (log scale)",
        {"type": "log", "padding": 12},
        {"tickCount": 6, "labelExpr": label_expression("error")},
    )
    at = {"x": x, "y": y}
    told = [{"field": name} for name in ("precision", "status", "speed", "low", "high", "error")]
    cross = {"type": "text", "text": "×", "fontSize": 22, "color": "#b3261e"}
    layers = [
        {
            "mark": "rule",
            "encoding": {**at, "x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": looks["color"]},
        },
        {"mark": {"type": "point", "filled": True, "size": 80}, "encoding": {**at, **looks, "tooltip": told}},
        {"mark": cross, "transform": [{"filter": "datum.wrong"}], "encoding": at},
        *budget_rule(limit),
    ]
    return Plot(
        {
            "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
            "data": {"values": values},
            "facet": {
                "row": {"field": "table", "title": None, "header": {"labelOrient": "top", "labelAnchor": "start"}}
            },
            "spec": {"width": 420, "height": 220, "layer": layers},
            "resolve": {"scale": {"x": "independent"}},
            "background": "white",
        }
    )
