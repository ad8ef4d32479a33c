"""What a report is about: the runs shown, what they are compared with, what became of them over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ampbench import frames, notes, planning
from ampbench.advice import Advice, Budget, Group, Row, advise_run
from ampbench.compare import compare, of_cases
from ampbench.comparing.pairing import arm_settings, pair_cases
from ampbench.errors import NothingComparableError, NothingToRunError
from ampbench.labels import case_labels
from ampbench.records.cases import Case
from ampbench.store import LATEST, StoredRun, find_run, read_run, run_files
from ampbench.trends import RunValues, Trend, make_trend, place_of, read_runs, tracked
from ampbench.trends.metrics import Tracked
from ampbench.verdicts import Comparison, Finding

AXES = ("torch_version", "commit")
"""What trends run over, where the runs differ in it; where they differ in neither, over dates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A run on the page: the `rows` of its cases, without those that a newer run on the page measured again.

    `advice` is that of the whole run; `notes` say for which device it speaks, what the control said and how quiet the
    machine was. `comparison` is with the baseline, if there is one and both have cases in common.
    """

    stored: StoredRun
    rows: Sequence[Row]
    advice: Mapping[Group, Advice]
    notes: Sequence[str] = ()
    comparison: Comparison | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCase:
    """A case on the page. `number` counts from 0 and is part of its ids ("case-17"), `label` is its short name.

    `findings` are those of the comparison with the baseline, whose case is `baseline_id`.
    """

    number: int
    label: str
    row: Row
    case: Case
    shown: Shown
    findings: Sequence[Finding] = ()
    baseline_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Material:
    """All that a page is made of: the runs `shown`, the oldest first, and `trends` over all runs that were named.

    `remarks` say what could not be read, compared or followed.
    """

    shown: Sequence[Shown]
    baseline: StoredRun | None = None
    trends: Sequence[Trend] = ()
    budget: Budget = field(default_factory=Budget)
    remarks: Sequence[str] = ()

    @cached_property
    def cases(self) -> list[ShownCase]:
        """The cases of all runs shown, run by run, in the order of their plans."""
        labels = case_labels(shown.stored.cases[row["case_id"]] for shown in self.shown for row in shown.rows)
        cases: list[ShownCase] = []
        for shown in self.shown:
            findings: dict[str, list[Finding]] = {}
            for one in shown.comparison.findings if shown.comparison else ():
                findings.setdefault(one.case.case_id, []).append(one)
            partners = self._partners(shown)
            for row in shown.rows:
                case_id = row["case_id"]
                partner = partners.get(case_id)
                cases.append(
                    ShownCase(
                        number=len(cases),
                        label=labels[case_id],
                        row=row,
                        case=shown.stored.cases[case_id],
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

    def _partners(self, shown: Shown) -> dict[str, str]:
        """Return the baseline's case for each case of a run that is compared, by id."""
        if self.baseline is None or shown.comparison is None:
            return {}
        settings = arm_settings(self.baseline.header, shown.stored.header)
        paired = pair_cases(self.baseline.cases.values(), shown.stored.cases.values(), settings)
        return {pair.candidate_id: pair.baseline_id for pair in paired.pairs}


def gather(
    sources: Sequence[str],
    results: Path,
    baseline: str = "",
    keyword: str = "",
    budget: Budget | None = None,
) -> Material:
    """Return the material for the runs that `sources` name: ids, prefixes, `latest`, paths of files or of folders.

    Without any it is the latest of `results`. Of several runs of one machine each case is shown as the newest has it,
    and trends tell the rest. Each run shown is compared with the one called `baseline`. Only cases that match `keyword`
    are taken.

    Raises `StoreError` for a damaged file, `UsageError` for what names nothing, `NothingToRunError` where no case
    matches, `NothingComparableError` where no run shown has a case in common with the baseline.
    """
    budget = budget or Budget()
    against = read_run(find_run(baseline, results)) if baseline else None
    paths = run_paths(sources or [LATEST], results)
    runs = {stored.header.run: stored for stored in map(read_run, paths)}
    if against is not None and len(runs) > 1:
        runs.pop(against.header.run, None)
    ordered = sorted(runs.values(), key=lambda one: (one.header.started_at, one.header.run))
    remarks = [f"{one.path.name} ends in a cut line, which was left out" for one in ordered if one.cut]
    shown, lonely = _shown(ordered, against, keyword, budget)
    if keyword and not any(one.rows for one in shown):
        raise NothingToRunError(f"no case of {', '.join(runs)} matches -k {keyword!r}")
    if against is not None and not any(one.comparison for one in shown):
        raise lonely[0]
    remarks += [str(error) for error in lonely]
    named = [*sources, *([str(against.path)] if against else [])]
    # of one run and its baseline the comparison says all, with more right
    trends, said = find_trends(named, results, keyword) if len(paths) > 1 else ([], [])
    return Material(shown=shown, baseline=against, trends=trends, budget=budget, remarks=[*remarks, *said])


def run_paths(sources: Sequence[str], results: Path) -> list[Path]:
    """Return the run files that `sources` name as `gather` takes them, each once.

    Raises `StoreError` for a folder without any, `UsageError` for what names nothing.
    """
    paths: dict[Path, None] = {}
    for source in sources:
        folder = Path(source).expanduser()
        found = run_files(folder) if folder.is_dir() else [find_run(source, results)]
        paths |= dict.fromkeys(path.resolve() for path in found)
    return list(paths)


def _shown(
    runs: Sequence[StoredRun], baseline: StoredRun | None, keyword: str, budget: Budget
) -> tuple[list[Shown], list[NothingComparableError]]:
    """Return the runs with their own rows, the oldest first, and why some could not be compared."""
    seen: set[object] = set()
    shown: list[Shown] = []
    lonely: list[NothingComparableError] = []
    for stored in reversed(runs):
        whole = frames.plain_rows(frames.run_frame(stored))
        places = {row["device"]: place_of(stored.header, row["device"], AXES[0]) for row in whole}
        rows = []
        for row in whole:
            key = row["case_id"], places[row["device"]]
            if key not in seen and planning.matches(keyword, row["case_id"]):
                seen.add(key)
                rows.append(row)
        if not rows and stored.cases:
            continue  # newer runs have it all
        comparison = None
        if baseline is not None:
            try:
                comparison = of_cases(compare(baseline, stored), keyword)
            except NothingComparableError as error:
                lonely.append(error)
        shown.append(
            Shown(
                stored=stored,
                rows=rows,
                advice=advise_run(stored, whole, budget),
                notes=notes.statements(stored, rows),
                comparison=comparison,
            )
        )
    return shown[::-1], lonely


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
    return telling or _trend(found.runs, "date", metrics), list(found.notes)


def _trend(runs: Sequence[RunValues], axis: str, metrics: Sequence[Tracked]) -> list[Trend]:
    """Return the trend over `axis`; none where no run has a place on it, as without commits."""
    try:
        return [make_trend(runs, axis, metrics)]
    except NothingToRunError:
        return []


def _moves(trend: Trend) -> bool:
    """Return whether a series has more than one point."""
    return any(len(one.points) > 1 for one in trend.series)
