"""Steps in a noisy series, found by asv's step detection and confirmed.

asv fits a piecewise constant function that pays a penalty for each step (the Potts model; Friedrich et al., "Complexity
penalized M-estimation", 2008; `asv.step_detect`). The penalty that asv chooses by itself lets half of the steps of five
standard deviations pass unseen for four points. Here it is `PENALTY` times the noise of the series itself, and what
that finds too much is taken back by two conditions on each step, which autocorrelated and two-valued noise seldom meet.
docs/trends.md has what all this reaches; the constants were chosen by that simulation (tests/simulation/trends.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import ndtri, stdtr

from ampbench.stats import Floats

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
    if _separation(values[before.start : before.end], values[after.start : after.end]) < SEPARATION:
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


def _separation(before: Floats, after: Floats) -> float:
    """Return the rank-biserial correlation of two sets of values, from 0 (mixed) to 1 (apart)."""
    signs = np.sign(after[:, None] - before[None, :])
    return abs(float(signs.mean()))
