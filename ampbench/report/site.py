"""Many runs as a folder of pages for a static host: an index of them, and the report of each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from ampbench.core.budget import Budget
from ampbench.core.units import counted
from ampbench.errors import NothingToRunError, StoreError
from ampbench.report import why
from ampbench.report.material import Material, assigned, find_sources, find_trends, material_of, started
from ampbench.report.page import LIBRARY, SCRIPT, asset, chart_library, make_page, render, script
from ampbench.report.trends import trends
from ampbench.report.views import View, run_facts, runs_block
from ampbench.show.comparison import control_line, notes, verdict
from ampbench.show.document import Block, as_sentence
from ampbench.show.networks import heading
from ampbench.show.page import Part
from ampbench.store import StoredRun, find_run, read_run, run_id

INDEX = "index.html"


def make_site(
    sources: Sequence[str],
    results: Path,
    baseline: str = "",
    keyword: str = "",
    budget: Budget | None = None,
    problem: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[str, str]]:
    """Yield the name and the HTML of a page for each run that `sources` name (none: all of `results`), then an index.

    A run that only explains stands on the page of the run that it explains (`material.assigned`). Each run is compared
    with the one called `baseline` where they have cases in common. A damaged file has no page: `problem` is called with
    a line on it. Only cases that match `keyword` are taken, runs without any are left out.

    Raises `UsageError` for a name of no run, `StoreError` for a folder without runs, for a damaged baseline and where
    every run is damaged, `NothingToRunError` where no case matches.
    """
    against = read_run(find_run(baseline, results)) if baseline else None
    files = find_sources(sources or [str(results)], results)
    entries: dict[str, tuple[StoredRun, Material]] = {}
    damaged: list[str] = []
    remarks: list[str] = []
    failure: Exception | None = None
    for path, explaining in assigned(files).items():
        try:
            material, stored = _material(path, explaining, against, keyword, budget)
        except StoreError as error:
            problem(str(error))
            damaged.append(str(error).replace(str(path), path.name))  # the folder is nobody's business on the web
            failure = failure or error
            continue
        except NothingToRunError as error:
            failure = error
            remarks.append(str(error))
            continue
        name = f"{run_id(path)}.html"
        if name in entries or name == INDEX or stored.header.run in {run.header.run for run, _ in entries.values()}:
            remarks.append(f"{path.name} was left out: another page has its run or its name")
            continue
        try:
            page = make_page(material, home=INDEX)
        except Exception as error:  # noqa: BLE001 - our own fault, which must not take the other pages with it
            problem(f"no page of {path}: internal error: {type(error).__name__}: {error}")
            continue
        entries[name] = stored, material
        yield name, page
    if not entries:
        raise failure or StoreError("no run has a page")
    yield LIBRARY, f"/*\n{asset('licences.txt')}*/\n{chart_library()}"
    yield SCRIPT, script()
    sound = [str(stored.path) for stored, _ in entries.values() if not stored.header.explains]
    try:
        followed, more = find_trends(sound, results, keyword)
    except StoreError as error:  # a time out of range, or a file changed while the pages were made
        followed, more = [], [f"no trends: {error}"]
    index = _index(entries, against, [*damaged, *remarks, *more])
    yield INDEX, render([index, *filter(None, [trends(Material(trends=followed))])], index.heading, shared=True)


def _material(
    path: Path, explaining: Sequence[Path], baseline: StoredRun | None, keyword: str, budget: Budget | None
) -> tuple[Material, StoredRun]:
    """Return the material of the page of a run file, with the runs that explain it, and the run itself."""
    stored = read_run(path)
    explanations = [read_run(each) for each in explaining]
    against = None if baseline is None or path == baseline.path.resolve() else baseline
    if stored.header.explains:
        return material_of([], against, keyword, budget, [*explanations, stored]), stored
    return material_of([stored], against, keyword, budget, explanations), stored


def _index(
    entries: Mapping[str, tuple[StoredRun, Material]], baseline: StoredRun | None, remarks: Sequence[str]
) -> View:
    """Return the index: the newest run first, and remarks on files that could not be read."""
    ordered = sorted(entries.items(), key=lambda entry: started(entry[1][0].header), reverse=True)
    rows = [_entry(name, *entry, baseline) for name, entry in ordered]
    comparisons = [comparison for _, material in entries.values() for comparison in material.comparisons]
    return View(
        id="runs",
        title="Runs",
        heading=counted(len(entries), "run"),
        warnings=list(dict.fromkeys(as_sentence(note) for comparison in comparisons for note in notes(comparison))),
        parts=[Part(id="table", title="", blocks=[runs_block(rows), *map(Block, remarks)])],
        sortable="runs",
    )


def _entry(name: str, stored: StoredRun, material: Material, baseline: StoredRun | None) -> dict[str, str]:
    """Return a run's line in the index."""
    header = stored.header
    against = ""
    for comparison in material.comparisons:
        fired = f"; {control_line(comparison.control)}" if comparison.control.fired else ""
        against = f"{verdict(comparison)}{fired}"
    if baseline is not None and not against:
        against = "the baseline" if header.run == baseline.header.run else "not comparable"
    return {
        "run": Markup('<a href="{}">{}</a>').format(quote(name), header.run),
        "label": header.label,
        **run_facts(stored),
        "advice": heading(material.networks) if material.networks else ", ".join(why.contents(material)),
        "against the baseline": against,
    }
