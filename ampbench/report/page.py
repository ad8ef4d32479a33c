"""Views to one HTML file that needs nothing else: no network, no other file, and no JavaScript to be read.

Charts are drawn by Vega-Lite: as SVG here, by vl-convert, and again from the same specification in the browser. Many
runs are a folder of pages for a static host: an index of them, and the report of each.
"""

import base64
import gzip
import hashlib
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ampbench import __version__
from ampbench.core.budget import Budget
from ampbench.core.units import UNDEFINED, counted
from ampbench.errors import NothingComparableError, NothingToRunError, StoreError
from ampbench.judge.notes import measured_devices
from ampbench.records.labels import outcomes_said
from ampbench.records.run import short_commit
from ampbench.report.cases import cases
from ampbench.report.explanation import explanation, studies
from ampbench.report.facts import contents, environment, method
from ampbench.report.material import Material, Sources, assigned, find_sources, find_trends, material_of
from ampbench.report.networks import advised_machines, networks, networks_of
from ampbench.report.result import banner
from ampbench.report.speeds import sweeps, tradeoff
from ampbench.report.trends import trends
from ampbench.show import comparison as sentences
from ampbench.show.changes import control_line
from ampbench.show.charts import Chart, Rows, colour_rules, colour_variables
from ampbench.show.networks import heading
from ampbench.show.page import View, breakable, drawable, fitted, run_name
from ampbench.store import StoredRun, find_run, read_run

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
    if chart.lines:
        spec["height"] *= len({row[chart.lines] for row in rows} - {None})
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
    banner, networks, explanation, studies, cases, tradeoff, sweeps, trends, environment, method,
)  # fmt: skip
"""The sections of the page in their order, what to take, why, then numbers: each a function from the material to a
`View`, None where it has no data."""

CHARTED = 1_000
"""The most cases of a page with charts: of more, tables alone are read."""
LIBRARY, SCRIPT = "charts.js", "page.js"
"""The files of a site that hold what draws its charts and the script of its pages; a page alone holds both itself."""


def make_page(material: Material, home: str = "") -> str:
    """Return the report as one HTML document; `home` is the address of the index of the site that it belongs to."""
    made = [view for make in VIEWS if (view := make(material)) is not None]
    if len(material.cases) > CHARTED:
        made = [replace(view, charts=(), datasets={}) for view in made if view.id not in ("tradeoff", "sweeps")]
    return render(made, _title(material), home, shared=bool(home))


def render(views: Iterable[View], title: str, home: str = "", *, shared: bool = False) -> str:
    """Return a whole document of views in their order; where the library is `shared` it stands in `LIBRARY` beside it.

    While they are made, and then written, charts are drawn in threads: that leaves the interpreter free.
    """
    with ThreadPoolExecutor() as pool:
        shown: list[View] = []
        figures: dict[str, Future[Markup]] = {}
        for view in views:
            shown.append(view)
            for chart in view.charts:
                figures[chart.id] = pool.submit(drawn, chart, view.datasets[chart.dataset])
        payload = pool.submit(packed, chart_payload(shown)) if figures else None
        given = {"sections": {view.id for view in shown}, "figures": figures}
        html = {view.id: section(view, given) for view in shown}
        library = chart_library().result() if figures and not shared else ""
        return _templates().get_template("page.html").render(
            title=title,
            home=home,
            views=shown,
            html=html,
            charts=len(figures),
            payload=payload,
            library=packed(library) if library else "",
            shared={"library": LIBRARY, "script": SCRIPT} if shared else {},
            early=Markup(EARLY),
            script=Markup("" if shared else _script()),
            style=Markup(_style()),
            licences=Markup(escape(_asset("licences.txt"))),
            policy=_policy([EARLY, _script(), *([library] if library else [])], shared=shared),
            version=__version__,
        )  # fmt: skip


def section(view: View, context: Mapping[str, Any]) -> Markup:
    """Return a view as HTML, by its own template, which is given `context`."""
    return Markup(_templates().get_template(view.template).render({**context, "view": view, **view.content}))


def _title(material: Material) -> str:
    """Return what a browser's tab says."""
    explaining = (run_name(run) for run in reversed(material.explanations))
    newest = next((shown.name for shown in material.shown[-1:]), "") or next(explaining, "no run")
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
    sections = (_asset(path.name) for path in sorted((_FOLDER / "assets").glob("*.css")) if path.name != "report.css")
    whole = _asset("report.css").replace("/* light */", light).replace("/* dark */", dark)
    return "\n".join([whole, *sections, colour_rules()])


@cache
def _script() -> str:
    return "\n".join(_asset(name) for name in _SCRIPTS)


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


INDEX = "index.html"
_PAGE = ".html"
_LONGEST_NAME = 100
_DIGEST_DIGITS = 8
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A folder of pages in the making.

    `files` yields the name and the HTML of each, the index last; a run is read when its page is made. `problems` say
    which files could not be read and have no page; they are all there when the last file has been yielded.
    """

    files: Iterator[tuple[str, str]]
    problems: Sequence[str]


Entry = Mapping[str, Any]
"""A run in the index: what its line says, and the name of the `page` that it links to.

`cautions` are to be said of its comparison with the baseline.
"""


def make_site(
    sources: Sequence[str],
    results: Path,
    baseline: str = "",
    keyword: str = "",
    budget: Budget | None = None,
) -> Site:
    """Return a page for each run that `sources` name (`results` where there are none), and an index of them.

    What they are, `gather` says. A run that only explains stands on the page of the run that it explains
    (`material.assigned`), and has one of its own where there is none. Each run is compared with the one called
    `baseline` where they have cases in common.
    A damaged file has no page and stands among the problems. Only cases that match `keyword` are taken, runs without
    any are left out.

    Raises `UsageError` for what names nothing, `StoreError` for a folder without runs or a damaged baseline; while
    files are yielded `StoreError` where every run is damaged, `NothingToRunError` where no case matches.
    """
    against = read_run(find_run(baseline, results)) if baseline else None
    found = find_sources(sources or [str(results)], results)
    problems: list[str] = []
    return Site(files=_files(found, results, against, keyword, budget or Budget(), problems), problems=problems)


def page_name(run: str, taken: Collection[str] = ()) -> str:
    """Return the name of a run's page: its id, made safe for any file system and address, and not among `taken`.

    Ids that ampbench gives are safe; where one is changed, a digest of it tells it from others.
    """
    name = _UNSAFE.sub("-", run)[:_LONGEST_NAME].strip(".-") or "run"
    known = {INDEX, *(one.lower() for one in taken)}
    if name != run or f"{name}{_PAGE}".lower() in known:
        digest = hashlib.sha256(run.encode("utf-8", "surrogatepass")).hexdigest()
        name = f"{name}-{digest[:_DIGEST_DIGITS]}"
    return f"{name}{_PAGE}"


def _files(
    sources: Sources,
    results: Path,
    baseline: StoredRun | None,
    keyword: str,
    budget: Budget,
    problems: list[str],
) -> Iterator[tuple[str, str]]:
    entries: dict[str, Entry] = {}
    sound: list[str] = []
    damaged: list[str] = []
    remarks: list[str] = []
    unmatched: Exception | None = None
    for path, explaining in assigned(sources).items():
        try:
            material = _material(path, explaining, baseline, keyword, budget)
        except StoreError as error:
            problems.append(str(error))
            damaged.append(str(error).replace(str(path), path.name))  # where it lies is nobody's business on the web
            continue
        except NothingToRunError as error:
            unmatched = error
            remarks.append(str(error))
            continue
        stored = material.shown[0].stored if material.shown else material.explanations[0]
        run = stored.header.run
        if run in entries:
            remarks.append(f"{path.name} is run {run} once more, and was left out")
            continue
        name = page_name(run, [one["page"] for one in entries.values()])
        try:
            page = make_page(material, home=INDEX)
        except Exception as error:  # noqa: BLE001 - our own fault, which must not take the other pages with it
            problems.append(f"no page of {path}: internal error: {type(error).__name__}: {error}")
            continue
        entries[run] = _entry(material, stored, name, baseline)
        if not stored.header.explains:
            sound.append(str(path))
        yield name, page
    if not entries:
        raise unmatched or StoreError(problems[0])
    yield LIBRARY, f"/*\n{_asset('licences.txt')}*/\n{chart_library().result()}"
    yield SCRIPT, _script()
    yield INDEX, _index(list(entries.values()), sound, damaged, remarks, results, baseline, keyword)


def _material(
    path: Path, explaining: Sequence[Path], baseline: StoredRun | None, keyword: str, budget: Budget
) -> Material:
    """Return the material of one run's page, with the runs that explain it.

    A run that cannot be compared says so, the baseline is not.
    """
    stored = read_run(path)
    explanations = [read_run(one) for one in explaining]
    runs = [] if stored.header.explains else [stored]
    explanations += [] if runs else [stored]
    if baseline is None or path == baseline.path.resolve():
        return material_of(runs, keyword=keyword, budget=budget, explanations=explanations)
    try:
        return material_of(runs, baseline, keyword, budget, explanations)
    except NothingComparableError as error:
        alone = material_of(runs, keyword=keyword, budget=budget, explanations=explanations)
        return replace(alone, remarks=[*alone.remarks, str(error)])


def _entry(material: Material, stored: StoredRun, page: str, baseline: StoredRun | None) -> Entry:
    """Return a run's line in the index."""
    header, environment = stored.header, stored.header.environment
    rows = [row for one in material.shown for row in one.rows]
    devices = []
    for name in measured_devices(rows):
        described = environment.device(name)
        model = environment.cpu if name == "cpu" or described is None else described.name
        devices.append(f"{name} ({model})" if model else name)
    found = [network for machine in advised_machines(material) for network in networks_of(machine)]
    comparison = next(iter(material.comparisons), None)
    if comparison is not None:
        fired = f"; {control_line(comparison.control)}" if comparison.control.fired else ""
        verdict = f"{sentences.verdict(comparison)}{fired}"
    elif baseline is not None:
        verdict = "the baseline" if header.run == baseline.header.run else "not comparable"
    else:
        verdict = ""
    explained = contents(material) if header.explains else []
    return {
        "run": header.run,
        "page": page,
        "started_at": header.started_at,
        "label": header.label,
        "host": environment.host,
        "devices": ", ".join(devices) or UNDEFINED,
        "torch_version": environment.torch_version or UNDEFINED,
        "commit": short_commit(header.commit) if header.commit else UNDEFINED,
        "cases": outcomes_said(Counter(row["outcome"] for row in rows)) or ", ".join(explained) or "none",
        "ended": stored.ending or UNDEFINED,
        "advice": heading(found) if found else UNDEFINED,
        "verdict": verdict,
        "cautions": sentences.notes(comparison) if comparison else (),
        "imported": f"imported from {header.imported.program}" if header.imported else "",
    }


def _index(
    entries: list[Entry],
    sound: Sequence[str],
    damaged: Sequence[str],
    remarks: list[str],
    results: Path,
    baseline: StoredRun | None,
    keyword: str,
) -> str:
    """Return the index: the newest run first, what could not be read, the trends over all of them."""
    entries.sort(key=lambda one: (one["started_at"], one["run"]), reverse=True)
    try:
        found, said = find_trends(sound, results, keyword)
    except StoreError as error:  # a time out of range, or a file changed while the pages were made
        found, said = [], [f"no trends: {error}"]
    against = baseline.header.run if baseline else ""
    pages, title = {one["run"]: one["page"] for one in entries}, counted(len(entries), "run")
    runs = View(
        id="runs",
        title="Runs",
        template="index.html",
        leads=True,
        content={
            "title": title,
            "entries": entries,
            "cautions": list(dict.fromkeys(caution for one in entries for caution in one["cautions"])),
            "damaged": damaged,
            "remarks": [*remarks, *said],
            "against": against,
            "against_page": pages.get(against, ""),
        },
    )
    material = Material(shown=(), baseline=baseline, trends=found, remarks=remarks)
    followed = trends(material)
    views = [runs, *([followed] if followed else [])]
    return render(views, title, shared=True)
