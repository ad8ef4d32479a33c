"""Pure functions on arrays of floats: how samples become a round's value, and rounds a case's interval.

A round is worth the median over its builds, a build its fastest sample. Intervals are made from rounds: samples of one
build share its luck and are never pooled. Arrays of many unequal segments ("ragged" arrays) are given as all
values in one array, one segment after the other, and the segments' lengths.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ROUNDS_FOR_INTERVAL = 3
"""Below this many rounds there is no interval: with two, a 95 % t interval is some 13 standard errors wide."""


def median(values: Sequence[float]) -> float:
    """Return the median of at least one value; of an even number, the mean of the two in the middle.

    For the few values of a build, a sort in Python takes a tenth of the time of NumPy's.
    """
    ordered = sorted(values)
    length = len(ordered)
    return (ordered[(length - 1) // 2] + ordered[length // 2]) / 2


def round_value(samples: Sequence[Sequence[float]]) -> float:
    """Return what a round is worth: the median over builds of each build's fastest of `samples[build]`, in seconds.

    Whatever else runs on a machine only ever delays a step, so the minimum is the location that contention moves least
    (Chen and Revels, "Robust benchmarking in noisy environments", 2016); docs/performance.md has the measurement.
    Builds lie at random places in memory, which helps some and hurts others: hence the median over them.
    """
    return median([min(build) for build in samples])


def segment_medians(values: Floats, lengths: Integers) -> Floats:
    """Return the median of each segment.

    `values` are all segments one after the other, shape (sum of `lengths`,); `lengths` are at least 1, shape (n,). The
    result has shape (n,).
    """
    starts = np.cumsum(lengths) - lengths
    medians = np.empty(len(lengths))
    for length in np.unique(lengths):
        chosen = lengths == length
        rows = np.sort(values[starts[chosen, None] + np.arange(length)], axis=1)
        medians[chosen] = (rows[:, (length - 1) // 2] + rows[:, length // 2]) / 2
    return medians


def log_t_intervals(values: Floats, lengths: Integers, confidence: float = 0.95) -> tuple[Floats, Floats]:
    """Return the lower and upper ends of each segment's t interval, computed on logarithms.

    exp(mean(log x) ± t(n - 1) s / √n), s the standard deviation of log x with n - 1 in the denominator: the interval of
    the geometric mean of log-normal values (Student, "The probable error of a mean", 1908). Shapes as for
    `segment_medians`. NaN for segments of fewer than three values, or with one that is not positive.
    """
    owners = np.repeat(np.arange(len(lengths)), lengths)
    logs = np.log(np.where(values > 0, values, np.nan))
    counts = np.where(lengths >= ROUNDS_FOR_INTERVAL, lengths, np.nan)
    means = np.bincount(owners, logs, minlength=len(lengths)) / counts
    squares = np.bincount(owners, (logs - means[owners]) ** 2, minlength=len(lengths))
    half = stdtrit(counts - 1, (1 + confidence) / 2) * np.sqrt(squares / (counts - 1) / counts)
    return np.exp(means - half), np.exp(means + half)


def log_t_interval(values: ArrayLike, confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the t interval of one set of values on logarithms; None where `log_t_intervals` has none."""
    array = np.asarray(values, dtype=np.float64)
    low, high = log_t_intervals(array, np.array([len(array)]), confidence)
    return None if np.isnan(low[0]) else (float(low[0]), float(high[0]))


def ratio(numerator: ArrayLike, denominator: ArrayLike) -> Floats:
    """Return numerator / denominator elementwise, NaN where the denominator is zero or either is not finite."""
    top, bottom = np.broadcast_arrays(np.asarray(numerator, np.float64), np.asarray(denominator, np.float64))
    defined = np.isfinite(top) & np.isfinite(bottom) & (bottom != 0)
    quotient = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=quotient, where=defined)
    return quotient


def sqnr_decibels(rel_l2: ArrayLike) -> Floats:
    """Return the signal to quantisation noise ratio in dB of relative L2 errors: -20 log10(error).

    NaN where the error is zero (no noise to compare with) or not finite. Source of the formula: SQNR = 10 log10(signal
    power / noise power), and `rel_l2` is the root of noise power / signal power.
    """
    errors = np.asarray(rel_l2, dtype=np.float64)
    defined = np.isfinite(errors) & (errors > 0)
    logs = np.full(errors.shape, np.nan)
    np.log10(errors, out=logs, where=defined)
    return -20 * logs
