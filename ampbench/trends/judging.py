"""Where a series changes: the rule that looks at it, and what is said of each change."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ampbench.trends import neighbours, steps
from ampbench.trends.intervals import own_intervals
from ampbench.trends.levels import find_levels
from ampbench.trends.neighbours import Evidence
from ampbench.trends.reducing import RunValues
from ampbench.trends.series import Change, Rule, Series
from ampbench.trends.steps import Step
from ampbench.trends.wording import Differences

WITHOUT_ASV = (
    f"series of {steps.POINTS} points and more have no change points here: they come from asv's step detection, which "
    'pip install "ampbench[asv]" adds'
)
UNKNOWN_NOISE = "not judged: neither rounds nor intervals nor a second run tell how noisy its points are"
RESTLESS = "not judged: it differs so often that it cannot be free of luck"


@dataclass(slots=True)
class Raw:
    """A series before it is judged, and the runs that measured it by the place of their x on the axis."""

    series: Series
    runs: Mapping[int, Sequence[RunValues]]


def judged(raw: Raw, differences: Differences, has_steps: bool) -> Series:
    """Return the series with its changes; `has_steps` tells whether asv's step detection is there."""
    series = raw.series
    if not series.metric.noisy:
        return _by_level(raw, differences)
    held = [place for place, point in enumerate(series.points) if point.value is not None]
    if len(held) < 2:
        return series
    runs = [raw.runs[place] for place in held]
    threshold = math.log1p(series.metric.gate.threshold)
    logs = [math.log(series.points[place].value or math.nan) for place in held]
    if len(held) >= steps.POINTS:
        if not has_steps:
            return replace(series, note=WITHOUT_ASV)
        found = steps.find_steps(logs, threshold)
        rule = Rule.STEPS
    else:
        points = [_evidence(log, series, alike) for log, alike in zip(logs, runs, strict=True)]
        if sum(point.tells for point in points) < 2:
            return replace(series, note=UNKNOWN_NOISE)
        found = neighbours.find_steps(points, threshold)
        rule = Rule.NEIGHBOURS
    changes = [_change(series, held, runs, step, differences) for step in found]
    return replace(series, changes=changes, rule=rule)


def is_too_long(series: Series) -> bool:
    """Return whether a series needs asv's step detection."""
    return series.metric.noisy and len(series.measured) >= steps.POINTS


def _by_level(raw: Raw, differences: Differences) -> Series:
    series = raw.series
    case_id, device = series.case.case_id, series.case.device
    inaccurate = series.metric.gate.kind == "accuracy"
    held = [place for place, point in enumerate(series.points) if point.value is not None or point.undefined]
    if len(held) < 2:
        return series
    runs = [raw.runs[place] for place in held]

    def same(before: int, after: int) -> bool:
        # a point's value may be that of any of its runs
        both = [*runs[before], *runs[after]]
        if inaccurate and any(_may_vary(run, case_id, device) for run in both):
            return False
        return all(differences.same(both[0].header, run.header, device) for run in both[1:])

    values = [series.points[place].value for place in held]
    found = find_levels(values, series.metric.gate, series.metric.scale, same)
    if found is None:
        return replace(series, note=RESTLESS)
    changes = []
    for level in found:
        before, after = values[level.since], values[level.place]
        more = after is None or (before is not None and after > before)
        change = Change(
            x=series.points[held[level.place]].x,
            last=series.points[held[level.place - 1]].x,
            before=before,
            after=after,
            ratio=after / before if before and after is not None else None,
            direction="regressed" if more else "improved",
            what=differences.what(runs[level.since][-1].header, runs[level.place][0].header, device),
        )
        changes.append(change)
    return replace(series, changes=changes, rule=Rule.EXACT)


def _may_vary(run: RunValues, case_id: str, device: str) -> bool:
    """Return whether a step's bits may differ when it is run again: seen, or not looked at on an accelerator."""
    repeatable = run.repeatable.get(case_id)
    return repeatable is False or (repeatable is None and device != "cpu")


def _evidence(log: float, series: Series, runs: Sequence[RunValues]) -> Evidence:
    case_id, metric = series.case.case_id, series.metric
    values = [run.values[metric.column.name][case_id] for run in runs]
    rounds = [run.logs[case_id] for run in runs if len(run.logs.get(case_id, ())) > 1]
    own = own_intervals(runs, values, case_id, metric)
    errors = [] if rounds else [neighbours.interval_error(one.low, one.high, one.confidence) for one in own]
    controls = [run.control for run in runs if run.control is not None]
    return Evidence(log, [math.log(value) for value in values], rounds, errors, controls)


def _change(
    series: Series, held: list[int], runs: Sequence[Sequence[RunValues]], step: Step, differences: Differences
) -> Change:
    low, high = step.interval
    more = step.after > step.before
    better = more == (series.metric.column.better == "higher")
    before, after = runs[step.since][-1].header, runs[step.place][0].header
    return Change(
        x=series.points[held[step.place]].x,
        last=series.points[held[step.since]].x,
        before=math.exp(step.before),
        after=math.exp(step.after),
        ratio=math.exp(step.after - step.before),
        low=math.exp(low),
        high=math.exp(high),
        direction="improved" if better else "regressed",
        what=differences.what(before, after, series.case.device),
    )
