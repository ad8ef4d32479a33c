"""Intervals drawn in table cells, as the CSS variables of `.interval`: shares of the cell's width, and nothing else."""

import math
from collections.abc import Iterable

from ampbench.rows import Row, number
from ampbench.verdicts import Finding

LEAST_SPAN = math.log(2)
"""The scale of times is at least twofold, so that what hardly differs does not look far apart."""
LEAST_LIMIT = 0.1
"""Changes are drawn to 10% at least, or to `THRESHOLDS` times the threshold; what lies beyond is at the edge."""
THRESHOLDS = 5

Scale = tuple[float, float]
"""The natural logarithms of the values at the left and the right edge."""


def log_scale(values: Iterable[object], least: float = 1e-9, margin: float = 0.0) -> Scale | None:
    """Return the logarithmic scale on which all of `values` that are positive numbers lie; None where none is.

    It spans `least` at least, and leaves free a `margin` on either side: that share of the whole.
    """
    logs = [log for value in values if (log := _log(value)) is not None]
    if not logs:
        return None
    low, high = min(logs), max(logs)
    span = max(least, high - low)
    middle, half = (low + high) / 2, span / (1 - 2 * margin) / 2
    return middle - half, middle + half


def log_share(value: object, scale: Scale) -> float | None:
    """Return where a value lies on a scale, as a share of the width; None for what is no positive number."""
    log = _log(value)
    return None if log is None else (log - scale[0]) / (scale[1] - scale[0])


def log_bar(middle: object, low: object, high: object, scale: Scale | None) -> str:
    """Return a value and its interval on a scale, "" where there is none."""
    if scale is None or (place := log_share(middle, scale)) is None:
        return ""
    return _bar(place, log_share(low, scale), log_share(high, scale))


def time_scale(rows: Iterable[Row]) -> Scale | None:
    """Return the scale on which the times of `rows` are drawn, with their intervals; None where there is no time."""
    columns = ("seconds_low", "seconds_median", "seconds_high")
    return log_scale((row[column] for row in rows for column in columns), least=LEAST_SPAN)


def time_bar(row: Row, scale: Scale | None) -> str:
    """Return a row's time and its interval on `scale`, "" where there is none."""
    return log_bar(row["seconds_median"], row["seconds_low"], row["seconds_high"], scale)


def change_limit(findings: Iterable[Finding]) -> float:
    """Return the change at the edges of a column of changes."""
    return (
        max((THRESHOLDS * one.threshold for one in findings if math.isfinite(one.threshold)), default=0) or LEAST_LIMIT
    )


def change_bar(one: Finding, limit: float) -> str:
    """Return a change and its interval between `-limit` and `limit`, and half the width of the threshold's band."""
    if one.change is None or math.isnan(one.change):
        return ""
    exact = one.low is None or one.high is None or one.low == one.high
    middle, low, high = ((end / limit + 1) / 2 for end in (one.change, one.low or 0.0, one.high or 0.0))
    bar = _bar(middle, None, None) if exact else _bar(middle, low, high)
    return f"{bar};--t:{_share(one.threshold / limit / 2)}"


def _bar(middle: float, low: float | None, high: float | None) -> str:
    """Return shares of the width as CSS; without both ends there is no interval."""
    bar = f"--m:{_share(middle)}"
    return bar if low is None or high is None else f"{bar};--l:{_share(low)};--h:{_share(high)}"


def _share(value: float) -> str:
    return f"{round(100 * min(max(value, 0.0), 1.0), 3):.3g}%"


def _log(value: object) -> float | None:
    """Return the logarithm of a time, None where it is none."""
    seconds = number(value)
    return math.log(seconds) if seconds is not None and 0 < seconds < math.inf else None
