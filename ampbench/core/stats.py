"""Pure functions on arrays of floats: a round's value from samples, intervals from rounds, tests of blocks; sketches.

Functions that need SciPy import it: a quarter of a second, which workers and `show` do not pay. Intervals come from
rounds or blocks: samples of one round share its luck and are never pooled. Arrays of cells x blocks have a NaN for a
missing block; ragged arrays are all values, one segment after the other, with the segments' lengths.
"""

import base64
import binascii
import hashlib
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

median = statistics.median
"""For a few values ten times as fast as NumPy's."""
ROUNDS_FOR_INTERVAL = 3
"""Fewer rounds give no interval: with two, a 95% t interval is 13 standard errors wide."""


def numbers(values: Sequence[float | None]) -> Floats:
    """Return numbers as an array, NaN for None."""
    return np.array(values, dtype=np.float64)


INFLATED = 1.02
"""A sample whose wall time exceeds its CPU time by this factor was delayed by other processes: no verdict calls 2% a
change."""


def round_value(
    samples: Sequence[Sequence[float]],
    cpu_samples: Sequence[Sequence[float]] | None = None,
    windows: Sequence[Sequence[float]] | None = None,
) -> float:
    """Return the value of a round, in seconds: the fastest sample of all its builds that was not delayed.

    `samples[build]` are of one build, `cpu_samples` their CPU times (None: unknown, and the fastest of all counts).
    Other processes only ever delay a step, so contention moves the minimum least (Chen and Revels, "Robust benchmarking
    in noisy environments", 2016). If every sample was delayed, the value is the least
    CPU time: on a busy machine only short steps run without interruption, and the minimum would favour them. Builds are
    at random places in memory, so the luckiest of several is about equally lucky in every round. On an accelerator,
    whose clock falls under load, the value is the median of its `windows` of a second and more: the sustained speed.
    """
    if windows is not None:
        return median([seconds for build in windows for seconds in build])
    fastest = min(map(min, samples))
    if cpu_samples is None:
        return fastest
    for build, cpu in zip(samples, cpu_samples, strict=True):  # the fastest is nearly always undisturbed
        if fastest in build and fastest <= INFLATED * cpu[build.index(fastest)]:
            return fastest
    undisturbed = [wall for wall, cpu in _pairs(samples, cpu_samples) if wall <= INFLATED * cpu]
    return min(undisturbed) if undisturbed else min(min(build) for build in cpu_samples)


def round_mean(
    samples: Sequence[Sequence[float]],
    steps_per_sample: Sequence[int],
    cpu_samples: Sequence[Sequence[float]] | None = None,
) -> float:
    """Return the mean seconds per step over all samples of a round, the slow ones included, for throughput.

    `samples[build]` and `cpu_samples[build]` are as for `round_value`, each the mean over `steps_per_sample[build]`
    steps; builds have equal weight if the number of builds differs. A delayed sample counts with its CPU time: other
    work on the machine belongs to no arm, while a longer step has a longer CPU time.
    """
    seconds = steps = 0.0
    counts = steps_per_sample if len(steps_per_sample) == len(samples) else [1] * len(samples)
    for place, (build, count) in enumerate(zip(samples, counts, strict=True)):
        times = build
        if cpu_samples is not None:
            pairs = zip(build, cpu_samples[place], strict=True)
            times = [cpu if wall > INFLATED * cpu else wall for wall, cpu in pairs]
        seconds += sum(times) * count
        steps += len(build) * count
    return seconds / steps


def all_inflated(samples: Sequence[Sequence[float]], cpu_samples: Sequence[Sequence[float]] | None) -> bool:
    """Return whether every sample of a round was delayed, so that its value is a CPU time."""
    return cpu_samples is not None and all(wall > INFLATED * cpu for wall, cpu in _pairs(samples, cpu_samples))


def _pairs(samples: Sequence[Sequence[float]], cpu_samples: Sequence[Sequence[float]]) -> Iterator[tuple[float, float]]:
    for build, cpu in zip(samples, cpu_samples, strict=True):
        yield from zip(build, cpu, strict=True)


def segment_medians(values: Floats, lengths: Integers) -> Floats:
    """Return the median of each segment of `values`, shape (sum of `lengths`,), as `lengths` of 1 and more, (n,)."""
    starts = np.cumsum(lengths) - lengths
    medians = np.empty(len(lengths))
    for length in set(lengths.tolist()):
        chosen = lengths == length
        rows = np.sort(values[starts[chosen, None] + np.arange(length)], axis=1)
        medians[chosen] = (rows[:, (length - 1) // 2] + rows[:, length // 2]) / 2
    return medians


def log_t_intervals(values: Floats, lengths: Integers) -> tuple[Floats, Floats]:
    """Return the lower and upper ends of each segment's 95% t interval, computed on logarithms.

    exp(mean(log x) ± t(n - 1) s / √n), s the standard deviation of log x with n - 1 in the denominator: the interval of
    the geometric mean of log-normal values (Student, "The probable error of a mean", 1908). Shapes as for
    `segment_medians`. NaN for segments of fewer than three values, or with one that is not positive.
    """
    owners = np.repeat(np.arange(len(lengths)), lengths)
    logs = np.log(np.where(values > 0, values, np.nan))
    counts = np.where(lengths >= ROUNDS_FOR_INTERVAL, lengths, np.nan)
    means = np.bincount(owners, logs, minlength=len(lengths)) / counts
    squares = np.bincount(owners, (logs - means[owners]) ** 2, minlength=len(lengths))
    half = _t_quantiles(counts - 1) * np.sqrt(squares / (counts - 1) / counts)
    return np.exp(means - half), np.exp(means + half)


def _t_quantiles(freedom: Floats) -> Floats:
    """Return the 97.5% quantiles of Student's distributions, without SciPy up to 20 degrees of freedom."""
    known = np.where(freedom > 0, freedom, 0.0)
    if known.max(initial=0) < len(_T_975):
        return np.array(_T_975)[known.astype(np.int64)]
    from scipy.special import stdtrit

    return np.asarray(stdtrit(freedom, 0.975), np.float64)


_T_975 = (
    math.nan, 12.706204736174694, 4.302652729749462, 3.1824463052837078, 2.7764451051977934, 2.5705818356363146,
    2.4469118511449786, 2.364624251592784, 2.306004135204166, 2.262157162798205, 2.228138851986274, 2.200985160091639,
    2.1788128296672284, 2.1603686564627913, 2.144786687917804, 2.131449545559776, 2.1199052992212546,
    2.1098155778333156, 2.1009220402410382, 2.0930240544083087, 2.085963447265864,
)  # fmt: skip
"""SciPy's quantiles for 95% between both ends, by degrees of freedom up to 20."""


def log_t_interval(values: ArrayLike) -> tuple[float, float] | None:
    """Return the 95% t interval of one set of values on logarithms; None if `log_t_intervals` gives NaN."""
    array = np.asarray(values, dtype=np.float64)
    low, high = log_t_intervals(array, np.array([len(array)]))
    return None if np.isnan(low[0]) else (float(low[0]), float(high[0]))


def ratio(numerator: ArrayLike, denominator: ArrayLike) -> Floats:
    """Return numerator / denominator elementwise, NaN for a zero denominator or if any of the three is not finite."""
    top, bottom = np.broadcast_arrays(np.asarray(numerator, np.float64), np.asarray(denominator, np.float64))
    defined = np.isfinite(top) & np.isfinite(bottom) & (bottom != 0)
    quotient = np.full(top.shape, np.nan)
    with np.errstate(over="ignore"):
        np.divide(top, bottom, out=quotient, where=defined)
    quotient[np.isinf(quotient)] = np.nan
    return quotient


def row_quantiles(values: Floats, share: float) -> Floats:
    """Return the quantile of each row, (cells, blocks) to (cells,), linear between order statistics, NaN left out."""
    if values.shape[1] == 0:
        return np.full(len(values), np.nan)
    ordered = np.sort(values, axis=1)  # NaN last
    places = np.maximum(np.sum(~np.isnan(values), axis=1) - 1, 0) * share
    below, rows = np.floor(places).astype(np.int64), np.arange(len(values))
    low, high = ordered[rows, below], ordered[rows, np.ceil(places).astype(np.int64)]
    # a plain mean at the very middle, so that the quantile of the negatives is the negative of the quantile
    quantiles: Floats = np.where(places - below == 0.5, (low + high) / 2, low + (high - low) * (places - below))
    return quantiles


def row_variances(values: Floats) -> tuple[Integers, Floats, Floats]:
    """Return each row's count, mean and variance (n - 1 in the denominator) of the values that are not NaN.

    The mean is NaN without a value, the variance under two. Shapes as for `row_quantiles`.
    """
    counts = np.sum(~np.isnan(values), axis=1)
    means = ratio(np.nansum(values, axis=1), counts)
    squares = np.nansum((values - means[:, None]) ** 2, axis=1)
    return counts, means, np.where(counts > 1, squares / np.maximum(counts - 1, 1), np.nan)


@lru_cache(maxsize=256)
def signed_rank_survival(count: int) -> Floats:
    """Return P(W >= w) for w = 0 .. n(n + 1)/2 under the null: W is the signed-rank statistic of n differences.

    W sums the ranks 1 .. n, each with probability 1/2 (Wilcoxon, "Individual comparisons by ranking methods", 1945).
    SciPy has its distribution only inside its test. The array is shared and read-only.
    """
    masses = np.ones(1)
    for rank in range(1, count + 1):
        masses = (np.pad(masses, (0, rank)) + np.pad(masses, (rank, 0))) / 2
    survival: Floats = np.cumsum(masses[::-1])[::-1]
    survival[0] = 1.0
    survival.setflags(write=False)
    return survival


@dataclass(frozen=True, slots=True)
class SignedRanks:
    """Tests and bounds of each row of differences; arrays of shape (cells,), bounds of (levels, cells).

    `counts` are of differences that are not NaN. `p_above` and `p_below` are exact one-sided p-values for a location
    above and below 0, with `_margin` above the margin and below its negative. `estimates` are Hodges and Lehmann's.
    `lows` and `highs` are one-sided confidence bounds, infinite with too few differences for their level.
    """

    counts: Integers
    p_above: Floats
    p_above_margin: Floats
    p_below: Floats
    p_below_margin: Floats
    estimates: Floats
    lows: Floats
    highs: Floats


_CHUNK = 2_000_000
"""Walsh averages held at a time: 16 MB."""


def signed_ranks(differences: Floats, alphas: Sequence[float] = (), margins: ArrayLike = 0.0) -> SignedRanks:
    """Return Wilcoxon's signed-rank test and the estimate and bounds that belong to it, for every row.

    `differences` have the shape (cells, blocks), NaN for a missing one; `alphas` are the error levels of the bounds;
    a location is tested against 0 and against `margins` (of each cell, or one for all). All is made from the Walsh
    averages (d_i + d_j)/2, i <= j: as many of them are above 0 as the sum of the positive ranks says (Tukey, 1949);
    their median is the estimate, and the k-th smallest is a lower bound at the level P(W <= k - 1) (Hodges and Lehmann,
    "Estimates of location based on rank tests", 1963; Hollander and Wolfe, "Nonparametric statistical methods", section
    3). Exact if each difference is as likely to have either sign, whatever its size. An average of exactly 0 counts for
    neither side, so that ties and zeros only make p larger. Time and memory grow linearly with cells.
    """
    cells, blocks = differences.shape
    counts: Integers = np.sum(~np.isnan(differences), axis=1)
    against = [np.zeros(cells), np.broadcast_to(np.asarray(margins, np.float64), (cells,))]
    above, below = np.zeros((2, cells), np.int64), np.zeros((2, cells), np.int64)
    estimates = np.full(cells, np.nan)
    lows, highs = np.full((len(alphas), cells), -np.inf), np.full((len(alphas), cells), np.inf)
    first, second = np.triu_indices(blocks)
    step = max(1, _CHUNK // max(1, len(first)))
    for start in range(0, cells if blocks else 0, step):
        part = slice(start, start + step)
        walsh = np.sort((differences[part, first] + differences[part, second]) / 2, axis=1)  # NaN last
        for place, margin in enumerate(against):
            above[place, part] = np.sum(walsh > margin[part, None], axis=1)
            below[place, part] = np.sum(walsh < -margin[part, None], axis=1)
        estimates[part] = row_quantiles(walsh, 0.5)
        for count in np.unique(counts[part]).tolist():
            rows = np.flatnonzero(counts[part] == count)
            for level, alpha in enumerate(alphas):
                # P(W <= k - 1) = P(W >= all - k + 1), as W is symmetric; k = 0 if even P(W = 0) exceeds alpha
                place = int(np.searchsorted(signed_rank_survival(count)[::-1], alpha, side="right"))
                if place and count:
                    lows[level, start + rows] = walsh[rows, place - 1]
                    highs[level, start + rows] = walsh[rows, count * (count + 1) // 2 - place]
    p_above, p_below = np.ones((2, cells)), np.ones((2, cells))
    for count in np.unique(counts).tolist():
        rows = np.flatnonzero(counts == count)
        survival = signed_rank_survival(count)
        p_above[:, rows], p_below[:, rows] = survival[above[:, rows]], survival[below[:, rows]]
    return SignedRanks(counts, p_above[0], p_above[1], p_below[0], p_below[1], estimates, lows, highs)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanRatios:
    """Tests and bounds of the ratio of two means, second / first; arrays of shape (cells,), bounds of (levels, cells).

    `estimates` are ratios of sums over blocks. `p_above` is the one-sided p-value for a ratio above the margin,
    `p_below` for one below its inverse. `lows` and `highs` are one-sided confidence bounds, 0 and infinite with too few
    blocks for their level.
    """

    estimates: Floats
    p_above: Floats
    p_below: Floats
    lows: Floats
    highs: Floats


_SUBSETS, _MORE_SUBSETS = 2**12 - 1, 2**16 - 1
"""The number of drawn subsets of blocks, and the larger number for p-values that Holm may need smaller."""
_SMALL = 4 / 2**12
_ROWS, _FEW_ROWS = 256, 16
"""Cells held at a time with these subsets: 8 MB for each array of sums."""


@lru_cache(maxsize=8)
def _subsets(count: int, subsets: int) -> Floats:
    """Return subsets of `count` blocks, as columns of 0 and 1: all except the empty one, or `subsets` random ones."""
    if 2**count <= subsets + 1:
        members = (np.arange(1, 2**count)[:, None] >> np.arange(count)) & 1
    else:
        members = np.random.default_rng([count, subsets]).integers(0, 2, (subsets, count), dtype=np.int8)
        members = members[members.any(axis=1)]
    chosen: Floats = members.astype(np.float64).T
    chosen.setflags(write=False)
    return chosen


def mean_ratios(first: Floats, second: Floats, alphas: Sequence[float] = (), margins: ArrayLike = 1.0) -> MeanRatios:
    """Return the ratio of each row's means over blocks, tested and bounded by the ratios of subsets of the blocks.

    `first` and `second` are positive, of the shape (cells, blocks), NaN for a block missing on either side; `margins`,
    1 or more, are the ratios tested against, `alphas` the error levels of the bounds. Every block counts, the slow ones
    too. Of the ratios of the sums over each subset, as many lie below the truth as above, in 2**n equally likely ways
    for n blocks: the "typical values" of Hartigan ("Using subsample values as typical values", 1969), also for subsets
    drawn at random. The test swaps the arms of each block at random, and is exact if second less the margin times first
    is symmetric in each block; it assumes no normal distribution. A bootstrap has no such warrant for few blocks. It
    cannot bound what no block has shown: of 16 blocks, one kind in six may have stayed unseen.
    """
    cells = len(first)
    whole = ~(np.isnan(first) | np.isnan(second))
    counts: Integers = np.sum(whole, axis=1)
    against = np.broadcast_to(np.asarray(margins, np.float64), (cells,))
    estimates, p_above, p_below = np.full(cells, np.nan), np.ones(cells), np.ones(cells)
    lows, highs = np.zeros((len(alphas), cells)), np.full((len(alphas), cells), np.inf)
    for count in np.unique(counts[counts > 0]).tolist():  # Python's, of which 2**count is right whatever it is
        rows_of = np.flatnonzero(counts == count)
        for start in range(0, len(rows_of), _ROWS):
            rows = rows_of[start : start + _ROWS]
            sides = first[rows][whole[rows]].reshape(-1, count), second[rows][whole[rows]].reshape(-1, count)
            estimates[rows] = sides[1].sum(axis=1) / sides[0].sum(axis=1)
            sums = [side @ _subsets(count, _SUBSETS) for side in sides]
            p_above[rows], p_below[rows] = _subset_p_values(sums[0], sums[1], against[rows])
            ratios = np.sort(sums[1] / sums[0], axis=1)
            for level, alpha in enumerate(alphas):
                place = math.floor(alpha * (ratios.shape[1] + 1))
                if place:
                    lows[level, rows] = ratios[:, place - 1]
                    highs[level, rows] = ratios[:, -place]
            small = np.flatnonzero(np.minimum(p_above[rows], p_below[rows]) <= _SMALL)
            for part in np.split(small, range(_FEW_ROWS, len(small), _FEW_ROWS)) if 2**count > _SUBSETS + 1 else ():
                more = [side[part] @ _subsets(count, _MORE_SUBSETS) for side in sides]
                p_values = _subset_p_values(more[0], more[1], against[rows[part]])
                p_above[rows[part]], p_below[rows[part]] = p_values
    return MeanRatios(estimates=estimates, p_above=p_above, p_below=p_below, lows=lows, highs=highs)


def _subset_p_values(first: Floats, second: Floats, margins: Floats) -> tuple[Floats, Floats]:
    """Return the shares of subsets, the whole included, with a ratio up to the margin, and down to its inverse."""
    every = first.shape[1] + 1
    above = np.sum(second <= margins[:, None] * first, axis=1)
    below = np.sum(margins[:, None] * second >= first, axis=1)
    return (above + 1) / every, (below + 1) / every


def outlying(differences: Floats, beyond: float) -> Booleans:
    """Return which differences of each row, (cells, blocks), exceed the row's typical size by more than `beyond`.

    The typical size is the median of absolute values (the smaller middle one of an even number, so at most half of a
    row are outliers). Signs play no part: those of the other differences stay random, and their signed-rank test exact.
    """
    sizes = np.abs(differences)
    middle = np.maximum(np.sum(~np.isnan(sizes), axis=1) - 1, 0) // 2
    typical = np.take_along_axis(np.sort(sizes, axis=1), middle[:, None], axis=1) if sizes.shape[1] else sizes
    chosen: Booleans = sizes > typical + beyond
    return chosen


def slow(values: Floats, factor: float) -> Booleans:
    """Return which values are more than `factor` times the median of their row; shapes as for `row_quantiles`."""
    chosen: Booleans = values > factor * row_quantiles(values, 0.5)[:, None]
    return chosen


def holm(p_values: Floats) -> Floats:
    """Return p-values, (n,), adjusted so that alpha bounds the chance of rejecting any true null.

    Holm, "A simple sequentially rejective multiple test procedure", 1979: the k-th smallest of n is multiplied by
    n - k + 1, and none may be smaller than one before it. Valid for any dependence between them.
    """
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(p_values[order] * np.arange(len(p_values), 0, -1)), 1.0)
    return adjusted


def welch(first: Floats, second: Floats, components: Sequence[float] = ()) -> tuple[Floats, Floats, Floats]:
    """Return the difference of each row's means, second - first, its standard error and its degrees of freedom.

    `first` and `second` have the shapes (cells, n) and (cells, m), NaN where missing. `components` are further
    variances of the difference, each known from one degree of freedom. The degrees of freedom are those of Welch and
    Satterthwaite: (Σ v)² / Σ (v² / f) over all components v known with f (Satterthwaite, "An approximate distribution
    of estimates of variance components", 1946). NaN where a side has under two values.
    """
    (counts, means, variances), (others, other_means, other_variances) = row_variances(first), row_variances(second)
    ours, theirs = ratio(variances, counts), ratio(other_variances, others)
    total = ours + theirs + sum(components)
    weights = ours**2 / np.maximum(counts - 1, 1) + theirs**2 / np.maximum(others - 1, 1)
    weights = weights + sum(component**2 for component in components)
    freedom = np.where(weights > 0, ratio(total**2, weights), np.maximum(counts + others - 2, 1))
    return other_means - means, np.sqrt(total), np.where(np.isnan(total), np.nan, freedom)


def fisher_p(slow_first: Integers, first: Integers, slow_second: Integers, second: Integers) -> Floats:
    """Return the two-sided p-value of Fisher's exact test for the shares `slow_first`/`first` and the second's.

    All of shape (cells,); 1 where both are 0. Fisher, "Statistical methods for research workers", 1935.
    """
    p_values = np.ones(len(first))
    if not np.any(slow_first + slow_second):
        return p_values
    from scipy.stats import fisher_exact  # takes most of a second to import, and few comparisons have a slow block

    tables = np.stack([slow_first, first - slow_first, slow_second, second - slow_second], axis=1)
    distinct, where = np.unique(tables, axis=0, return_inverse=True)
    distinct_p = [fisher_exact(table.reshape(2, 2)).pvalue if table[0] + table[2] else 1.0 for table in distinct]
    return np.array(distinct_p, dtype=np.float64)[where.reshape(-1)]


def share_bound(successes: ArrayLike, trials: ArrayLike) -> Floats:
    """Return the exact one-sided 95% lower bound of the shares `successes` / `trials`; NaN without a trial.

    For 32 of 32 it is 91%. Source: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the
    case of the binomial", Biometrika 1934.
    """
    counts, totals = np.broadcast_arrays(np.asarray(successes, np.float64), np.asarray(trials, np.float64))
    pairs = list(zip(counts.ravel().tolist(), totals.ravel().tolist(), strict=True))
    known = {pair: _share_bound(*pair) for pair in set(pairs)}
    return np.array([known[pair] for pair in pairs], np.float64).reshape(counts.shape)


_ALPHA = 0.05
_FEW = 50
"""Up to this many failures need no SciPy."""


def _share_bound(successes: float, trials: float) -> float:
    """Return the same bound for one share, of few failures by bisection."""
    if not (trials > 0 and successes):
        return 0.0 if trials > 0 else math.nan
    failures = int(trials - successes)
    if not failures:
        return float(_ALPHA ** (1 / trials))
    if failures > _FEW:
        from scipy.special import betaincinv

        return float(betaincinv(successes, failures + 1, _ALPHA))
    low, high = failures / trials, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if chance_of_at_most(failures, int(trials), middle) > _ALPHA else (low, middle)
    return 1 - high


def chance_of_at_most(successes: int, trials: int, share: float) -> float:
    """Return the chance of at most `successes` in `trials` of `share` each, 0 < share < 1, without SciPy.

    It is the sum of the binomial distribution's terms, from a million of them (a third of a second) the normal one's.
    """
    if successes < 0:
        return 0.0
    if successes >= 1_000_000:
        spread = math.sqrt(max(trials * share * (1 - share), 1.0))
        return math.erfc((trials * share - successes - 0.5) / (math.sqrt(2) * spread)) / 2
    term = trials * math.log1p(-share)
    odds, total = math.log(share) - math.log1p(-share), math.exp(term)
    for count in range(1, min(successes, trials) + 1):
        term += math.log((trials - count + 1) / count) + odds
        total += math.exp(term)
    return min(total, 1.0)


def count_to_decide(
    estimates: Floats,
    variance: Floats,
    constant: float,
    margin: Floats,
    alphas: tuple[float, float],
    power: float,
    against: ArrayLike = 0.0,
) -> Floats:
    """Return how many values, (cells,), would decide, were the present estimates the truth; infinite for never.

    The variance of an estimate is taken to be `variance`/n + `constant`. `alphas` are the one-sided levels of a change,
    tested `against` a size and required to exceed `margin`, and of the bounds that prove a location within it.
    """
    from scipy.special import ndtri

    sizes, surely = np.abs(estimates), ndtri(power)
    tested = np.maximum(sizes - np.asarray(against), 0) / (surely - ndtri(alphas[0]))
    change = np.minimum(tested, np.maximum(sizes - margin, 0) / surely)
    same = np.maximum(margin - sizes, 0) / (ndtri((1 + power) / 2) - ndtri(alphas[1]))
    room = np.maximum(change, same) ** 2 - constant
    return np.where(room > 0, ratio(variance, np.where(room > 0, room, 1.0)), np.inf)


BLOCK = 1 << 17
"""Elements at a time, whose draws fit the processor's cache."""
ENTRIES = 128

_DRAWS, _BUCKETS = 4, 32
_FORM = "1:"
"""How the text of a sketch begins; one of another version of ampbench counts as none."""
_UNIT = 2.0**31
_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Sketch:
    """The Euclidean `norm` of a vector and its sketch, as text for a file.

    That is 128 numbers that estimate its distance from another vector, when only sketches are kept. Each element goes
    with a random sign into one of 32 buckets, four times over, each time by draws of its own; a bucket holds the sum.
    On average over the draws the squared distance of two sketches is that of the vectors, within 18% in two cases of
    three; a distance is within 6% (12% in 19 of 20). Draws depend on the tensor's name and the element's place alone
    (Philox, whose stream NumPy keeps), so that sketches of other machines and versions can be compared.

    Charikar, Chen and Farach-Colton, "Finding frequent items in data streams" (2002); Kane and Nelson, "Sparser
    Johnson-Lindenstrauss transforms" (2014): several buckets for each element keep two that change places from
    vanishing.
    """

    norm: float
    text: str


@dataclass(frozen=True, slots=True)
class Moved:
    """The distance of two vectors, relative to the first one's norm: an estimate, or `at_least` this far."""

    distance: float
    at_least: bool = False


def sketch_of(tensors: Iterable[tuple[str, Iterable[Floats]]]) -> Sketch:
    """Return the sketch of named tensors, in any order, as one vector; their values are in blocks of `BLOCK`.

    The last block of a tensor may be shorter. Elements that are not finite count as 0.
    """
    sums = np.zeros((_DRAWS, 2 * _BUCKETS))
    square = 0.0
    for name, blocks in tensors:
        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little")
        drawn = np.random.Philox(key=key)
        for block in blocks:
            values = np.where(np.isfinite(block), block, 0.0)
            with np.errstate(over="ignore"):  # a norm above the range of fp64 is infinite, and its sketch empty
                square += float(values @ values)
            words = drawn.random_raw((len(values) + 1) // 2).astype("<u8", copy=False).view("<u4")[: len(values)]
            for draw in range(_DRAWS):
                # a place is a bucket and a sign: six bits of the word
                places = (words >> np.uint32(8 * draw)) & np.uint32(2 * _BUCKETS - 1)
                sums[draw] += np.bincount(places, weights=values, minlength=2 * _BUCKETS)
    norm = math.sqrt(square)
    entries = (sums[:, ::2] - sums[:, 1::2]).ravel() / math.sqrt(_DRAWS)
    scaled = entries / norm * _UNIT if 0 < norm < math.inf else np.zeros(ENTRIES)
    whole = np.clip(np.rint(scaled), -_LARGEST, _LARGEST).astype("<i4")
    return Sketch(norm, _FORM + base64.b64encode(whole.tobytes()).decode())


def moved(before: float | None, after: float | None, *sketches: str | None) -> Moved | None:
    """Return the distance of two vectors by their norms and, for an estimate, both `sketches`; None without a norm."""
    if before is None or after is None:
        return None
    if before == 0 or not (math.isfinite(before) and math.isfinite(after)):
        return Moved(0.0 if before == after else math.inf)
    least = abs(after - before) / before
    entries = [_entries(text) for text in sketches]
    if len(entries) != 2 or entries[0] is None or entries[1] is None:
        return Moved(least, at_least=True)
    apart = entries[1] * (after / before) - entries[0]
    return Moved(max(float(np.linalg.norm(apart)), least))


def fingerprint(norm: float | None, text: str | None) -> float | None:
    """Return one number of a vector, its norm times 1 + z / 4, for programs that follow numbers; None without a norm.

    z is the sum of the sketch's numbers, over vectors a draw from the standard normal distribution (0 without a
    sketch). If a vector moves by a share of its norm, the number moves by about a quarter of that share even if the
    norm stays; six digits of it are the same on every machine.
    """
    if norm is None or not math.isfinite(norm):
        return None
    entries = _entries(text)
    return norm if entries is None else norm * (1 + float(entries.sum()) / 4)


def _entries(text: str | None) -> Floats | None:
    """Return the numbers of a sketch, of a vector of norm 1; None without one."""
    if text is None or not text.startswith(_FORM):
        return None
    try:
        raw = base64.b64decode(text.removeprefix(_FORM), validate=True)
    except binascii.Error:
        return None
    return np.frombuffer(raw, "<i4") / _UNIT if len(raw) == 4 * ENTRIES else None
