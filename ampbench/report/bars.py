"""Intervals drawn in table cells, as the CSS variables of `.interval`: shares of the cell's width, and nothing else."""

import math
from collections.abc import Iterable

from ampbench.advice import Row, number
from ampbench.verdicts import Finding

LEAST_SPAN = math.log(2)
"""The scale of times is at least twofold, so that what hardly differs does not look far apart."""
LEAST_LIMIT = 0.1
"""Changes are drawn to 10 % at least, or to `THRESHOLDS` times the threshold; what lies beyond is at the edge."""
THRESHOLDS = 5

Scale = tuple[float, float]
"""The natural logarithms of the times at the left and the right edge."""


def time_scale(rows: Iterable[Row]) -> Scale | None:
    """Return the scale on which the times of `rows` are drawn, with their intervals; None where there is no time."""
    columns = ("seconds_low", "seconds_median", "seconds_high")
    logs = [log for row in rows for column in columns if (log := _log(row[column])) is not None]
    if not logs:
        return None
    low, high = min(logs), max(logs)
    missing = max(LEAST_SPAN - (high - low), 0.0)
    return low - missing / 2, high + missing / 2


def time_bar(row: Row, scale: Scale | None) -> str:
    """Return a row's time and its interval on `scale`, "" where there is none."""
    middle = _log(row["seconds_median"])
    if middle is None or scale is None:
        return ""
    left, right = scale
    ends = [_log(row["seconds_low"]), _log(row["seconds_high"])]
    return _bar(*(None if end is None else (end - left) / (right - left) for end in (middle, *ends)))


def change_limit(findings: Iterable[Finding]) -> float:
    """Return the change at the edges of a column of changes."""
    return (
        max((THRESHOLDS * one.threshold for one in findings if math.isfinite(one.threshold)), default=0) or LEAST_LIMIT
    )


def change_bar(one: Finding, limit: float) -> str:
    """Return a change and its interval between `-limit` and `limit`, and half the width of the threshold's band."""
    if one.change is None or math.isnan(one.change):
        return ""
    ends = (one.low, one.high) if one.low is not None and one.high is not None else (None, None)
    places = (None if end is None else (end / limit + 1) / 2 for end in (one.change, *ends))
    return f"{_bar(*places)};--t:{_share(one.threshold / limit / 2)}"


def _bar(middle: float | None, low: float | None, high: float | None) -> str:
    """Return shares of the width as CSS; without both ends there is no interval."""
    bar = f"--m:{_share(middle or 0.0)}"
    return bar if low is None or high is None else f"{bar};--l:{_share(low)};--h:{_share(high)}"


def _share(value: float) -> str:
    return f"{100 * min(max(value, 0.0), 1.0):.3g}%"


def _log(value: object) -> float | None:
    """Return the logarithm of a time, None where it is none."""
    seconds = number(value)
    return math.log(seconds) if seconds is not None and 0 < seconds < math.inf else None
