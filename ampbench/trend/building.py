"""Runs become series: which are comparable, which x a run has on an axis, in which order, and what is at each."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from packaging.version import InvalidVersion, Version

from ampbench.base import stats
from ampbench.base.metrics import DRIFT
from ampbench.errors import NothingToRunError, StoreError, UnknownNameError
from ampbench.judge.exact import drift_between
from ampbench.records.case import Case, Environment
from ampbench.records.run import DIRTY, PLAIN, Header, short_commit
from ampbench.trend import steps
from ampbench.trend.judging import WITHOUT_ASV, Differences, Raw, is_too_long, judged
from ampbench.trend.reducing import RunValues
from ampbench.trend.series import UNDEFINED, History, Lost, Place, Point, Series, Tracked, Trend, X
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
NOT_THERE = "not measured"
OTHER_NUMBERS = "measured with other weights, inputs, or by another count"

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
            cases = {(id, case.version) for id, case in run.cases.items() if case.device == device}
            if shown is not None:
                cases = {one for one in cases if shown[place, one] == commit}
                place = replace(place, commit=commit)
            if cases:
                grids.setdefault(place, _Grid(place)).add(where, run, cases)
                used = True
        if not used:
            left_out[OTHER_COMMIT] += 1
    differences = Differences(history)
    has_steps = steps.available()
    raws = [raw for grid in grids.values() for raw in grid.raw_series(metrics)]
    lost = [one for grid in grids.values() for one in grid.lost()]
    if not raws:
        raise NothingToRunError(f"no series: {_why_none(left_out, lost)}")
    found, shifts = judged(raws, differences, has_steps)
    notes = [] if has_steps or not any(is_too_long(one) for one in found) else [WITHOUT_ASV]
    return Trend(
        axis=axis,
        series=found,
        shifts=shifts,
        runs={place: sum(map(len, grid.columns.values())) for place, grid in grids.items()},
        left_out=dict(left_out),
        lost=lost,
        notes=notes,
    )


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
_Key = tuple[str, int, str, str]
"""What the points of a series share within a place: case id, the workload's version, metric, and `_numbers_of`."""
_Held = dict[_Key, dict[int, list[RunValues]]]
"""The runs of each series by the place of their x on the axis."""


@dataclass(slots=True)
class _Grid:
    """The runs of one place, by what their x is sorted by: "2.15" and "2.15.0" are one x."""

    place: Place
    columns: dict[tuple[Any, ...], list[RunValues]] = field(default_factory=dict)
    _placed: list[Placed] = field(default_factory=list)
    _cases: set[_Version] = field(default_factory=set)

    def add(self, where: Placed, run: RunValues, cases: set[_Version]) -> None:
        """Add a run for those of its cases that are shown here."""
        self._placed.append(where)
        self.columns.setdefault(where.key, []).append(run)
        self._cases |= cases

    def raw_series(self, metrics: Sequence[Tracked]) -> list[Raw]:
        """Return a series for each case and metric that has a value anywhere, in the order of the runs' plans."""
        axis = ordered(self._placed)
        cases: dict[_Version, Case] = {}
        held: _Held = {}
        undefined: _Held = {}
        for number, where in enumerate(axis):
            for run in self.columns[where.key]:
                for case_id, case in run.cases.items():
                    if (case_id, case.version) in self._cases:
                        cases.setdefault((case_id, case.version), case)
                for metric in metrics:
                    name = metric.column.name
                    for known, into in ((run.values[name], held), (run.undefined[name], undefined)):
                        for case_id in known:
                            numbers = _numbers_of(run, case_id, metric)
                            key = (case_id, run.cases[case_id].version, metric.name, numbers)
                            into.setdefault(key, {}).setdefault(number, []).append(run)
        order = {key: number for number, key in enumerate(cases)}
        by_name = {metric.name: (number, metric) for number, metric in enumerate(metrics)}
        chosen = [key for key in held if key[:2] in cases]
        chosen.sort(key=lambda key: (order[key[:2]], by_name[key[2]][0]))
        return [
            self._series(axis, cases[key[:2]], by_name[key[2]][1], key[3], held[key], undefined.get(key, {}))
            for key in chosen
        ]

    def lost(self) -> list[Lost]:
        """Return the cases that failed and have no number of any metric."""
        failed: dict[_Version, Lost] = {}
        for where in ordered(self._placed):
            for run in self.columns[where.key]:
                for case_id, reason in run.missing.items():
                    case = run.cases[case_id]
                    if reason.startswith("failed") and (case_id, case.version) in self._cases:
                        failed[case_id, case.version] = Lost(case=case, place=self.place, x=where.x, reason=reason)
        runs = [run for alike in self.columns.values() for run in alike]
        return [one for one in failed.values() if not any(_measured(run, one.case) for run in runs)]

    def _series(
        self,
        axis: Sequence[Placed],
        case: Case,
        metric: Tracked,
        numbers: str,
        held: Mapping[int, list[RunValues]],
        undefined: Mapping[int, list[RunValues]],
    ) -> Raw:
        column, case_id, runs = metric.column.name, case.case_id, {}
        points = []
        if column == DRIFT:
            held, undefined = _from_first(held, case_id)
        for number, where in enumerate(axis):
            known, broken = held.get(number, []), undefined.get(number, [])
            if known or broken:
                runs[number] = [*known, *broken]
                points.append(_point(where.x, known, broken, case_id, metric))
            else:
                missing = _why_missing(self.columns[where.key], case, column)
                points.append(Point(x=where.x, value=None, missing=missing))
        return Raw(Series(case=case, metric=metric, place=self.place, numbers=numbers, points=points), runs)


def _from_first(held: Mapping[int, list[RunValues]], case_id: str) -> tuple[dict[int, list[RunValues]], ...]:
    """Return the runs with how far the fp64 result of each lies from that of the first, and those with other shapes."""
    found: tuple[dict[int, list[RunValues]], ...] = ({}, {})
    first = held[min(held)][0].measured.stored.divergence[case_id]
    for number, runs in held.items():
        for run in runs:
            drift = drift_between(first, run.measured.stored.divergence[case_id])
            if drift.distance is None:
                told = {DRIFT: {case_id: f"{UNDEFINED}: {drift.said(0.0)}"}}
                found[1].setdefault(number, []).append(replace(run, undefined={**run.undefined, **told}))
            else:
                values = {**run.values, DRIFT: {case_id: drift.distance}}
                found[0].setdefault(number, []).append(replace(run, values=values))
    return found


def _point(x: X, runs: _Runs, broken: _Runs, case_id: str, metric: Tracked) -> Point:
    """Return the median of the runs; those in `broken`, whose number is undefined, count as worse than any number."""
    column = metric.column.name
    if metric.noisy:  # as comparisons leave out what was disturbed, where that leaves anything
        runs = [run for run in runs if case_id not in run.disturbed] or runs
    ids = tuple(run.header.run for run in (*runs, *broken))
    values = [run.values[column][case_id] for run in runs]
    value = stats.median([*values, *[math.inf] * len(broken)])
    if math.isinf(value):
        missing = broken[-1].undefined[column][case_id]
        return Point(x=x, value=None, runs=len(ids), run_ids=ids, missing=missing)
    each = measured_by(runs, values, case_id, metric)
    low, high = point_interval(each, metric)
    return Point(x=x, value=value, low=low, high=high, runs=len(ids), run_ids=ids, each=each)


def place_of(header: Header, device: str, axis: str) -> Place:
    """Return where and by what a run measured on `device`, for series over `axis`; a commit held fixed is not in it."""
    environment = header.environment
    given = header.arm.settings if header.arm else {}
    plain = device == "cpu" and header.settings.heap == PLAIN
    return Place(
        program=header.imported.program if header.imported else OWN_PROGRAM,
        host=environment.host,
        cpu=environment.cpu,
        device=device,
        device_name=_device_name(environment, device),
        threads=environment.threads,
        torch_version="" if axis == TORCH else environment.torch_version,
        settings=tuple(sorted((given | ({"heap": PLAIN} if plain else {})).items())),
    )


def _device_name(environment: Environment, device: str) -> str:
    described = environment.device(device)
    return described.name if described is not None and device != "cpu" else ""


def _measured(run: RunValues, case: Case) -> bool:
    """Return whether a run has any number of a case."""
    known = any(case.case_id in values for values in run.values.values())
    return known and run.cases[case.case_id].version == case.version


def _numbers_of(run: RunValues, case_id: str, metric: Tracked) -> str:
    """Return what values of a metric must share to be comparable, beside the case: for errors, weights and inputs."""
    if metric.gate.kind == "memory":
        return run.memory_source.get(case_id, "")
    return run.numbers.get(case_id, "") if metric.gate.kind == "accuracy" else ""


def _why_missing(runs: _Runs, case: Case, column: str) -> str:
    case_id = case.case_id
    told = [run.missing[case_id] for run in runs if case_id in run.missing]
    if told:
        return told[-1]
    others = [run for run in runs if case_id in run.values[column] or case_id in run.undefined[column]]
    if not others:
        return NOT_THERE
    versions = [run.cases[case_id].version for run in others]
    return OTHER_NUMBERS if case.version in versions else f"measured in version {versions[-1]} of the workload"
