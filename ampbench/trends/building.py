"""Runs become series: which are comparable, and what stands at each x."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ampbench import stats
from ampbench.comparing.drifting import drift_between
from ampbench.errors import NothingToRunError, UnknownNameError
from ampbench.metrics import DRIFT
from ampbench.records.cases import Case
from ampbench.records.environments import Environment
from ampbench.records.runs import PLAIN, Header
from ampbench.trends import steps
from ampbench.trends.axes import AXES, TORCH, Placed, by_commit, ordered
from ampbench.trends.history import History
from ampbench.trends.intervals import measured_by, point_interval
from ampbench.trends.judging import WITHOUT_ASV, Raw, is_too_long, judged
from ampbench.trends.metrics import Tracked
from ampbench.trends.reducing import RunValues
from ampbench.trends.series import UNDEFINED, Lost, Place, Point, Series, Trend, X
from ampbench.trends.wording import Differences

OWN_PROGRAM = "ampbench"
OTHER_COMMIT = "another commit: over versions of torch the commit is held fixed"
NOT_THERE = "not measured"
OTHER_NUMBERS = "measured with other weights, inputs, or by another count"

_Runs = Sequence[RunValues]


def make_trend(runs: _Runs, axis: str, metrics: Sequence[Tracked], history: History | None = None) -> Trend:
    """Return the series of `metrics` over `axis` (one of `AXES`), with their change points.

    `history` is the repository that commits are looked up in; by default that of the current folder. Raises
    `UnknownNameError` for another axis, `StoreError` for a run whose time is none, `NothingToRunError` where no run has
    an x or no case one of the metrics.
    """
    if axis not in AXES:
        raise UnknownNameError("axis", axis, AXES)
    history = history or History()
    placed, left_out = AXES[axis]([run.header for run in runs], history)
    held = list(zip(runs, placed, strict=True))
    shown = _fixed_commits(held, history) if axis == TORCH else None
    grids: dict[Place, _Grid] = {}
    for run, where in held:
        if where is None:
            continue
        used = False
        for device in dict.fromkeys(case.device for case in run.cases.values()):
            place = place_of(run.header, device, axis)
            commit = run.header.commit or ""
            cases = {(id, case.version) for id, case in run.cases.items() if case.device == device}
            if shown is not None:
                cases = {one for one in cases if shown[place, one] == commit}
                place = replace(place, commit=commit)
            if cases:
                grids.setdefault(place, _Grid(place)).add(where, run, cases)
                used = True
        if not used:
            left_out[OTHER_COMMIT] += 1
    differences = Differences(history)
    has_steps = steps.available()
    raws = [raw for grid in grids.values() for raw in grid.raw_series(metrics)]
    lost = [one for grid in grids.values() for one in grid.lost()]
    if not raws:
        raise NothingToRunError(f"no series: {_why_none(left_out, lost)}")
    found, shifts = judged(raws, differences, has_steps)
    notes = [] if has_steps or not any(is_too_long(one) for one in found) else [WITHOUT_ASV]
    return Trend(
        axis=axis,
        series=found,
        shifts=shifts,
        runs={place: sum(map(len, grid.columns.values())) for place, grid in grids.items()},
        left_out=dict(left_out),
        lost=lost,
        notes=notes,
    )


def _fixed_commits(
    held: Sequence[tuple[RunValues, Placed | None]], history: History
) -> dict[tuple[Place, "_Version"], str]:
    """Return which commit each case is shown at over versions of torch, by its place without a commit.

    A version must not be blamed for a commit, so that is one: the newest that has several versions of the case, else
    the newest that has it.
    """
    order, _ = by_commit([run.header for run, _ in held], history)
    versions: dict[tuple[Place, _Version], dict[str, set[Any]]] = {}
    ages: dict[str, tuple[Any, ...]] = {}
    for (run, where), aged in zip(held, order, strict=True):
        if where is None:
            continue
        commit = run.header.commit or ""
        ages[commit] = aged.key if aged is not None else ()  # without a commit: before all others
        for case_id, case in run.cases.items():
            place = place_of(run.header, case.device, TORCH)
            versions.setdefault((place, (case_id, case.version)), {}).setdefault(commit, set()).add(where.key)
    return {
        key: max(commits, key=lambda commit: (len(commits[commit]) > 1, ages[commit]))
        for key, commits in versions.items()
    }


def _why_none(left_out: Mapping[str, int], lost: Sequence[Lost]) -> str:
    said = [f"{count} with {reason}" for reason, count in left_out.items()]
    if lost:
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        said.append(f"{lost[0].case.case_id} at {lost[0].x.label} {lost[0].reason}{more}")
    return "; ".join(said) or "no case has a number of these metrics"


_Version = tuple[str, int]
"""A case, by its id and the version of its workload."""
_Key = tuple[str, int, str, str]
"""What the points of a series share within a place: case id, the workload's version, metric, and `_numbers_of`."""
_Held = dict[_Key, dict[int, list[RunValues]]]
"""The runs of each series by the place of their x on the axis."""


@dataclass(slots=True)
class _Grid:
    """The runs of one place, by what their x is sorted by: "2.15" and "2.15.0" are one x."""

    place: Place
    columns: dict[tuple[Any, ...], list[RunValues]] = field(default_factory=dict)
    _placed: list[Placed] = field(default_factory=list)
    _cases: set[_Version] = field(default_factory=set)

    def add(self, where: Placed, run: RunValues, cases: set[_Version]) -> None:
        """Add a run for those of its cases that are shown here."""
        self._placed.append(where)
        self.columns.setdefault(where.key, []).append(run)
        self._cases |= cases

    def raw_series(self, metrics: Sequence[Tracked]) -> list[Raw]:
        """Return a series for each case and metric that has a value anywhere, in the order of the runs' plans."""
        axis = ordered(self._placed)
        cases: dict[_Version, Case] = {}
        held: _Held = {}
        undefined: _Held = {}
        for number, where in enumerate(axis):
            for run in self.columns[where.key]:
                for case_id, case in run.cases.items():
                    if (case_id, case.version) in self._cases:
                        cases.setdefault((case_id, case.version), case)
                for metric in metrics:
                    name = metric.column.name
                    for known, into in ((run.values[name], held), (run.undefined[name], undefined)):
                        for case_id in known:
                            numbers = _numbers_of(run, case_id, metric)
                            key = (case_id, run.cases[case_id].version, metric.name, numbers)
                            into.setdefault(key, {}).setdefault(number, []).append(run)
        order = {key: number for number, key in enumerate(cases)}
        by_name = {metric.name: (number, metric) for number, metric in enumerate(metrics)}
        chosen = [key for key in held if key[:2] in cases]
        chosen.sort(key=lambda key: (order[key[:2]], by_name[key[2]][0]))
        return [
            self._series(axis, cases[key[:2]], by_name[key[2]][1], key[3], held[key], undefined.get(key, {}))
            for key in chosen
        ]

    def lost(self) -> list[Lost]:
        """Return the cases that failed and have no number of any metric."""
        failed: dict[_Version, Lost] = {}
        for where in ordered(self._placed):
            for run in self.columns[where.key]:
                for case_id, reason in run.missing.items():
                    case = run.cases[case_id]
                    if reason.startswith("failed") and (case_id, case.version) in self._cases:
                        failed[case_id, case.version] = Lost(case=case, place=self.place, x=where.x, reason=reason)
        runs = [run for alike in self.columns.values() for run in alike]
        return [one for one in failed.values() if not any(_measured(run, one.case) for run in runs)]

    def _series(
        self,
        axis: Sequence[Placed],
        case: Case,
        metric: Tracked,
        numbers: str,
        held: Mapping[int, list[RunValues]],
        undefined: Mapping[int, list[RunValues]],
    ) -> Raw:
        column, runs = metric.column.name, {}
        points = []
        if column == DRIFT:
            held, undefined = _from_first(held, case.case_id)
        for number, where in enumerate(axis):
            known, broken = held.get(number, []), undefined.get(number, [])
            if known or broken:
                runs[number] = [*known, *broken]
                points.append(_point(where.x, known, broken, case.case_id, metric))
            else:
                missing = _why_missing(self.columns[where.key], case, column)
                points.append(Point(x=where.x, value=None, missing=missing))
        return Raw(Series(case=case, metric=metric, place=self.place, numbers=numbers, points=points), runs)


def _from_first(held: Mapping[int, list[RunValues]], case_id: str) -> tuple[dict[int, list[RunValues]], ...]:
    """Return the runs with how far the fp64 result of each lies from that of the first, and those with other shapes."""
    found: tuple[dict[int, list[RunValues]], ...] = ({}, {})
    first = held[min(held)][0].measured.stored.divergence[case_id]
    for number, runs in held.items():
        for run in runs:
            drift = drift_between(first, run.measured.stored.divergence[case_id])
            if drift.distance is None:
                told = {DRIFT: {case_id: f"{UNDEFINED}: {drift.said(0.0)}"}}
                found[1].setdefault(number, []).append(replace(run, undefined={**run.undefined, **told}))
            else:
                values = {**run.values, DRIFT: {case_id: drift.distance}}
                found[0].setdefault(number, []).append(replace(run, values=values))
    return found


def _point(x: X, runs: _Runs, broken: _Runs, case_id: str, metric: Tracked) -> Point:
    """Return the median of the runs; those in `broken`, whose number is undefined, count as worse than any number."""
    column = metric.column.name
    if metric.noisy:  # as comparisons leave out what was disturbed, where that leaves anything
        runs = [run for run in runs if case_id not in run.disturbed] or runs
    ids = tuple(run.header.run for run in (*runs, *broken))
    values = [run.values[column][case_id] for run in runs]
    value = stats.median([*values, *[math.inf] * len(broken)])
    if math.isinf(value):
        missing = broken[-1].undefined[column][case_id]
        return Point(x=x, value=None, runs=len(ids), run_ids=ids, missing=missing)
    each = measured_by(runs, values, case_id, metric)
    low, high = point_interval(each, metric)
    return Point(x=x, value=value, low=low, high=high, runs=len(ids), run_ids=ids, each=each)


def place_of(header: Header, device: str, axis: str) -> Place:
    """Return where and by what a run measured on `device`, for series over `axis`; a commit held fixed is not in it."""
    environment = header.environment
    given = header.arm.settings if header.arm else {}
    plain = device == "cpu" and header.settings.heap == PLAIN
    return Place(
        program=header.imported.program if header.imported else OWN_PROGRAM,
        host=environment.host,
        cpu=environment.cpu,
        device=device,
        device_name=_device_name(environment, device),
        threads=environment.threads,
        torch_version="" if axis == TORCH else environment.torch_version,
        settings=tuple(sorted((given | ({"heap": PLAIN} if plain else {})).items())),
    )


def _device_name(environment: Environment, device: str) -> str:
    described = environment.device(device)
    return described.name if described is not None and device != "cpu" else ""


def _measured(run: RunValues, case: Case) -> bool:
    """Return whether a run has any number of a case."""
    known = any(case.case_id in values for values in run.values.values())
    return known and run.cases[case.case_id].version == case.version


def _numbers_of(run: RunValues, case_id: str, metric: Tracked) -> str:
    """Return what values of a metric must share to be comparable, beside the case: for errors, weights and inputs."""
    if metric.gate.kind == "memory":
        return run.memory_source.get(case_id, "")
    return run.numbers.get(case_id, "") if metric.gate.kind == "accuracy" else ""


def _why_missing(runs: _Runs, case: Case, column: str) -> str:
    case_id = case.case_id
    told = [run.missing[case_id] for run in runs if case_id in run.missing]
    if told:
        return told[-1]
    others = [run for run in runs if case_id in run.values[column] or case_id in run.undefined[column]]
    if not others:
        return NOT_THERE
    versions = [run.cases[case_id].version for run in others]
    return OTHER_NUMBERS if case.version in versions else f"measured in version {versions[-1]} of the workload"
