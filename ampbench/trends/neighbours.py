"""Series too short for step detection: each point against the one before it, by what their runs say of their noise.

A point's noise has two parts: that of its rounds, and the luck that all rounds of a run share. Each is estimated from
all points of the series together, because four rounds alone know little of their own spread: the first from the rounds
about their run's mean, the second from each run's control, which is the same code measured again, and from runs at one
x. Where nothing tells of luck, `RUN_LUCK` is taken. Points were not measured in turns, so whatever changed between them
on the machine counts as a change.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from scipy.special import ndtri, stdtr, stdtrit

from ampbench.stats import Floats
from ampbench.trends.steps import Step

ALPHA = 0.005
"""A series without a change has one at most this often, however many points it has (Bonferroni over its gaps)."""
RUN_LUCK = 0.01
"""The standard deviation of one run's luck where no control and no second run tells: 0.4-1.3% on six of eight cells
measured with pytest-benchmark, fourteen times the same code."""
_ENOUGH = 1e6
"""Degrees of freedom of what was not estimated from the series."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one point, in logarithms of seconds: its `value` and per run its rounds or an interval's error.

    `rounds` are those of the runs that have two or more, `values` what all runs are worth; `errors` the standard errors
    of the runs that have an interval and no rounds; `controls` log(control / own) of the runs that have one.
    """

    value: float
    values: Sequence[float]
    rounds: Sequence[Floats] = field(default_factory=list)
    errors: Sequence[float] = field(default_factory=list)
    controls: Sequence[float] = field(default_factory=list)

    @property
    def tells(self) -> bool:
        """Whether anything is known of the noise."""
        return bool(self.rounds or self.errors) or len(self.values) > 1


def interval_error(low: float, high: float, confidence: float = 0.95) -> float:
    """Return the standard error of a logarithm whose value has the interval from `low` to `high`."""
    return math.log(high / low) / (2 * float(ndtri((1 + confidence) / 2)))


def find_steps(points: Sequence[Evidence], threshold: float) -> list[Step]:
    """Return the steps between neighbours: certain, and higher than `threshold` (a logarithm).

    Points of which nothing is known beside their value are passed over: they can be neither side of a step.
    """
    places = [place for place, point in enumerate(points) if point.tells]
    if len(places) < 2:
        return []
    known = [points[place] for place in places]
    within, luck = _within(known), _luck(known)
    steps = []
    for number, (before, after) in enumerate(pairwise(known), start=1):
        runs = 1 / len(before.values) + 1 / len(after.values)
        variance, freedom = _sum(_noise(within, before, after), (luck[0] * runs, luck[1]))
        error, height = math.sqrt(variance), after.value - before.value
        if abs(height) <= threshold:
            continue
        if error == 0 or 2 * float(stdtr(freedom, -abs(height) / error)) <= ALPHA / (len(known) - 1):
            # so wide that the normal quantile of `Step.interval` gives the t interval
            wide = error * float(stdtrit(freedom, 0.975)) / float(ndtri(0.975))
            place, since = places[number], places[number - 1]
            steps.append(Step(place=place, since=since, before=before.value, after=after.value, error=wide))
    return steps


_Variance = tuple[float, float]
"""A variance and the degrees of freedom that it is known with."""


def _within(points: Sequence[Evidence]) -> _Variance:
    """Return the variance of one round about its run's mean."""
    rounds = [one for point in points for one in point.rounds]
    freedom = sum(len(one) - 1 for one in rounds)
    squares = sum(float(np.sum((one - one.mean()) ** 2)) for one in rounds)
    return (squares / freedom, freedom) if freedom else (0.0, 0.0)


def _luck(points: Sequence[Evidence]) -> _Variance:
    """Return the variance of a run's luck: of own and control together twice that, of runs at one x once."""
    squares = [each**2 / 2 for point in points for each in point.controls]
    freedom = len(squares)
    total = math.fsum(squares)
    for point in points:
        total += float(np.sum((np.asarray(point.values) - np.mean(point.values)) ** 2))
        freedom += len(point.values) - 1
    return (total / freedom, float(freedom)) if freedom else (RUN_LUCK**2, _ENOUGH)


def _noise(within: _Variance, before: Evidence, after: Evidence) -> _Variance:
    """Return the variance that rounds, or the errors of intervals, give the difference of two points."""
    sides = (before, after)
    # one estimate, however many of the two points it is used for
    shares = sum(1 / sum(len(one) for one in point.rounds) for point in sides if point.rounds)
    told = sum(_own(point) for point in sides if not point.rounds)
    variance, freedom = _sum((within[0] * shares, within[1]), (told, _ENOUGH))
    # a point whose own rounds scatter more than those of the others is not as sure as they are
    return max(variance, _own(before) + _own(after)), freedom


def _own(point: Evidence) -> float:
    """Return the variance of a point's value that its own rounds or intervals tell of."""
    if point.rounds:
        counts = sum(len(one) for one in point.rounds)
        freedom = sum(len(one) - 1 for one in point.rounds)
        return sum(float(np.sum((one - one.mean()) ** 2)) for one in point.rounds) / freedom / counts
    return sum(error**2 for error in point.errors) / len(point.errors) ** 2 if point.errors else 0.0


def _sum(*parts: _Variance) -> _Variance:
    """Add variances that were estimated independently; the degrees of freedom are Welch's and Satterthwaite's."""
    total = sum(variance for variance, _ in parts)
    weights = sum(variance**2 / freedom for variance, freedom in parts if freedom)
    return total, (total**2 / weights if weights else _ENOUGH)
