"""Makes series of runs: comparable values, the x of each run on an axis, their order, and the point at each x."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from packaging.version import InvalidVersion, Version

from ampbench.core import stats
from ampbench.errors import NothingToRunError, UnknownNameError
from ampbench.records.run import DIRTY, Header, short_commit
from ampbench.trend.judging import Runs, judged
from ampbench.trend.reducing import HIGH, LOW, RunValues
from ampbench.trend.series import (
    Gap,
    Lack,
    LeftOut,
    Measured,
    Place,
    Point,
    Series,
    Tracked,
    Trend,
    X,
)

TORCH = "torch_version"
"""The axis with a fixed commit; other axes have a fixed version of torch."""

Key = tuple[Any, ...]
Placement = list[tuple[Key, X] | None]
"""The x of each run and its sort key; None where it has none. Equal keys are one x."""


def moment(text: str) -> datetime:
    """Return a time in ISO 8601, as the reading of a header has checked it, in UTC."""
    moment = datetime.fromisoformat(text)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


UNKNOWN = Version("0.dev0")
"""Sorts before every version of torch."""


def public_version(text: str) -> Version:
    """Return a version of torch without its build, `UNKNOWN` for any other text."""
    try:
        return Version(Version(text).public)
    except InvalidVersion:
        return UNKNOWN


def by_torch_version(headers: Sequence[Header]) -> Placement:
    """Place runs by the public version of torch ("2.15.0" of 2.15.0+cu132), in the order of PEP 440."""
    versions = [public_version(header.environment.torch_version) for header in headers]
    return [
        None if version == UNKNOWN else ((version,), X(value=str(version), label=str(version))) for version in versions
    ]


def by_commit(headers: Sequence[Header]) -> Placement:
    """Place runs by commit, in the order of the commits' times as recorded, else of when they were first measured.

    Commits of one second are in the order in which they were measured. A commit with uncommitted changes ("-dirty")
    follows its own.
    """
    bases = [(header.commit or "").removesuffix(DIRTY) for header in headers]
    recorded: dict[str, float] = {}
    measured: dict[str, float] = {}
    for base, header in zip(bases, headers, strict=True):
        if header.committed_at:
            recorded.setdefault(base, moment(header.committed_at).timestamp())
        started = moment(header.started_at).timestamp()
        measured[base] = min(started, measured.get(base, started))
    times = measured | recorded
    placed: Placement = []
    for base, header in zip(bases, headers, strict=True):
        commit = header.commit or ""
        key = (times[base], measured[base], base, commit.endswith(DIRTY))
        placed.append((key, X(value=commit, label=short_commit(commit))) if commit else None)
    return placed


def by_date(headers: Sequence[Header]) -> Placement:
    """Place each run by itself, at the time when it began (UTC)."""
    placed: Placement = []
    for header in headers:
        began = moment(header.started_at)
        x = X(value=header.started_at, label=f"{began:%Y-%m-%d %H:%M}")
        placed.append(((began.timestamp(), header.run), x))
    return placed


AXES: Mapping[str, Callable[[Sequence[Header]], Placement]] = MappingProxyType(
    {TORCH: by_torch_version, "commit": by_commit, "date": by_date}
)
"""The axes of trends."""


OWN_PROGRAM = "ampbench"


def place_of(header: Header, device: str, axis: str) -> Place:
    """Return the place of a run on `device` for series over `axis`, without the commit."""
    environment = header.environment
    described = environment.device(device)
    return Place(
        program=header.imported.program if header.imported else OWN_PROGRAM,
        host=environment.host,
        cpu=environment.cpu,
        device=device,
        device_name=described.name if described is not None and device != "cpu" else "",
        threads=environment.threads,
        torch_version="" if axis == TORCH else environment.torch_version,
        settings=tuple(sorted(header.arm.settings.items())) if header.arm else (),
    )


_Track = tuple[Place, str, int]
"""A case at a place, by its id and the version of its workload."""
_Columns = dict[Key, list[RunValues]]
"""The runs that have a case, by the sort keys of their x."""


def make_trend(runs: Sequence[RunValues], axis: str, metrics: Sequence[Tracked]) -> Trend:
    """Return the series of `metrics` over `axis` (one of `AXES`), with their change points.

    Raises `UnknownNameError` for another axis, `NothingToRunError` where no run has an x or no case one of the metrics.
    """
    if axis not in AXES:
        raise UnknownNameError("axis", axis, AXES)
    headers = [run.header for run in runs]
    placed = [(run, *where) for run, where in zip(runs, AXES[axis](headers), strict=True) if where is not None]
    tracks: dict[_Track, _Columns] = {}
    for run, key, _ in placed:
        commit = (run.header.commit or "") if axis == TORCH else ""
        devices = {case.device for case in run.cases.values()}
        places = {device: replace(place_of(run.header, device, axis), commit=commit) for device in devices}
        for case_id, case in run.cases.items():
            tracks.setdefault((places[case.device], case_id, case.version), {}).setdefault(key, []).append(run)
    if axis == TORCH:
        tracks = _at_one_commit(tracks, headers)
    used: dict[Place, dict[RunValues, Key]] = {}
    for (place, _, _), columns in tracks.items():
        for key, column in columns.items():
            used.setdefault(place, {}).update(dict.fromkeys(column, key))
    kept = {run for members in used.values() for run in members}
    left_out = Counter({LeftOut.NO_COMMIT if axis == "commit" else LeftOut.NO_VERSION: len(runs) - len(placed)})
    left_out[LeftOut.OTHER_COMMIT] = sum(bool(run.cases) and run not in kept for run, _, _ in placed)
    left_out = +left_out

    xs: dict[Key, X] = {}
    for _, key, x in sorted(placed, key=lambda run: run[1]):
        xs.setdefault(key, x)
    axes = {place: [(key, xs[key]) for key in xs if key in {*members.values()}] for place, members in used.items()}
    series = [
        pair
        for track, columns in tracks.items()
        for metric in metrics
        for pair in _series(track, axes[track[0]], columns, metric)
    ]
    if not series:
        reasons = [f"{count} with {why.replace('-', ' ')}" for why, count in left_out.items()]
        raise NothingToRunError(f"no series: {'; '.join(reasons) or 'no case has a number of these metrics'}")
    judged_series, shifts = judged(series)
    counts = {place: len(members) for place, members in used.items()}
    return Trend(axis=axis, series=judged_series, shifts=shifts, runs=counts, left_out=left_out)


def _at_one_commit(tracks: Mapping[_Track, _Columns], headers: Sequence[Header]) -> dict[_Track, _Columns]:
    """Return each case at one commit, so that no version is blamed for a commit.

    This is the newest commit with several versions of the case, else the newest that has it.
    """
    ages: dict[str, Key] = {"": ()}  # without a commit: before all others
    ages |= {placed[1].value: placed[0] for placed in by_commit(headers) if placed is not None}
    chosen: dict[_Track, tuple[tuple[bool, Key], _Track]] = {}
    for track, columns in tracks.items():
        place, case_id, version = track
        rank = (len(columns) > 1, ages[place.commit])
        everywhere = (replace(place, commit=""), case_id, version)
        if everywhere not in chosen or rank > chosen[everywhere][0]:
            chosen[everywhere] = rank, track
    return {track: tracks[track] for _, track in chosen.values()}


_Runs = Sequence[RunValues]
_Axis = Sequence[tuple[Key, X]]


def _series(track: _Track, axis: _Axis, columns: _Columns, metric: Tracked) -> Iterator[tuple[Series, Runs]]:
    """Yield the series of a case, one for all values that are comparable, with the runs at each of its points."""
    place, case_id, _ = track
    column = metric.column.name
    every = [
        [
            run
            for run in columns.get(key, ())
            if run.value(column, case_id) is not None or run.undefined(column, case_id)
        ]
        for key, _ in axis
    ]
    measured = [run for runs in every for run in runs if run.value(column, case_id) is not None]
    for numbers in dict.fromkeys(run.numbers(metric, case_id) for run in measured):
        alike = [[run for run in runs if run.numbers(metric, case_id) == numbers] for runs in every]
        points = [
            _point(x, runs, columns.get(key, ()), case_id, metric) for (key, x), runs in zip(axis, alike, strict=True)
        ]
        case = measured[0].cases[case_id]
        runs = [sorted(at, key=lambda run: run.value(column, case_id) is None) for at in alike]
        yield Series(case=case, metric=metric, place=place, numbers=numbers, points=points), runs


def _point(x: X, comparable: _Runs, runs: _Runs, case_id: str, metric: Tracked) -> Point:
    """Return the median of the comparable runs among the `runs` at `x`, or why there is none.

    An undefined value is worse than any number. As in comparisons, disturbed runs are left out unless all are.
    """
    column = metric.column.name
    if not comparable:
        return Point(x=x, value=None, gap=_why_missing(runs, case_id, column))
    measured = [run for run in comparable if run.value(column, case_id) is not None]
    undefined = [run for run in comparable if run not in measured]
    quiet = [run for run in measured if not (metric.noisy and case_id in run.disturbed)]
    kept = tuple(_measured(run, case_id, metric) for run in quiet or measured)
    ids = (*(run.run for run in kept), *(run.header.run for run in undefined))
    value = stats.median([*(run.value for run in kept), *[math.inf] * len(undefined)])
    if math.isinf(value):
        gap = Gap(Lack.UNDEFINED, undefined[-1].undefined(column, case_id))
        return Point(x=x, value=None, runs=len(ids), run_ids=ids, gap=gap)
    low, high = kept[0].low, kept[0].high
    if len(kept) > 1:
        values = [run.value for run in kept]
        enough = metric.noisy and len(values) >= stats.ROUNDS_FOR_INTERVAL
        low, high = (stats.log_t_interval(values) if enough else None) or (None, None)
    return Point(x=x, value=value, low=low, high=high, runs=len(ids), run_ids=ids, each=kept)


def _measured(run: RunValues, case_id: str, metric: Tracked) -> Measured:
    """Return the value of a run at a point, with the interval of a time."""
    value = run.values[metric.column.name][case_id]
    if not metric.noisy:
        return Measured(run=run.header.run, value=value)
    low, high = run.value(LOW, case_id), run.value(HIGH, case_id)
    return Measured(run=run.header.run, value=value, low=low, high=high, disturbed=run.disturbed.get(case_id, ""))


def _why_missing(runs: _Runs, case_id: str, column: str) -> Gap:
    """Return why `runs` have no comparable value of a case."""
    gaps = [run.missing[case_id] for run in runs if case_id in run.missing]
    if gaps:
        return gaps[-1]
    known = any(run.value(column, case_id) is not None or run.undefined(column, case_id) for run in runs)
    return Gap(Lack.OTHER_NUMBERS if known else Lack.NOT_MEASURED)
