"""Runs become series: which are comparable, which x a run has on an axis, in which order, and what is at each."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from packaging.version import InvalidVersion, Version

from ampbench.core import stats
from ampbench.core.metrics import DRIFT
from ampbench.errors import NothingToRunError, StoreError, UnknownNameError
from ampbench.judge.exact import drift_between
from ampbench.records.case import Case, Environment
from ampbench.records.run import DIRTY, Header, short_commit
from ampbench.trend.judging import Differences, Raw, asv_detects, is_too_long, judged
from ampbench.trend.reducing import RunValues
from ampbench.trend.series import (
    TIME,
    Gap,
    History,
    Lack,
    LeftOut,
    Lost,
    Measured,
    Place,
    Point,
    Series,
    Tracked,
    Trend,
    X,
)

TORCH = "torch_version"
"""The axis over which the commit is held fixed; over others the version of torch is."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A run's `x` and what it is sorted by."""

    x: X
    key: tuple[Any, ...]


Placement = tuple[list[Placed | None], Counter[LeftOut]]
"""The x of each run, None where it has none, and why, counted."""


def by_torch_version(headers: Sequence[Header], history: History) -> Placement:  # noqa: ARG001 - as all axes
    """Place runs by the public version of torch ("2.15.0" of 2.15.0+cu132), in the order of PEP 440.

    Versions that PEP 440 calls equal ("2.15" and "2.15.0") are one x, as the first of them is written.
    """
    placed: list[Placed | None] = []
    names: dict[Version, X] = {}
    reasons: Counter[LeftOut] = Counter()
    for header in headers:
        text = header.environment.torch_version
        try:
            version = Version(text)
        except InvalidVersion:
            placed.append(None)
            reasons[LeftOut.UNREADABLE if text else LeftOut.NO_VERSION] += 1
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
    return placed, Counter({LeftOut.NO_COMMIT: placed.count(None)} if None in placed else {})


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
    for run, where in held:
        if where is None:
            continue
        used = False
        for device in dict.fromkeys(case.device for case in run.cases.values()):
            place = place_of(run.header, device, axis)
            commit = run.header.commit or ""
            cases = [version for version in _versions(run, device) if shown is None or shown[place, version] == commit]
            if cases:
                own = place if shown is None else replace(place, commit=commit)
                grids.setdefault(own, _Grid(own)).add(where, run, cases)
                used = True
        if not used:
            left_out[LeftOut.OTHER_COMMIT] += 1
    raws = [raw for grid in grids.values() for raw in grid.raw_series(metrics)]
    lost = [case for grid in grids.values() for case in grid.lost()]
    if not raws:
        raise NothingToRunError(f"no series: {_why_none(left_out, lost)}")
    has_asv = any(is_too_long(raw.series) for raw in raws) and asv_detects()
    series, shifts = judged(raws, Differences(history), has_asv)
    return Trend(
        axis=axis,
        series=series,
        shifts=shifts,
        runs={place: sum(map(len, grid.columns.values())) for place, grid in grids.items()},
        left_out=dict(left_out),
        lost=lost,
    )


def _versions(run: RunValues, device: str) -> list["_Version"]:
    return [(case_id, case.version) for case_id, case in run.cases.items() if case.device == device]


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


def _why_none(left_out: Mapping[LeftOut, int], lost: Sequence[Lost]) -> str:
    said = [f"{count} with {why.replace('-', ' ')}" for why, count in left_out.items()]
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
        axis = ordered(self._placed)
        alike = [self.columns[where.key] for where in axis]
        cases: dict[_Version, Case] = {}
        for run in (run for runs in alike for run in runs):
            for case_id, case in run.cases.items():
                if (case_id, case.version) in self._cases:
                    cases.setdefault((case_id, case.version), case)
        xs = [where.x for where in axis]
        return [raw for case in cases.values() for metric in metrics for raw in self._series(xs, alike, case, metric)]

    def _series(self, xs: Sequence[X], alike: Sequence[_Runs], case: Case, metric: Tracked) -> Iterator[Raw]:
        """Yield the series of a case: one for all values that are comparable. `alike` are the runs at each of `xs`."""
        accurate = metric.gate.kind == "accuracy"
        every = [[one for run in runs if (one := _told(run, case, metric)) is not None] for runs in alike]
        for numbers in dict.fromkeys(one.numbers for told in every for one in told if one.value is not None):
            own = [[one for one in told if one.numbers == numbers] for told in every]
            if metric.column.name == DRIFT:
                own = _from_first(own, case.case_id)
            points = [_point(*place, case, metric) for place in zip(xs, own, alike, strict=True)]
            functions = [one.run.function(case.case_id) for told in own for one in told] if accurate else []
            yield Raw(
                Series(case=case, metric=metric, place=self.place, numbers=numbers, points=points),
                [place for place, told in enumerate(own) if told],
                [[one.run for one in sorted(told, key=lambda one: one.value is None)] for told in own].__getitem__,
                alike=accurate and functions.count(functions[0]) == len(functions),
            )

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


@dataclass(frozen=True, slots=True)
class _Told:
    """What a run tells of a case and metric: its `value`, or the `gap` where that is undefined.

    Values are comparable that have the same `numbers`: for errors weights and inputs, for memory who counted.
    """

    run: RunValues
    numbers: str
    value: float | None
    gap: Gap | None = None


def _told(run: RunValues, case: Case, metric: Tracked) -> _Told | None:
    """Return what a run tells of a metric of a case in its very version; None where it does not."""
    case_id, column = case.case_id, metric.column.name
    if case_id not in run.cases or run.cases[case_id].version != case.version:
        return None
    value, why = run.value(column, case_id), run.undefined[column].get(case_id, "")
    if value is None and not why:
        return None
    apart = {"memory": run.memory_source, "accuracy": run.numbers}.get(metric.gate.kind)
    return _Told(run, apart(case_id) if apart else "", value, Gap(Lack.UNDEFINED, why) if value is None else None)


def _point(x: X, told: Sequence[_Told], runs: _Runs, case: Case, metric: Tracked) -> Point:
    """Return the median of what the `runs` at `x` told, or why there is none; what is undefined is worse than any.

    As comparisons do, it leaves out what was disturbed, where that leaves anything.
    """
    if not told:
        return Point(x=x, value=None, gap=_why_missing(runs, case, metric.column.name))
    measured, undefined = ([one for one in told if (one.value is None) == broken] for broken in (False, True))
    quiet = [one for one in measured if not (metric.noisy and case.case_id in one.run.disturbed)]
    counted = quiet or measured
    ids = tuple(one.run.header.run for one in (*counted, *undefined))
    value = stats.median([*(one.value for one in counted if one.value is not None), *[math.inf] * len(undefined)])
    if math.isinf(value):
        return Point(x=x, value=None, runs=len(ids), run_ids=ids, gap=undefined[-1].gap)
    each = tuple(_measured_by(one, case.case_id, metric) for one in counted)
    low, high = _interval(each, metric)
    return Point(x=x, value=value, low=low, high=high, runs=len(ids), run_ids=ids, each=each)


def _measured_by(told: _Told, case_id: str, metric: Tracked) -> Measured:
    """Return what a run says of a point, in the metric's unit, with the interval of a time or a rate."""
    value, run = told.value or 0.0, told.run
    low, high = run.intervals.get(case_id, (None, None)) if metric.noisy else (None, None)
    if low is not None and high is not None and metric.column.name != TIME:
        seconds = run.value(TIME, case_id) or 0.0
        low, high = value * (seconds / high), value * (seconds / low)
    disturbed = run.disturbed.get(case_id, "") if metric.noisy else ""
    return Measured(run=run.header.run, value=value, low=low, high=high, disturbed=disturbed)


def _interval(each: Sequence[Measured], metric: Tracked) -> tuple[float | None, float | None]:
    """Return the interval of a point of a time: that of its runs' values, or that of its only run."""
    if len(each) == 1 or not metric.noisy:
        return each[0].low, each[0].high
    values = [one.value for one in each]
    interval = stats.log_t_interval(values) if len(values) >= stats.ROUNDS_FOR_INTERVAL else None
    return interval or (None, None)


def _from_first(every: Sequence[Sequence[_Told]], case_id: str) -> list[list[_Told]]:
    """Return how far the fp64 result of each run lies from that of the first, and why of others it does not.

    Those are the ones with other shapes, and any that lies from zero.
    """
    first = next(one for told in every for one in told if one.value is not None).run.measured.stored

    def moved(one: _Told) -> _Told:
        if one.value is None:
            return one
        drift = drift_between(first.divergence[case_id], one.run.measured.stored.divergence[case_id])
        if drift.distance is None or math.isinf(drift.distance):
            return replace(one, value=None, gap=Gap(Lack.UNDEFINED, moved=drift.facts()))
        return replace(one, value=drift.distance)

    return [[moved(one) for one in told] for told in every]


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
