"""Whether trainings in a precision end as well as those in fp32: differences by seed against what rounding alone does.

A difference belongs to a seed: both trainings begin with the same weights and take the same batches. It is positive
where the precision is better. Trainings are chaotic: the smallest rounding ends in other weights and some other
decisions. How much of that there is, the spread of a difference, is estimated twice, and the larger estimate is taken:

* trainings that differ from fp32 by rounding alone, the control and fp64, give differences whose mean is zero;
* the differences of the precisions judged spread about their own means. A low precision disturbs more than one
  rounding does, so that its trainings may have parted where the control still follows fp32.

docs/convergence.md has the error rates of these rules, tests/studied/test_convergence_errors.py simulates them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from ampbench import stats
from ampbench.verdicts import Verdict

ALPHA = 0.05
"""At most so often is any precision of a study said to regress where none does; as often for improve."""
EQUIVALENCE_ALPHA = 0.05
"""The level of each of the two one-sided tests that show a difference to lie within the margin."""
POWER = 0.9
"""The seeds said to decide would do so with this probability if the spread were known; it is not, so with less."""

_LOUD = 6.0
"""A precision whose variance is so many times that of the others says nothing of theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the differences of one precision say. All numbers are in the unit of the differences.

    `difference` is their mean, `low` and `high` its 90% interval (infinite where nothing is known of the spread),
    `spread` the standard deviation of one difference that it was made with. `seeds_needed` would decide, were the
    spread the one seen and the difference none, or the one seen where the interval leaves out none (None: already
    decided, or never).
    """

    verdict: Verdict
    difference: float
    low: float
    high: float
    spread: float | None
    seeds_needed: int | None = None


def judge(
    differences: Mapping[str, Sequence[float]],
    rounding: Sequence[float],
    margin: float,
    *,
    resolution: float = 0.0,
    alpha: float = ALPHA,
) -> dict[str, Judged]:
    """Return a verdict on each precision.

    `differences` are each precision's by seed, at least one; `rounding` those of trainings that differ from fp32 by
    rounding alone. `resolution` is the least step of the metric, as one decision of all. `margin`, or one step where
    that is more, is the largest difference that counts as none.

    Regressed: the mean is below -margin and its one-sided bound at `alpha`, divided by the number of precisions
    (Bonferroni), below 0; improved mirrored. Unchanged: the 90% interval lies within the margin (two one-sided tests:
    Schuirmann, "A comparison of the two one-sided tests procedure and the power approach", 1987). Else inconclusive.
    Bounds are Student's t. A spread is never taken to be below that of two numbers rounded to the resolution,
    resolution / sqrt(6).
    """
    margin = max(margin, resolution)
    level = alpha / max(len(differences), 1)
    return {
        name: _judged(values, *_spread(name, differences, rounding, resolution), margin, level)
        for name, values in differences.items()
    }


def _judged(values: Sequence[float], variance: float | None, freedom: float, margin: float, level: float) -> Judged:
    """Return the verdict on differences with a known variance, made from `freedom` degrees of freedom."""
    mean, count = float(np.mean(values)), len(values)
    if variance is None:
        return Judged(verdict=Verdict.INCONCLUSIVE, difference=mean, low=-math.inf, high=math.inf, spread=None)
    error = math.sqrt(variance / count)
    bound = float(stdtrit(freedom, 1 - level)) * error
    wide = float(stdtrit(freedom, 1 - EQUIVALENCE_ALPHA)) * error
    needed = None
    if abs(mean) > margin and abs(mean) > bound:
        verdict = Verdict.IMPROVED if mean > 0 else Verdict.REGRESSED
    elif abs(mean) + wide <= margin:
        verdict = Verdict.UNCHANGED
    else:
        verdict = Verdict.INCONCLUSIVE
        needed = _needed(0.0 if abs(mean) <= wide else mean, variance, count, margin, level)
    return Judged(
        verdict=verdict,
        difference=mean,
        low=mean - wide,
        high=mean + wide,
        spread=math.sqrt(variance),
        seeds_needed=needed,
    )


def _needed(mean: float, variance: float, count: int, margin: float, level: float) -> int | None:
    """Return how many seeds would decide, always more than there are; None where no number would."""
    found = stats.count_to_decide(
        np.array([mean]), np.array([variance]), 0.0, np.array([margin]), (level, EQUIVALENCE_ALPHA), POWER
    )
    return max(math.ceil(found[0]), count + 1) if math.isfinite(found[0]) else None


def _spread(
    name: str, differences: Mapping[str, Sequence[float]], rounding: Sequence[float], resolution: float
) -> tuple[float | None, float]:
    """Return the variance of one difference of a precision and its degrees of freedom; None where nothing tells it."""
    known = [_about_zero(rounding), _about_means(_as_loud(name, differences, rounding, resolution))]
    found = [(variance, freedom) for variance, freedom in known if freedom]
    if not found:
        return None, 0.0
    variance, freedom = max(found)
    return max(variance, _least_variance(resolution)), freedom


def _least_variance(resolution: float) -> float:
    """Return the variance of a difference of two numbers each rounded to `resolution`: twice its square over 12."""
    return resolution**2 / 6


def _about_zero(rounding: Sequence[float]) -> tuple[float, float]:
    """Return the mean square of differences by rounding alone, and their number: their mean is known to be zero."""
    return (float(np.mean(np.square(rounding))), float(len(rounding))) if len(rounding) else (0.0, 0.0)


def _about_means(values: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the pooled variance of precisions' differences about their means, and its degrees of freedom.

    The differences of one seed share its fp32 training, and half their variance where all trainings vary alike; of k
    precisions the pooled variance then has 4 / (k + 3) times the degrees of freedom of independent ones (Satterthwaite,
    1946, with the eigenvalues of that covariance: 1, and once k + 1).
    """
    several = [each for each in values if len(each) > 1]
    total = sum(len(each) - 1 for each in several)
    if not total:
        return 0.0, 0.0
    squares = sum(float(np.sum(np.square(np.subtract(each, np.mean(each))))) for each in several)
    return squares / total, total * 4 / (len(several) + 3)


def _as_loud(
    name: str, differences: Mapping[str, Sequence[float]], rounding: Sequence[float], resolution: float
) -> list[Sequence[float]]:
    """Return the differences of a precision, and of the others those that do not vary far more than the rest."""
    floor = max(_about_zero(rounding)[0], _least_variance(resolution))

    def loud(one: str) -> bool:
        others = [values for other, values in differences.items() if other != one]
        return _about_means([differences[one]])[0] > _LOUD * max(floor, _about_means(others)[0])

    return [values for one, values in differences.items() if one == name or not loud(one)]
