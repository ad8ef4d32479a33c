"""Steps in a series: found, sized, and told from what all series share (docs/trends.md has what all this reaches).

Long series of times are fitted by asv's piecewise constant function, which pays a penalty for each step (the Potts
model; Friedrich et al., "Complexity penalized M-estimation", 2008); the constants were chosen by a simulation
(tests/simulation/trends.py). Of short ones each point is held against the one before it, by what is known of the noise
of rounds and of the luck that all rounds of a run share. What all times of a run did together is subtracted first.
Bytes and errors have no luck: a difference beyond the gate's tolerance is a change.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np

from ampbench.core import stats
from ampbench.core.metrics import Gate
from ampbench.core.stats import Floats
from ampbench.records.changes import EQUAL
from ampbench.trend.reducing import RunValues
from ampbench.trend.series import TIME, Measured, Tracked

POINTS = 8
"""Fewer points than this tell too little of their own noise."""
SHORTEST = 3
"""A level of fewer points is none: two slow runs in a row are no news on a shared machine."""
PENALTY = 7.0
"""What a step must save, in units of the noise, of the sum of absolute distances from the levels."""
CERTAINTY = 5.0
"""A step is as many standard errors high, of levels whose noise is as autocorrelated as it is."""
SEPARATION = 0.9
"""Of pairs of a point before and one after, 95% lie in the order of the step: 0.9 is the difference of both shares,
the rank-biserial correlation of Mann and Whitney's U (Kerby, "The simple difference formula", 2014). Scattered
outliers, which a mean takes for a level, do not reach it."""
LEAST_NOISE = 1e-3
"""Times repeat no better than this; a series that does has been rounded."""

LEAST_LUCK = 0.01
"""The standard deviation of one run's luck is at least this, whatever tells less of it: 0.4-1.3% on six of eight cells
measured with pytest-benchmark, fourteen times the same code. A level is fitted to what its few points have in common,
few cases may scatter little by luck, and a control shares its run's."""

MEDIAN_TO_MEAN = math.sqrt(math.pi / 2)
"""The standard error of the median of normal noise over that of its mean (Kendall and Stuart, "The advanced theory of
statistics", vol. 1, ch. 10: π/2 in the variance, of few values less). Heights are medians and `CERTAINTY`
was calibrated in standard errors of means, so only the interval that is told has this factor."""

MAD_TO_SD = 1.482602218505602
"""The standard deviation of normal noise over the median of its absolute values: 1 / Φ⁻¹(3/4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step at `place`, the first value after it: the levels `before` and `after` (medians), and the standard error of
    their difference, all in the unit of the series, which is a logarithm. The level that it is held against goes from
    `start` to `since`, its last value; that after it ends before `end`. `p` is how likely a level so far off is by
    luck, with as many degrees of freedom as its few points give.
    """

    start: int
    since: int
    place: int
    end: int
    before: float
    after: float
    error: float
    p: float

    @property
    def half(self) -> float:
        """Half of the width of the 95% interval of after - before."""
        from scipy.special import ndtri

        return float(ndtri(0.975)) * self.error


def available() -> bool:
    """Return whether asv is installed (the extra `asv`)."""
    try:
        import asv.step_detect  # noqa: F401
    except ImportError:
        return False
    return True


def find_steps(logs: Sequence[float], threshold: float) -> list[Step]:
    """Return the steps in a series of logarithms, in their order, that lead over `threshold` (a logarithm).

    Each level is held against that after the last step returned, not against the one just before it, so that small
    losses add up to a step. Of less than `POINTS` values there are none. Raises `ImportError` without asv.
    """
    from asv.step_detect import solve_potts_approx

    values = np.asarray(logs, dtype=np.float64)
    if len(values) < POINTS:
        return []
    penalty = PENALTY * noise(values)
    ends, _, _ = solve_potts_approx(values.tolist(), [1.0] * len(values), gamma=penalty, min_size=SHORTEST)
    levels = _confirmed(values, [0, *ends])
    freedom = max(len(values) - len(levels), 1)
    found, reference = [], levels[0]
    for level in levels[1:]:
        if abs(level.height - reference.height) > threshold:
            error = math.hypot(reference.error, level.error)
            from scipy.special import stdtr

            least = LEAST_LUCK * math.sqrt(1 / (reference.end - reference.start) + 1 / (level.end - level.start))
            step = Step(
                start=reference.start,
                since=reference.end - 1,
                place=level.start,
                end=level.end,
                before=reference.height,
                after=level.height,
                error=MEDIAN_TO_MEAN * error,
                p=2 * float(stdtr(freedom, -abs(level.height - reference.height) / max(error, least))),
            )
            found.append(step)
            reference = level
    return found


def noise(values: Floats) -> float:
    """Return the standard deviation of a series about its levels, at least `LEAST_NOISE`.

    It is made of the differences of neighbours, few of which a step is among, by their median (von Neumann et al., "The
    mean square successive difference", 1941, with the median of absolute values in place of the mean square).
    """
    return max(MAD_TO_SD * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2), LEAST_NOISE)


@dataclass(frozen=True, slots=True)
class _Level:
    """The values from `start` to before `end`: their median, and the standard error of their mean."""

    start: int
    end: int
    height: float
    error: float


def _confirmed(values: Floats, bounds: list[int]) -> list[_Level]:
    """Return the levels between the `bounds` that hold; the weakest bound that does not is dropped first."""
    while True:
        heights = [float(np.median(values[start:end])) for start, end in pairwise(bounds)]
        spread, inflation = _residual_noise(values, bounds, heights)
        levels = [
            _Level(start, end, height, spread * math.sqrt(inflation / (end - start)))
            for (start, end), height in zip(pairwise(bounds), heights, strict=True)
        ]
        if len(levels) == 1:
            return levels
        strengths = [_strength(values, before, after) for before, after in pairwise(levels)]
        weakest = int(np.argmin(strengths))
        if strengths[weakest] >= CERTAINTY:
            return levels
        del bounds[weakest + 1]


def _strength(values: Floats, before: _Level, after: _Level) -> float:
    """Return how many standard errors lie between two levels, 0 where their values are mixed or one is too short."""
    if min(before.end - before.start, after.end - after.start) < SHORTEST:  # asv's solver leaves such ones
        return 0.0
    signs = np.sign(values[after.start : after.end][:, None] - values[before.start : before.end][None, :])
    if abs(float(signs.mean())) < SEPARATION:  # the rank-biserial correlation, from 0 (mixed) to 1 (apart)
        return 0.0
    return abs(after.height - before.height) / math.hypot(before.error, after.error)


def _residual_noise(values: Floats, bounds: list[int], levels: list[float]) -> tuple[float, float]:
    """Return the standard deviation about the levels, and by how much autocorrelation inflates the variance of a mean.

    For AR(1) noise that is (1 + r) / (1 - r) (Bartlett, 1946). Levels are fitted, which lowers the r seen by about one
    over their length (Marriott and Pope, 1954), so as much is added.
    """
    residuals = np.concatenate(
        [values[start:end] - level for (start, end), level in zip(pairwise(bounds), levels, strict=True)]
    )
    squares = float(np.sum(residuals**2))
    spread = max(math.sqrt(squares / max(len(values) - len(levels), 1)), LEAST_NOISE)
    seen = float(np.sum(residuals[1:] * residuals[:-1])) / squares if squares else 0.0
    correlation = min(max(seen + len(levels) / len(values), 0.0), 0.95)
    return spread, (1 + correlation) / (1 - correlation)


def measured_by(
    runs: Sequence[RunValues], values: Sequence[float], case_id: str, metric: Tracked
) -> tuple[Measured, ...]:
    """Return what each run says of a point, in the metric's unit."""
    found = []
    for run, value in zip(runs, values, strict=True):
        low, high = own_interval(run, value, case_id, metric) or (None, None)
        disturbed = run.disturbed.get(case_id, "") if metric.noisy else ""
        found.append(Measured(run=run.header.run, value=value, low=low, high=high, disturbed=disturbed))
    return tuple(found)


def point_interval(each: Sequence[Measured], metric: Tracked) -> tuple[float | None, float | None]:
    """Return the interval of a point of a time: that of its runs' values, or that of its only run."""
    if len(each) == 1 or not metric.noisy:
        return each[0].low, each[0].high
    values = [one.value for one in each]
    interval = stats.log_t_interval(values) if len(values) >= stats.ROUNDS_FOR_INTERVAL else None
    return interval or (None, None)


def own_interval(run: RunValues, value: float, case_id: str, metric: Tracked) -> tuple[float, float] | None:
    """Return the interval that a run has of its value of a time or a rate, of the run's confidence."""
    interval = run.interval(case_id) if metric.noisy else None
    if interval is None or metric.column.name == TIME:
        return interval
    seconds = run.value(TIME, case_id)
    return None if seconds is None else (value * (seconds / interval[1]), value * (seconds / interval[0]))


RESTLESS_SHARE = 0.25
RESTLESS_POINTS = 8
"""From this many points on, a series with changes at more than that share of its gaps is noise: its metric is not the
same in every run after all, and none of its differences is news."""


@dataclass(frozen=True, slots=True)
class Level:
    """A change: the value at `place` differs from that at the earlier place `since`."""

    since: int
    place: int


def find_levels(
    values: Sequence[float | None], gate: Gate, scale: float, same: Callable[[int, int], bool]
) -> list[Level] | None:
    """Return where the values, in order, change; None where they do so all the time (`RESTLESS_SHARE`).

    A value of None is undefined: that is a level of its own.

    `same(i, j)` tells whether two points must be equal to the last bit; then `gate.threshold` holds, else
    `gate.elsewhere`. Changes are relative to the smaller of two values, at least to `scale`, as in comparisons. A value
    is held against its neighbour and against the first of its level, so that small losses add up to a change.
    """
    found: list[Level] = []
    known = [value for value in values if value is not None]
    if known and len(known) == len(values):  # nearly all are equal, and no two further apart than the outermost
        least = max(EQUAL * max(min(known), scale), gate.floor)
        if max(known) - min(known) <= least:
            return found
    first = 0
    for place in range(1, len(values)):
        for since in dict.fromkeys((place - 1, first)):
            if _differs(values[since], values[place], gate, scale, partial(same, since, place)):
                found.append(Level(since=since, place=place))
                first = place
                break
    restless = len(values) >= RESTLESS_POINTS and len(found) > RESTLESS_SHARE * (len(values) - 1)
    return None if restless else found


def _differs(before: float | None, after: float | None, gate: Gate, scale: float, same: Callable[[], bool]) -> bool:
    if before is None or after is None:
        return before is not after
    difference, smaller = abs(after - before), max(min(before, after), scale)
    if difference <= max(EQUAL * smaller, gate.floor):
        return False
    return difference > (gate.threshold if same() else gate.elsewhere) * smaller


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
    from scipy.special import ndtri

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
        from scipy.special import stdtr

        (variance, freedom), rest = self._variance(spread), abs(self.value - shift)
        return 2 * float(stdtr(freedom, -rest / math.sqrt(variance))) if variance else float(rest == 0)

    def half(self, spread: "Variance | None" = None) -> float:
        """Return half of the width of the 95% interval."""
        from scipy.special import stdtrit

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


CASES, WORKLOADS = 6, 3
"""Of fewer cases, or of fewer networks, a median does not tell what they share from what one network does."""
ALIKE = 2 / 3
"""A change is of the whole run where so large a share of the cases moved that way, each by a quarter of it or more."""


EFFICIENCY = 0.37
"""A median of absolute values knows the spread as well as this share of the values would by their squares (Rousseeuw
and Croux, "Alternatives to the median absolute deviation", 1993)."""


@dataclass(frozen=True, slots=True)
class Gap:
    """What cases did from one x to the next: the `median` of the changes of their logarithms, and its `spread`.

    The `spread` is the standard deviation of the changes about it, from the median of their absolute values; `alike`
    of the `cases` moved as the median did, by a quarter of it or more.
    """

    median: float
    spread: float
    cases: int
    alike: int


def find_gap(changes: Mapping[tuple[str, str], float]) -> Gap | None:
    """Return what `changes`, of logarithms by workload and case id, have in common; None for too few of them."""
    if len(changes) < CASES or len({workload for workload, _ in changes}) < WORKLOADS:
        return None
    values = np.array(list(changes.values()))
    median = float(np.median(values))
    spread = MAD_TO_SD * float(np.median(np.abs(values - median)))
    return Gap(median, spread, len(values), int(np.sum(values * math.copysign(1.0, median) > abs(median) / 4)))


def gaps_of(levels: Sequence[Mapping[tuple[str, str], float]]) -> list[Gap | None]:
    """Return what lies between each two neighbouring x, of the logarithms at each by workload and case id."""
    return [
        find_gap({key: after[key] - before[key] for key in before.keys() & after.keys()})
        for before, after in pairwise(levels)
    ]


def is_of_the_whole_run(gap: Gap, threshold: float) -> bool:
    """Return whether a gap is a change of the whole run: beyond `threshold` (a logarithm), in nearly all cases."""
    return abs(gap.median) > threshold and gap.alike >= ALIKE * gap.cases
