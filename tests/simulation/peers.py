"""What asv and pytest-benchmark would say of the same values: their own decisions, over arrays of (cells, values)."""

import numpy as np
from scipy.special import erfc

from ampbench.core.stats import Booleans, Floats


def asv_regressed(baseline: Floats, candidate: Floats, factor: float = 1.05) -> Booleans:
    """Return the cells that `asv compare --factor 1.05` and `asv continuous` mark as worse.

    asv 0.6.6: `commands/compare._is_result_better` wants `_stats.is_different`, a Mann-Whitney U test at 0.002 whose
    ties are broken the least significant way, and a median (`asv_runner.statistics.compute_stats` 0.3.2) that is larger
    by over the factor. Over 20 values a side its p-value is the normal approximation, without correction for
    continuity; that branch alone is here.
    """
    count, other = baseline.shape[1], candidate.shape[1]
    if max(count, other) <= 20:
        raise ValueError("with up to 20 values a side asv takes the exact distribution, which is not here")
    above = np.sum(baseline[:, :, None] > candidate[:, None, :], axis=(1, 2))
    ties = np.sum(baseline[:, :, None] == candidate[:, None, :], axis=(1, 2))
    middle = count * other // 2
    ties = np.where((above <= middle) & (above + ties >= middle), middle - above, ties)
    statistic = np.maximum(
        np.minimum(above, count * other - above), np.minimum(above + ties, count * other - above - ties)
    )
    deviation = np.sqrt(count * other * (count + other + 1) / 12)
    p_value = erfc((count * other / 2 - statistic) / deviation / np.sqrt(2))
    return (p_value < 0.002) & (np.median(baseline, axis=1) < np.median(candidate, axis=1) / factor)


def pytest_benchmark_regressed(baseline: Floats, candidate: Floats, percentage: float = 5) -> Booleans:
    """Return the cells that fail `--benchmark-compare-fail=median:5%`.

    pytest-benchmark 5.3.1, `utils.PercentageRegressionCheck`.
    """
    return np.median(candidate, axis=1) / np.median(baseline, axis=1) * 100 - 100 > percentage
