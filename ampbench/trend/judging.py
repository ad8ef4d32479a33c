"""Where series change: `judge` between neighbours, asv's step detection in long series, and what runs differ in.

asv's step detection is `asv.step_detect` (the Potts model; Friedrich et al., "Complexity penalized M-estimation",
2008). What all times of a run did together is set apart first.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np

from ampbench.core import stats
from ampbench.judge.compare import compare_times, default_threshold
from ampbench.judge.exact import Order, judge_numbers, other_function
from ampbench.judge.pairing import EnvironmentDifferences
from ampbench.records.case import Case
from ampbench.records.changes import Change as CaseChange
from ampbench.records.changes import ChangeCode, ChangeStatus
from ampbench.records.run import DIRTY, Header
from ampbench.trend.reducing import RunValues
from ampbench.trend.series import Change, Commits, History, Place, Point, Rule, Series, Shift, Tracked, Unjudged

POINTS = 8
"""Series of times of so many points and more are for asv's step detection."""
SHORTEST = 3
"""A level of fewer points is none: two slow runs in a row are no news on a shared machine."""
MOST_RUNS = 4
"""Of each of two neighbouring points so many runs, the newest, are compared, each with each."""
CASES, WORKLOADS = 6, 3
"""Of fewer cases, or of fewer networks, a median does not tell what they share from what one network does."""
ALIKE = 2 / 3
"""A change is of the whole run where so large a share of the cases moved that way, each by a quarter of it or more."""
FUNCTION, REFERENCE = "floor", "reference"
"""The metric whose series says where a case computes something else, and the one that is what a case computes."""
_FIRST = ("torch", "torch build", "torchvision")
"""The differences that explain most come first."""
ASV_FACTOR = 1.1
"""`asv compare` takes no smaller ratio of two values for a change (its --factor)."""
_CHANGED = (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED)
_JUDGED = {*_CHANGED, ChangeStatus.UNCHANGED}


class Differences:
    """The differences of pairs of runs, each pair compared once."""

    def __init__(self, history: History):
        self._history = history
        self._environments: dict[tuple[str, str, str], EnvironmentDifferences] = {}
        self._commits: dict[tuple[str | None, str | None], Commits] = {}
        self._times: dict[tuple[str, str], Mapping[str, CaseChange]] = {}

    def of_time(self, before: RunValues, after: RunValues, case_id: str) -> CaseChange | None:
        """Return what `ampbench compare` says of a case's time in two runs."""
        pair = (before.header.run, after.header.run)
        if pair not in self._times:
            self._times[pair] = compare_times(before.measured, after.measured)
        return self._times[pair].get(case_id)

    def environment(self, before: Header, after: Header, device: str) -> EnvironmentDifferences:
        """Return the differences of the environments of two runs."""
        pair = (before.run, after.run, device)
        if pair not in self._environments:
            self._environments[pair] = EnvironmentDifferences(before, after, devices=[device], settings={})
        return self._environments[pair]

    def commits(self, before: str | None, after: str | None) -> Commits | None:
        """Return what leads from one commit to another; None where they are the same."""
        if before == after:
            return None
        if (before, after) not in self._commits:
            old, new = ((commit or "").removesuffix(DIRTY) for commit in (before, after))
            known = self._history.commits([new]) if before and after else {}
            count = self._history.between(old, new) if new in known and old != new else None
            subject = known[new].subject if new in known else None
            self._commits[before, after] = Commits(before, after, subject, count)
        return self._commits[before, after]


@dataclass(slots=True)
class Raw:
    """A series before it is judged, the `places` of its points that were measured, and the runs that did, by place.

    `alike`: all of them computed the same, equal to the last bit; of times nothing tells.
    """

    series: Series
    places: Sequence[int]
    runs: Callable[[int], Sequence[RunValues]]
    alike: bool = False


def asv_detects() -> bool:
    """Return whether asv is installed (the extra `asv`)."""
    try:
        import asv.step_detect  # noqa: F401
    except ImportError:
        return False
    return True


def judged(raws: Sequence[Raw], differences: Differences, has_asv: bool) -> tuple[list[Series], list[Shift]]:
    """Return the series with their changes, and what the times of each place did together.

    `has_asv` tells whether asv's step detection is there.
    """
    groups: dict[tuple[Place, str], list[Raw]] = {}
    for raw in raws:
        if raw.series.metric.noisy:
            groups.setdefault((raw.series.place, raw.series.metric.name), []).append(raw)
    shifts = {key: _shifts(group) for key, group in groups.items()}
    series = [
        _Timed(raw, differences, shifts[raw.series.place, raw.series.metric.name]).judged(has_asv)
        if raw.series.metric.noisy
        else _exact(raw, differences)
        for raw in raws
    ]
    # a rate does what the time does
    found = {(shift.place, shift.x): shift for own in shifts.values() for shift in own if shift is not None}
    return series, list(found.values())


def is_too_long(series: Series) -> bool:
    """Return whether a series needs asv's step detection."""
    return series.metric.noisy and len(_held(series)) >= POINTS


def _held(series: Series) -> list[int]:
    """Return the places of the points that are judged: those with a value, of a time those that nothing disturbed."""
    return [place for place, point in enumerate(series.points) if point.value is not None and not point.disturbed]


def _shifts(group: Sequence[Raw]) -> list[Shift | None]:
    """Return what all times of a place did from each x to the next, where that is a change of the whole run."""
    first = group[0].series
    logs: list[dict[tuple[str, str], float]] = [{} for _ in first.points]
    for raw in group:
        for place in _held(raw.series):
            logs[place][raw.series.case.workload, raw.series.case.case_id] = math.log(raw.series.values[place] or 1.0)
    return [None] + [
        _shift(first, place, {key: after[key] - before[key] for key in before.keys() & after.keys()})
        for place, (before, after) in enumerate(pairwise(logs), start=1)
    ]


def _shift(series: Series, place: int, moved: Mapping[tuple[str, str], float]) -> Shift | None:
    if len(moved) < CASES or len({workload for workload, _ in moved}) < WORKLOADS:
        return None
    values = np.array(list(moved.values()))
    median = float(np.median(values))
    alike = int(np.sum(values * math.copysign(1.0, median) > abs(median) / 4))
    if abs(median) <= math.log1p(series.metric.gate.threshold) or alike < ALIKE * len(values):
        return None
    return Shift(
        place=series.place,
        x=series.points[place].x,
        last=series.points[place - 1].x,
        ratio=math.exp(median if series.metric.column.better == "lower" else -median),
        cases=len(values),
        alike=alike,
    )


Level = tuple[int, int]
"""The first point of a level and the one after its last."""


def find_steps(logs: stats.Floats, own: stats.Floats, threshold: float) -> list[tuple[Level, Level]]:
    """Return asv's steps in the logarithms of a series, each as the level before it and the one after.

    `own` are the logarithms without what the whole runs did: asv looks at these, and both must move by more than
    `threshold`. A level is held against that after the last step returned, so that small losses add up.
    """
    from asv.step_detect import detect_steps

    levels = [step[:2] for step in detect_steps(np.exp(own).tolist()) if step[1] - step[0] >= SHORTEST]
    steps: list[tuple[Level, Level]] = []
    for level in levels[1:]:
        since = steps[-1][1] if steps else levels[0]
        moved, rest = (
            float(np.median(values[slice(*level)]) - np.median(values[slice(*since)])) for values in (logs, own)
        )
        if _counts(moved, rest, threshold):
            steps.append((since, level))
    return steps


def _counts(moved: float, own: float, threshold: float) -> bool:
    """Return whether a time moved beyond the threshold, by itself and beside what the whole run did.

    Beside a change of the whole run a case must move by as much again: what doubles all times doubles none alike.
    """
    return moved * own > 0 and abs(moved) > threshold and abs(own) > max(threshold, abs(moved - own))


class _Timed:
    """A series of times or rates while it is judged, its points that count by their number."""

    def __init__(self, raw: Raw, differences: Differences, shifts: Sequence[Shift | None]):
        self._raw, self._series, self._differences = raw, raw.series, differences
        self._held = _held(raw.series)
        self._sign = 1 if raw.series.metric.column.better == "lower" else -1
        shared = list(accumulate(self._sign * math.log(shift.ratio) if shift else 0.0 for shift in shifts))
        self._logs = np.array([math.log(self._series.values[place] or 1.0) for place in self._held])
        self._own = self._logs - np.array([shared[place] for place in self._held])

    def judged(self, has_asv: bool) -> Series:
        """Return the series with its changes and the rule that found them."""
        if len(self._held) >= POINTS:
            if not has_asv:
                return replace(self._series, unjudged=Unjudged.NO_ASV)
            return replace(self._series, changes=self._steps(), rule=Rule.STEPS)
        points = self._series.points
        known = [
            number
            for number, place in enumerate(self._held)
            if any(value.low is not None for value in points[place].each)
        ]
        if len(known) < 2:
            return replace(self._series, unjudged=Unjudged.NO_NOISE if len(self._held) > 1 else None)
        changes = [self._neighbour(*pair) for pair in pairwise(known)]
        return replace(self._series, changes=[change for change in changes if change], rule=Rule.NEIGHBOURS)

    def _steps(self) -> list[Change]:
        threshold = math.log1p(self._series.metric.gate.threshold)
        changes = []
        for since, level in find_steps(self._logs, self._own, threshold):
            before, after = (float(np.median(self._logs[slice(*each)])) for each in (since, level))
            changes.append(self._change(level[0] - 1, level[0], before, after))
        return changes

    def _neighbour(self, since: int, place: int) -> Change | None:
        """Return the change of a point from the one before it, where `judge` calls it one.

        Its interval holds those of all pairs of runs that are called changed.
        """
        moved, own = (float(logs[place] - logs[since]) for logs in (self._logs, self._own))
        if not _counts(moved, own, math.log1p(self._series.metric.gate.threshold)):
            return None
        found = self._verdict(since, place, ChangeStatus.REGRESSED if moved * self._sign > 0 else ChangeStatus.IMPROVED)
        if not found:
            return None
        change = self._change(since, place, float(self._logs[since]), float(self._logs[place]))
        lows = [each.low for each in found if each.low is not None]
        highs = [each.high for each in found if each.high is not None]
        if self._sign < 0 or not (lows and highs):
            return change
        return replace(change, low=1 + min(lows), high=1 + max(highs))

    def _verdict(self, since: int, place: int, expected: ChangeStatus) -> list[CaseChange]:
        """Return what `ampbench compare` says of the runs at two points where it calls them changed as `expected`.

        Of several pairs one must be called so, and none unchanged or changed in the other direction.
        """
        case_id = self._series.case.case_id
        before, after = (self._runs(number)[-MOST_RUNS:] for number in (since, place))
        pairs = [self._differences.of_time(ours, theirs, case_id) for ours in before for theirs in after]
        known = [change for change in pairs if change is not None]
        if any(change.code is ChangeCode.IMPORTED for change in known):
            return known if self._apart(since, place) else []
        certain = [change for change in known if change.status in _JUDGED]
        return certain if {change.status for change in certain} == {expected} else []

    def _apart(self, since: int, place: int) -> bool:
        """Return whether another program's values differ as `asv compare` decides: intervals that do not overlap."""
        sides = [self._series.points[self._held[number]].each for number in (since, place)]
        bounds = [[end for value in side for end in (value.low, value.high) if end is not None] for side in sides]
        moved = float(self._logs[place] - self._logs[since])
        before, after = bounds if moved > 0 else reversed(bounds)
        return max(before) < min(after) and abs(moved) > math.log(ASV_FACTOR)

    def _runs(self, number: int) -> list[RunValues]:
        """Return the runs of a point that count."""
        place = self._held[number]
        counted = set(self._series.points[place].run_ids)
        return [run for run in self._raw.runs(place) if run.header.run in counted]

    def _change(self, since: int, place: int, before: float, after: float) -> Change:
        worse = (after - before) * self._sign > 0
        return _between(
            self._series,
            (self._held[since], self._held[place]),
            (math.exp(before), math.exp(after)),
            (self._runs(since)[-1].header, self._runs(place)[0].header),
            self._differences,
            "regressed" if worse else "improved",
        )


def _between(
    series: Series,
    places: tuple[int, int],
    values: tuple[float | None, float | None],
    headers: tuple[Header, Header],
    differences: Differences,
    direction: Literal["improved", "regressed"],
) -> Change:
    """Return the change between two places of a series, with what the runs on both sides differ in."""
    before, after = values
    found = [each for each in differences.environment(*headers, series.case.device).found if each.name != "commit"]
    found.sort(key=lambda each: _FIRST.index(each.name) if each.name in _FIRST else len(_FIRST))
    return Change(
        x=series.points[places[1]].x,
        last=series.points[places[0]].x,
        before=before,
        after=after,
        ratio=after / before if before and after is not None else None,
        direction=direction,
        differences=tuple(found),
        commits=differences.commits(*(header.commit for header in headers)),
    )


def _exact(raw: Raw, differences: Differences) -> Series:
    """Return a series of bytes or errors with its changes: what `judge` calls one on two numbers without luck.

    A value is held against its neighbour and against the first of its level, so that small losses add up.
    """
    series, held = raw.series, list(raw.places)
    if len(held) < 2:
        return series
    changes, first = [], 0
    for number in range(1, len(held)):
        for since in dict.fromkeys((number - 1, first)):
            change = _exact_change(raw, (held[since], held[number]), held[number - 1], differences)
            if change is not None:
                changes.append(change)
                first = number
                break
    return replace(series, changes=changes, rule=Rule.EXACT)


def _exact_change(raw: Raw, places: tuple[int, int], last: int, differences: Differences) -> Change | None:
    series = raw.series
    metric, case_id = series.metric, series.case.case_id
    before, after = (series.points[place] for place in places)
    sides = raw.runs(places[0])[-1], raw.runs(places[1])[0]
    inaccurate = metric.gate.kind == "accuracy"
    status: ChangeStatus | None = None
    if metric.name != REFERENCE:
        status = _status(series.case, metric, before, after, _same(raw, places, differences))
    tells = metric.name in (FUNCTION, REFERENCE) and places[0] == last
    moved = {}
    if inaccurate and not raw.alike and (status in _CHANGED or tells):
        moved = _moved(*sides, case_id)
    if status not in _CHANGED and not moved:
        return None
    change = _between(
        series,
        places,
        (before.value, after.value),
        (sides[0].header, sides[1].header),
        differences,
        # another function is no better for errors of its own
        "regressed" if moved or status is ChangeStatus.REGRESSED else "improved",
    )
    return replace(change, last=series.points[last].x, moved=moved)


def _status(case: Case, metric: Tracked, before: Point, after: Point, same: bool) -> ChangeStatus | None:
    """Return what `judge` says of two values; what is undefined is worse than any number."""
    values = (before.value, after.value)
    if None in values:
        if values == (None, None):
            return None
        return ChangeStatus.REGRESSED if after.value is None else ChangeStatus.IMPROVED
    change = judge_numbers(case, metric.gated, values, metric.scale, None if same else Order(), default_threshold)
    return change.status if change else None


def _same(raw: Raw, places: tuple[int, int], differences: Differences) -> bool:
    """Return whether numbers must be equal: of one commit on one environment, of errors by steps that repeat.

    A point's value may be that of any of its runs.
    """
    case_id, device = raw.series.case.case_id, raw.series.case.device
    runs = [run for place in places for run in raw.runs(place)]
    if raw.series.metric.gate.kind == "accuracy" and any(run.may_vary(case_id) for run in runs):
        return False
    return all(differences.environment(runs[0].header, run.header, device).same(device) for run in runs[1:])


def _moved(before: RunValues, after: RunValues, case_id: str) -> dict[str, float | str]:
    """Return how far what a case computes moved in a later run, as facts; none where it did not."""
    was, now = before.function(case_id), after.function(case_id)
    if was == now or not was or not now:  # nearly all are equal to the last bit
        return {}
    return other_function(*(run.measured.stored.divergence[case_id] for run in (before, after)))
