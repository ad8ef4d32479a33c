"""Views to one HTML file that needs nothing else: no network, no other file, and no JavaScript to be read.

Charts are drawn by Vega-Lite: as SVG here, by vl-convert, and again from the same specification in the browser.
"""

import base64
import gzip
import hashlib
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any

import msgspec
import numpy as np
import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
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
_DIGITS, _NEARLY = 5, 1e-6
_NUMBERS = {int, float, bool, NoneType}
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
            datasets[name] = {head: _rounded(column) for head, column in _by_column(rows).items()}
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
    document = {"charts": fitted(charts, drawable), "datasets": datasets}
    return msgspec.json.encode(document)


@cache
def chart_library() -> Future[str]:
    """Begin to put together the JavaScript that draws in a browser: Vega, Vega-Lite and Vega-Embed, as they drew here.

    vl-convert takes a second for it and holds the interpreter meanwhile: it runs in a process of its own, once, while
    this one goes on.
    """
    return ThreadPoolExecutor(max_workers=1).submit(_bundled)


def _bundled() -> str:
    command = f"import sys, vl_convert; sys.stdout.write(vl_convert.javascript_bundle({_EXPOSED!r}))"
    with suppress(OSError, subprocess.CalledProcessError):  # where no process can make it, it is made here
        return subprocess.run([sys.executable, "-c", command], check=True, capture_output=True).stdout.decode("utf-8")
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
    return {drawable(name): _fitted([row[name] for row in rows]) for name in names}


def _fitted(column: list[Any]) -> list[Any]:
    """Return a column with its texts made fit, each of them once."""
    kinds = set(map(type, column))
    if list in kinds:
        kinds = (kinds - {list}) | set(map(type, chain.from_iterable(one for one in column if type(one) is list)))
        return column if kinds <= _NUMBERS else [fitted(one, drawable) for one in column]
    if kinds <= _NUMBERS:
        return column
    if kinds <= {str, NoneType}:
        known = {text: text and drawable(text) for text in set(column)}
        return [known[text] for text in column]
    return [fitted(one, drawable) for one in column]


def _rounded(column: list[Any]) -> list[Any]:
    """Return a column's floats with as many digits as a screen can show, which take less room; all else as it is.

    Raises `ValueError` for one that is not finite.
    """
    kinds = list(map(type, column))
    floats = {kind for kind in set(kinds) if issubclass(kind, float)}
    places = [place for place, kind in enumerate(kinds) if kind in floats]
    if not places:
        return column
    values = np.array([column[place] for place in places])
    if not np.isfinite(values).all():
        raise ValueError("a number that is not finite is not JSON compliant")
    exponents = np.floor(np.log10(np.abs(values), out=np.zeros_like(values), where=values != 0))
    digits = np.clip(_DIGITS - 1 - exponents, -300, 300)
    up, down = 10.0 ** np.maximum(digits, 0), 10.0 ** np.maximum(-digits, 0)  # exact, where a negative power is not
    scaled = values * up / down
    found = list(column)
    for place, value in zip(places, (np.round(scaled) * down / up).tolist(), strict=True):
        found[place] = value
    for tie in np.flatnonzero(np.abs(scaled % 1 - 0.5) < _NEARLY).tolist():  # which of the two is nearer, text tells
        found[places[tie]] = float(f"{values[tie]:.{_DIGITS - 1}e}")
    return found


_FOLDER = Path(__file__).parent
_SCRIPTS = ("state.js", "tables.js", "charts.js")
EARLY = "document.documentElement.classList.add('js')"
"""Run before anything is painted, so that what JavaScript replaces never shows."""

CHARTS, LETTERS = 20, 2_000_000
"""A page of more of either is so large that a browser leaves out charts that are out of sight, or it would go through
all their marks for each change of a table; a picture of a whole page of usual size has them all."""


def make_page(material: Material, home: str = "") -> str:
    """Return the report as one HTML document; `home` is the address of the index that it belongs to, if it does."""
    from ampbench.report import views

    made = (view for make in views.VIEWS if (view := make(material)) is not None)
    first = "cases" if material.comparisons else ""  # of a comparison, what became of the cases
    return render(made, _title(material), home, first)


def render(views: Iterable[View], title: str, home: str = "", first: str = "") -> str:
    """Return a whole document: the views in their order, what leads and the one called `first` before the others.

    While they are made, and then written, charts are drawn in threads: that leaves the interpreter free.
    """
    with ThreadPoolExecutor() as pool:
        shown: list[View] = []
        figures: dict[str, Future[Markup]] = {}
        for view in views:
            shown.append(view)
            for chart in view.charts:
                figures[chart.id] = pool.submit(drawn, chart, view.datasets[chart.dataset])
        shown.sort(key=lambda view: (not view.leads, view.id != first))
        payload = pool.submit(packed, chart_payload(shown)) if figures else None
        given = {"sections": {view.id for view in shown}, "figures": figures}
        html = {view.id: section(view, given) for view in shown}
        library = chart_library().result() if figures else ""
        script = "\n".join(_asset(name) for name in _SCRIPTS)
        return _templates().get_template("page.html").render(
            title=title,
            home=home,
            views=shown,
            html=html,
            charts=len(figures),
            large=len(figures) > CHARTS or sum(map(len, html.values())) > LETTERS,
            payload=payload,
            library=packed(library) if library else "",
            early=Markup(EARLY),
            script=Markup(script),
            style=Markup(_style()),
            licences=Markup(escape(_asset("licences.txt"))),
            policy=_policy([EARLY, script, *([library] if library else [])]),
            version=__version__,
        )  # fmt: skip


def section(view: View, context: Mapping[str, Any]) -> Markup:
    """Return a view as HTML, by its own template, which is given `context`."""
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
    return environment
