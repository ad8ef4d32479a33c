"""Runs in order: series over torch versions, commits or dates, and where they changed (docs/trends.md).

`values.read_runs` reads the named runs, `make_trend` puts them on an axis and looks for changes: `judge` between
neighbours, and asv's step detection in long series of times (`asv.step_detect`, the Potts model; Friedrich et al.,
"Complexity penalized M-estimation", 2008). The common change of all times of a run is separated first.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache, cached_property
from itertools import pairwise
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from packaging.version import InvalidVersion, Version

from ampbench.core import by_key, stats
from ampbench.errors import NothingToRunError
from ampbench.judge.compare import compare_times, default_threshold
from ampbench.judge.exact import Order, judge_numbers, other_function
from ampbench.judge.pairing import EnvironmentDifferences
from ampbench.judge.rounds import MeasuredRun
from ampbench.records.case import Case, matches
from ampbench.records.changes import Change as Verdict
from ampbench.records.changes import ChangeCode, ChangeStatus, Difference
from ampbench.records.run import DIRTY, Header, short_commit
from ampbench.trend.values import Gap, Lack, Measured, Tracked, values_of

POINTS = 8
"""Series of times with at least this many points are for asv's step detection."""
SHORTEST = 3
"""The fewest points of a level: on a shared machine two slow runs in a row mean nothing."""
MOST_RUNS = 4
"""The most runs, the newest, of each of two neighbouring points that are compared with each other."""
CASES, WORKLOADS = 6, 3
"""A median over fewer cases, or over fewer networks, may be the change of one network."""
ALIKE = 2 / 3
"""A change is of the whole run where this share of the cases moved that way, each by a quarter of it or more."""
FUNCTION = "floor"
"""The metric whose series shows where a case computes something else."""
ASV_FACTOR = 1.1
"""`asv compare` takes no smaller ratio of two values for a change (its --factor)."""
OWN_PROGRAM = "ampbench"
TORCH = "torch_version"
"""The axis with a fixed commit; other axes have a fixed version of torch."""
Direction = Literal["improved", "regressed"]


class Rule(StrEnum):
    """How changes were looked for in a series (docs/trends.md), or why they were not."""

    STEPS = "steps"
    """asv's step detection: a time, eight points and more."""
    NEIGHBOURS = "neighbours"
    """Each point against the one before it, as `ampbench compare` decides on their runs: a time, fewer points."""
    EXACT = "exact"
    """The metric has no noise: every difference beyond the gate's tolerance."""
    NONE = "none"
    """A series of one point."""
    NO_ASV = "no-asv"
    """Not judged: the series is long, and asv's step detection is not installed."""
    NO_NOISE = "no-noise"
    """Not judged: neither rounds nor intervals show how noisy its points are."""


JUDGED = (Rule.STEPS, Rule.NEIGHBOURS, Rule.EXACT)


@dataclass(frozen=True, slots=True, kw_only=True)
class X:
    """One place on the axis: its whole `value` and a short `label`."""

    value: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The machine and program of a series, equal for all its points.

    `program` is "ampbench" or the program of an imported run. `cpu` and `device_name` are models. `torch_version` is
    empty where it is the axis, `commit` where it is not. `settings` are an A/B session's arm (NAME=VALUE).
    """

    program: str
    host: str
    cpu: str
    device: str
    device_name: str
    threads: int | None
    torch_version: str = ""
    commit: str = ""
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The value of a series at one x: the median over its runs, in the unit of the metric.

    `each` has the values of the runs. Disturbed runs are left out of a time unless all are; then the point is not
    judged. A point without a `value` has a `gap`; its runs may have measured a number that is not finite.
    """

    x: X
    value: float | None = None
    each: Sequence[Measured] = ()
    gap: Gap | None = None

    @property
    def disturbed(self) -> str:
        """The disturbance of all its runs, so that it is not judged; "" where one of them was quiet."""
        return self.each[-1].disturbed if self.each and all(run.disturbed for run in self.each) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change point: `x` is the first point after it, `last` the last point of the level before it.

    `before` and `after` are the levels on both sides, in the unit of the metric, None where undefined. `ratio` is
    after / before, None where before is 0 or either is undefined; `low` and `high` are its 95% interval where
    comparisons of runs have one. `moved` are the facts of an fp64 result that moved: errors on both sides belong to
    different functions. The runs on both sides differ in `differences`.
    """

    x: X
    last: X
    before: float | None
    after: float | None
    ratio: float | None
    low: float | None = None
    high: float | None = None
    direction: Direction
    moved: Mapping[str, float | str] = field(default_factory=dict)
    differences: Sequence[Difference] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric of one case at one place, a point per x of that place, gaps among them.

    `numbers` tells apart series of one case, metric and place: for errors the digests of weights and inputs, for memory
    the counter.
    """

    case: Case
    metric: Tracked
    place: Place
    numbers: str = ""
    points: Sequence[Point]
    changes: Sequence[Change] = ()
    rule: Rule = Rule.NONE

    @property
    def key(self) -> tuple[Place, str, int, str, str]:
        """Place, case id, the workload's version, metric and `numbers`: no two series of a trend share them."""
        return self.place, self.case.case_id, self.case.version, self.metric.name, self.numbers

    @property
    def measured(self) -> list[float]:
        """The values of the points that have one."""
        return [point.value for point in self.points if point.value is not None]

    @property
    def held(self) -> list[int]:
        """The places of the judged points: points with a value that nothing disturbed."""
        return [place for place, point in enumerate(self.points) if point.value is not None and not point.disturbed]

    def logs(self, places: Sequence[int]) -> stats.Floats:
        """Return the logarithms of the values at `places`."""
        return np.log([self.points[place].value or 1.0 for place in places])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """The common change of all times at a place from `last` to `x`: the median `ratio` of `cases` cases.

    `alike` of them moved in its direction. Each series is judged without it.
    """

    place: Place
    x: X
    last: X
    ratio: float
    cases: int
    alike: int


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Series over the `axis` and the common changes of their times (`shifts`).

    `runs` counts the runs used by place, `left_out` those without an x.
    """

    axis: str
    series: Sequence[Series]
    runs: Mapping[Place, int]
    shifts: Sequence[Shift] = ()
    left_out: int = 0

    @cached_property
    def places(self) -> dict[Place, list[Series]]:
        """The series by place, in their order."""
        return by_key(self.series, attrgetter("place"))


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


Placed = tuple[tuple[Any, ...], str, str] | None
"""The sort key of a run, with the value and the label of its x; None where it has none."""


def by_torch_version(header: Header, _: Sequence[Header]) -> Placed:
    """Place a run by the public version of torch ("2.15.0" of 2.15.0+cu132), in the order of PEP 440."""
    version = public_version(header.environment.torch_version)
    return None if version == UNKNOWN else ((version,), str(version), str(version))


def by_commit(header: Header, headers: Sequence[Header]) -> Placed:
    """Place a run by its commit, in the order of the commits' times as recorded, else of when they were first measured.

    Commits of one second are in the order in which they were measured. A commit with uncommitted changes ("-dirty")
    follows its own.
    """
    if not header.commit:
        return None
    base = header.commit.removesuffix(DIRTY)
    alike = [other for other in headers if other.commit and other.commit.removesuffix(DIRTY) == base]
    measured = min(moment(other.started_at) for other in alike)
    recorded = next((moment(other.committed_at) for other in alike if other.committed_at), measured)
    return (recorded, measured, base, header.commit != base), header.commit, short_commit(header.commit)


def by_date(header: Header, _: Sequence[Header]) -> Placed:
    """Place each run by itself, at the time when it began (UTC)."""
    began = moment(header.started_at)
    return (began, header.run), header.started_at, f"{began:%Y-%m-%d %H:%M}"


AXES: Mapping[str, Callable[[Header, Sequence[Header]], Placed]] = MappingProxyType(
    {TORCH: by_torch_version, "commit": by_commit, "date": by_date}
)
"""The axes of trends."""


def placed(runs: Sequence[MeasuredRun], axis: str) -> list[tuple[X, list[MeasuredRun]]]:
    """Return the x of an axis in their order, each with its runs."""
    headers = [run.stored.header for run in runs]
    found: dict[Any, tuple[X, list[MeasuredRun]]] = {}
    for run, header in zip(runs, headers, strict=True):
        if where := AXES[axis](header, headers):
            key, value, label = where
            found.setdefault(key, (X(value=value, label=label), []))[1].append(run)
    return [found[key] for key in sorted(found)]


def place_of(header: Header, device: str, axis: str) -> Place:
    """Return the place of a run on `device` for series over `axis`."""
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
        commit=(header.commit or "") if axis == TORCH else "",
        settings=tuple(sorted(header.arm.settings.items())) if header.arm else (),
    )


_Track = tuple[Place, str, int]
"""A case at a place, by its id and the version of its workload."""
_Columns = dict[int, list[tuple[Case, Tracked, Measured]]]
"""The values of a case, by the number of their x."""


def make_trend(runs: Sequence[MeasuredRun], axis: str, metrics: Sequence[Tracked], keyword: str = "") -> Trend:
    """Return the series of `metrics` over `axis` (one of `AXES`), of the cases that match `keyword`, and their changes.

    Raises `NothingToRunError` where no run has an x or no case one of the metrics.
    """
    chosen = cache(lambda case_id: matches(keyword, case_id))
    if not any(chosen(case_id) for run in runs for case_id in run.stored.cases):
        raise NothingToRunError(f"no case of {len(runs)} runs matches -k {keyword!r}")
    xs = placed(runs, axis)
    tracks: dict[_Track, _Columns] = {}
    for number, (_, members) in enumerate(xs):
        for run in members:
            devices = {case.device for case in run.stored.cases.values()}
            located = {device: place_of(run.stored.header, device, axis) for device in devices}
            for case, metric, measured in values_of(run.stored):
                if metric in metrics and chosen(case.case_id):
                    columns = tracks.setdefault((located[case.device], case.case_id, case.version), {})
                    columns.setdefault(number, []).append((case, metric, measured))
    if axis == TORCH:
        tracks = _at_one_commit(tracks, [x.value for x, _ in placed(runs, "commit")])
    used: dict[Place, set[MeasuredRun]] = {}
    for (place, *_), columns in tracks.items():
        used.setdefault(place, set()).update(measured.run for at in columns.values() for _, _, measured in at)
    series = [
        item
        for (place, *_), columns in tracks.items()
        for metric in metrics
        for item in _series(
            place, metric, {x: columns.get(number, []) for number, (x, at) in enumerate(xs) if used[place] & set(at)}
        )
    ]
    if not series:
        raise NothingToRunError(
            f"no series over {axis}: no case has a number of these metrics, or no run a place there"
        )
    groups = by_key((item for item in series if item.metric.noisy), attrgetter("place"))
    times, shifts = cache(compare_times), {place: _shifts(group) for place, group in groups.items()}
    return Trend(
        axis=axis,
        series=[_timed(item, shifts[item.place], times) if item.metric.noisy else _exact(item) for item in series],
        shifts=[shift for group in shifts.values() for shift in group.values()],
        runs={place: len(members) for place, members in used.items()},
        left_out=len(runs) - sum(len(members) for _, members in xs),
    )


def _at_one_commit(tracks: Mapping[_Track, _Columns], commits: Sequence[str]) -> dict[_Track, _Columns]:
    """Return each case at one commit, so that no version is blamed for a commit.

    This is the newest of `commits` with several versions of the case, else the newest that has it.
    """

    def rank(track: _Track) -> tuple[bool, int]:
        commit = track[0].commit
        return len(tracks[track]) > 1, commits.index(commit) if commit else -1

    best: dict[Any, _Track] = {}
    for track in sorted(tracks, key=rank):
        place, *case = track
        best[replace(place, commit=""), *case] = track
    chosen = set(best.values())
    return {track: columns for track, columns in tracks.items() if track in chosen}


def _series(
    place: Place, metric: Tracked, columns: Mapping[X, Sequence[tuple[Case, Tracked, Measured]]]
) -> Iterator[Series]:
    """Yield the series of a case, one for all values that are comparable."""
    found = {x: [measured for _, of, measured in at if of is metric] for x, at in columns.items()}
    numbered = [measured for at in found.values() for measured in at if measured.value not in (None, math.inf)]
    for numbers in dict.fromkeys(measured.numbers for measured in numbered):
        points = [_point(x, at, numbers) for x, at in found.items()]
        case = next(case for at in columns.values() for case, *_ in at)
        yield Series(case=case, metric=metric, place=place, numbers=numbers, points=points)


def _point(x: X, found: Sequence[Measured], numbers: str) -> Point:
    """Return the median of the values with these `numbers`, or why there is none.

    As in comparisons, disturbed runs are left out unless all are.
    """
    alike = [run for run in found if run.value is not None and run.numbers == numbers]
    if not alike:
        gaps = [run.gap for run in found if run.value is None]
        return Point(x=x, gap=gaps[-1] if gaps else Gap(Lack.OTHER_NUMBERS if found else Lack.NOT_MEASURED))
    each = [run for run in alike if not run.disturbed] or alike
    each.sort(key=lambda run: run.value == math.inf)
    value = stats.median([run.value for run in each if run.value is not None])
    if math.isinf(value):
        return Point(x=x, each=each, gap=each[-1].gap)
    return Point(x=x, value=value, each=each)


def _shifts(group: Sequence[Series]) -> dict[int, Shift]:
    """Return the changes of whole runs at one place, by the number of the point where each is."""
    logs = np.full((len(group), len(group[0].points)), np.nan)
    for row, series in enumerate(group):
        logs[row, series.held] = series.logs(series.held)
    networks = np.array([series.case.workload for series in group])
    shifts = {}
    for place, moved in enumerate(np.diff(logs).T, start=1):
        known = ~np.isnan(moved)
        if known.sum() < CASES or len(set(networks[known])) < WORKLOADS:
            continue
        median = float(np.median(moved[known]))
        alike = int(np.sum(moved[known] * math.copysign(1.0, median) > abs(median) / 4))
        if abs(median) > _threshold(group[0]) and alike >= ALIKE * known.sum():
            last, x = (point.x for point in group[0].points[place - 1 : place + 1])
            shifts[place] = Shift(
                place=group[0].place, x=x, last=last, ratio=math.exp(median), cases=int(known.sum()), alike=alike
            )
    return shifts


def _threshold(series: Series) -> float:
    """Return the logarithm of the largest ratio of times that counts as none."""
    return math.log1p(series.metric.gate.threshold)


Level = tuple[int, int]
"""The first point of a level and the one after its last."""


def find_steps(logs: stats.Floats, alone: stats.Floats, threshold: float) -> list[tuple[Level, Level]]:
    """Return asv's steps in the logarithms of a series, each as the level before it and the one after.

    `alone` are the logarithms without the changes of whole runs, which asv searches; both must move by more than
    `threshold`. A level is compared with the one after the last step returned, so that small losses add up. Raises
    `ImportError` without asv.
    """
    from asv.step_detect import detect_steps

    levels = [step[:2] for step in detect_steps(np.exp(alone).tolist()) if step[1] - step[0] >= SHORTEST]
    steps: list[tuple[Level, Level]] = []
    for level in levels[1:]:
        since = steps[-1][1] if steps else levels[0]
        moved, by_itself = (
            float(np.median(values[slice(*level)]) - np.median(values[slice(*since)])) for values in (logs, alone)
        )
        if _counts(moved, by_itself, threshold):
            steps.append((since, level))
    return steps


def _counts(moved: float, alone: float, threshold: float) -> bool:
    """Return whether a time moved beyond the threshold, in all and by itself.

    A case must also move by more than the whole run: whatever doubles all times doubles none exactly.
    """
    return moved * alone > 0 and abs(moved) > threshold and abs(alone) > max(threshold, abs(moved - alone))


_FUNCTION = attrgetter("output_norm", "output_sketch", "grad_sketch", "loss", "output_shapes")
"""The fields of a reference that show which function a case computed."""


Times = Callable[[MeasuredRun, MeasuredRun], Mapping[str, Verdict]]
"""`ampbench compare` of two runs: the change of the time of each case."""


def _timed(series: Series, shifts: Mapping[int, Shift], times: Times) -> Series:
    """Return a series of times with its changes and the rule that found them.

    In a long series `judge` decides on the last points, which are no level yet.
    """
    held = series.held
    logs = series.logs(held)
    common = np.cumsum([math.log(shifts[n].ratio) if n in shifts else 0.0 for n in range(len(series.points))])
    alone = logs - common[held]
    known = [
        number for number, place in enumerate(held) if any(run.low is not None for run in series.points[place].each)
    ]
    neighbours, rule, changes = list(pairwise(known)), Rule.NEIGHBOURS, []
    if len(held) >= POINTS:
        try:
            steps = find_steps(logs, alone, _threshold(series))
        except ImportError:
            return replace(series, rule=Rule.NO_ASV)
        for since, level in steps:
            before, after = (math.exp(float(np.median(logs[slice(*side)]))) for side in (since, level))
            changes.append(_change(series, (held[level[0] - 1], held[level[0]]), (before, after)))
        neighbours, rule = [pair for pair in neighbours if pair[1] > len(held) - SHORTEST], Rule.STEPS
    elif not neighbours:
        return replace(series, rule=Rule.NO_NOISE if len(held) > 1 else Rule.NONE)
    for pair in neighbours:
        moved, by_itself = (float(values[pair[1]] - values[pair[0]]) for values in (logs, alone))
        if _counts(moved, by_itself, _threshold(series)):
            changes += _neighbour(series, (held[pair[0]], held[pair[1]]), moved, times)
    return replace(series, changes=changes, rule=rule)


def _neighbour(series: Series, places: tuple[int, int], moved: float, times: Times) -> list[Change]:
    """Return the change of a point from the one before it, where `judge` finds one in their runs; else nothing.

    Of several pairs of runs at least one must have changed in the direction of `moved`, and none be unchanged or
    changed in the other. The interval covers the intervals of all pairs. Another program's values must differ as
    `asv compare` decides: intervals that do not overlap.
    """
    sides = [series.points[place].each for place in places]
    verdicts = [
        verdict
        for before in sides[0][-MOST_RUNS:]
        for after in sides[1][-MOST_RUNS:]
        if (verdict := times(before.run, after.run).get(series.case.case_id))
    ]
    statuses = {verdict.status for verdict in verdicts} - {ChangeStatus.INCONCLUSIVE, ChangeStatus.INCOMPARABLE}
    if any(verdict.code is ChangeCode.IMPORTED for verdict in verdicts):
        ends = [[end for run in side for end in (run.low, run.high) if end is not None] for side in sides]
        smaller, larger = ends if moved > 0 else reversed(ends)
        if max(smaller) >= min(larger) or abs(moved) <= math.log(ASV_FACTOR):
            return []
    elif statuses != {ChangeStatus.REGRESSED if moved > 0 else ChangeStatus.IMPROVED}:
        return []
    change = _change(series, places, [series.points[place].value for place in places])
    lows = [verdict.low for verdict in verdicts if verdict.status in statuses and verdict.low is not None]
    highs = [verdict.high for verdict in verdicts if verdict.status in statuses and verdict.high is not None]
    return [replace(change, low=1 + min(lows), high=1 + max(highs)) if lows and highs else change]


def _exact(series: Series) -> Series:
    """Return a series of bytes or errors with the changes that `judge` finds in numbers without noise.

    A value is compared with its neighbour and with the first of its level, so that small losses add up.
    """
    measured = [place for place, point in enumerate(series.points) if point.each]
    if len(measured) < 2:
        return series
    changes: list[Change] = []
    first = measured[0]
    for last, place in pairwise(measured):
        for since in dict.fromkeys((last, first)):
            if change := _exact_change(series, (since, place), since == last):
                changes.append(replace(change, last=series.points[last].x))
                first = place
                break
    return replace(series, changes=changes, rule=Rule.EXACT)


def _exact_change(series: Series, places: tuple[int, int], neighbours: bool) -> Change | None:
    """Return the change between two points, None without one."""
    levels = before, after = [series.points[place].value for place in places]
    status: ChangeStatus | None = None
    if before is not None and after is not None:
        metric = series.metric
        verdict = judge_numbers(series.case, metric.gated, (before, after), metric.scale, Order(), default_threshold)
        status = verdict.status if verdict else None
    elif before is not None or after is not None:  # an undefined error is worse than any number
        status = ChangeStatus.REGRESSED if after is None else ChangeStatus.IMPROVED
    changed, moved = status in (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED), {}
    if series.metric.gate.kind == "accuracy" and (changed or (series.metric.name == FUNCTION and neighbours)):
        runs = (series.points[places[0]].each[-1].run, series.points[places[1]].each[0].run)
        passes = [run.stored.divergence.get(series.case.case_id) for run in runs]
        results = [made and _FUNCTION(made.reference) for made in passes]
        if passes[0] and passes[1] and results[0] != results[1]:  # nearly all are equal to the last bit
            moved = other_function(passes[0], passes[1])
    if not changed and not moved:
        return None
    # another function is no better for errors of its own
    worse = bool(moved) or status is ChangeStatus.REGRESSED
    return replace(_change(series, places, levels), moved=moved, direction="regressed" if worse else "improved")


def _change(series: Series, places: tuple[int, int], levels: Sequence[float | None]) -> Change:
    """Return the change between two points of a series, with the differences of the runs on both sides."""
    last, first = (series.points[place] for place in places)
    before, after = levels
    headers = (last.each[-1].run.stored.header, first.each[0].run.stored.header)
    return Change(
        x=first.x,
        last=last.x,
        before=before,
        after=after,
        ratio=after / before if before and after is not None else None,
        direction="regressed" if after is None or (before is not None and after > before) else "improved",
        differences=EnvironmentDifferences(*headers, [series.case.device], settings={}).found,
    )
