"""The material of a report: its runs, their baseline and their trends.

Its run files measured, or only explain.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from ampbench.core.budget import Budget
from ampbench.errors import NothingComparableError, NothingToRunError, StoreError, UsageError
from ampbench.judge.compare import compare
from ampbench.judge.rounds import MeasuredRun
from ampbench.records.changes import Comparison
from ampbench.records.kinds import deed_of
from ampbench.records.run import LATEST, Header
from ampbench.result import Result
from ampbench.show.networks import Network, in_order, networks_of
from ampbench.show.rows import Row, grouped, place_of, run_name
from ampbench.store import CUT, StoredRun, find_runs, list_runs, measures, read_found, read_header, read_run, run_files
from ampbench.store.folder import lanes_together
from ampbench.trend import Trend, make_trend, moment, public_version
from ampbench.trend import place_of as place_on_axis
from ampbench.trend.values import tracked


@dataclass(frozen=True, slots=True)
class Sources:
    """Run files by content, each once: `measured` are shown as tables, `explaining` as explanations.

    Files in `listed` come from a folder that was named: a damaged one is left out. `doubts` name files that may be
    meant as well.
    """

    measured: list[Path] = field(default_factory=list)
    explaining: list[Path] = field(default_factory=list)
    listed: frozenset[Path] = frozenset()
    doubts: list[str] = field(default_factory=list)


def find_sources(sources: Sequence[str], results: Path) -> Sources:
    """Return the run files that `sources` name: ids, prefixes, `latest`, paths of files or of folders.

    Default: the latest run of `results` that measured, and the runs there that explain it. Where none measured: the
    newest run that explains, and the others of its host and torch version.

    Raises `StoreError` for a folder without run files, `UsageError` for a name of no run.
    """
    if not sources:
        return _latest(results)
    paths: dict[Path, None] = {}
    listed: set[Path] = set()
    doubts: list[str] = []
    for source in sources:
        folder = Path(source).expanduser()
        if folder.is_dir():
            files = [path.resolve() for path in run_files(folder)]
            listed |= set(files)
        else:
            files = [path.resolve() for path in find_runs(source, results, doubts.append)]
        if not files:
            raise StoreError(f"there is no run file in {folder}: measure with `ampbench run`, or give another folder")
        paths |= dict.fromkeys(files)
    return replace(_sorted(paths), listed=frozenset(listed), doubts=doubts)


def explain(measured: Header, explaining: Header) -> bool:
    """Return whether a run explains a measured one: same host and torch version, and not older."""
    return place_of(measured) == place_of(explaining) and moment(explaining.started_at) >= moment(measured.started_at)


def assigned(sources: Sources) -> dict[Path, list[Path]]:
    """Return the explaining runs by the file of their page: the page of the newest run that they explain.

    A run that explains no measured run has a page of its own.
    """
    headers: dict[Path, Header] = {}
    for path in sources.measured:
        with suppress(StoreError):  # a damaged file is named when its page is made
            headers[path] = read_header(path)
    pages: dict[Path, list[Path]] = {path: [] for path in sources.measured}
    for path in sources.explaining:
        explaining = read_header(path)
        explained = [
            (moment(header.started_at), file) for file, header in headers.items() if explain(header, explaining)
        ]
        if explained:
            pages[max(explained)[1]].append(path)
        else:
            pages[path] = []
    return pages


def _latest(results: Path) -> Sources:
    sources = _sorted(list_runs(results))
    headers = {path: read_header(path) for path in sources.explaining}
    if sources.measured or not sources.explaining:
        doubts: list[str] = []
        newest = find_runs(LATEST, results, doubts.append)
        measured = [read_header(path) for path in newest]
        explaining = [path for path, header in headers.items() if any(explain(run, header) for run in measured)]
        return Sources(newest, explaining, doubts=doubts)
    place = place_of(headers[sources.explaining[-1]])
    return Sources([], [path for path, header in headers.items() if place_of(header) == place])


def _sorted(paths: Iterable[Path]) -> Sources:
    sources = Sources()
    for path in paths:
        (sources.measured if measures(path) else sources.explaining).append(path)
    return sources


AXES = ("torch_version", "commit")
"""The axes of trends, where the runs differ in them; where they differ in neither, trends run over dates."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A run on the page, with its `rows` except for tables that a newer run on the page measured again."""

    result: Result
    rows: Sequence[Row]

    @property
    def stored(self) -> StoredRun:
        """The run as read."""
        return self.result.stored

    @property
    def name(self) -> str:
        """The name of the run on the page: its label, else its id."""
        return run_name(self.stored)

    @cached_property
    def networks(self) -> list[Network]:
        """The networks of the rows shown."""
        return networks_of(self.rows, self.result.takes, self.stored.cases)


@dataclass(frozen=True, kw_only=True, eq=False)
class Material:
    """The material of a page: the runs `shown`, the lowest version of torch first and the oldest of each, and
    `trends` over all named runs.

    `explanations` are the runs that only explain, the oldest first. `comparisons` are with the baseline, of the runs of
    its kind. `remarks` name files and runs that could not be read, compared or followed.
    """

    shown: Sequence[Shown] = ()
    explanations: Sequence[StoredRun] = ()
    baseline: StoredRun | None = None
    comparisons: Sequence[Comparison] = ()
    trends: Sequence[Trend] = ()
    budget: Budget = field(default_factory=Budget)
    remarks: Sequence[str] = ()

    @property
    def rows(self) -> list[Row]:
        """The rows of all runs shown."""
        return [row for run in self.shown for row in run.rows]

    @property
    def runs(self) -> list[StoredRun]:
        """The runs on the page, explaining ones included, the oldest first."""
        return _by_age([*(run.stored for run in self.shown), *self.explanations])

    @cached_property
    def networks(self) -> list[Network]:
        """The networks of all runs shown; a network of several runs has the run's name behind its own."""

        def key(network: Network) -> tuple[str, ...]:
            row = network.rows[0]
            return network.name, row["phase"], row["device"], row["path"]

        counts = Counter(key(network) for run in self.shown for network in run.networks)
        return in_order(
            replace(network, name=f"{network.name} · {run.name}") if counts[key(network)] > 1 else network
            for run in self.shown
            for network in run.networks
        )


def gather(
    sources: Sequence[str],
    results: Path,
    baseline: str = "",
    budget: Budget | None = None,
) -> Material:
    """Return the material for the runs that `sources` name, as `find_sources` does.

    Each run shown is compared with the run called `baseline`.

    Raises `StoreError` for a damaged file, `UsageError` for a name of no run and for a baseline that measured nothing,
    though runs shown did, `NothingComparableError` where no run shown has a case in common with the baseline.
    """
    against = read_found(baseline, results) if baseline else None
    files = find_sources(sources, results)
    remarks = list(files.doubts)
    runs = _read(files.measured, files, remarks)
    explanations = _read(files.explaining, files, remarks)
    if remarks and not runs and not explanations:
        raise StoreError(remarks[0])
    if against is not None:
        if runs and against.header.explains:
            raise UsageError(f"run {against.header.run} {deed_of(against.header.explains)} and measured nothing")
        if len(runs) + len(explanations) > 1:
            runs.pop(against.header.run, None)
            explanations.pop(against.header.run, None)
    material = material_of(lanes_together(list(runs.values())), against, budget, list(explanations.values()))
    if against is not None and not material.comparisons:
        raise NothingComparableError(material.remarks[-1])
    several = len(files.measured) > 1  # the comparison of one run with its baseline says more than a trend
    trends = find_trends([*runs.values(), *([against] if against else [])]) if several else ()
    return replace(material, trends=trends, remarks=[*remarks, *material.remarks])


def _read(paths: Iterable[Path], sources: Sources, remarks: list[str]) -> dict[str, StoredRun]:
    """Return the runs in files by id; a damaged one in a folder that was named is left out, with a remark."""
    runs: dict[str, StoredRun] = {}
    for path in paths:
        try:
            stored = read_run(path)
        except StoreError as error:
            if path not in sources.listed:
                raise
            remarks.append(f"left out: {error}")
            continue
        runs[stored.header.run] = stored
    return runs


def material_of(
    runs: Sequence[StoredRun],
    baseline: StoredRun | None = None,
    budget: Budget | None = None,
    explanations: Sequence[StoredRun] = (),
) -> Material:
    """Return the material for `runs` that measured and `explanations` that did not, without trends.

    A table (the precisions of a workload, all else equal) is shown from the machine's newest run with the highest
    version of torch; an earlier run's table is shown too where it has a case that no later table has. Tables never mix
    runs, as the cases of a run were measured in turns.
    """
    budget = budget or Budget()
    ordered = sorted(_by_age(runs), key=lambda run: public_version(run.header.environment.torch_version))
    explaining = _by_age(explanations)
    newer: dict[object, list[set[str]]] = {}
    runs_shown: list[Shown] = []
    for stored in reversed(ordered):
        result = Result(stored, budget)
        uncovered: set[str] = set()
        for group, members in grouped(result.rows).items():
            ids = {row["case_id"] for row in members}
            known = newer.setdefault((group, place_on_axis(stored.header, group.device, AXES[0])), [])
            if not any(ids <= others for others in known):
                uncovered |= ids
            known.append(ids)
        rows = [row for row in result.rows if row["case_id"] in uncovered]
        if rows or not stored.cases:
            runs_shown.append(Shown(result=result, rows=rows))
    runs_shown.reverse()
    remarks = [f"{run.path.name} {CUT}" for run in [*ordered, *explaining] if run.cut]
    comparisons = []
    if baseline is not None:
        for stored in explaining if baseline.header.explains else [run.stored for run in runs_shown]:
            try:
                comparisons.append(compare(baseline, stored))
            except NothingComparableError as error:
                remarks.append(str(error))
    return Material(
        shown=runs_shown,
        explanations=explaining,
        baseline=baseline,
        comparisons=comparisons,
        budget=budget,
        remarks=remarks,
    )


def _by_age(runs: Iterable[StoredRun]) -> list[StoredRun]:
    """Return runs in order, the oldest first."""
    return sorted(runs, key=lambda run: (run.header.started_at, run.header.run))


def find_trends(runs: Sequence[StoredRun]) -> list[Trend]:
    """Return the trends over those of `runs` that measured."""
    measured = [MeasuredRun.of(stored) for stored in lanes_together([run for run in runs if not run.header.explains])]
    moving = list[Trend]()
    for axis in (*AXES, "date"):
        if axis in AXES or not moving:
            with suppress(NothingToRunError):  # no run has a place on the axis
                trend = make_trend(measured, axis, tracked())
                moving += [trend] if any(len(series.measured) > 1 for series in trend.series) else []
    return moving
