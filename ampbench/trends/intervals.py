"""The interval of a point of a time: of its runs' values, or of those that its runs have themselves."""

from collections.abc import Sequence
from dataclasses import dataclass

from ampbench import stats
from ampbench.trends.metrics import TIME, Tracked
from ampbench.trends.reducing import RunValues


@dataclass(frozen=True, slots=True)
class OwnInterval:
    """The interval that a run has of its `value`, from `low` to `high`, of so much `confidence` (0.95).

    `centre` is the same number by the run's time, which is what the interval is about.
    """

    value: float
    low: float
    high: float
    centre: float
    confidence: float


def point_interval(
    runs: Sequence[RunValues], values: Sequence[float], case_id: str, metric: Tracked
) -> tuple[float, float] | tuple[None, None]:
    """Return the interval of a point of a time, in the metric's unit."""
    if not metric.noisy:
        return None, None
    interval = stats.log_t_interval(values) if len(values) >= stats.ROUNDS_FOR_INTERVAL else None
    if interval is not None:
        return interval
    own = [
        (one.value * one.low / one.centre, one.value * one.high / one.centre)
        for one in own_intervals(runs, values, case_id, metric)
    ]
    return max(own, key=lambda ends: ends[1] / ends[0]) if own else (None, None)


def own_intervals(
    runs: Sequence[RunValues], values: Sequence[float], case_id: str, metric: Tracked
) -> list[OwnInterval]:
    """Return the interval of each run that has one, in the direction of the metric."""
    found = []
    for run, value in zip(runs, values, strict=True):
        if case_id not in run.intervals:
            continue
        low, high = run.intervals[case_id]
        if metric.column.name == TIME:
            found.append(OwnInterval(value, low, high, value, run.confidence))
        elif case_id in run.values.get(TIME, {}):
            seconds = run.values[TIME][case_id]
            found.append(OwnInterval(value, 1 / high, 1 / low, 1 / seconds, run.confidence))
    return found
