"""Views to one HTML file that needs nothing else: no network, no other file, and no JavaScript to be read.

Charts are drawn by Vega-Lite: as SVG here, by vl-convert, and again from the same specification in the browser.
"""

import base64
import gzip
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from markupsafe import Markup, escape

from ampbench import __version__
from ampbench.present.charts import Chart, Rows, colour_rules, colour_variables
from ampbench.present.page import View, breakable, drawable, fitted
from ampbench.report.material import Material

WIDTH = 680
"""Pixels of the drawing area in the SVG; a browser with JavaScript takes the page's width instead."""

_PATH = re.compile("(<path [^>]*/>)")
_OPAQUE = ' opacity="1"'
_EXPOSED = "window.vegaEmbed = vegaEmbed;"
"""What of the library the page's script calls."""
_FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"
_INK = {"labelColor": "var(--ink)", "titleColor": "var(--ink)", "labelFontSize": 12, "titleFontSize": 12}
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
    spec = fitted({**_listing(specification(chart), marks), "width": WIDTH, "data": {"values": list(rows)}}, drawable)
    if chart.lines:
        spec["height"] *= len({row[chart.lines] for row in rows} - {None})
    svg = _painted_once(vl_convert.vegalite_to_svg(spec))
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


def _painted_once(svg: str) -> str:
    """Return an SVG without the marks that an opaque one, the very same, covers later: of thousands many do."""
    kept: list[str] = []
    seen: set[str] = set()
    for part in reversed(_PATH.split(svg)):
        if part not in seen:
            kept.append(part)
        if _OPAQUE in part and part.startswith("<path "):
            seen.add(part)
    return "".join(reversed(kept))


def chart_payload(views: list[View]) -> str:
    """Return what a browser needs to draw all charts of `views` again, packed: specifications, and data by column.

    Raises `ValueError` where two charts, or two datasets, have one name, and where rows of a dataset differ in theirs.
    """
    charts: dict[str, Any] = {}
    datasets: dict[str, Any] = {}
    for view in views:
        for name, rows in view.datasets.items():
            if name in datasets:
                raise ValueError(f"two datasets are called {name}")
            datasets[name] = _columns(rows)
        for chart in view.charts:
            if chart.id in charts:
                raise ValueError(f"two charts are called {chart.id}")
            choices = [[one.value, one.label, one.alt, list(one.marks)] for one in chart.choices]
            charts[chart.id] = {
                "spec": specification(chart),
                "dataset": chart.dataset,
                "choose": chart.choose,
                "lines": chart.lines,
                "choices": choices,
            }
    document = fitted({"charts": charts, "datasets": datasets}, drawable)
    return packed(json.dumps(document, ensure_ascii=False, allow_nan=False))


@cache
def chart_library() -> Future[str]:
    """Begin to put together the JavaScript that draws in a browser: Vega, Vega-Lite and Vega-Embed, as they drew here.

    vl-convert takes a second for it and holds the interpreter meanwhile: it runs in a process of its own, once, while
    this one goes on.
    """
    pool = ThreadPoolExecutor(max_workers=1)
    future = pool.submit(_bundled)
    pool.shutdown(wait=False)
    return future


def _bundled() -> str:
    command = f"import sys, vl_convert; sys.stdout.write(vl_convert.javascript_bundle({_EXPOSED!r}))"
    try:
        bundled = subprocess.run([sys.executable, "-c", command], capture_output=True, encoding="utf-8", check=True)
        return bundled.stdout
    except (OSError, subprocess.CalledProcessError):  # no process can be started here: then in this one
        return vl_convert.javascript_bundle(_EXPOSED)


def packed(text: str) -> str:
    """Return `text` compressed (gzip) in base64; a third of its size, and inert until a script unpacks it."""
    return base64.b64encode(gzip.compress(text.encode("utf-8", "backslashreplace"), mtime=0)).decode("ascii")


def _columns(rows: Rows) -> dict[str, Any]:
    """Return rows by column, which names every field once."""
    if not rows:
        return {}
    names = rows[0].keys()
    if odd := next((row for row in rows if row.keys() != names), None):
        raise ValueError(f"rows of a dataset differ in their names: {', '.join(sorted(names ^ odd.keys()))}")
    return {name: [_rounded(row[name]) for row in rows] for name in names}


def _rounded(value: Any) -> Any:
    """Return a float with as many digits as a screen can show, which take less room; anything else as it is."""
    return float(f"{value:.4e}") if isinstance(value, float) else value


_FOLDER = Path(__file__).parent
_SCRIPTS = ("state.js", "tables.js", "charts.js")
EARLY = "document.documentElement.classList.add('js')"
"""Run before anything is painted, so that what JavaScript replaces never shows."""


def make_page(material: Material, home: str = "") -> str:
    """Return the report as one HTML document; `home` is the address of the index that it belongs to, if it does."""
    from ampbench.report.views import sections

    return render(sections(material), title=_title(material), home=home)


def render(views: list[View], title: str, home: str = "") -> str:
    """Return a whole document: the views one after the other, their drawn charts, scripts and styles."""
    datasets = {name: rows for view in views for name, rows in view.datasets.items()}
    bundling = chart_library() if any(view.charts for view in views) else None
    figures = {chart.id: drawn(chart, datasets[chart.dataset]) for view in views for chart in view.charts}
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    payload = chart_payload(views) if figures else ""
    library = bundling.result() if bundling else ""
    return _templates().get_template("page.html").render(
        title=title,
        home=home,
        views=views,
        sections={view.id for view in views},
        figures=figures,
        payload=Markup(payload),
        library=Markup(packed(library)) if library else "",
        early=Markup(EARLY),
        script=Markup(script),
        style=Markup(_style()),
        licences=Markup(escape(_asset("licences.txt"))),
        policy=_policy([EARLY, script, *([library] if library else [])]),
        version=__version__,
    )  # fmt: skip


def section(view: View, context: Mapping[str, Any]) -> Markup:
    """Return a view as HTML, by its own template."""
    return Markup(_templates().get_template(view.template).render({**context, "view": view, **view.content}))


def _title(material: Material) -> str:
    """Return what a browser's tab says."""
    newest = next((shown.name for shown in material.shown[-1:]), "") or _explaining(material)
    return f"{newest} against {material.baseline.header.run}" if material.baseline else newest


def _explaining(material: Material) -> str:
    headers = [one.header for one in material.explanations[-1:]]
    return next((one.label or one.run for one in headers), "no run")


def _policy(scripts: list[str]) -> str:
    """Return the content security policy: nothing is loaded from anywhere, and only these very scripts run."""
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _style() -> str:
    light, dark = colour_variables(), colour_variables(dark=True)
    sections = (_asset(path.name) for path in sorted((_FOLDER / "assets").glob("*.css")) if path.name != "report.css")
    whole = _asset("report.css").replace("/* light */", light).replace("/* dark */", dark)
    return "\n".join([whole, *sections, colour_rules()])


@cache
def _asset(name: str) -> str:
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
    environment.globals["section"] = pass_context(lambda context, view: section(view, context.get_all()))
    return environment
