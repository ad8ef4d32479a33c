"""Series too short for step detection: each point against the one before it, by what is known of their noise.

The noise of a difference has two parts: that of rounds, and the luck that all rounds of a run share. The first is
estimated from the rounds of all points of the series about their runs' means, because four rounds alone know little of
their own spread. The second is what the cases of the run did beside what they did together (`shared.Gap`); where there
are too few of them, it comes from the runs' controls, which are the same code measured again, and from runs at one x,
and where nothing tells, `RUN_LUCK` is taken. Points were not measured in turns, so whatever changed between them on the
machine counts as a change.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from scipy.special import ndtri, stdtr, stdtrit

from ampbench.stats import Floats
from ampbench.trends.steps import LEAST_LUCK

FAMILY_ALPHA = 0.01
"""All series of a metric together have a change by luck at most this often (Holm over their gaps)."""
RUN_LUCK = 0.03
"""The standard deviation of one run's luck where no other cases, no control and no second run tell: docs/performance.md
measures 2.3% and more over servers on a machine that others use."""
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


@dataclass(frozen=True, slots=True)
class Height:
    """How far the point at `place` lies from that at `since`: a difference of logarithms, and what it may be by luck.

    `noise` is that of rounds or of own intervals. `luck` is that of runs, as all points of the series tell it or, where
    nothing does, `RUN_LUCK`; `replicates` what the runs at these two points tell, None where there is one at each;
    `least` what it is in any case.
    """

    since: int
    place: int
    value: float
    noise: "Variance"
    luck: "Variance"
    replicates: "Variance | None"
    least: "Variance"

    def tail(self, shift: float = 0.0, spread: "Variance | None" = None) -> float:
        """Return the two-sided p-value of the height without `shift`."""
        (variance, freedom), rest = self._variance(spread), abs(self.value - shift)
        return 2 * float(stdtr(freedom, -rest / math.sqrt(variance))) if variance else float(rest == 0)

    def half(self, spread: "Variance | None" = None) -> float:
        """Return half of the width of the 95% interval."""
        variance, freedom = self._variance(spread)
        return math.sqrt(variance) * float(stdtrit(freedom, 0.975))

    def _variance(self, spread: "Variance | None") -> "Variance":
        """Return the variance; `spread` is that of what other cases did beside what all did together."""
        told = [self.luck if spread is None else spread, self.least]
        told += [] if self.replicates is None else [self.replicates]
        return _sum(self.noise, max(told))


def find_heights(points: Sequence[Evidence]) -> list[Height]:
    """Return the difference of each two neighbours; points of which nothing but a value is known are passed over."""
    places = [place for place, point in enumerate(points) if point.tells]
    known = [points[place] for place in places]
    within, luck = _within(known), _luck(known)
    heights = []
    for (since, before), (place, after) in pairwise(zip(places, known, strict=True)):
        runs = 1 / len(before.values) + 1 / len(after.values)
        repeated = [_replicates(one) for one in (before, after) if len(one.values) > 1]
        heights.append(
            Height(
                since=since,
                place=place,
                value=after.value - before.value,
                noise=_noise(within, before, after),
                luck=(luck[0] * runs, luck[1]),
                replicates=_sum(*repeated) if repeated else None,
                least=(LEAST_LUCK**2 * runs, _ENOUGH),
            )
        )
    return heights


Variance = tuple[float, float]
"""A variance and the degrees of freedom that it is known with."""


def _within(points: Sequence[Evidence]) -> Variance:
    """Return the variance of one round about its run's mean."""
    rounds = [one for point in points for one in point.rounds]
    freedom = sum(len(one) - 1 for one in rounds)
    squares = sum(float(np.sum((one - one.mean()) ** 2)) for one in rounds)
    return (squares / freedom, freedom) if freedom else (0.0, 0.0)


def _luck(points: Sequence[Evidence]) -> Variance:
    """Return the variance of a run's luck: of own and control together twice that, of runs at one x once."""
    squares = [each**2 / 2 for point in points for each in point.controls]
    freedom = len(squares)
    total = math.fsum(squares)
    for point in points:
        total += float(np.sum((np.asarray(point.values) - np.mean(point.values)) ** 2))
        freedom += len(point.values) - 1
    return (total / freedom, float(freedom)) if freedom else (RUN_LUCK**2, _ENOUGH)


def _replicates(point: Evidence) -> Variance:
    """Return the variance that the runs at a point tell of their median."""
    values = np.asarray(point.values)
    return float(np.var(values, ddof=1)) / len(values), len(values) - 1.0


def _noise(within: Variance, before: Evidence, after: Evidence) -> Variance:
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


def _sum(*parts: Variance) -> Variance:
    """Add variances that were estimated independently; the degrees of freedom are Welch's and Satterthwaite's."""
    total = sum(variance for variance, _ in parts)
    weights = sum(variance**2 / freedom for variance, freedom in parts if freedom)
    return total, (total**2 / weights if weights else _ENOUGH)
