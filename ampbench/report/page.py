"""Views to one HTML file that needs nothing else: no network, no other file, and no JavaScript to be read.

Charts are drawn by Vega-Lite: as SVG here, by vl-convert, and again from the same specification in the browser.
"""

import base64
import gzip
import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ampbench import __version__
from ampbench.report.material import Material
from ampbench.report.trends import trends
from ampbench.report.views import View, cases, environment, explanation, networks, result, tradeoff
from ampbench.show.charts import Chart, Rows, colour_rules, colour_variables
from ampbench.show.page import LISTED, breakable, drawable, fitted, run_name

WIDTH = 680
"""Pixels of the drawing area in the SVG; a browser with JavaScript takes the page's width instead."""

_NEEDLESS = re.compile(r' (?:aria-hidden="true"|pointer-events="none"|opacity="1"|stroke-width="1")')
"""Attributes of an SVG that say what holds without them, a third of it."""
_EXPOSED = "window.vegaEmbed = vegaEmbed;"
"""What of the library the page's script calls."""
_FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"
_INK = {"labelColor": "var(--ink)", "titleColor": "var(--ink)", "labelFontSize": 12, "titleFontSize": 12}
_DIGITS = 5
THEME: Mapping[str, Any] = {
    "aria": False,  # one text alternative per chart; a reader of hundreds of points would learn less
    "font": _FONT,
    "background": None,
    "view": {"stroke": None},
    "axis": {
        **_INK,
        "titleFontWeight": "normal",
        "domainColor": "var(--faint)",
        "tickColor": "var(--faint)",
        "gridColor": "var(--grid)",
        "labelOverlap": "greedy",
    },
    "legend": {**_INK, "orient": "top", "symbolSize": 90, "title": None, "symbolStrokeWidth": 2},
    "header": _INK,
    "text": {"color": "var(--ink)", "fontSize": 12},
    "rule": {"color": "var(--faint)"},
    "point": {"size": 60, "filled": True, "opacity": 0.9},
}
"""Colours are the page's CSS variables, so that one SVG serves light, dark and print."""


def specification(chart: Chart) -> dict[str, Any]:
    """Return the whole Vega-Lite specification of a chart but for its width and its data."""
    return {**chart.spec, "height": chart.height, "autosize": {"type": "fit-x", "contains": "padding"}, "config": THEME}


def drawn(chart: Chart, rows: Rows) -> Markup:
    """Return a chart of `rows` as SVG with its text alternative; where it offers choices, the first is drawn."""
    marks: Sequence[str] = ()
    if chart.choose and chart.choices:
        marks = chart.choices[0].marks
        rows = [row for row in rows if row[chart.choose] == chart.choices[0].value]
    spec = fitted({**_listing(specification(chart), marks), "width": WIDTH}, drawable)
    columns = _by_column(rows)
    spec["data"] = {"values": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}
    svg = _NEEDLESS.sub("", vl_convert.vegalite_to_svg(spec))
    label = escape(fitted(f"{chart.title}. {chart.words}"))
    opening, _, inside = svg.replace("<svg ", '<svg role="img" ', 1).partition(">")
    # Vega gives every group of marks a role without a name: hidden, or a screen reader meets nameless images
    return Markup(f'{opening} aria-label="{label}"><g aria-hidden="true">{inside.removesuffix("</svg>")}</g></svg>')


def _listing(spec: Mapping[str, Any], marks: Sequence[str]) -> dict[str, Any]:
    """Return a specification whose legends list `marks` alone, or all they have where there are none."""
    if not marks:
        return dict(spec)
    encoding = {
        name: {**channel, "legend": {**legend, "values": list(marks)}}
        if isinstance(channel, Mapping) and (legend := channel.get("legend"))
        else channel
        for name, channel in spec.get("encoding", {}).items()
    }
    layers = {"layer": [_listing(layer, marks) for layer in spec["layer"]]} if "layer" in spec else {}
    return {**spec, **({"encoding": encoding} if encoding else {}), **layers}


def chart_payload(views: Sequence[View]) -> bytes:
    """Return what a browser needs to draw all charts of `views` again, as JSON: specifications, and data by column.

    Raises `ValueError` where two charts, or two datasets, have one name, and where rows of a dataset differ in theirs.
    """
    charts: dict[str, Any] = {}
    datasets: dict[str, Any] = {}
    for view in views:
        for name, rows in view.datasets.items():
            if name in datasets:
                raise ValueError(f"two datasets are called {name}")
            datasets[name] = {head: [*map(_rounded, column)] for head, column in _by_column(rows).items()}
        for chart in view.charts:
            if chart.id in charts:
                raise ValueError(f"two charts are called {chart.id}")
            choices = [[one.value, one.label, one.alt, list(one.marks)] for one in chart.choices]
            charts[chart.id] = {
                "spec": specification(chart),
                "dataset": chart.dataset,
                "choose": chart.choose,
                "choices": choices,
            }
    document = {"charts": fitted(charts, drawable), "datasets": datasets}
    return msgspec.json.encode(document)


@cache
def chart_library() -> str:
    """Return the JavaScript that draws in a browser: Vega, Vega-Lite and Vega-Embed, as they drew here."""
    return vl_convert.javascript_bundle(_EXPOSED)


def packed(text: str | bytes) -> Markup:
    """Return `text` compressed (gzip) in base64; a third of its size, and inert until a script unpacks it.

    To press the data of 10,000 cases harder by 6% would take five times as long.
    """
    data = text.encode("utf-8", "backslashreplace") if isinstance(text, str) else text
    return Markup(base64.b64encode(gzip.compress(data, 6, mtime=0)).decode("ascii"))


def _by_column(rows: Rows) -> dict[str, list[Any]]:
    """Return rows by column, which names every field once, with every text made fit for a chart."""
    if not rows:
        return {}
    names = rows[0].keys()
    if odd := next((row for row in rows if row.keys() != names), None):
        raise ValueError(f"rows of a dataset differ in their names: {', '.join(sorted(names ^ odd.keys()))}")
    return {drawable(name): fitted([row[name] for row in rows], drawable) for name in names}


def _rounded(value: Any) -> Any:
    """Return a number with as many digits as a screen can show, which take less room; all else as it is.

    Raises `ValueError` for one that is not finite.
    """
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        raise ValueError("a number that is not finite is not JSON compliant")
    return float(f"{value:.{_DIGITS - 1}e}")


_FOLDER = Path(__file__).parent
_SCRIPTS = ("state.js", "tables.js", "charts.js")
EARLY = "document.documentElement.classList.add('js')"
"""Run before anything is painted, so that what JavaScript replaces never shows."""

VIEWS: Sequence[Callable[[Material], View | None]] = (
    result, networks, explanation, cases, tradeoff, trends, environment,
)  # fmt: skip
"""The sections of the page in their order: the answer, why, then numbers. One without data is None."""

CHARTED = 1_000
"""The most cases of a page with charts: of more, tables alone are read."""
LIBRARY, SCRIPT = "charts.js", "page.js"
"""The files of a site that hold what draws its charts and the script of its pages; a page alone holds both itself."""


def make_page(material: Material, home: str = "") -> str:
    """Return the report as one HTML document; `home` is the address of the index of the site that it belongs to."""
    made = [view for make in VIEWS if (view := make(material)) is not None]
    if len(material.rows) > CHARTED:
        made = [
            replace(view, parts=[replace(part, charts=(), datasets={}) for part in view.parts])
            for view in made
            if view.id != "tradeoff"
        ]
    return render(made, _title(material), home, shared=bool(home))


def render(views: Sequence[View], title: str, home: str = "", *, shared: bool = False) -> str:
    """Return a whole document of views in their order; where the library is `shared` it stands in `LIBRARY`."""
    figures = {chart.id: drawn(chart, view.datasets[chart.dataset]) for view in views for chart in view.charts}
    library = chart_library() if figures and not shared else ""
    return (
        _templates()
        .get_template("page.html")
        .render(
            title=title,
            home=home,
            views=views,
            figures=figures,
            listed=LISTED,
            payload=packed(chart_payload(views)) if figures else "",
            library=packed(library) if library else "",
            shared={"library": LIBRARY, "script": SCRIPT} if shared else {},
            early=Markup(EARLY),
            script=Markup("" if shared else script()),
            style=Markup(_style()),
            licences=Markup(escape(asset("licences.txt"))),
            policy=_policy([EARLY, script(), *([library] if library else [])], shared=shared),
            version=__version__,
        )
    )


def _title(material: Material) -> str:
    """Return what a browser's tab says."""
    names = [*(shown.name for shown in material.shown), *map(run_name, material.explanations[::-1])]
    newest = (material.shown[-1].name if material.shown else "") or next(iter(names), "no run")
    return f"{newest} against {material.baseline.header.run}" if material.baseline else newest


def _policy(scripts: list[str], *, shared: bool) -> str:
    """Return the content security policy: only these scripts run, and those `shared` with other pages in its folder."""
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    allowed = " ".join([*(f"'sha256-{digest}'" for digest in digests), *(["'self'"] if shared else [])])
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _style() -> str:
    light, dark = colour_variables(), colour_variables(dark=True)
    whole = asset("report.css").replace("/* light */", light).replace("/* dark */", dark)
    return f"{whole}\n{colour_rules()}"


@cache
def script() -> str:
    """Return the script of every page."""
    return "\n".join(asset(name) for name in _SCRIPTS)


@cache
def asset(name: str) -> str:
    """Return the text of a file in the folder of assets."""
    return (_FOLDER / "assets" / name).read_text(encoding="utf-8")


@cache
def _templates() -> Environment:
    """Return the environment of all templates: everything is escaped, a name that is missing is an error."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=fitted,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    return environment
