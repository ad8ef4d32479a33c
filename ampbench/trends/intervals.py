"""What each run says of a point, with its own interval of a time, and the interval of all of them together."""

from collections.abc import Sequence
from dataclasses import dataclass

from ampbench import stats
from ampbench.trends.metrics import TIME, Tracked
from ampbench.trends.reducing import RunValues
from ampbench.trends.series import Measured


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


def measured_by(
    runs: Sequence[RunValues], values: Sequence[float], case_id: str, metric: Tracked
) -> tuple[Measured, ...]:
    """Return what each run says of a point, in the metric's unit."""
    found = []
    for run, value in zip(runs, values, strict=True):
        own = own_interval(run, value, case_id, metric) if metric.noisy else None
        found.append(
            Measured(
                run=run.header.run,
                value=value,
                low=own.value * own.low / own.centre if own else None,
                high=own.value * own.high / own.centre if own else None,
                disturbed=run.disturbed.get(case_id, "") if metric.noisy else "",
            )
        )
    return tuple(found)


def point_interval(each: Sequence[Measured], metric: Tracked) -> tuple[float | None, float | None]:
    """Return the interval of a point of a time: that of its runs' values, or that of its only run."""
    if not metric.noisy:
        return None, None
    if len(each) == 1:
        return each[0].low, each[0].high
    values = [one.value for one in each]
    interval = stats.log_t_interval(values) if len(values) >= stats.ROUNDS_FOR_INTERVAL else None
    return interval or (None, None)


def own_interval(run: RunValues, value: float, case_id: str, metric: Tracked) -> OwnInterval | None:
    """Return the interval that a run has of its value, in the direction of the metric."""
    if case_id not in run.intervals:
        return None
    low, high = run.intervals[case_id]
    if metric.column.name == TIME:
        return OwnInterval(value, low, high, value, run.confidence)
    if case_id not in run.values.get(TIME, {}):
        return None
    return OwnInterval(value, 1 / high, 1 / low, 1 / run.values[TIME][case_id], run.confidence)
