"""Judge times: arrange rounds in blocks, leave out unfit blocks in pairs, and let `deciding` decide."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ampbench.core import stats
from ampbench.core.metrics import GATED, MEAN
from ampbench.core.statement import Statement, state
from ampbench.judge.deciding import (
    Blocks,
    Decision,
    Fired,
    Means,
    decide_interleaved,
    decide_stored,
    judge_control,
)
from ampbench.judge.exact import ThresholdOf, other_numbers
from ampbench.judge.pairing import EnvironmentDifferences, Values, change_of, imported_finding, incomparable
from ampbench.judge.rounds import UNFIT_SHARE, MeasuredCase, MeasuredRun, Pair, Role, grid, said_of, unfit_rounds
from ampbench.records.changes import Change, ChangeCode, ChangeStatus, ControlCode, ControlVerdict, Difference, Remark

TIME = "seconds_median"
SLOW_SHARE_CHANGE = 0.1
"""The least difference in shares of slow blocks that gets a remark..."""
SLOW_SHARE_LUCK = 0.1
"""... unless chance explains the difference with more than this probability."""

FAR = 1.0
"""On an unfit machine, interleaved times are judged only beyond this change: twice as long, or half. A disturbance of
both arms may stretch a change, as a longer step is delayed more often, but does not double a time: round values are CPU
times if all samples were delayed."""
CLOCK_APART = 0.02
"""The largest difference of an accelerator's clock under load between two runs of a case, measured one after the other.
Beyond it the device was cooler or under another limit, and only a change larger than the clocks explain is judged."""
_FOUND = frozenset({ChangeCode.BEYOND_THRESHOLD, ChangeCode.UNCONFIRMED})
_TAILS = frozenset({ChangeCode.BEYOND_THRESHOLD, ChangeCode.UNCONFIRMED, ChangeCode.NOT_CONFIRMED})


@dataclass(frozen=True, slots=True)
class _Sided:
    """One side's blocks of one role, shape (cells, blocks), NaN where missing.

    `seconds` are their values, `means` the means over all their samples. `causes` and `values` are of `rounds.Unfit`.
    """

    seconds: stats.Floats
    means: stats.Floats
    causes: stats.Floats
    values: stats.Floats

    @property
    def unfit(self) -> stats.Booleans:
        return self.causes >= 0

    def without(self, unfit: stats.Booleans, name: str = "seconds") -> stats.Floats:
        return np.where(unfit, np.nan, getattr(self, name))


class _Side:
    """One run of a comparison and the places of its cells' cases."""

    def __init__(self, run: MeasuredRun, case_ids: Sequence[str]):
        self.run = run
        self.places = [run.places[case_id] for case_id in case_ids]
        self._unfit = unfit_rounds(run)

    def table(self, role: Role, blocks: stats.Integers | None) -> _Sided:
        rounds = self.run.rounds
        columns = (rounds.seconds, self.run.means, self._unfit.cause.astype(np.float64), self._unfit.value)
        return _Sided(*(grid(rounds, column, role, self.places, blocks) for column in columns))


def time_findings(
    pairs: Sequence[Pair],
    baseline: MeasuredRun,
    candidate: MeasuredRun,
    differences: EnvironmentDifferences,
    interleaved: bool,
    threshold_of: ThresholdOf,
) -> tuple[list[Change], ControlVerdict]:
    """Return the verdicts on the times of `pairs`, which are ok on both sides, and the verdict on the controls.

    Incomparable times take no part in any decision. A pair without rounds on a side, as in imported runs, gets a
    finding if it has a number.
    """
    unjudged = [finding for pair in pairs if (finding := _without_rounds(pair))]
    pairs = [pair for pair in pairs if None not in _seconds(pair)]
    obstacles = {pair.baseline.case_id: differences.obstacles(pair.baseline.case.device) for pair in pairs}
    for pair in pairs:
        kinds = [side.run.kinds[side.case_id] for side in pair]
        if pair.baseline.case.device != "cpu" and kinds[0] != kinds[1]:
            timing = Difference(name="timing", baseline=kinds[0], candidate=kinds[1], matters=True)
            obstacles[pair.baseline.case_id].append(timing)
    cells = [pair for pair in pairs if not obstacles[pair.baseline.case_id]]
    thresholds, allowed = np.array([_thresholds(pair.baseline, threshold_of) for pair in cells]).reshape(-1, 2).T
    ours = _Side(baseline, [pair.baseline.case_id for pair in cells])
    theirs = _Side(candidate, [pair.candidate.case_id for pair in cells])
    other_clock: dict[int, dict[str, float]] = {}
    if interleaved:
        decisions, unfit, fresh, control = _interleaved(cells, ours, theirs, thresholds, allowed)
        thresholds = np.where(np.isin(np.arange(len(cells)), list(unfit)), np.maximum(thresholds, FAR), thresholds)
    else:
        on_accelerator = np.array([pair.baseline.case.device != "cpu" for pair in cells], dtype=bool)
        # an accelerator's median clock under load in each case's own rounds, NaN if unknown
        before, after = (
            run.by_case((run.rounds.roles == Role.OWN) & (clocks > 0)).medians(clocks)[side.places]
            for side in (ours, theirs)
            for run, clocks in [(side.run, side.run.rounds.columns["clock"])]
        )
        moved = np.where(on_accelerator, np.abs(np.log(after / before)), np.nan)
        other_clock = {
            cell: {"clock_before": before[cell] / 1e9, "clock_after": after[cell] / 1e9}
            for cell in np.flatnonzero(moved > math.log1p(CLOCK_APART)).tolist()
        }
        for cell in other_clock:
            thresholds[cell] = (1 + thresholds[cell]) * math.exp(moved[cell]) - 1
        decisions, unfit, fresh, control = _stored(cells, ours, theirs, thresholds, allowed)
    findings = unjudged + [
        incomparable(
            pair.baseline.case,
            TIME,
            ChangeCode.OTHER_MACHINE,
            {difference.name: f"{difference.baseline} → {difference.candidate}" for difference in obstacle},
            _seconds(pair),
        )
        for pair in pairs
        if (obstacle := obstacles[pair.baseline.case_id])
    ]
    units = "blocks" if interleaved else "rounds"
    for cell, (pair, decision) in enumerate(zip(cells, decisions, strict=True)):
        status, code, change = decision.status, decision.code, (decision.change, decision.low, decision.high)
        disturbed = other_clock.get(cell, {}) if cell not in unfit else {"cause": unfit[cell]}
        believed = code in _FOUND and (cell not in unfit or interleaved)
        if status is not ChangeStatus.INCOMPARABLE and control.fired:
            status, code = ChangeStatus.INCONCLUSIVE, ChangeCode.CONTROL_FIRED
        elif status is not ChangeStatus.INCOMPARABLE and disturbed and not believed:
            status, code = ChangeStatus.INCONCLUSIVE, ChangeCode.UNFIT_MACHINE
            if cell in unfit:
                change = (None, None, None)  # a change from the few fit blocks would contradict the values of all
        findings.append(
            change_of(
                pair.baseline.case,
                TIME,
                status,
                code,
                {"of": units, "fresh": fresh[cell], **disturbed},
                _seconds(pair),
                change=change[0],
                low=change[1],
                high=change[2],
                threshold=float(thresholds[cell]),
                p_worse=decision.p_worse,
                p_better=decision.p_better,
                blocks=decision.blocks,
                remarks=_remarks(pair, decision),
                details=_details(decision, float(allowed[cell])),
            )
        )
        if status is not ChangeStatus.INCOMPARABLE and not (control.fired or disturbed):
            findings += _mean_findings(pair, decision, float(allowed[cell]), units, fresh[cell])
    return findings, control


def _mean_findings(pair: Pair, decision: Decision, threshold: float, units: str, fresh: int) -> list[Change]:
    """Return the finding on the mean over all samples if it moved but the typical time did not."""
    code = decision.mean_code
    if code not in _TAILS or decision.code not in (
        ChangeCode.UNDECIDED,
        ChangeCode.TAIL_UNDECIDED,
        ChangeCode.WITHIN_THRESHOLD,
    ):
        return []
    beyond = ChangeStatus.REGRESSED if (decision.mean_change or 0.0) > 0 else ChangeStatus.IMPROVED
    return [
        change_of(
            pair.baseline.case,
            MEAN,
            beyond if code is ChangeCode.BEYOND_THRESHOLD else ChangeStatus.INCONCLUSIVE,
            code,
            {"of": units, "fresh": fresh},
            [_mean(side) for side in pair],
            change=decision.mean_change,
            low=decision.mean_low,
            high=decision.mean_high,
            threshold=threshold,
            blocks=decision.blocks,
        )
    ]


def _mean(side: MeasuredCase) -> float:
    """Return the mean of a case's rounds, without the control's, each the mean over its samples."""
    rounds = side.run.rounds
    of_case = (rounds.owners == side.run.places[side.case_id]) & (rounds.roles != Role.CONTROL)
    return float(np.mean(side.run.means[of_case]))


def _seconds(pair: Pair) -> Values:
    return pair.baseline.seconds, pair.candidate.seconds


def _without_rounds(pair: Pair) -> Change | None:
    """Return the finding on a pair without rounds on a side; None if both have rounds or neither has a number."""
    values = _seconds(pair)
    imported = imported_finding(pair, TIME, values)
    if imported is not None or None not in values or values == (None, None):
        return imported
    facts = {"side": "candidate" if values[1] is None else "baseline"}
    return incomparable(pair.baseline.case, TIME, ChangeCode.NOT_MEASURED, facts, values)


def _thresholds(side: MeasuredCase, threshold_of: ThresholdOf) -> tuple[float, float]:
    """Return the largest ignored relative changes of a baseline's time and of its mean over all samples.

    The time's is at least the resolution of the clock, the mean's at least the time's unless the policy sets it.
    """
    gate, chosen, of_mean = GATED[TIME], threshold_of(TIME, side.case), threshold_of(MEAN, side.case)
    threshold = max(gate.threshold if chosen is None else chosen, gate.floor / side.seconds if side.seconds else 0.0)
    return threshold, max(GATED[MEAN].threshold, threshold) if of_mean is None else of_mean


def _interleaved(
    cells: Sequence[Pair], ours: _Side, theirs: _Side, thresholds: stats.Floats, allowed: stats.Floats
) -> tuple[list[Decision], Mapping[int, str], list[int], ControlVerdict]:
    """Return decisions, reasons of unfit cells, the number of fresh blocks, and the control.

    The control is compared with the arm it was measured with, usually the baseline. Blocks with an unfit arm are left
    out. Unfit cells, judged beyond `FAR`, only lose blocks in which one arm alone was unfit: a disturbance of both arms
    favours neither.
    """
    sides = [side.run.rounds for side in (ours, theirs)]
    controlled = [bool((rounds.roles == Role.CONTROL).any()) for rounds in sides]
    owner = theirs if controlled == [False, True] else ours
    numbers, fresh = (
        np.union1d(*(rounds.blocks[rounds.roles == role] for rounds in sides)) for role in (Role.OWN, Role.CONFIRMATION)
    )
    tables = [(side.table(Role.OWN, numbers), side.table(Role.CONFIRMATION, fresh)) for side in (ours, theirs)]
    control = owner.table(Role.CONTROL, numbers)
    (before, fresh_before), (after, fresh_after) = tables
    unfit = _unfit_cells([(before, after), (fresh_before, fresh_after)], "blocks")
    busy = np.isin(np.arange(len(cells)), list(unfit))
    left_out, fresh_left_out = (
        np.where(busy[:, None], old.unfit ^ new.unfit, old.unfit | new.unfit)
        for old, new in ((before, after), (fresh_before, fresh_after))
    )
    control_left_out = control.unfit | (before if owner is ours else after).unfit
    blocks, means = (
        Blocks(
            baseline=before.without(out, name),
            candidate=after.without(out, name),
            control=control.without(control_left_out, name),
            confirm_baseline=fresh_before.without(fresh_left_out, name),
            confirm_candidate=fresh_after.without(fresh_left_out, name),
        )
        # the mean of a disturbed block is no evidence
        for name, out in (("seconds", left_out), ("means", left_out | busy[:, None]))
    )
    decisions = decide_interleaved(
        blocks, np.where(busy, np.maximum(thresholds, FAR), thresholds), means=_known(means, allowed, ours, theirs)
    )
    pairs = ~np.isnan(blocks.confirm_baseline) & ~np.isnan(blocks.confirm_candidate)
    measured = ~np.isnan(blocks.control).all(axis=1)
    if not measured.any():
        none = np.isnan(control.seconds).all()
        verdict = ControlVerdict(cells=0, fired=False, code=ControlCode.NONE if none else ControlCode.UNFIT)
    else:
        arm = before if owner is ours else after
        beside, mean_beside = (
            Blocks.unconfirmed(first[measured], first[measured], again[measured])
            for first, again in ((arm.seconds, blocks.control), (arm.means, means.control))
        )
        fired, judged = judge_control(
            beside, thresholds[measured], _known(mean_beside, allowed[measured], ours, theirs)
        )
        names = [cells[cell].baseline.case_id for cell in np.flatnonzero(measured).tolist()]
        verdict = _control(names, fired, judged)
    return decisions, unfit, pairs.sum(axis=1).tolist(), verdict


def _stored(
    cells: Sequence[Pair], ours: _Side, theirs: _Side, thresholds: stats.Floats, allowed: stats.Floats
) -> tuple[list[Decision], Mapping[int, str], list[int], ControlVerdict]:
    """Return the same for runs measured one after the other, which have no fresh blocks."""
    before, after = ours.table(Role.OWN, None), theirs.table(Role.OWN, None)
    ratios_of = {name: _control_ratios(side.run) for name, side in (("baseline", ours), ("candidate", theirs))}
    controls = {name: ratios[0] for name, ratios in ratios_of.items() if ratios is not None}
    means = Blocks.unconfirmed(before.without(before.unfit, "means"), after.without(after.unfit, "means"))
    decisions = decide_stored(
        before.without(before.unfit),
        after.without(after.unfit),
        thresholds,
        list(controls.values()),
        _known(means, allowed, ours, theirs),
        [ratios[1] for ratios in ratios_of.values() if ratios is not None],
    )
    unfit = _unfit_cells([(after,)], "rounds of the candidate") | _unfit_cells([(before,)], "rounds of the baseline")
    apart = {name: math.expm1(abs(ratio)) for name, ratio in controls.items()}
    code = ControlCode.APART if apart else ControlCode.NEITHER
    return decisions, unfit, [0] * len(cells), ControlVerdict(cells=len(apart), fired=False, code=code, facts=apart)


def _known(blocks: Blocks, thresholds: stats.Floats, *sides: _Side) -> Means | None:
    """Return the means to judge, None if the samples of a side were not read."""
    known = not any(np.isnan(side.run.means).all() for side in sides)
    return Means(blocks=blocks, thresholds=thresholds) if known else None


def _control_ratios(run: MeasuredRun) -> tuple[float, float] | None:
    """Return log(control / own) of a run's control, of its medians and of the means over samples; None without one."""
    rounds = run.rounds
    controls = np.unique(rounds.owners[rounds.roles == Role.CONTROL])
    for owner in controls.tolist():
        of_case, again = ((rounds.owners == owner) & (rounds.roles == role) for role in (Role.OWN, Role.CONTROL))
        seconds, means = rounds.seconds, run.means
        if of_case.any() and min(seconds[of_case].min(), seconds[again].min()) > 0:
            typical = float(np.median(seconds[again])) / float(np.median(seconds[of_case]))
            return math.log(typical), float(np.mean(np.log(means[again])) - np.mean(np.log(means[of_case])))
    return None


def _unfit_cells(parts: Sequence[Sequence[_Sided]], units: str) -> dict[int, str]:
    """Return the reasons of cells with too many unfit blocks; the sides of a part share their blocks.

    The limit holds for all blocks and for the last part alone: confirming blocks are tested by themselves, so the fit
    ones must be a fair sample, too.
    """
    totals = np.array([np.any([~np.isnan(side.seconds) for side in sides], axis=0).sum(axis=1) for sides in parts])
    unfits = np.array([np.any([side.unfit for side in sides], axis=0).sum(axis=1) for sides in parts])
    total = totals.sum(axis=0)
    reasons = {}
    for cell in np.flatnonzero(
        (unfits.sum(axis=0) > UNFIT_SHARE * total) | (unfits[-1] > UNFIT_SHARE * totals[-1])
    ).tolist():
        causes, values = [], []
        for sides in parts:
            for block in range(sides[0].seconds.shape[1]):
                worst = next((side for side in sides if side.unfit[cell, block]), None)
                if worst is not None:
                    causes.append(int(worst.causes[cell, block]))
                    values.append(worst.values[cell, block])
        reasons[cell] = said_of(np.array(causes), np.array(values), int(total[cell]), units)
    return reasons


def _control(names: Sequence[str], fired: Sequence[Fired], decisions: Sequence[Decision]) -> ControlVerdict:
    """Return the verdict on the control: where it fired, else its largest difference."""
    cells = len(names)
    if fired:
        place, change, of_mean = fired[0]
        facts: dict[str, float | str] = {"change": change, "case": names[place]}
        if of_mean:
            facts["of_mean"] = 1.0
        return ControlVerdict(cells=cells, fired=True, code=ControlCode.FIRED, facts=facts)
    changes = [
        (decision.change, name) for name, decision in zip(names, decisions, strict=True) if decision.change is not None
    ]
    if not changes:
        return ControlVerdict(cells=cells, fired=False, code=ControlCode.TOO_FEW)
    largest, name = max(changes, key=lambda entry: (abs(entry[0]), entry[1]))
    return ControlVerdict(cells=cells, fired=False, code=ControlCode.QUIET, facts={"change": largest, "case": name})


def _remarks(pair: Pair, decision: Decision) -> list[Statement]:
    remarks = []
    if reason := other_numbers(pair):
        remarks.append(state(Remark.OTHER_NUMBERS, **reason))
    before, after = (side.run.items.get(side.case_id) for side in pair)
    if before is not None and after is not None and before != after:
        remarks.append(state(Remark.ITEMS, before=before, after=after))
    apart = abs(decision.slow_share_candidate - decision.slow_share_baseline)
    if apart >= SLOW_SHARE_CHANGE and decision.slow_p <= SLOW_SHARE_LUCK:
        remarks.append(state(Remark.SLOW_SHARE, p=decision.slow_p))
    return remarks


_DETAILS = (
    "slow_share_baseline", "slow_share_candidate", "mean_change", "mean_low", "mean_high", "p90_change", "p_beyond",
    "standard_error", "blocks_needed",
)  # fmt: skip
"""The fields of a decision that are details of its change."""


def _details(decision: Decision, mean_threshold: float) -> dict[str, float]:
    details = {name: value for name in _DETAILS if (value := getattr(decision, name)) is not None}
    return details if decision.mean_code is None else details | {"mean_threshold": mean_threshold}
