"""The statistics that pytest-benchmark keeps of a benchmark's values.

Source: pytest-benchmark 5.3, `stats.Stats`. A single value has the standard deviation 0 there, by its own definition.
"""

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np


def statistics_of(values: Sequence[float]) -> dict[str, Any]:
    """Return what pytest-benchmark's `Stats` says of `values`.

    Its quartiles are Hazen's, which NumPy has by that name; an outlier lies beyond one standard deviation from the
    mean, or beyond 1.5 interquartile ranges from the quartiles (Tukey).
    """
    mean, total = statistics.mean(values), sum(values)
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    lower, upper = (float(one) for one in np.quantile(values, [0.25, 0.75], method="hazen"))
    low, high = lower - 1.5 * (upper - lower), upper + 1.5 * (upper - lower)
    beyond_deviation = sum(not mean - deviation <= value <= mean + deviation for value in values)
    beyond_fences = sum(not low <= value <= high for value in values)
    return {
        "min": min(values),
        "max": max(values),
        "mean": mean,
        "stddev": deviation,
        "rounds": len(values),
        "median": statistics.median(values),
        "iqr": upper - lower,
        "q1": lower,
        "q3": upper,
        "iqr_outliers": beyond_fences,
        "stddev_outliers": beyond_deviation,
        "outliers": f"{beyond_deviation};{beyond_fences}",
        "ld15iqr": min(value for value in values if value >= low),
        "hd15iqr": max(value for value in values if value <= high),
        "ops": len(values) / total if total else 0.0,
        "total": total,
        "data": list(values),
        "iterations": 1,
    }
