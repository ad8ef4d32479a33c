"""Many runs as a folder of pages for a static host: an index of them, and the report of each."""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ampbench.base.units import UNDEFINED, counted
from ampbench.errors import NothingComparableError, NothingToRunError, StoreError
from ampbench.judge import said as sentences
from ampbench.judge.budget import Budget
from ampbench.judge.notes import measured_devices
from ampbench.present.page import View
from ampbench.records.labels import outcomes_said
from ampbench.records.run import short_commit
from ampbench.report import answers
from ampbench.report.answers import advised_machines
from ampbench.report.explained import contents
from ampbench.report.material import Material, Sources, assigned, find_sources, find_trends, material_of
from ampbench.report.page import make_page, render
from ampbench.report.views.trends import trends
from ampbench.store import StoredRun, find_run, read_run

INDEX = "index.html"
_PAGE = ".html"
_LONGEST_NAME = 100
_DIGITS = 8
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A folder of pages in the making.

    `files` yields the name and the HTML of each, the index last; a run is read when its page is made. `problems` say
    which files could not be read and have no page; they are all there when the last file has been yielded.
    """

    files: Iterator[tuple[str, str]]
    problems: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A run in the index: what its line says, and the name of the `page` that it links to.

    `cautions` are to be said of its comparison with the baseline.
    """

    run: str
    page: str
    started_at: str
    label: str
    host: str
    devices: str
    torch_version: str
    commit: str
    cases: str
    ended: str
    advice: str
    verdict: str
    cautions: Sequence[str]
    imported: str


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
        name = f"{name}-{digest[:_DIGITS]}"
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
        name = page_name(run, [one.page for one in entries.values()])
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
    tables = [table for machine in advised_machines(material) for table in machine.advised]
    comparison = next(iter(material.comparisons), None)
    if comparison is not None:
        fired = f"; {comparison.control.sentence}" if comparison.control.fired else ""
        verdict = f"{sentences.verdict(comparison)}{fired}"
    elif baseline is not None:
        verdict = "the baseline" if header.run == baseline.header.run else "not comparable"
    else:
        verdict = ""
    explained = contents(material) if header.explains else []
    return Entry(
        run=header.run,
        page=page,
        started_at=header.started_at,
        label=header.label,
        host=environment.host,
        devices=", ".join(devices) or UNDEFINED,
        torch_version=environment.torch_version or UNDEFINED,
        commit=short_commit(header.commit) if header.commit else UNDEFINED,
        cases=outcomes_said(Counter(row["outcome"] for row in rows)) or ", ".join(explained) or "none",
        ended=stored.ending or UNDEFINED,
        advice=", ".join(f"{name} {count:,}" for name, count in answers.taken(tables).most_common()) or UNDEFINED,
        verdict=verdict,
        cautions=comparison.notes if comparison else (),
        imported=f"imported from {header.imported.program}" if header.imported else "",
    )


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
    entries.sort(key=lambda one: (one.started_at, one.run), reverse=True)
    try:
        found, said = find_trends(sound, results, keyword)
    except StoreError as error:  # a time out of range, or a file changed while the pages were made
        found, said = [], [f"no trends: {error}"]
    against = baseline.header.run if baseline else ""
    pages, title = {one.run: one.page for one in entries}, counted(len(entries), "run")
    runs = View(
        id="runs",
        title="Runs",
        template="index.html",
        leads=True,
        content={
            "title": title,
            "entries": entries,
            "cautions": list(dict.fromkeys(caution for one in entries for caution in one.cautions)),
            "damaged": damaged,
            "remarks": [*remarks, *said],
            "against": against,
            "against_page": pages.get(against, ""),
        },
    )
    material = Material(shown=(), baseline=baseline, trends=found, remarks=remarks)
    followed = trends(material)
    views = [runs, *([followed] if followed else [])]
    return render(views, title)
