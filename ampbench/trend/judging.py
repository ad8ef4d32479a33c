"""Where series change: `judge` between neighbours, asv's step detection in long series, and differences of runs.

asv's step detection is `asv.step_detect` (the Potts model; Friedrich et al., "Complexity penalized M-estimation",
2008). The common change of all times of a run is separated first.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Literal

import numpy as np

from ampbench.core import stats
from ampbench.judge.compare import compare_times, default_threshold
from ampbench.judge.exact import Order, judge_numbers, other_function
from ampbench.judge.pairing import EnvironmentDifferences
from ampbench.records.changes import ChangeCode, ChangeStatus
from ampbench.trend.reducing import RunValues
from ampbench.trend.series import Change, Place, Rule, Series, Shift

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
_FIRST = ("torch", "torch build", "torchvision")
"""The differences that explain most come first."""
ASV_FACTOR = 1.1
"""`asv compare` takes no smaller ratio of two values for a change (its --factor)."""
_CHANGED = (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED)
_JUDGED = {*_CHANGED, ChangeStatus.UNCHANGED}

Runs = Sequence[Sequence[RunValues]]
"""The runs at each point of a series, runs without a number last."""
Direction = Literal["improved", "regressed"]


class Judge:
    """The comparisons of pairs of runs, each made once."""

    def __init__(self) -> None:
        self.times = cache(lambda before, after: compare_times(before.measured, after.measured))
        """`ampbench compare` of two runs: the change of the time of each case."""
        self.environment = cache(
            lambda before, after, device: EnvironmentDifferences(before.header, after.header, [device], settings={})
        )

    def change(
        self,
        series: Series,
        points: tuple[int, int],
        levels: tuple[float | None, float | None],
        runs: tuple[RunValues, RunValues],
        direction: Direction,
    ) -> Change:
        """Return the change between two points of a series, with the differences of the runs on both sides."""
        before, after = levels
        different = list(self.environment(*runs, series.case.device).found)
        different.sort(
            key=lambda difference: _FIRST.index(difference.name) if difference.name in _FIRST else len(_FIRST)
        )
        return Change(
            x=series.points[points[1]].x,
            last=series.points[points[0]].x,
            before=before,
            after=after,
            ratio=after / before if before and after is not None else None,
            direction=direction,
            differences=tuple(different),
        )


def judged(series: Sequence[tuple[Series, Runs]]) -> tuple[list[Series], list[Shift]]:
    """Return the series, given with the runs at their points, with their changes, and the common changes of times."""
    judge, groups = Judge(), dict[Place, list[Series]]()
    for item, _ in series:
        if item.metric.noisy:
            groups.setdefault(item.place, []).append(item)
    shifts = {place: _shifts(group) for place, group in groups.items()}
    done = [
        _timed(item, runs, shifts[item.place], judge) if item.metric.noisy else _exact(item, runs, judge)
        for item, runs in series
    ]
    return done, [shift for group in shifts.values() for shift in group.values()]


def held(series: Series) -> list[int]:
    """Return the places of the judged points: points with a value that nothing disturbed."""
    return [place for place, point in enumerate(series.points) if point.value is not None and not point.disturbed]


def _shifts(group: Sequence[Series]) -> dict[int, Shift]:
    """Return the changes of whole runs at one place, by the number of the point where each is."""
    logs = np.full((len(group), len(group[0].points)), np.nan)
    for row, series in enumerate(group):
        places = held(series)
        logs[row, places] = np.log([series.points[place].value or 1.0 for place in places])
    networks = np.array([series.case.workload for series in group])
    shifts = {}
    for place, moved in enumerate(np.diff(logs).T, start=1):
        known = ~np.isnan(moved)
        if known.sum() < CASES or len(set(networks[known])) < WORKLOADS:
            continue
        median = float(np.median(moved[known]))
        alike = int(np.sum(moved[known] * math.copysign(1.0, median) > abs(median) / 4))
        if abs(median) > _threshold(group[0]) and alike >= ALIKE * known.sum():
            x, last = (group[0].points[number].x for number in (place, place - 1))
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


def _timed(series: Series, runs: Runs, shifts: Mapping[int, Shift], judge: Judge) -> Series:
    """Return a series of times with its changes and the rule that found them.

    In a long series `judge` decides on the last points, which are no level yet.
    """
    judged_points = held(series)
    logs = np.log([series.points[place].value or 1.0 for place in judged_points])
    common = np.cumsum([math.log(shifts[n].ratio) if n in shifts else 0.0 for n in range(len(series.points))])
    alone = logs - common[judged_points]
    known = [
        number
        for number, place in enumerate(judged_points)
        if any(run.low is not None for run in series.points[place].each)
    ]
    neighbours, rule, changes = list(pairwise(known)), Rule.NEIGHBOURS, []
    if len(judged_points) >= POINTS:
        try:
            steps = find_steps(logs, alone, _threshold(series))
        except ImportError:
            return replace(series, rule=Rule.NO_ASV)
        for since, level in steps:
            points = judged_points[level[0] - 1], judged_points[level[0]]
            before, after = (math.exp(float(np.median(logs[slice(*side)]))) for side in (since, level))
            sides = _counted(series, runs, points[0])[-1], _counted(series, runs, points[1])[0]
            changes.append(judge.change(series, points, (before, after), sides, _direction(after - before)))
        neighbours, rule = [pair for pair in neighbours if pair[1] > len(judged_points) - SHORTEST], Rule.STEPS
    elif not neighbours:
        return replace(series, rule=Rule.NO_NOISE if len(judged_points) > 1 else Rule.NONE)
    for pair in neighbours:
        moved, by_itself = (float(values[pair[1]] - values[pair[0]]) for values in (logs, alone))
        if _counts(moved, by_itself, _threshold(series)):
            points = judged_points[pair[0]], judged_points[pair[1]]
            changes += _neighbour(series, runs, points, moved, judge)
    return replace(series, changes=changes, rule=rule)


def _direction(moved: float) -> Direction:
    return "regressed" if moved > 0 else "improved"


def _counted(series: Series, runs: Runs, place: int) -> list[RunValues]:
    """Return the runs behind the value of a point."""
    return [run for run in runs[place] if run.header.run in series.points[place].run_ids]


def _neighbour(series: Series, runs: Runs, points: tuple[int, int], moved: float, judge: Judge) -> list[Change]:
    """Return the change of a point from the one before it, where `judge` finds one in their runs; else nothing.

    Of several pairs of runs at least one must have changed in the direction of `moved`, and none be unchanged or
    changed in the other. The interval covers the intervals of all pairs.
    """
    sides = [_counted(series, runs, place) for place in points]
    verdicts = [
        verdict
        for before in sides[0][-MOST_RUNS:]
        for after in sides[1][-MOST_RUNS:]
        if (verdict := judge.times(before, after).get(series.case.case_id))
    ]
    certain = [verdict for verdict in verdicts if verdict.status in _JUDGED]
    if any(verdict.code is ChangeCode.IMPORTED for verdict in verdicts):
        if not _apart(series, points, moved):
            return []
    elif {verdict.status for verdict in certain} != {ChangeStatus(_direction(moved))}:
        return []
    values = series.points[points[0]].value, series.points[points[1]].value
    change = judge.change(series, points, values, (sides[0][-1], sides[1][0]), _direction(moved))
    lows, highs = (
        [end for verdict in certain if (end := getattr(verdict, name)) is not None] for name in ("low", "high")
    )
    return [replace(change, low=1 + min(lows), high=1 + max(highs)) if lows and highs else change]


def _apart(series: Series, points: tuple[int, int], moved: float) -> bool:
    """Return whether another program's values differ as `asv compare` decides: intervals that do not overlap."""
    ends = [
        [end for run in series.points[place].each for end in (run.low, run.high) if end is not None] for place in points
    ]
    smaller, larger = ends if moved > 0 else reversed(ends)
    return max(smaller) < min(larger) and abs(moved) > math.log(ASV_FACTOR)


def _exact(series: Series, runs: Runs, judge: Judge) -> Series:
    """Return a series of bytes or errors with the changes that `judge` finds in numbers without noise.

    A value is compared with its neighbour and with the first of its level, so that small losses add up.
    """
    measured = [place for place, at in enumerate(runs) if at]
    if len(measured) < 2:
        return series
    changes: list[Change] = []
    first = measured[0]
    for last, place in pairwise(measured):
        for since in dict.fromkeys((last, first)):
            if change := _exact_change(series, runs, (since, place), last, judge):
                changes.append(replace(change, last=series.points[last].x))
                first = place
                break
    return replace(series, changes=changes, rule=Rule.EXACT)


def _exact_change(series: Series, runs: Runs, points: tuple[int, int], last: int, judge: Judge) -> Change | None:
    """Return the change between two points, None without one; `last` is the point before the second."""
    before, after = (series.points[place].value for place in points)
    sides = runs[points[0]][-1], runs[points[1]][0]
    status: ChangeStatus | None = None
    if before is not None and after is not None:
        order = None if _must_be_equal(series, [*runs[points[0]], *runs[points[1]]], judge) else Order()
        metric = series.metric
        verdict = judge_numbers(series.case, metric.gated, (before, after), metric.scale, order, default_threshold)
        status = verdict.status if verdict else None
    elif before is not None or after is not None:  # an undefined error is worse than any number
        status = ChangeStatus.REGRESSED if after is None else ChangeStatus.IMPROVED
    moved = {}
    if series.metric.gate.kind == "accuracy" and (
        status in _CHANGED or (series.metric.name == FUNCTION and points[0] == last)
    ):
        moved = _moved(*sides, series.case.case_id)
    if status not in _CHANGED and not moved:
        return None
    # another function is no better for errors of its own
    direction: Direction = "regressed" if moved or status is ChangeStatus.REGRESSED else "improved"
    return replace(judge.change(series, points, (before, after), sides, direction), moved=moved)


def _must_be_equal(series: Series, runs: Sequence[RunValues], judge: Judge) -> bool:
    """Return whether numbers must be equal: of one commit on one environment, of errors by steps that repeat.

    A point's value may come from any of its runs.
    """
    case_id, device = series.case.case_id, series.case.device
    if series.metric.gate.kind == "accuracy" and any(run.may_vary(case_id) for run in runs):
        return False
    return all(judge.environment(runs[0], run, device).same(device) for run in runs[1:])


def _moved(before: RunValues, after: RunValues, case_id: str) -> dict[str, float | str]:
    """Return how far the fp64 result of a case moved in a later run, as facts; none where it did not."""
    was, now = before.function(case_id), after.function(case_id)
    if was == now or not was or not now:  # nearly all are equal to the last bit
        return {}
    return other_function(*(run.measured.stored.divergence[case_id] for run in (before, after)))
