"""Views to one HTML file that needs nothing else: no network, no other file, and no JavaScript to be read."""

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from markupsafe import Markup, escape

from ampbench import __version__
from ampbench.report import charts, palette
from ampbench.report.material import Material
from ampbench.report.text import breakable, fitted
from ampbench.report.view import View

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
    bundling = charts.chart_library() if any(view.charts for view in views) else None
    figures = {chart.id: charts.drawn(chart, datasets[chart.dataset]) for view in views for chart in view.charts}
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    payload = charts.chart_payload(views) if figures else ""
    library = bundling.result() if bundling else ""
    return _templates().get_template("page.html").render(
        title=title,
        home=home,
        views=views,
        sections={view.id for view in views},
        figures=figures,
        payload=Markup(payload),
        library=Markup(charts.packed(library)) if library else "",
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
    light, dark = palette.colour_variables(), palette.colour_variables(dark=True)
    sections = (_asset(path.name) for path in sorted((_FOLDER / "assets").glob("*.css")) if path.name != "report.css")
    whole = _asset("report.css").replace("/* light */", light).replace("/* dark */", dark)
    return "\n".join([whole, *sections, palette.colour_rules()])


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
