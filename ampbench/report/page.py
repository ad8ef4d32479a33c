"""A self-contained HTML page of a run's views, and a site: an index of many runs and a page of each.

vl-convert draws charts as SVG, with their values under the pointer. Only tables have a script, to sort and search.
Text of unknown origin (names, reasons, environment strings) is made fit here, beyond the escaping of the template
engine: without characters that turn the direction of text, control characters, halves of characters, megabytes.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ampbench import __version__
from ampbench.core.budget import Budget
from ampbench.core.units import counted
from ampbench.errors import StoreError, written_out
from ampbench.report.material import Material, assigned, find_sources, find_trends, material_of
from ampbench.report.views import (
    Part,
    View,
    cases,
    contents,
    environment,
    explanation,
    networks,
    result,
    run_facts,
    runs_block,
    tradeoff,
    trends,
)
from ampbench.show.charts import LOOKS, Chart, Picture, colour_variables
from ampbench.show.comparison import control_line, notes, verdict
from ampbench.show.document import Block, as_sentence
from ampbench.show.networks import heading
from ampbench.show.rows import run_name
from ampbench.store import StoredRun, read_found, read_run, run_id
from ampbench.trend import moment

LONGEST = 2000
"""The most characters of a text, with the note on their number."""

_TWO_UNITS = re.compile("[\U00010000-\U0010ffff]")
_JOINT = re.compile(r"[_/\[](?=\w)|[:,](?=[^\W\d])")  # not within a time or a number


def fit(text: str) -> str:
    """Return `text` with characters without a shape written out ("\\u202e"), cut to `LONGEST`."""
    written = written_out(text[: LONGEST + 1], "\n\t")
    if len(written) <= LONGEST:
        return written
    note = f"… ({len(text):,} characters)"
    return written[: LONGEST - len(note)] + note


def breakable(text: str) -> Markup:
    """Return a name or a path as markup whose lines may end after one of "_/[,:" rather than anywhere."""
    return Markup(_JOINT.sub(r"\g<0><wbr>", str(escape(fit(text)))))


def drawable(text: str) -> str:
    """Return `text` fit for a chart, with characters of two UTF-16 units written out.

    Vega counts UTF-16 units, and would cut a label between the two ("\\U0001f680").
    """
    if not text.isascii():
        text = _TWO_UNITS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    return fit(text)


def fitted(value: Any, change: Callable[[str], str] = fit) -> Any:
    """Return plain nested data with every text in it, keys among them, made fit by `change`; markup stays as it is."""
    if isinstance(value, str):
        return value if isinstance(value, Markup) else change(value)
    if isinstance(value, dict):
        return {fitted(key, change): fitted(item, change) for key, item in value.items()}
    return [fitted(item, change) for item in value] if isinstance(value, list | tuple) else value


WIDTH = 680
"""Width of the drawing area in the SVG, in pixels."""
CHARTED = 1_000
"""Most cases of a page with charts: larger pages are read as tables."""

_NEEDLESS = re.compile(r' (?:aria-hidden="true"|pointer-events="none"|opacity="1"|stroke-width="1")')
"""Attributes of an SVG that repeat defaults, a third of its size."""
_DESCRIBED = re.compile(r'<(\w+) aria-label="([^"]*)" role="graphics-symbol" aria-roledescription="[\w ]+"([^>]*)/>')
"""A mark with its description, which browsers show under the pointer once it is a title."""
_INK = {"labelColor": "var(--ink)", "titleColor": "var(--ink)", "labelFontSize": 12, "titleFontSize": 12}
THEME: Mapping[str, Any] = {
    "aria": False,  # one text alternative per chart
    "font": "system-ui, -apple-system, 'Segoe UI', sans-serif",
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


def worded(chart: Chart, picture: Picture) -> str:
    """Return the text alternative of a picture."""
    return " ".join(filter(None, [picture.alt, chart.alt]))


def drawn(chart: Chart, picture: Picture) -> Markup:
    """Return a picture as SVG, with its text alternative and the values of its points."""
    spec = {
        **picture.spec,
        "width": WIDTH,
        "height": chart.height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": THEME,
    }
    values = [dict(row) for row in picture.rows]
    spec = fitted({**_described(spec, values), "data": {"values": values}}, drawable)
    svg = _NEEDLESS.sub("", vl_convert.vegalite_to_svg(spec))
    svg = _DESCRIBED.sub(r"<\1\3><title>\2</title></\1>", svg)
    label = escape(fitted(f"{chart.title}. {worded(chart, picture)}"))
    opening, _, inside = svg.replace("<svg ", '<svg role="img" ', 1).partition(">")
    # Vega gives every group of marks a role without a name: hidden, or a screen reader meets nameless images
    return Markup(f'{opening} aria-label="{label}"><g aria-hidden="true">{inside.removesuffix("</svg>")}</g></svg>')


def _described(spec: dict[str, Any], values: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a specification whose marks have a description for each tooltip; the texts are added to `values`."""
    if "layer" in spec:
        spec = {**spec, "layer": [_described(layer, values) for layer in spec["layer"]]}
    encoding = dict(spec.get("encoding", {}))
    if (tooltip := encoding.pop("tooltip", None)) is None:
        return spec
    for value in values:
        texts = ((channel["title"], value[channel["field"]]) for channel in tooltip)
        value["tip"] = "\n".join(f"{title}: {text}" for title, text in texts if text not in (None, ""))
    return {**spec, "encoding": {**encoding, "description": {"field": "tip"}}}


_FOLDER = Path(__file__).parent
EARLY = "document.documentElement.classList.add('js')"
"""Run before anything is painted, so that rows the script puts away never show."""

VIEWS: Sequence[Callable[[Material], View | None]] = (
    result, networks, explanation, cases, tradeoff, trends, environment,
)  # fmt: skip
"""The sections of the page in their order: the answer, why, then numbers. One without data is None."""


def make_page(material: Material, home: str = "") -> str:
    """Return the report as one HTML document; `home` is the address of the index of the site that it belongs to."""
    views = [view for make in VIEWS if (view := make(material)) is not None]
    if len(material.rows) > CHARTED:
        views = [
            replace(view, parts=[replace(part, charts=()) for part in view.parts])
            for view in views
            if view.id != "tradeoff"
        ]
    names = [*(run.name for run in material.shown), *map(run_name, material.explanations[::-1])]
    title = (material.shown[-1].name if material.shown else "") or next(iter(names), "no run")
    return render(views, f"{title} against {material.baseline.header.run}" if material.baseline else title, home)


def render(views: Sequence[View], title: str, home: str = "") -> str:
    """Return a whole document of views in their order."""
    script = _asset("tables.js")
    light, dark = colour_variables(), colour_variables(dark=True)
    rules = "\n".join(f'[data-precision="{name}"] {{ --c: var(--{name}); }}' for name in LOOKS)
    style = _asset("report.css").replace("/* light */", light).replace("/* dark */", dark)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (EARLY, script)]
    return (
        _templates()
        .get_template("page.html")
        .render(
            title=title,
            home=home,
            views=views,
            early=Markup(EARLY),
            script=Markup(script),
            style=Markup(f"{style}\n{rules}"),
            allowed=" ".join(f"'sha256-{digest}'" for digest in digests),
            version=__version__,
        )
    )


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
    environment.globals |= {"drawn": drawn, "worded": worded}
    return environment


INDEX = "index.html"


def make_site(
    sources: Sequence[str],
    results: Path,
    baseline: str = "",
    budget: Budget | None = None,
    problem: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[str, str]]:
    """Yield the name and the HTML of a page for each run that `sources` name (none: all of `results`), then an index.

    A run that only explains is on the page of the run that it explains (`material.assigned`). Each run is compared with
    the run `baseline` where they have cases in common. A damaged file has no page; `problem` receives a line on it.

    Raises `UsageError` for a name of no run, `StoreError` for a folder without runs, for a damaged baseline and where
    every run is damaged.
    """
    against = read_found(baseline, results) if baseline else None
    entries: dict[str, tuple[StoredRun, Material]] = {}
    damaged: list[str] = []
    remarks: list[str] = []
    failure: StoreError | None = None
    for path, explaining in assigned(find_sources(sources or [str(results)], results)).items():
        try:
            stored, explanations = read_run(path), [read_run(file) for file in explaining]
        except StoreError as error:
            problem(str(error))
            damaged.append(str(error).replace(str(path), path.name))  # the folder is nobody's business on the web
            failure = failure or error
            continue
        compared = None if against is None or path == against.path.resolve() else against
        measured, explanations = ([], [*explanations, stored]) if stored.header.explains else ([stored], explanations)
        material = material_of(measured, compared, budget, explanations)
        name = f"{run_id(path)}.html"
        if name in entries or name == INDEX or stored.header.run in {run.header.run for run, _ in entries.values()}:
            remarks.append(f"{path.name} was left out: another page has its run or its name")
            continue
        entries[name] = stored, material
        yield name, make_page(material, home=INDEX)
    if not entries:
        raise failure or StoreError("no run has a page")
    followed = trends(Material(trends=find_trends([stored for stored, _ in entries.values()])))
    index = _index(entries, against, [*damaged, *remarks])
    yield INDEX, render([index, *filter(None, [followed])], index.heading)


def _index(
    entries: Mapping[str, tuple[StoredRun, Material]], baseline: StoredRun | None, remarks: Sequence[str]
) -> View:
    """Return the index: the newest run first, and remarks on files that could not be read."""
    rows = []
    for name, (stored, material) in entries.items():
        header, against = stored.header, ""
        if baseline is not None:
            against = "the baseline" if header.run == baseline.header.run else "not comparable"
        for comparison in material.comparisons:
            fired = f"; {control_line(comparison.control)}" if comparison.control.fired else ""
            against = f"{verdict(comparison)}{fired}"
        row = {
            "run": Markup('<a href="{}">{}</a>').format(quote(name), header.run),
            "label": header.label,
            **run_facts(stored),
            "advice": heading(material.networks) if material.networks else ", ".join(contents(material)),
            "against the baseline": against,
        }
        rows.append((moment(header.started_at), row))
    rows.sort(key=itemgetter(0), reverse=True)
    comparisons = [comparison for _, material in entries.values() for comparison in material.comparisons]
    return View(
        id="runs",
        title="Runs",
        heading=counted(len(entries), "run"),
        warnings=list(dict.fromkeys(as_sentence(note) for comparison in comparisons for note in notes(comparison))),
        parts=[Part(id="table", title="", blocks=[runs_block([row for _, row in rows]), *map(Block, remarks)])],
        sortable="runs",
    )
