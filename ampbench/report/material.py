"""What a report is about: the runs shown, what they are compared with, what became of them over time.

It is found among run files: those that measured, and those that only explain.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from ampbench.core.budget import Budget
from ampbench.errors import NothingComparableError, NothingToRunError, StoreError, UsageError
from ampbench.judge import frame, notes
from ampbench.judge.compare import compare, narrowed
from ampbench.judge.pairing import arm_settings, pair_cases
from ampbench.judge.verdict import takes_of, verdicts_of
from ampbench.records.case import Case, matches
from ampbench.records.changes import Change, Comparison
from ampbench.records.kinds import KINDS, deed_of
from ampbench.records.labels import case_labels, told_apart
from ampbench.records.run import LATEST, Header
from ampbench.show.page import run_name
from ampbench.show.rows import Group, Row, Take, grouped, with_verdicts
from ampbench.show.wording import lines
from ampbench.store import CUT, StoredRun, find_run, find_runs, list_runs, measures, read_header, read_run, run_files
from ampbench.store.folder import lanes_together
from ampbench.trend.building import make_trend, place_of, public_version
from ampbench.trend.reducing import RunValues, read_runs
from ampbench.trend.series import Tracked, Trend, tracked


@dataclass(frozen=True, slots=True)
class Sources:
    """Run files by what they hold, each once: `measured` are shown as tables, `explaining` tell why.

    `found` are those that stand in a folder that was named: one of them that is damaged is left out. `doubts` say in a
    sentence each which files may be meant as well.
    """

    measured: list[Path] = field(default_factory=list)
    explaining: list[Path] = field(default_factory=list)
    found: frozenset[Path] = frozenset()
    doubts: list[str] = field(default_factory=list)


def find_sources(sources: Sequence[str], results: Path) -> Sources:
    """Return the run files that `sources` name: ids, prefixes, `latest`, paths of files or of folders.

    Without any it is the latest of `results` that measured, and the runs that explain it: those that `explain` finds
    there. Where none has measured, it is the newest that explains, and those of its host and torch version.

    Raises `StoreError` for a folder without run files, `UsageError` for what names nothing.
    """
    if not sources:
        return _latest(results)
    paths: dict[Path, None] = {}
    listed: set[Path] = set()
    doubts: list[str] = []
    for source in sources:
        folder = Path(source).expanduser()
        if folder.is_dir():
            found = [path.resolve() for path in run_files(folder)]
            listed |= set(found)
        else:
            found = [path.resolve() for path in find_runs(source, results, doubts.append)]
        if not found:
            raise StoreError(f"there is no run file in {folder}: measure with `ampbench run`, or give another folder")
        paths |= dict.fromkeys(found)
    return replace(_sorted(paths), found=frozenset(listed), doubts=doubts)


def explain(measured: Header, explaining: Header) -> bool:
    """Return whether a run explains one that measured: same host, same torch version, and not older than it."""
    return _place(measured) == _place(explaining) and _started(explaining) >= _started(measured)


def assigned(sources: Sources) -> dict[Path, list[Path]]:
    """Return whose page each run that explains belongs on, by the files of those that measured.

    That is the newest of those that it explains; where there is none, it has a page of its own, and is a key itself.
    """
    headers = {path: read_header(path) for path in sources.measured if _is_sound(path)}
    pages: dict[Path, list[Path]] = {path: [] for path in sources.measured}
    for path in sources.explaining:
        own = read_header(path)
        fitting = [(_started(one), file) for file, one in headers.items() if explain(one, own)]
        if fitting:
            pages[max(fitting)[1]].append(path)
        else:
            pages[path] = []
    return pages


def matching(runs: Iterable[StoredRun], keyword: str) -> list[StoredRun]:
    """Return the runs that explain with the cases that match `keyword` alone, without those of which nothing is left.

    What is of devices stays. Cases of a workload that are judged together all stay where one of them matches.
    """
    if not keyword:
        return list(runs)
    left = [one.narrowed(_kept(one, keyword)) for one in runs]
    return [one for one in left if one.cases or any(one.found.values())]


def _kept(run: StoredRun, keyword: str) -> set[str]:
    """Return the ids of the cases that match, and of those that are judged together with them."""
    cases = run.cases
    kept = {case_id for case_id in cases if matches(keyword, case_id)}
    groups = {(cases[one].group, cases[one].device) for one in kept}
    together = (run.found.get(kind.found.line, {}) for kind in KINDS.values() if kind.together)
    return kept | {one for found in together for one in found if (cases[one].group, cases[one].device) in groups}


def _latest(results: Path) -> Sources:
    found = _sorted(list_runs(results))
    if not found.measured and not found.explaining:
        find_run(LATEST, results)  # says that there is none
    headers = {path: read_header(path) for path in found.explaining}
    if any(map(_is_sound, found.measured)) or not found.explaining:
        doubts: list[str] = []
        newest = find_runs(LATEST, results, doubts.append)
        measured = [read_header(path) for path in newest]
        explaining = [path for path, one in headers.items() if any(explain(header, one) for header in measured)]
        return Sources(newest, explaining, doubts=doubts)
    place = _place(headers[found.explaining[-1]])
    return Sources([], [path for path, one in headers.items() if _place(one) == place])


def _sorted(paths: Iterable[Path]) -> Sources:
    found = Sources()
    for path in paths:
        (found.measured if measures(path) else found.explaining).append(path)
    return found


def _is_sound(path: Path) -> bool:
    try:
        read_header(path)
    except StoreError:
        return False
    return True


def _place(header: Header) -> tuple[str, str]:
    return header.environment.host, header.environment.torch_version


def _started(header: Header) -> datetime:
    found = datetime.fromisoformat(header.started_at)  # reading a header has checked it
    return found if found.tzinfo else found.replace(tzinfo=UTC)


AXES = ("torch_version", "commit")
"""What trends run over, where the runs differ in it; where they differ in neither, over dates."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A run on the page: the `rows` of its cases, without the tables that a newer run on the page measured again.

    `whole` are all rows of the run, by case id; `advice` is made of these. `comparison` is of the rows shown with the
    baseline, None where there is none or nothing in common; `partners` are the baseline's cases for them, by id.
    """

    stored: StoredRun
    rows: Sequence[Row]
    whole: Mapping[str, Row]
    advice: Mapping[Group, Take]
    comparison: Comparison | None = None
    partners: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the run is called on the page: its label, else its id."""
        return run_name(self.stored)

    @cached_property
    def notes(self) -> list[str]:
        """The notes on the run and its machine that change what to do."""
        return lines(notes.statements(self.stored, self.rows), self.stored.cases, everything=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCase:
    """A case on the page. `number` counts from 0 and is part of its ids ("case-17"), `label` is its short name.

    `name` is the label, with the run where another run on the page has a case of this label; `bare` and `bare_name` are
    both without the precision, for tables that have a column for it. `findings` are those of the comparison with the
    baseline, whose case is `baseline_id`.
    """

    number: int
    label: str
    name: str
    bare: str
    row: Row
    case: Case
    shown: Shown
    findings: Sequence[Change] = ()
    baseline_id: str | None = None

    @property
    def bare_name(self) -> str:
        """What the case is called beside its precision."""
        return self.bare + self.name.removeprefix(self.label)


@dataclass(frozen=True, kw_only=True, eq=False)
class Material:
    """All that a page is made of: the runs `shown`, the lowest version of torch first and the oldest of each, and
    `trends` over all runs that were named.

    `explanations` are the runs that measured nothing and tell why, the oldest first, `explained` are their comparisons
    with the baseline, where that explains too. `remarks` say what could not be read, compared or followed.
    """

    shown: Sequence[Shown]
    explanations: Sequence[StoredRun] = ()
    explained: Sequence[Comparison] = ()
    baseline: StoredRun | None = None
    trends: Sequence[Trend] = ()
    budget: Budget = field(default_factory=Budget)
    remarks: Sequence[str] = ()

    @cached_property
    def cases(self) -> list[ShownCase]:
        """The cases of all runs shown, run by run, in the order of their plans."""
        every = [shown.stored.cases[row["case_id"]] for shown in self.shown for row in shown.rows]
        labels, bare = case_labels(every), case_labels(every, precision=False)
        placed = [(labels[row["case_id"]], shown.name) for shown in self.shown for row in shown.rows]
        names = iter(told_apart([label for label, _ in placed], (run for _, run in placed)))
        cases: list[ShownCase] = []
        for shown in self.shown:
            findings: dict[str, list[Change]] = {}
            for one in shown.comparison.findings if shown.comparison else ():
                findings.setdefault(one.case.case_id, []).append(one)
            for row in shown.rows:
                partner = shown.partners.get(row["case_id"])
                cases.append(
                    ShownCase(
                        number=len(cases),
                        label=labels[row["case_id"]],
                        name=next(names),
                        bare=bare[row["case_id"]],
                        row=row,
                        case=shown.stored.cases[row["case_id"]],
                        shown=shown,
                        findings=findings.get(partner, ()) if partner else (),
                        baseline_id=partner,
                    )
                )
        return cases

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """The comparisons of the runs shown with the baseline."""
        return [one.comparison for one in self.shown if one.comparison is not None]


def gather(
    sources: Sequence[str],
    results: Path,
    baseline: str = "",
    keyword: str = "",
    budget: Budget | None = None,
) -> Material:
    """Return the material for the runs that `sources` name: ids, prefixes, `latest`, paths of files or of folders.

    Without any it is the latest of `results`, with what explains it (`find_sources`). Each run shown is
    compared with the one called `baseline`. Only cases that match `keyword` are taken.

    Raises `StoreError` for a damaged file, `UsageError` for what names nothing and for a baseline that measured nothing
    beside runs that did, `NothingToRunError` where no case matches, `NothingComparableError` where no run shown has a
    case in common with the baseline.
    """
    against = read_run(find_run(baseline, results)) if baseline else None
    found = find_sources(sources, results)
    remarks = list(found.doubts)
    runs = _read(found.measured, found, remarks)
    explanations = _read(found.explaining, found, remarks)
    if remarks and not runs and not explanations:
        raise StoreError(remarks[0])
    if against is not None:
        if runs and against.header.explains:
            raise UsageError(f"run {against.header.run} {deed_of(against.header.explains)} and measured nothing")
        if len(runs) + len(explanations) > 1:
            runs.pop(against.header.run, None)
            explanations.pop(against.header.run, None)
    material = material_of(lanes_together(list(runs.values())), against, keyword, budget, list(explanations.values()))
    material = replace(material, remarks=[*remarks, *material.remarks])
    if len(found.measured) < 2:  # of one run and its baseline the comparison says all, with more right
        return material
    named = sources if not found.explaining else [str(path) for path in found.measured]
    trends, said = find_trends([*named, *([str(against.path)] if against else [])], results, keyword)
    return replace(material, trends=trends, remarks=[*material.remarks, *said])


def _read(paths: Iterable[Path], sources: Sources, remarks: list[str]) -> dict[str, StoredRun]:
    """Return the runs in files by id; a damaged one that was only found in a folder is left out, with a remark."""
    runs: dict[str, StoredRun] = {}
    for path in paths:
        try:
            stored = read_run(path)
        except StoreError as error:
            if path not in sources.found:
                raise
            remarks.append(f"left out: {error}")
            continue
        runs[stored.header.run] = stored
    return runs


def material_of(
    runs: Sequence[StoredRun],
    baseline: StoredRun | None = None,
    keyword: str = "",
    budget: Budget | None = None,
    explanations: Sequence[StoredRun] = (),
) -> Material:
    """Return the material for `runs` that measured and `explanations` that did not, without trends.

    Of several runs of one machine, a table (the precisions of a workload, with all else equal) is shown as the newest
    of those with the highest version of torch has it; another run's is shown too where it has a case that none after it
    has beside the others. Raises as `gather` does.
    """
    budget = budget or Budget()
    ordered = sorted(_by_age(runs), key=lambda one: public_version(one.header.environment.torch_version))
    explaining = matching(_by_age(explanations), keyword)
    newer: dict[object, list[set[str]]] = {}
    shown: list[Shown] = []
    lonely: list[NothingComparableError] = []
    for stored in reversed(ordered):
        whole = with_verdicts(frame.run_rows(stored), verdicts_of(stored, budget, explanations))
        own = _not_covered(stored, whole, newer)
        rows = [row for row in whole if row["case_id"] in own and matches(keyword, row["case_id"])]
        if not rows and stored.cases:
            continue  # newer runs have it all, or nothing matches
        comparison: Comparison | None = None
        partners: dict[str, str] = {}
        if baseline is not None:
            try:
                comparison, partners = _compared(baseline, stored, {row["case_id"] for row in rows}, keyword)
            except NothingComparableError as error:
                lonely.append(error)
        shown.append(
            Shown(
                stored=stored,
                rows=rows,
                whole={row["case_id"]: row for row in whole},
                advice=takes_of(stored, budget, explanations),
                comparison=comparison,
                partners=partners,
            )
        )
    every = [*ordered, *_by_age(explanations)]
    if keyword and not shown and not any(one.cases for one in explaining):
        raise NothingToRunError(f"no case of {', '.join(one.header.run for one in every)} matches -k {keyword!r}")
    explained: list[Comparison] = []
    for stored in explaining if baseline is not None and baseline.header.explains else ():
        assert baseline is not None
        try:
            explained.append(narrowed(compare(baseline, stored), lambda case_id: matches(keyword, case_id)))
        except NothingComparableError as error:
            lonely.append(error)
    if lonely and not explained and not any(one.comparison for one in shown):
        raise lonely[0]
    remarks = [f"{one.path.name} {CUT}" for one in every if one.cut]
    return Material(
        shown=shown[::-1],
        explanations=explaining,
        explained=explained,
        baseline=baseline,
        budget=budget,
        remarks=[*remarks, *(str(error) for error in lonely)],
    )


def _by_age(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Return runs in order, the oldest first."""
    return sorted(runs, key=lambda one: (one.header.started_at, one.header.run))


def _not_covered(stored: StoredRun, rows: Sequence[Row], newer: dict[object, list[set[str]]]) -> set[str]:
    """Return the cases of the tables that no run in `newer` has whole, and add the run's tables to those.

    Tables are never mixed of several runs: what they compare was measured side by side.
    """
    places = {row["device"]: place_of(stored.header, row["device"], AXES[0]) for row in rows}
    own: set[str] = set()
    for group, members in grouped(rows).items():
        ids = {row["case_id"] for row in members}
        known = newer.setdefault((group, places[group.device]), [])
        if not any(ids <= one for one in known):
            own |= ids
        known.append(ids)
    return own


def _compared(
    baseline: StoredRun, candidate: StoredRun, shown: set[str], keyword: str
) -> tuple[Comparison, dict[str, str]]:
    """Return the comparison of the cases in `shown`, and their partners: what a newer run has counts there."""
    comparison = compare(baseline, candidate)
    settings = arm_settings(baseline.header, candidate.header)
    paired = pair_cases(baseline.cases.values(), candidate.cases.values(), settings)
    partners = {pair.candidate_id: pair.baseline_id for pair in paired.pairs if pair.candidate_id in shown}
    alone = {case_id for case_id in comparison.only_baseline if matches(keyword, case_id)}
    wanted = {*partners.values(), *(shown & set(comparison.only_candidate)), *alone}
    return narrowed(comparison, wanted.__contains__), partners


def find_trends(sources: Sequence[str], results: Path, keyword: str) -> tuple[list[Trend], list[str]]:
    """Return the trends over what `sources` name, where that is more than one run, and what is to be said of them."""
    metrics = tracked()
    try:
        found = read_runs(sources, results, metrics, keyword)
    except NothingToRunError:  # nothing was measured, which the page says of each case
        return [], []
    if len(found.runs) < 2:
        return [], []
    telling = [trend for axis in AXES for trend in _trend(found.runs, axis, metrics) if _moves(trend)]
    return telling or [trend for trend in _trend(found.runs, "date", metrics) if _moves(trend)], list(found.notes)


def _trend(runs: Sequence[RunValues], axis: str, metrics: Sequence[Tracked]) -> list[Trend]:
    """Return the trend over `axis`; none where no run has a place on it, as without commits."""
    try:
        return [make_trend(runs, axis, metrics)]
    except NothingToRunError:
        return []


def _moves(trend: Trend) -> bool:
    """Return whether anything was measured more than once; runs of different networks are no history."""
    return any(len(one.measured) > 1 for one in trend.series)
