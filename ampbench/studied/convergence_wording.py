"""Metrics of trainings and differences between them in words, and why a verdict is what it is."""

from ampbench.studied.convergence_judging import Judged
from ampbench.studied.convergence_metric import ACCURACY, Metric
from ampbench.units import UNDEFINED, counted
from ampbench.verdicts import Verdict

MANY_SEEDS = 50
"""More seeds than this are not worth recommending."""


def format_metric(value: float | None, metric: Metric) -> str:
    """Return an accuracy as "97.87%", a loss as "0.3127"."""
    if value is None:
        return UNDEFINED
    return f"{value:.2%}" if metric.name == ACCURACY else f"{value:.4g}"


def format_change(value: float | None, metric: Metric) -> str:
    """Return a difference from fp32 as "+0.13", in points of accuracy, or "+0.13%", of a loss."""
    if value is None:
        return UNDEFINED
    number = f"{_rounded(value):+.2f}"
    return number if metric.name == ACCURACY else f"{number}%"


def size_said(value: float | None, metric: Metric) -> str:
    """Return the size of a difference as "0.13 points" or "0.13% of the loss"; "nothing" where there is none."""
    if value is None:
        return UNDEFINED
    if value == 0:
        return "nothing"
    number = f"{abs(_rounded(value)):.2f}" if abs(value) >= 5e-5 else "less than 0.01"
    return f"{number} points" if metric.name == ACCURACY else f"{number}% of the loss"


def metric_said(metric: Metric) -> str:
    """Return what is measured, as "accuracy on held-out data" or "loss on the training data"."""
    return f"{metric.name} on {'held-out data' if metric.held_out else 'the training data'}"


def change_said(value: float, metric: Metric) -> str:
    """Return "its accuracy is 1.20 points lower" or "its loss is 0.50% higher"."""
    unit = " points" if metric.name == ACCURACY else "%"
    return f"its {metric.name} is {abs(_rounded(value)):.2f}{unit} {'lower' if value < 0 else 'higher'}"


def interval_said(low: float | None, high: float | None, metric: Metric) -> str:
    """Return "(90% interval -1.50 to -0.90)"; "" where there is none."""
    if low is None or high is None:
        return ""
    return f"(90% interval {format_change(low, metric)} to {format_change(high, metric)})"


def reason_of(judged: Judged, metric: Metric, low: float | None, high: float | None) -> str:
    """Return why a verdict that numbers decided is what it is; `low` and `high` are the interval as it is told."""
    between = interval_said(low, high, metric)
    if judged.verdict is Verdict.UNCHANGED:
        return f"within {size_said(metric.margin, metric)} of fp32 {between}".strip()
    said = f"{change_said(judged.difference * metric.sign, metric)} than in fp32 {between}".strip()
    if judged.verdict is not Verdict.INCONCLUSIVE:
        return said
    needed = judged.seeds_needed
    if needed is None:
        return f"{said}, too near the margin of {size_said(metric.margin, metric)} for any number of seeds"
    more = f"about {counted(needed, 'seed')}" if needed <= MANY_SEEDS else f"more than {MANY_SEEDS} seeds"
    return f"{said}; {more} would decide"


def _rounded(value: float) -> float:
    """Return 100 times a share, rounded to two digits, and never "-0.00"."""
    return round(100 * value, 2) + 0.0
