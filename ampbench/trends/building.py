"""Runs become series: which are comparable, what stands at each x, where a series changes and by which rule."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ampbench import stats
from ampbench.errors import NothingToRunError, UnknownNameError
from ampbench.records.cases import Case
from ampbench.records.environments import Environment
from ampbench.records.runs import Header
from ampbench.trends import neighbours, steps
from ampbench.trends.axes import AXES, Placed, ordered
from ampbench.trends.history import History
from ampbench.trends.levels import find_levels
from ampbench.trends.metrics import TIME, Tracked
from ampbench.trends.neighbours import Evidence
from ampbench.trends.series import Change, Place, Point, Rule, Series, Trend, X
from ampbench.trends.sources import RunValues
from ampbench.trends.steps import Step
from ampbench.trends.wording import Differences

OWN_PROGRAM = "ampbench"
WITHOUT_ASV = (
    f"series of {steps.POINTS} points and more have no change points here: they come from asv's step detection, which "
    'pip install "ampbench[asv]" adds'
)
UNKNOWN_NOISE = "not judged: neither rounds nor intervals nor a second run tell how noisy its points are"
RESTLESS = "not judged: it differs so often that it cannot be free of luck"
NOT_THERE = "not measured"
OTHER_NUMBERS = "measured with other weights, inputs, or by another count"

_Runs = Sequence[RunValues]


def make_trend(runs: _Runs, axis: str, metrics: Sequence[Tracked], history: History | None = None) -> Trend:
    """Return the series of `metrics` over `axis` (one of `AXES`), with their change points.

    `history` is the repository that commits are looked up in; by default that of the current folder. Raises
    `UnknownNameError` for another axis, `NothingToRunError` where no run has an x or no case one of the metrics.
    """
    if axis not in AXES:
        raise UnknownNameError("axis", axis, AXES)
    history = history or History()
    placed, left_out = AXES[axis]([run.header for run in runs], history)
    grids: dict[Place, _Grid] = {}
    for run, where in zip(runs, placed, strict=True):
        if where is None:
            continue
        for device in dict.fromkeys(case.device for case in run.cases.values()):
            place = _place(run.header, device, axis)
            grids.setdefault(place, _Grid(place)).add(where, run)
    differences = Differences(history)
    has_steps = steps.available()
    found: list[Series] = []
    for grid in grids.values():
        for one in grid.raw_series(metrics):
            found.append(_judged(one, differences, has_steps))
    if not found:
        why = "; ".join(f"{count} with {reason}" for reason, count in left_out.items())
        raise NothingToRunError(f"no series: {why}" if why else "no series: no case has a number of these metrics")
    notes = [] if has_steps or not any(_too_long(one) for one in found) else [WITHOUT_ASV]
    return Trend(
        axis=axis,
        series=found,
        runs={place: sum(map(len, grid.columns.values())) for place, grid in grids.items()},
        left_out=dict(left_out),
        notes=notes,
    )


@dataclass(slots=True)
class _Raw:
    """A series before it is judged, and the runs that have a value of it by the place of their x on the axis."""

    series: Series
    runs: Mapping[int, list[RunValues]]


_Key = tuple[str, int, str, str]
"""What the points of a series share within a place: case id, the workload's version, metric, and `_numbers_of`."""


@dataclass(slots=True)
class _Grid:
    """The runs of one place by their x."""

    place: Place
    columns: dict[X, list[RunValues]] = field(default_factory=dict)
    _placed: list[Placed] = field(default_factory=list)

    def add(self, where: Placed, run: RunValues) -> None:
        self._placed.append(where)
        self.columns.setdefault(where.x, []).append(run)

    def raw_series(self, metrics: Sequence[Tracked]) -> list[_Raw]:
        """Return a series for each case and metric that has a value anywhere, in the order of the runs' plans."""
        axis = ordered(self._placed)
        cases: dict[tuple[str, int], Case] = {}
        held: dict[_Key, dict[int, list[RunValues]]] = {}
        for number, x in enumerate(axis):
            for run in self.columns[x]:
                for case_id, case in run.cases.items():
                    if case.device == self.place.device:
                        cases.setdefault((case_id, case.version), case)
                for metric in metrics:
                    for case_id in run.values[metric.column.name]:
                        key = (case_id, run.cases[case_id].version, metric.name, _numbers_of(run, case_id, metric))
                        held.setdefault(key, {}).setdefault(number, []).append(run)
        order = {key: number for number, key in enumerate(cases)}
        by_name = {metric.name: (number, metric) for number, metric in enumerate(metrics)}
        chosen = [key for key in held if key[:2] in cases]
        chosen.sort(key=lambda key: (order[key[:2]], by_name[key[2]][0]))
        return [self._series(axis, cases[key[:2]], by_name[key[2]][1], held[key]) for key in chosen]

    def _series(self, axis: Sequence[X], case: Case, metric: Tracked, held: Mapping[int, list[RunValues]]) -> _Raw:
        case_id, column = case.case_id, metric.column.name
        points = []
        for number, x in enumerate(axis):
            runs = held.get(number)
            if runs is None:
                points.append(Point(x=x, value=None, missing=_why_missing(self.columns[x], case_id, column)))
                continue
            values = [run.values[column][case_id] for run in runs]
            low, high = _interval(runs, values, case_id, metric)
            ids = tuple(run.header.run for run in runs)
            points.append(Point(x=x, value=stats.median(values), low=low, high=high, runs=len(ids), run_ids=ids))
        return _Raw(Series(case=case, metric=metric, place=self.place, points=points), held)


def _place(header: Header, device: str, axis: str) -> Place:
    environment = header.environment
    return Place(
        program=header.imported.program if header.imported else OWN_PROGRAM,
        host=environment.host,
        cpu=environment.cpu,
        device=device,
        device_name=_device_name(environment, device),
        threads=environment.threads,
        torch_version="" if axis == "torch_version" else environment.torch_version,
        settings=tuple(sorted(header.arm.settings.items())) if header.arm else (),
    )


def _device_name(environment: Environment, device: str) -> str:
    described = environment.device(device)
    return described.name if described is not None and device != "cpu" else ""


def _numbers_of(run: RunValues, case_id: str, metric: Tracked) -> str:
    """Return what values of a metric must share to be comparable, beside the case: for errors, weights and inputs."""
    if metric.gate.kind == "memory":
        return run.memory_source.get(case_id, "")
    return run.numbers.get(case_id, "") if metric.gate.kind == "accuracy" else ""


def _why_missing(runs: _Runs, case_id: str, column: str) -> str:
    told = [run.missing[case_id] for run in runs if case_id in run.missing]
    if told:
        return told[-1]
    return OTHER_NUMBERS if any(case_id in run.values[column] for run in runs) else NOT_THERE


def _interval(
    runs: _Runs, values: Sequence[float], case_id: str, metric: Tracked
) -> tuple[float, float] | tuple[None, None]:
    """Return the interval of a point of a time, in the metric's unit."""
    if not metric.noisy:
        return None, None
    interval = stats.log_t_interval(values) if len(values) >= stats.ROUNDS_FOR_INTERVAL else None
    if interval is not None:
        return interval
    own = [
        (value * low / seconds, value * high / seconds)
        for value, (low, high), seconds in _own_intervals(runs, values, case_id, metric)
    ]
    return max(own, key=lambda ends: ends[1] / ends[0]) if own else (None, None)


def _own_intervals(
    runs: _Runs, values: Sequence[float], case_id: str, metric: Tracked
) -> list[tuple[float, tuple[float, float], float]]:
    """Return value, interval and centre of each run that has an interval, in the direction of the metric."""
    found = []
    for run, value in zip(runs, values, strict=True):
        if case_id not in run.intervals:
            continue
        low, high = run.intervals[case_id]
        if metric.column.name == TIME:
            found.append((value, (low, high), value))
        elif case_id in run.values.get(TIME, {}):
            seconds = run.values[TIME][case_id]
            found.append((value, (1 / high, 1 / low), 1 / seconds))
    return found


def _too_long(series: Series) -> bool:
    return series.metric.noisy and len(series.measured) >= steps.POINTS


def _judged(raw: _Raw, differences: Differences, has_steps: bool) -> Series:
    series = raw.series
    held = [place for place, point in enumerate(series.points) if point.value is not None]
    if len(held) < 2:
        return series
    runs = [raw.runs[place] for place in held]
    if not series.metric.noisy:
        return _by_level(series, held, runs, differences)
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


def _by_level(series: Series, held: list[int], runs: Sequence[_Runs], differences: Differences) -> Series:
    case_id, device = series.case.case_id, series.case.device
    inaccurate = series.metric.gate.kind == "accuracy"

    def same(before: int, after: int) -> bool:
        sides = (runs[before][-1], runs[after][0])
        if inaccurate and any(_may_vary(run, case_id, device) for run in sides):
            return False
        return differences.same(sides[0].header, sides[1].header, device)

    values = [series.points[place].value or 0.0 for place in held]
    found = find_levels(values, series.metric.gate, series.metric.scale, same)
    if found is None:
        return replace(series, note=RESTLESS)
    changes = [
        Change(
            x=series.points[held[level.place]].x,
            last=series.points[held[level.place - 1]].x,
            before=values[level.since],
            after=values[level.place],
            ratio=values[level.place] / values[level.since] if values[level.since] else None,
            direction="regressed" if values[level.place] > values[level.since] else "improved",
            what=differences.what(runs[level.since][-1].header, runs[level.place][0].header, device),
        )
        for level in found
    ]
    return replace(series, changes=changes, rule=Rule.EXACT)


def _may_vary(run: RunValues, case_id: str, device: str) -> bool:
    """Return whether a step's bits may differ when it is run again: seen, or not looked at on an accelerator."""
    repeatable = run.repeatable.get(case_id)
    return repeatable is False or (repeatable is None and device != "cpu")


def _evidence(log: float, series: Series, runs: _Runs) -> Evidence:
    case_id, metric = series.case.case_id, series.metric
    values = [run.values[metric.column.name][case_id] for run in runs]
    rounds = [run.logs[case_id] for run in runs if len(run.logs.get(case_id, ())) > 1]
    intervals = _own_intervals(runs, values, case_id, metric)
    errors = [] if rounds else [neighbours.interval_error(*ends) for _, ends, _ in intervals]
    controls = [run.control for run in runs if run.control is not None]
    return Evidence(log, [math.log(value) for value in values], rounds, errors, controls)


def _change(series: Series, held: list[int], runs: Sequence[_Runs], step: Step, differences: Differences) -> Change:
    low, high = step.interval
    more = step.after > step.before
    better = more == (series.metric.column.better == "higher")
    before, after = runs[step.place - 1][-1].header, runs[step.place][0].header
    return Change(
        x=series.points[held[step.place]].x,
        last=series.points[held[step.place - 1]].x,
        before=math.exp(step.before),
        after=math.exp(step.after),
        ratio=math.exp(step.after - step.before),
        low=math.exp(low),
        high=math.exp(high),
        direction="improved" if better else "regressed",
        what=differences.what(before, after, series.case.device),
    )
