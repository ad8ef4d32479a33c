"""Runs become series: which are comparable, which x a run has on an axis, in which order, and what is at each."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import numpy as np
from packaging.version import InvalidVersion, Version

from ampbench.base import stats
from ampbench.base.metrics import DRIFT
from ampbench.errors import NothingToRunError, StoreError, UnknownNameError
from ampbench.judge.exact import drift_between
from ampbench.records.case import Case, Environment
from ampbench.records.run import DIRTY, Header, short_commit
from ampbench.trend import steps
from ampbench.trend.judging import WITHOUT_ASV, Differences, Raw, is_too_long, judged
from ampbench.trend.reducing import RunValues
from ampbench.trend.series import Gap, History, Lack, Lost, Place, Point, Points, Series, Tracked, Trend, X
from ampbench.trend.steps import measured_by, point_interval

TORCH = "torch_version"
"""The axis over which the commit is held fixed; over others the version of torch is."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A run's `x` and what it is sorted by."""

    x: X
    key: tuple[Any, ...]


Placement = tuple[list[Placed | None], Counter[str]]
"""The x of each run, None where it has none, and why, counted."""


def by_torch_version(headers: Sequence[Header], history: History) -> Placement:  # noqa: ARG001 - as all axes
    """Place runs by the public version of torch ("2.15.0" of 2.15.0+cu132), in the order of PEP 440.

    Versions that PEP 440 calls equal ("2.15" and "2.15.0") are one x, as the first of them is written.
    """
    placed: list[Placed | None] = []
    names: dict[Version, X] = {}
    reasons: Counter[str] = Counter()
    for header in headers:
        text = header.environment.torch_version
        try:
            version = Version(text)
        except InvalidVersion:
            placed.append(None)
            reasons["an unreadable torch version" if text else "no torch version"] += 1
            continue
        public = Version(version.public)
        x = names.setdefault(public, X(value=version.public, label=version.public))
        placed.append(Placed(x, (public,)))
    return placed, reasons


def public_version(text: str) -> Version:
    """Return a version of torch to sort by, without its build; what is none comes before all others."""
    try:
        return Version(Version(text).public)
    except InvalidVersion:
        return Version("0.dev0")


def by_commit(headers: Sequence[Header], history: History) -> Placement:
    """Place runs by commit, in the order of the commits' times: as recorded, else git's, else when first measured.

    Commits of one second are in git's order of descent. A commit with changes beside it ("-dirty") follows its own.
    Raises `StoreError` for a time that is none.
    """
    bases = [header.commit.removesuffix(DIRTY) if header.commit else None for header in headers]
    names = [base for base in dict.fromkeys(bases) if base]
    known = history.commits(names)
    times: dict[str, float] = {}
    measured: dict[str, float] = {}
    for base, header in zip(bases, headers, strict=True):
        if base is None:
            continue
        if header.committed_at and base not in times:
            times[base] = _moment(header.committed_at, header).timestamp()
        started = _moment(header.started_at, header).timestamp()
        measured[base] = min(started, measured.get(base, started))
    for base in names:
        times.setdefault(base, known[base].time if base in known else measured[base])
    ranks: Mapping[str, int] = {}
    if len(set(times.values())) < len(times):
        ranks = history.ranks(base for base in names if base in known)
    placed: list[Placed | None] = []
    for base, header in zip(bases, headers, strict=True):
        if base is None or header.commit is None:
            placed.append(None)
            continue
        dirty = header.commit.endswith(DIRTY)
        title = known[base].subject if base in known else ""
        key = (times[base], ranks.get(base, 0), measured[base], base, dirty)
        placed.append(Placed(X(value=header.commit, label=short_commit(header.commit), title=title), key))
    return placed, Counter({"no commit": placed.count(None)} if None in placed else {})


def by_date(headers: Sequence[Header], history: History) -> Placement:  # noqa: ARG001 - as all axes
    """Place each run by itself, at the time when it began (UTC). Raises `StoreError` for a time that is none."""
    placed: list[Placed | None] = []
    for header in headers:
        moment = _moment(header.started_at, header)
        x = X(value=header.started_at, label=moment.strftime("%Y-%m-%d %H:%M"), title=header.run)
        placed.append(Placed(x, (moment.timestamp(), header.run)))
    return placed, Counter()


AXES: Mapping[str, Callable[[Sequence[Header], History], Placement]] = MappingProxyType(
    {TORCH: by_torch_version, "commit": by_commit, "date": by_date}
)
"""What a trend may run over."""


def ordered(placed: Iterable[Placed]) -> list[Placed]:
    """Return the first of each key, in order."""
    first: dict[tuple[Any, ...], Placed] = {}
    for one in placed:
        first.setdefault(one.key, one)
    return sorted(first.values(), key=lambda one: one.key)


def _moment(text: str, header: Header) -> datetime:
    """Return a time in ISO 8601 of a run, in UTC; without an offset it is that."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise StoreError(
            f"run {header.run}: {text!r} is no time (2026-01-31T12:00:00Z): mend its header, or leave the run out"
        ) from None


OWN_PROGRAM = "ampbench"
OTHER_COMMIT = "another commit: over versions of torch the commit is held fixed"

_Runs = Sequence[RunValues]


def make_trend(runs: _Runs, axis: str, metrics: Sequence[Tracked], history: History | None = None) -> Trend:
    """Return the series of `metrics` over `axis` (one of `AXES`), with their change points.

    `history` is the repository that commits are looked up in; by default that of the current folder. Raises
    `UnknownNameError` for another axis, `StoreError` for a run whose time is none, `NothingToRunError` where no run has
    an x or no case one of the metrics.
    """
    if axis not in AXES:
        raise UnknownNameError("axis", axis, AXES)
    history = history or History()
    placed, left_out = AXES[axis]([run.header for run in runs], history)
    held = list(zip(runs, placed, strict=True))
    shown = _fixed_commits(held, history) if axis == TORCH else None
    grids: dict[Place, _Grid] = {}
    versions: dict[int, dict[str, set[_Version]]] = {}
    for run, where in held:
        if where is None:
            continue
        used = False
        if id(run.cases) not in versions:  # nearly all runs list the same
            versions[id(run.cases)] = _by_device(run.cases)
        for device, listed in versions[id(run.cases)].items():
            cases: Collection[_Version] = listed
            place = place_of(run.header, device, axis)
            commit = run.header.commit or ""
            if shown is not None:
                cases = {one for one in listed if shown[place, one] == commit}
                place = replace(place, commit=commit)
            if cases:
                grids.setdefault(place, _Grid(place)).add(where, run, cases)
                used = True
        if not used:
            left_out[OTHER_COMMIT] += 1
    differences = Differences(history)
    raws = [raw for grid in grids.values() for raw in grid.raw_series(metrics)]
    lost = [one for grid in grids.values() for one in grid.lost()]
    if not raws:
        raise NothingToRunError(f"no series: {_why_none(left_out, lost)}")
    needs_steps = any(is_too_long(raw.series) for raw in raws)
    has_steps = needs_steps and steps.available()
    found, shifts = judged(raws, differences, has_steps)
    notes = [WITHOUT_ASV] if needs_steps and not has_steps else []
    return Trend(
        axis=axis,
        series=found,
        shifts=shifts,
        runs={place: sum(map(len, grid.columns.values())) for place, grid in grids.items()},
        left_out=dict(left_out),
        lost=lost,
        notes=notes,
    )


def _by_device(cases: Mapping[str, Case]) -> dict[str, "set[_Version]"]:
    found: dict[str, set[_Version]] = {}
    for case_id, case in cases.items():
        found.setdefault(case.device, set()).add((case_id, case.version))
    return found


def _fixed_commits(
    held: Sequence[tuple[RunValues, Placed | None]], history: History
) -> dict[tuple[Place, "_Version"], str]:
    """Return which commit each case is shown at over versions of torch, by its place without a commit.

    A version must not be blamed for a commit, so that is one: the newest that has several versions of the case, else
    the newest that has it.
    """
    order, _ = by_commit([run.header for run, _ in held], history)
    versions: dict[tuple[Place, _Version], dict[str, set[Any]]] = {}
    ages: dict[str, tuple[Any, ...]] = {}
    for (run, where), aged in zip(held, order, strict=True):
        if where is None:
            continue
        commit = run.header.commit or ""
        ages[commit] = aged.key if aged is not None else ()  # without a commit: before all others
        for case_id, case in run.cases.items():
            place = place_of(run.header, case.device, TORCH)
            versions.setdefault((place, (case_id, case.version)), {}).setdefault(commit, set()).add(where.key)
    return {
        key: max(commits, key=lambda commit: (len(commits[commit]) > 1, ages[commit]))
        for key, commits in versions.items()
    }


def _why_none(left_out: Mapping[str, int], lost: Sequence[Lost]) -> str:
    said = [f"{count} with {reason}" for reason, count in left_out.items()]
    if lost:
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        said.append(f"{lost[0].case.case_id} at {lost[0].x.label} {lost[0].reason}{more}")
    return "; ".join(said) or "no case has a number of these metrics"


_Version = tuple[str, int]
"""A case, by its id and the version of its workload."""


@dataclass(slots=True)
class _Grid:
    """The runs of one place, by what their x is sorted by: "2.15" and "2.15.0" are one x."""

    place: Place
    columns: dict[tuple[Any, ...], list[RunValues]] = field(default_factory=dict)
    _placed: list[Placed] = field(default_factory=list)
    _cases: set[_Version] = field(default_factory=set)

    def add(self, where: Placed, run: RunValues, cases: Collection[_Version]) -> None:
        """Add a run for those of its cases that are shown here."""
        self._placed.append(where)
        self.columns.setdefault(where.key, []).append(run)
        self._cases.update(cases)

    def raw_series(self, metrics: Sequence[Tracked]) -> list[Raw]:
        """Return a series for each case and metric that has a value anywhere, in the order of the runs' plans."""
        lattice = _Lattice(self.place, ordered(self._placed), self.columns, self._cases)
        tables = [lattice.table(metric) for metric in metrics]
        return [
            raw
            for column, case in enumerate(lattice.cases.values())
            for table in tables
            for raw in table.series(column, case)
        ]

    def lost(self) -> list[Lost]:
        """Return the cases that failed and have no number of any metric."""
        failed: dict[_Version, Lost] = {}
        for where in ordered(self._placed):
            for run in self.columns[where.key]:
                for case_id, gap in run.missing.items():
                    case = run.cases[case_id]
                    if gap.lack is Lack.FAILED and (case_id, case.version) in self._cases:
                        failed[case_id, case.version] = Lost(
                            case=case, place=self.place, x=where.x, reason=f"failed: {gap.why}"
                        )
        runs = [run for alike in self.columns.values() for run in alike]
        return [one for one in failed.values() if not any(_measured(run, one.case) for run in runs)]


class _Lattice:
    """The runs of a place in the order of its axis, and all their cases: the rows and the columns of tables.

    `alike` are the runs by their places on the axis, `rows` where these are among all `runs`, `at` the place of each,
    `disturbed` by case id the rows of runs that were.
    """

    def __init__(
        self,
        place: Place,
        axis: Sequence[Placed],
        runs: Mapping[tuple[Any, ...], Sequence[RunValues]],
        shown: Collection[_Version],
    ):
        self.place = place
        self.axis = axis
        self.alike = [runs[where.key] for where in axis]
        self.runs = [run for alike in self.alike for run in alike]
        self.at = [number for number, alike in enumerate(self.alike) for _ in alike]
        ends = list(accumulate(map(len, self.alike)))
        self.rows = [range(end - len(alike), end) for end, alike in zip(ends, self.alike, strict=True)]
        self.cases: dict[_Version, Case] = {}
        columns: dict[_Version, int] = {}
        of_lists: dict[int, tuple[stats.Integers, stats.Integers]] = {}
        for run in self.runs:
            if id(run.cases) not in of_lists:  # nearly all runs list the same
                versions = {(case_id, case.version): case for case_id, case in run.cases.items()}
                places = [columns.setdefault(one, len(columns)) if one in shown else -1 for one in versions]
                self.cases.update(
                    (one, case) for one, case in versions.items() if one in shown and one not in self.cases
                )
                found = np.array(places, dtype=np.int64)
                of_lists[id(run.cases)] = np.flatnonzero(found >= 0), found[found >= 0]
        self._listed = [of_lists[id(run.cases)] for run in self.runs]
        self.disturbed: dict[str, set[int]] = {}
        for row, run in enumerate(self.runs):
            for case_id in run.disturbed:
                self.disturbed.setdefault(case_id, set()).add(row)
        self._coded: dict[str, stats.Integers] = {}
        self._texts: dict[str, list[str]] = {}

    def table(self, metric: Tracked) -> "_Table":
        """Return what the runs tell of a metric."""
        name = metric.column.name
        values = np.full((len(self.runs), len(self.cases)), np.nan)
        undefined: dict[str, dict[int, str]] = {}
        for row, (run, (own, columns)) in enumerate(zip(self.runs, self._listed, strict=True)):
            values[row, columns] = run.values[name][own]
            for case_id, why in run.undefined[name].items():
                undefined.setdefault(case_id, {})[row] = why
        return _Table(self, metric, values, undefined)

    def codes(self, name: str) -> stats.Integers:
        """Return for each run and case the number of a text of that name among `texts`; -1 where there is none."""
        if name not in self._coded:
            known: dict[str, int] = {}
            coded = np.full((len(self.runs), len(self.cases)), -1)
            for row, (run, (own, columns)) in enumerate(zip(self.runs, self._listed, strict=True)):
                texts = getattr(run, name)[own].tolist()
                coded[row, columns] = [known.setdefault(text, len(known)) for text in texts]
            self._coded[name], self._texts[name] = coded, list(known)
        return self._coded[name]

    def texts(self, name: str) -> list[str]:
        """Return the texts of `codes`."""
        return self._texts[name]


@dataclass(frozen=True, slots=True)
class _Table:
    """What the runs of a lattice tell of a metric: `values` by run and case, NaN where not known; by case id and run
    why an error is `undefined`.
    """

    lattice: _Lattice
    metric: Tracked
    values: stats.Floats
    undefined: Mapping[str, Mapping[int, str]]

    def series(self, column: int, case: Case) -> Iterator[Raw]:
        """Yield the series of the case in a column: one for all values that are comparable."""
        lattice, values = self.lattice, self.values[:, column]
        rows = np.flatnonzero(~np.isnan(values))
        if not rows.size:
            return
        undefined, runs = self.undefined.get(case.case_id, {}), lattice.runs
        broken = {row: why for row, why in undefined.items() if runs[row].cases[case.case_id].version == case.version}
        told = _TOLD_APART.get(self.metric.gate.kind)
        if told is None:
            yield self._raw(case, column, "", rows.tolist(), broken)
            return
        codes = lattice.codes(told)[:, column]
        for code in dict.fromkeys(codes[rows].tolist()):
            alike = {row: why for row, why in broken.items() if codes[row] == code}
            yield self._raw(case, column, lattice.texts(told)[code], rows[codes[rows] == code].tolist(), alike)

    def _raw(self, case: Case, column: int, numbers: str, rows: list[int], broken: dict[int, str]) -> Raw:
        lattice, values = self.lattice, self.values[:, column]
        if self.metric.column.name == DRIFT:
            values, broken = _from_first(lattice.runs, rows, broken, case.case_id)
            rows = [row for row in rows if row not in broken]
        line = _Line(lattice, case, self.metric, values, rows, broken)
        points = Points(line.values, line.point, line.maybe_disturbed)
        alike = False
        if self.metric.gate.kind == "accuracy":
            functions = lattice.codes("function")[[*rows, *broken], column]
            alike = bool((functions == functions[0]).all())
        series = Series(case=case, metric=self.metric, place=lattice.place, numbers=numbers, points=points)
        return Raw(series, line.places, line.runs, alike)


_TOLD_APART = {"memory": "memory_source", "accuracy": "numbers"}
"""What values of a kind must share to be comparable, beside the case: for errors, weights and inputs."""


class _Line:
    """What runs tell of a case and metric: the `values` of the `rows` of a lattice, and why those of `broken` are none.

    `values` are then those of its points, by their places on the axis; `places` are those where anything was measured.
    """

    def __init__(
        self,
        lattice: _Lattice,
        case: Case,
        metric: Tracked,
        values: stats.Floats,
        rows: Sequence[int],
        broken: Mapping[int, str],
    ):
        self._lattice = lattice
        self._case = case
        self._metric = metric
        self._numbers = values
        self._known = np.zeros(len(values), dtype=np.bool_)
        self._known[rows] = True
        self._broken = broken
        self._disturbed = lattice.disturbed.get(case.case_id, set()) if metric.noisy else set()
        self.maybe_disturbed = sorted({lattice.at[row] for row in self._disturbed if self._known[row]})
        self.places = sorted({lattice.at[row] for row in (*rows, *broken)})
        self.values: list[float | None] = [None] * len(lattice.axis)
        if len(lattice.axis) == len(values):  # a run at each place
            for row, value in zip(rows, values[rows].tolist(), strict=True):
                self.values[row] = value
        else:
            for place in self.places:
                self.values[place] = self._median(place)

    def runs(self, place: int) -> list[RunValues]:
        """Return the runs that measured the point at a place, those last whose number is undefined."""
        return [self._lattice.runs[row] for row in (*self._measured(place), *self._undefined(place))]

    def point(self, place: int) -> Point:
        """Return the median of the runs at a place, or why there is none."""
        lattice, metric, case_id = self._lattice, self._metric, self._case.case_id
        x, rows, broken = lattice.axis[place].x, self._counted(place), self._undefined(place)
        if not rows and not broken:
            return Point(x=x, value=None, gap=_why_missing(lattice.alike[place], self._case, metric.column.name))
        runs = [lattice.runs[row] for row in rows]
        ids = tuple(run.header.run for run in (*runs, *(lattice.runs[row] for row in broken)))
        value = self.values[place]
        if value is None:
            return Point(x=x, value=None, runs=len(ids), run_ids=ids, gap=Gap(Lack.UNDEFINED, self._broken[broken[-1]]))
        each = measured_by(runs, self._numbers[rows].tolist(), case_id, metric)
        low, high = point_interval(each, metric)
        return Point(x=x, value=value, low=low, high=high, runs=len(ids), run_ids=ids, each=each)

    def _measured(self, place: int) -> list[int]:
        return [row for row in self._lattice.rows[place] if self._known[row]]

    def _undefined(self, place: int) -> list[int]:
        return [row for row in self._lattice.rows[place] if row in self._broken]

    def _counted(self, place: int) -> list[int]:
        """Return the rows that count: as comparisons leave out what was disturbed, where that leaves anything."""
        rows = self._measured(place)
        return [row for row in rows if row not in self._disturbed] or rows

    def _median(self, place: int) -> float | None:
        """Return the median at a place; what is undefined counts as worse than any number."""
        values: list[float] = self._numbers[self._counted(place)].tolist()
        value = stats.median([*values, *[math.inf] * len(self._undefined(place))])
        return None if math.isinf(value) else value


def _from_first(
    runs: _Runs, rows: Sequence[int], broken: Mapping[int, str], case_id: str
) -> tuple[stats.Floats, dict[int, str]]:
    """Return how far the fp64 result of the runs in `rows` lies from that of the first, and why of others it does not.

    Those are `broken`, and now those with other shapes, and any that lies from zero.
    """
    first = runs[rows[0]].measured.stored.divergence[case_id]
    values, why = np.full(len(runs), np.nan), dict(broken)
    for row in rows:
        drift = drift_between(first, runs[row].measured.stored.divergence[case_id])
        if drift.distance is None or math.isinf(drift.distance):
            why[row] = drift.said(0.0)
        else:
            values[row] = drift.distance
    return values, why


def place_of(header: Header, device: str, axis: str) -> Place:
    """Return where and by what a run measured on `device`, for series over `axis`; a commit held fixed is not in it."""
    environment = header.environment
    given = header.arm.settings if header.arm else {}
    return Place(
        program=header.imported.program if header.imported else OWN_PROGRAM,
        host=environment.host,
        cpu=environment.cpu,
        device=device,
        device_name=_device_name(environment, device),
        threads=environment.threads,
        torch_version="" if axis == TORCH else environment.torch_version,
        settings=tuple(sorted(given.items())),
    )


def _device_name(environment: Environment, device: str) -> str:
    described = environment.device(device)
    return described.name if described is not None and device != "cpu" else ""


def _measured(run: RunValues, case: Case) -> bool:
    """Return whether a run has any number of a case."""
    known = any(run.value(column, case.case_id) is not None for column in run.values)
    return known and run.cases[case.case_id].version == case.version


def _why_missing(runs: _Runs, case: Case, column: str) -> Gap:
    case_id = case.case_id
    told = [run.missing[case_id] for run in runs if case_id in run.missing]
    if told:
        return told[-1]
    others = [run for run in runs if run.value(column, case_id) is not None or case_id in run.undefined[column]]
    if not others:
        return Gap(Lack.NOT_MEASURED)
    versions = [run.cases[case_id].version for run in others]
    return Gap(Lack.OTHER_NUMBERS) if case.version in versions else Gap(Lack.OTHER_VERSION, str(versions[-1]))
