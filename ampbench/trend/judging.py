"""Where series change: the rule that looks at each, what all of them did together, and what is said of a change.

The latter says in one line, too, in what the runs on both sides differ.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from ampbench.core import stats
from ampbench.judge.exact import other_function
from ampbench.judge.pairing import EnvironmentDifferences
from ampbench.records.changes import Change as CaseChange
from ampbench.records.changes import ChangeCode, ChangeStatus, Difference
from ampbench.records.run import DIRTY, Header, short_commit
from ampbench.show.changes import drift_said
from ampbench.trend import steps
from ampbench.trend.reducing import RunValues
from ampbench.trend.series import Change, History, Place, Rule, Series, Shift
from ampbench.trend.steps import FAMILY_ALPHA, Evidence, Gap, Height, Level, Variance, find_levels, own_interval

_FIRST = ("torch", "torch build", "torchvision")
"""What explains most is said first."""
_LONGEST = 40
"""Values longer than this, such as lists of instructions, are not written out."""
_HASHES = ("torch build",)


class Differences:
    """The differences of pairs of runs, each pair compared once."""

    def __init__(self, history: History):
        self._history = history
        self._environments: dict[tuple[str, str, str], EnvironmentDifferences] = {}
        self._commits: dict[tuple[str | None, str | None], str] = {}
        self._times: dict[tuple[str, str], Mapping[str, CaseChange]] = {}

    def of_time(self, before: RunValues, after: RunValues, case_id: str) -> CaseChange | None:
        """Return what `ampbench compare` says of a case's time in two runs."""
        pair = (before.header.run, after.header.run)
        if pair not in self._times:
            from ampbench.judge.compare import compare_times  # many trends have nothing but long series

            self._times[pair] = compare_times(before.measured, after.measured)
        return self._times[pair].get(case_id)

    def same(self, before: Header, after: Header, device: str) -> bool:
        """Return whether numbers of `device` that luck has no part in must be equal."""
        return self._compared(before, after, device).same(device)

    def what(self, before: Header, after: Header, device: str) -> str:
        """Return in what two runs differ: "torch 2.12.1 → 2.13.0; 3 commits, abc1234 subject", "" where in nothing."""
        found = [one for one in self._compared(before, after, device).found if one.name != "commit"]
        found.sort(key=lambda one: _FIRST.index(one.name) if one.name in _FIRST else len(_FIRST))
        said = [_in_words(one) for one in found]
        if before.commit != after.commit:
            said.append(self._commit(before.commit, after.commit))
        return "; ".join(said)

    def _compared(self, before: Header, after: Header, device: str) -> EnvironmentDifferences:
        pair = (before.run, after.run, device)
        if pair not in self._environments:
            self._environments[pair] = EnvironmentDifferences(before, after, devices=[device], settings={})
        return self._environments[pair]

    def _commit(self, before: str | None, after: str | None) -> str:
        if (before, after) not in self._commits:
            self._commits[before, after] = self._between(before, after)
        return self._commits[before, after]

    def _between(self, before: str | None, after: str | None) -> str:
        new = (after or "").removesuffix(DIRTY)
        known = self._history.commits([new]) if before and after else {}
        if before is None or after is None or new not in known:
            return f"commit {_short(before)} → {_short(after)}"
        old = before.removesuffix(DIRTY)
        if old == new:
            return f"changes that were not committed, {_short(after)}"
        named = f"{_short(after)} {known[new].subject}".strip()
        count = self._history.between(old, new)
        return f"{count} commits, {named}" if count and count > 1 else named


def _in_words(one: Difference) -> str:
    if max(len(one.baseline), len(one.candidate)) > _LONGEST:
        before, after = (short_commit(value) if one.name in _HASHES else "" for value in (one.baseline, one.candidate))
        return f"{one.name} {before} → {after}" if before else f"other {one.name}"
    return f"{one.name} {one.baseline} → {one.candidate}"


def _short(commit: str | None) -> str:
    return "none" if commit is None else short_commit(commit)


WITHOUT_ASV = (
    f"series of {steps.POINTS} points and more have no change points here: they come from asv's step detection, which "
    'pip install "ampbench[asv]" adds'
)
UNKNOWN_NOISE = "not judged: neither rounds nor intervals nor a second run tell how noisy its points are"
RESTLESS = "not judged: it differs so often that it cannot be free of luck"
FUNCTION = "floor"
"""The metric whose series says where a case computes something else, though its error may be the same."""
REFERENCE = "reference"
"""The metric that is what a case computes: it changes there, and nowhere else."""
MOST_RUNS = 4
"""Of each of two neighbouring points so many runs, the newest, are compared, each with each."""
_CHANGED = (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED)


@dataclass(slots=True)
class Raw:
    """A series before it is judged, the `places` of its points that were measured, and the runs that did, by place.

    `alike`: all of them computed the same, equal to the last bit; of times nothing tells.
    """

    series: Series
    places: Sequence[int]
    runs: Callable[[int], Sequence[RunValues]]
    alike: bool = False


def judged(raws: Sequence[Raw], differences: Differences, has_steps: bool) -> tuple[list[Series], list[Shift]]:
    """Return the series with their changes, and what the times of each place did together.

    `has_steps` tells whether asv's step detection is there.
    """
    found: dict[int, Series] = {}
    shifts: dict[tuple[Place, str], Shift] = {}
    noisy: dict[str, list[int]] = {}
    for number, raw in enumerate(raws):
        if raw.series.metric.noisy:
            noisy.setdefault(raw.series.metric.name, []).append(number)
        else:
            found[number] = _by_level(raw, differences)
    for numbers in noisy.values():
        times = _Times([raws[number] for number in numbers], differences, has_steps)
        found |= zip(numbers, times.judged(), strict=True)
        for shift in times.shifts:  # a rate does what the time does
            shifts.setdefault((shift.place, shift.x.value), shift)
    return [found[number] for number in range(len(raws))], list(shifts.values())


def is_too_long(series: Series) -> bool:
    """Return whether a series needs asv's step detection."""
    return series.metric.noisy and len(_held(series)) >= steps.POINTS


def _held(series: Series) -> list[int]:
    """Return the places of the points that are judged: those with a value, of a time those that nothing disturbed."""
    disturbed = series.disturbed
    return [place for place, value in enumerate(series.values) if value is not None and place not in disturbed]


def _by_level(raw: Raw, differences: Differences) -> Series:
    series = raw.series
    case_id, device = series.case.case_id, series.case.device
    inaccurate = series.metric.gate.kind == "accuracy"
    held = raw.places
    if len(held) < 2:
        return series

    def runs(point: int) -> Sequence[RunValues]:
        return raw.runs(held[point])

    def same(before: int, after: int) -> bool:
        # a point's value may be that of any of its runs
        both = [*runs(before), *runs(after)]
        if inaccurate and any(_may_vary(run, case_id, device) for run in both):
            return False
        return all(differences.same(both[0].header, run.header, device) for run in both[1:])

    every = series.values
    values = [every[place] for place in held]
    by_itself = series.metric.name == REFERENCE
    found = [] if by_itself else find_levels(values, series.metric.gate, series.metric.scale, same)
    if found is None:
        return replace(series, note=RESTLESS)
    if not raw.alike and (by_itself or series.metric.name == FUNCTION):
        known = {level.place for level in found}
        gaps = (place for place in range(1, len(held)) if place not in known)
        places = [place for place in gaps if _moved(runs(place - 1)[-1], runs(place)[0], case_id)]
        found = sorted([*found, *(Level(place - 1, place) for place in places)], key=lambda level: level.place)
    changes = []
    for level in found:
        before, after = values[level.since], values[level.place]
        more = after is None or (before is not None and after > before)
        sides = runs(level.since)[-1], runs(level.place)[0]
        what = differences.what(sides[0].header, sides[1].header, device)
        moved = drift_said(facts) if inaccurate and (facts := _moved(*sides, case_id)) else ""
        change = Change(
            x=series.points[held[level.place]].x,
            last=series.points[held[level.place - 1]].x,
            before=before,
            after=after,
            ratio=after / before if before and after is not None else None,
            # another function is no better for errors of its own
            direction="regressed" if more or moved else "improved",
            other_function=bool(moved),
            what="; ".join(part for part in (moved and f"computes something else: {moved}", what) if part),
        )
        changes.append(change)
    return replace(series, changes=changes, rule=Rule.EXACT)


def _moved(before: RunValues, after: RunValues, case_id: str) -> dict[str, float | str]:
    """Return how far what a case computes moved in a later run, as facts; none where it did not."""
    was, now = (run.function[run.rows[case_id]] for run in (before, after))
    if was == now or not was or not now:  # nearly all are equal to the last bit
        return {}
    return other_function(*(run.measured.stored.divergence[case_id] for run in (before, after)))


def _may_vary(run: RunValues, case_id: str, device: str) -> bool:
    """Return whether a step's bits may differ when it is run again: seen, or not looked at on an accelerator."""
    repeatable = run.repeatable[run.rows[case_id]]
    return repeatable == 0 or (repeatable < 0 and device != "cpu")


@dataclass(slots=True)
class _Judged:
    """A series of times while it is judged: its workload and case id, and its points that count, by their places."""

    raw: Raw
    key: tuple[str, str]
    held: list[int]
    logs: list[float]
    heights: list[Height] = field(default_factory=list)
    rule: Rule = Rule.NONE
    note: str = ""
    changes: list[Change] = field(default_factory=list)

    def runs(self, point: int) -> list[RunValues]:
        """Return the runs of a point that count."""
        place = self.held[point]
        counted = set(self.raw.series.points[place].run_ids)
        return [run for run in self.raw.runs(place) if run.header.run in counted]

    def change(self, step: "_Candidate", differences: Differences) -> Change:
        series, points = self.raw.series, self.raw.series.points
        better = (step.after > step.before) == (series.metric.column.better == "higher")
        low, high = step.interval
        return Change(
            x=points[self.held[step.place]].x,
            last=points[self.held[step.since]].x,
            before=math.exp(step.before),
            after=math.exp(step.after),
            ratio=math.exp(step.after - step.before),
            low=math.exp(low),
            high=math.exp(high),
            direction="improved" if better else "regressed",
            what=differences.what(
                self.runs(step.since)[-1].header, self.runs(step.place)[0].header, series.case.device
            ),
        )


class _Candidate(NamedTuple):
    """What might be a change of `one` series, with its p-value, in logarithms.

    Its level goes from `since`, the last point before it, to `place`.
    """

    p: float
    one: _Judged
    since: int
    place: int
    before: float
    after: float
    interval: tuple[float, float]


class _Times:
    """The series of one metric that has luck, judged together."""

    def __init__(self, raws: Sequence[Raw], differences: Differences, has_steps: bool) -> None:
        self.shifts: list[Shift] = []
        self._differences = differences
        self._has_steps = has_steps
        self._series = [self._begun(raw) for raw in raws]

    def judged(self) -> list[Series]:
        """Return the series, in their order, with their changes."""
        candidates: list[_Candidate] = []
        tests = 0
        for _, group in groupby(self._series, key=lambda one: one.raw.series.place):
            own, count = self._of_place(list(group))
            candidates += own
            tests += count
        # what was not even a candidate has a larger p-value
        p_values = np.array([*(one.p for one in candidates), *[1.0] * (tests - len(candidates))])
        certain = stats.holm(p_values)[: len(candidates)]
        for candidate, p in zip(candidates, certain, strict=True):
            found = self._decided(candidate) if p <= FAMILY_ALPHA else None
            if found is not None:
                found.one.changes.append(found.one.change(found, self._differences))
        return [replace(one.raw.series, changes=one.changes, rule=one.rule, note=one.note) for one in self._series]

    def _begun(self, raw: Raw) -> _Judged:
        series = raw.series
        held = _held(series)
        key = (series.case.workload, series.case.case_id)
        values = series.values
        one = _Judged(raw, key, held, [math.log(values[place] or math.nan) for place in held])
        if len(held) < 2:
            return one
        if len(held) >= steps.POINTS:
            one.rule, one.note = (Rule.STEPS, "") if self._has_steps else (Rule.NONE, WITHOUT_ASV)
            return one
        points = [_evidence(log, series, one.runs(point)) for point, log in enumerate(one.logs)]
        one.heights = steps.find_heights(points)
        one.rule, one.note = (Rule.NEIGHBOURS, "") if one.heights else (Rule.NONE, UNKNOWN_NOISE)
        return one

    def _of_place(self, own: list[_Judged]) -> tuple[list[_Candidate], int]:
        """Return what may be changes in the series of one place, and of how many tests they are."""
        count = len(own[0].raw.series.points)
        levels: list[dict[tuple[str, str], float]] = [{} for _ in range(count)]
        for one in own:
            for place, log in zip(one.held, one.logs, strict=True):
                levels[place][one.key] = log
        threshold = math.log1p(own[0].raw.series.metric.gate.threshold)
        gaps = steps.gaps_of(levels)
        moved = [
            gap.median if gap and (abs(gap.median) <= threshold or steps.is_of_the_whole_run(gap, threshold)) else None
            for gap in gaps
        ]
        self._tell(own[0].raw.series, gaps, threshold)
        level = np.concatenate([[0.0], np.cumsum([one or 0.0 for one in moved])])
        spreads = _spreads(own, gaps, moved)
        candidates: list[_Candidate] = []
        tests = 0
        for one in own:
            if one.rule is Rule.STEPS:
                tests += len(one.held) - 1
                candidates += _steps(one, level, threshold)
            elif one.rule is Rule.NEIGHBOURS:
                tests += len(one.heights)
                candidates += _neighbours(one, level, spreads, threshold)
        return candidates, tests

    def _tell(self, series: Series, gaps: Sequence[Gap | None], threshold: float) -> None:
        """Keep what is to be said of the whole run."""
        for number, gap in enumerate(gaps, start=1):
            if gap is not None and steps.is_of_the_whole_run(gap, threshold):
                self.shifts.append(
                    Shift(
                        place=series.place,
                        x=series.points[number].x,
                        last=series.points[number - 1].x,
                        ratio=math.exp(gap.median if series.metric.column.better == "lower" else -gap.median),
                        cases=gap.cases,
                        alike=gap.alike,
                    )
                )

    def _decided(self, found: _Candidate) -> _Candidate | None:
        """Return the change as `ampbench compare` decides on it; None where it does not call it one.

        Levels of many points are more than two runs can tell of, and numbers without rounds are nothing that it judges.
        """
        one = found.one
        if one.rule is Rule.STEPS:
            return found
        before, after = (one.runs(point)[-MOST_RUNS:] for point in (found.since, found.place))
        case_id = one.raw.series.case.case_id
        findings = [self._differences.of_time(ours, theirs, case_id) for ours in before for theirs in after]
        if any(each is not None and each.code is ChangeCode.IMPORTED for each in findings):
            return found
        better = (found.after > found.before) == (one.raw.series.metric.column.better == "higher")
        verdicts = {each.status for each in findings if each is not None}
        if verdicts & {*_CHANGED, ChangeStatus.UNCHANGED} != {
            ChangeStatus.IMPROVED if better else ChangeStatus.REGRESSED
        }:
            return None
        [only, *more] = findings
        if more or only is None or None in (only.change, only.low, only.high) or one.raw.series.metric.name != "time":
            return found
        return found._replace(interval=(math.log1p(only.low or 0.0), math.log1p(only.high or 0.0)))


def _spreads(
    own: Iterable[_Judged], gaps: Sequence[Gap | None], moved: Sequence[float | None]
) -> list[Variance | None]:
    """Return the variance of what the cases did at each gap beside what all did, without the noise of their rounds."""
    noises: dict[int, list[float]] = {}
    for one in own:
        for height in one.heights:
            if one.held[height.place] == one.held[height.since] + 1:
                noises.setdefault(one.held[height.since], []).append(height.noise[0])
    return [
        None
        if gap is None or shift is None
        else (
            max(gap.spread**2 - float(np.median(noises.get(number, [0.0]))), 0.0),
            steps.EFFICIENCY * (gap.cases - 1),
        )
        for number, (gap, shift) in enumerate(zip(gaps, moved, strict=True))
    ]


def _steps(one: _Judged, level: stats.Floats, threshold: float) -> list[_Candidate]:
    """Return the steps of a long series beside what all series did, where its own values moved as well."""
    logs = np.asarray(one.logs)
    found = []
    for step in steps.find_steps((logs - level[one.held]).tolist(), threshold):
        before, after = (
            float(np.median(logs[step.start : step.since + 1])),
            float(np.median(logs[step.place : step.end])),
        )
        if (after - before) * (step.after - step.before) > 0 and abs(after - before) > threshold:
            interval = (after - before - step.half, after - before + step.half)
            found.append(_Candidate(step.p, one, step.since, step.place, before, after, interval))
    return found


def _neighbours(
    one: _Judged, level: stats.Floats, spreads: Sequence[Variance | None], threshold: float
) -> list[_Candidate]:
    """Return the gaps of a short series that are beyond the threshold, beside what all series did and by themselves."""
    found = []
    for height in one.heights:
        since, place = one.held[height.since], one.held[height.place]
        shift = float(level[place] - level[since])
        known = spreads[since:place]
        spread = (
            None if None in known else (sum(each[0] for each in known if each), min(each[1] for each in known if each))
        )
        rest = height.value - shift
        if rest * height.value > 0 and min(abs(rest), abs(height.value)) > threshold:
            half = height.half(spread)
            before, after = one.logs[height.since], one.logs[height.place]
            interval = (height.value - half, height.value + half)
            p = height.tail(shift, spread)
            found.append(_Candidate(p, one, height.since, height.place, before, after, interval))
    return found


def _evidence(log: float, series: Series, runs: Sequence[RunValues]) -> Evidence:
    case_id, metric = series.case.case_id, series.metric
    values = [float(run.values[metric.column.name][run.rows[case_id]]) for run in runs]
    rounds = [logs for run in runs if len(logs := run.rounds(case_id)) > 1]
    own = [own_interval(run, value, case_id, metric) for run, value in zip(runs, values, strict=True)]
    errors = (
        []
        if rounds
        else [steps.interval_error(*one, run.confidence) for run, one in zip(runs, own, strict=True) if one]
    )
    controls = [run.control for run in runs if run.control is not None]
    return Evidence(log, [math.log(value) for value in values], rounds, errors, controls)
