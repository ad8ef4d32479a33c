"""Verdicts on time: rounds become blocks, unfit blocks go in pairs, `deciding` decides, and a sentence says what."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ampbench.base import stats
from ampbench.base.metrics import GATED, MEAN
from ampbench.base.units import counted, format_limit, format_percent, format_percent_range, format_rate
from ampbench.judge.deciding import (
    ALPHA,
    LOOKS,
    Blocks,
    Decision,
    Fired,
    Means,
    decide_interleaved,
    decide_stored,
    judge_control,
)
from ampbench.judge.exact import ThresholdOf, other_numbers
from ampbench.judge.fitness import UNFIT_SHARE, said_of, unfit_rounds
from ampbench.judge.pairing import EnvironmentDifferences, Pair, imported_finding
from ampbench.judge.rounds import MeasuredRun, Role, grid, known_medians
from ampbench.records.changes import Change, ChangeCode, ChangeStatus, ControlVerdict

LARGEST_WORTH_SAYING = 10.0
"""Changes beyond this are not told as numbers where nothing is certain: three rounds can bound next to nothing."""


def change_in_words(change: float) -> str:
    """Return a relative change of a time as "7.2% slower"; from three times as long on, as "3.1 times as long"."""
    if change >= 2:
        return f"{1 + change:.3g} times as long"
    return f"{format_percent(abs(change))} {'slower' if change > 0 else 'faster'}"


def decision_in_words(
    decision: Decision, threshold: float, what: str, fresh: int, mean_threshold: float | None = None
) -> str:
    """Return why a time's verdict is what it is, in one sentence with its numbers.

    `what` are "blocks" or "rounds", `fresh` is the number of those that confirm. `mean_threshold` is what the mean over
    all samples may change by, where it was judged.
    """
    counted = _counted(decision, what)
    if decision.code is ChangeCode.INVALID:
        return "a time that is no time: zero, negative or infinite"
    if decision.code is ChangeCode.TOO_FEW_BLOCKS or decision.change is None:
        needed = f"; about {decision.blocks_needed} would decide" if decision.blocks_needed else ""
        return f"only {counted}: too few for a verdict{needed}"
    change = f"{change_in_words(decision.change)}{_interval(decision)}"
    bound = f"threshold {format_limit(threshold, decision.change)}"
    match decision.code:
        case ChangeCode.BEYOND_THRESHOLD:
            confirmed = f", confirmed by {fresh} fresh ones" if fresh else ""
            return f"{change}, certainly over {format_limit(threshold, decision.change)}, {counted}{confirmed}"
        case ChangeCode.WITHIN_THRESHOLD:
            mean = ""
            if mean_threshold is not None and decision.mean_code is ChangeCode.WITHIN_THRESHOLD:
                mean = f", the mean of all samples within {format_limit(mean_threshold)}"
            return f"typical time {change}, within {format_limit(threshold)}{mean}, {counted}"
        case ChangeCode.TAIL_UNDECIDED:
            typical = f"typical time {change}, within {format_limit(threshold)}"
            if mean_threshold is None or decision.mean_change is None:
                return f"{typical}, but nothing bounds the mean of all samples, {counted}"
            mean = f"{change_in_words(decision.mean_change)}{_ends(decision.mean_low, decision.mean_high)}"
            allowed = format_limit(mean_threshold)
            return f"{typical}, but the mean of all samples {mean}, which is not certainly within {allowed}, {counted}"
        case ChangeCode.UNCONFIRMED:
            return f"{change}, {bound}, {counted}; {_unconfirmed(fresh)}"
        case ChangeCode.NOT_CONFIRMED:
            return f"a change was seen in {counted}, and {fresh} fresh ones did not confirm it: {change}, {bound}"
    return _undecided(decision, threshold, what)


def mean_in_words(decision: Decision, threshold: float, what: str, fresh: int) -> str:
    """Return what became of the mean over all samples, where it moved and the typical time is not known to have."""
    counted = _counted(decision, what)
    change = f"{change_in_words(decision.mean_change or 0.0)}{_ends(decision.mean_low, decision.mean_high)}"
    limit = format_limit(threshold, decision.mean_change or 0.0)
    bound = f"threshold {limit}"
    match decision.mean_code:
        case ChangeCode.UNCONFIRMED:
            said = f"{change}, {bound}, {counted}; {_unconfirmed(fresh)}"
        case ChangeCode.NOT_CONFIRMED:
            said = f"a change was seen in {counted}, and {fresh} fresh ones did not confirm it: {change}, {bound}"
        case _:
            confirmed = f", confirmed by {fresh} fresh ones" if fresh else ""
            said = f"{change}, certainly over {limit}, {counted}{confirmed}"
    typical = "is not known to have changed" if decision.code is ChangeCode.UNDECIDED else "did not change"
    return f"mean of all samples, slow steps among them: {said}; the typical step {typical}"


def _unconfirmed(fresh: int) -> str:
    return f"{fresh} fresh ones are too few to confirm it" if fresh else "fresh ones are still to confirm it"


def _counted(decision: Decision, what: str) -> str:
    return f"{decision.blocks} {what if decision.blocks != 1 else what.removesuffix('s')}"


def _ends(low: float | None, high: float | None) -> str:
    """Return " (95%: -1.1 to +8.4%)", "" where there is no interval."""
    if low is None or high is None or low == high:
        return ""
    most = min(high, LARGEST_WORTH_SAYING)
    return f" (95%: {format_percent_range(low, most, sign=True)})"


def _undecided(decision: Decision, threshold: float, what: str) -> str:
    parts = [change_in_words(decision.change or 0.0)]
    if decision.low is not None and decision.high is not None:
        high = f"over {format_percent(LARGEST_WORTH_SAYING, sign=True)}"
        if decision.high <= LARGEST_WORTH_SAYING:
            high = format_percent(decision.high, sign=True)
        parts = [f"between {format_percent(decision.low, sign=True)} and {high}"]
    if differs := _certainly_differs(decision):
        parts[0] = f"certainly {differs}, {parts[0]}, but not certainly by more than {format_limit(threshold)}"
    if decision.detectable_change is not None and decision.detectable_change <= LARGEST_WORTH_SAYING:
        parts.append(f"a change of {format_percent(decision.detectable_change)} would have been seen")
    more = f"about {decision.blocks_needed} {what} would decide" if decision.blocks_needed else f"more {what} would not"
    parts.append(more if decision.blocks_needed else f"{more} decide it soon")
    return "; ".join(parts)


def _certainly_differs(decision: Decision) -> str:
    """Return "slower" or "faster" where it is certain that there is a change, of whatever size; else ""."""
    for p_value, word in ((decision.p_worse, "slower"), (decision.p_better, "faster")):
        if p_value is not None and p_value <= ALPHA / len(LOOKS):
            return word
    return ""


def _interval(decision: Decision) -> str:
    """Return " (95%: 6.1 to 8.4%)", in the direction of the change, "" where there is none."""
    if decision.low is None or decision.high is None or decision.change is None or decision.change >= 2:
        return ""
    ends = (decision.low, decision.high) if decision.change > 0 else (-decision.high, -decision.low)
    return f" (95%: {format_percent_range(*ends)})"


TIME = "seconds_median"
SLOW_SHARE_CHANGE = 0.1
"""A share of slow blocks that differs by so much between the sides is remarked upon: it must not be hidden..."""
SLOW_SHARE_LUCK = 0.1
"""... but where luck would make them differ so with more than this probability, there is nothing to say."""

FAR = 1.0
"""On a machine that is not fit, times measured in turns are judged where they are further apart than this: twice as
long, or half. What disturbs both arms of a block may stretch a change, as a longer step is held up more often; a change
within the threshold it does not make twice as long, as round values are CPU times where all samples were held up."""
CLOCK_APART = 0.02
"""Where an accelerator's clock under load differs by more between two runs of a case that were not measured in turns,
the device was another: cooler, or under another limit. Only a change beyond what clocks make of a time is judged."""
CLOCKS_SAID = "the accelerator's clock under load was {:.2f} GHz in the baseline and {:.2f} GHz in the candidate"
SAME_CLOCK = "what of the change is the device's is not known; measure both in turns (ampbench ab)"
_FOUND = frozenset({ChangeCode.BEYOND_THRESHOLD, ChangeCode.UNCONFIRMED})
_TAILS = frozenset({ChangeCode.BEYOND_THRESHOLD, ChangeCode.UNCONFIRMED, ChangeCode.NOT_CONFIRMED})

_CONTROL_FIRED = "the control fired: the same code, measured twice, seemed to differ, so no time of this session counts"


@dataclass(frozen=True, slots=True)
class _Sided:
    """One side's blocks of one role, shape (cells, blocks), NaN where missing.

    `seconds` are their values, `means` the means over all their samples. `causes` and `values` say which are unfit and
    why, as in `fitness.Unfit`.
    """

    seconds: stats.Floats
    means: stats.Floats
    causes: stats.Floats
    values: stats.Floats

    @property
    def unfit(self) -> stats.Booleans:
        return self.causes >= 0

    def without(self, unfit: stats.Booleans) -> stats.Floats:
        return np.where(unfit, np.nan, self.seconds)

    def means_without(self, unfit: stats.Booleans) -> stats.Floats:
        return np.where(unfit, np.nan, self.means)


class _Side:
    """One run of a comparison and the places of its cells' cases."""

    def __init__(self, run: MeasuredRun, case_ids: Sequence[str]):
        self.run = run
        self._places = [run.places[case_id] for case_id in case_ids]
        self._unfit = unfit_rounds(run)

    def mean(self, case_id: str) -> float:
        """Return the mean over the rounds of a case, but the control's, of the means over their samples."""
        rounds = self.run.rounds
        own = (rounds.owners == self.run.places[case_id]) & (rounds.roles != Role.CONTROL)
        return float(np.mean(self.run.means[own]))

    def numbers(self, role: Role) -> stats.Integers:
        rounds = self.run.rounds
        return np.unique(rounds.blocks[rounds.roles == role])

    def table(self, role: Role, blocks: stats.Integers | None) -> _Sided:
        rounds = self.run.rounds
        columns = (rounds.seconds, self.run.means, self._unfit.cause.astype(np.float64), self._unfit.value)
        return _Sided(*(grid(rounds, column, role, self._places, blocks) for column in columns))


def time_findings(
    pairs: Sequence[Pair],
    baseline: MeasuredRun,
    candidate: MeasuredRun,
    differences: EnvironmentDifferences,
    interleaved: bool,
    threshold_of: ThresholdOf,
) -> tuple[list[Change], ControlVerdict]:
    """Return the verdicts on the times of `pairs`, which are ok on both sides, and what the controls say.

    The cells of times that cannot be compared take no part in any decision. A pair without rounds on either side, which
    only imported runs have, gets a finding where there is a number.
    """
    unjudged = [finding for pair in pairs if (finding := _without_rounds(pair, baseline, candidate))]
    pairs = [pair for pair in pairs if None not in _raw(pair, baseline, candidate)]
    obstacles = {device: differences.obstacles(device) for device in {pair.baseline.device for pair in pairs}}
    cells = [pair for pair in pairs if not obstacles[pair.baseline.device]]
    thresholds = np.array([_threshold(pair, baseline, threshold_of) for pair in cells])
    allowed = np.array([_mean_threshold(pair, baseline, threshold_of) for pair in cells])
    ours = _Side(baseline, [pair.baseline_id for pair in cells])
    theirs = _Side(candidate, [pair.candidate_id for pair in cells])
    other_clock: Mapping[int, str] = {}
    if interleaved:
        decisions, unfit, fresh, control = _interleaved(cells, ours, theirs, thresholds, allowed)
        thresholds = np.where(np.isin(np.arange(len(cells)), list(unfit)), np.maximum(thresholds, FAR), thresholds)
    else:
        on_accelerator = np.array([pair.baseline.device != "cpu" for pair in cells], dtype=bool)
        before = _clocks(baseline)[[baseline.places[pair.baseline_id] for pair in cells]]
        after = _clocks(candidate)[[candidate.places[pair.candidate_id] for pair in cells]]
        moved = np.where(on_accelerator, np.abs(np.log(after / before)), np.nan)
        other_clock = {
            cell: CLOCKS_SAID.format(before[cell] / 1e9, after[cell] / 1e9)
            for cell in np.flatnonzero(moved > math.log1p(CLOCK_APART)).tolist()
        }
        for cell in other_clock:
            thresholds[cell] = (1 + thresholds[cell]) * math.exp(moved[cell]) - 1
        decisions, unfit, fresh, control = _stored(cells, ours, theirs, thresholds, allowed)
    findings = unjudged + [
        Change(
            case=pair.baseline,
            metric=TIME,
            kind="time",
            status=ChangeStatus.INCOMPARABLE,
            code=ChangeCode.OTHER_MACHINE,
            reason="; ".join(f"another {one.name}: {one.baseline} → {one.candidate}" for one in obstacle),
            baseline=baseline.seconds[pair.baseline_id],
            candidate=candidate.seconds[pair.candidate_id],
        )
        for pair in pairs
        if (obstacle := obstacles[pair.baseline.device])
    ]
    what = "blocks" if interleaved else "rounds"
    for cell, (pair, decision) in enumerate(zip(cells, decisions, strict=True)):
        verdict, code, change = decision.status, decision.code, (decision.change, decision.low, decision.high)
        reason = decision_in_words(decision, float(thresholds[cell]), what, fresh[cell], float(allowed[cell]))
        if verdict is not ChangeStatus.INCOMPARABLE:
            if control.fired:
                verdict, code, reason = ChangeStatus.INCONCLUSIVE, ChangeCode.CONTROL_FIRED, _CONTROL_FIRED
            elif cell in other_clock and cell not in unfit and code in _FOUND:
                reason += f"; {other_clock[cell]}, which accounts for less"
            elif cell in other_clock and cell not in unfit:
                verdict, code, reason = (
                    ChangeStatus.INCONCLUSIVE,
                    ChangeCode.UNFIT_MACHINE,
                    f"{other_clock[cell]}: {SAME_CLOCK}",
                )
            elif cell in unfit and interleaved and code in _FOUND:
                reason += f"; {unfit[cell]}, so only what takes twice as long, or half, is judged"
            elif cell in unfit:
                verdict, code, reason = ChangeStatus.INCONCLUSIVE, ChangeCode.UNFIT_MACHINE, unfit[cell]
                change = (None, None, None)  # that of the few fit blocks, beside values of all, would mislead
        findings.append(
            Change(
                case=pair.baseline,
                metric=TIME,
                kind="time",
                status=verdict,
                code=code,
                reason=reason,
                baseline=baseline.seconds[pair.baseline_id],
                candidate=candidate.seconds[pair.candidate_id],
                change=change[0],
                low=change[1],
                high=change[2],
                threshold=float(thresholds[cell]),
                p_worse=decision.p_worse,
                p_better=decision.p_better,
                blocks=decision.blocks,
                remarks=_remarks(pair, decision, baseline, candidate, what),
                details=_details(decision, float(allowed[cell])),
            )
        )
        if (
            verdict is not ChangeStatus.INCOMPARABLE
            and not control.fired
            and cell not in unfit
            and cell not in other_clock
        ):
            findings += _mean_findings(pair, decision, float(allowed[cell]), (ours, theirs), what, fresh[cell])
    return findings, control


def _mean_findings(
    pair: Pair, decision: Decision, threshold: float, sides: tuple[_Side, _Side], what: str, fresh: int
) -> list[Change]:
    """Return the finding on the mean over all samples where it moved and the typical time did not: the tail's."""
    code = decision.mean_code
    if code not in _TAILS or decision.code not in (
        ChangeCode.UNDECIDED,
        ChangeCode.TAIL_UNDECIDED,
        ChangeCode.WITHIN_THRESHOLD,
    ):
        return []
    beyond = ChangeStatus.REGRESSED if (decision.mean_change or 0.0) > 0 else ChangeStatus.IMPROVED
    values = [sides[0].mean(pair.baseline_id), sides[1].mean(pair.candidate_id)]
    return [
        Change(
            case=pair.baseline,
            metric=MEAN,
            kind="time",
            status=beyond if code is ChangeCode.BEYOND_THRESHOLD else ChangeStatus.INCONCLUSIVE,
            code=code,
            reason=mean_in_words(decision, threshold, what, fresh),
            baseline=values[0],
            candidate=values[1],
            change=decision.mean_change,
            low=decision.mean_low,
            high=decision.mean_high,
            threshold=threshold,
            blocks=decision.blocks,
        )
    ]


def _clocks(run: MeasuredRun) -> stats.Floats:
    """Return an accelerator's median clock under load in each case's own rounds, NaN where it is not known."""
    rounds = run.rounds
    own = np.where(rounds.roles == Role.OWN, rounds.clock, np.nan)
    return known_medians(own, rounds.owners, len(run.places))


def _raw(pair: Pair, baseline: MeasuredRun, candidate: MeasuredRun) -> tuple[float | None, float | None]:
    return baseline.seconds.get(pair.baseline_id), candidate.seconds.get(pair.candidate_id)


def _without_rounds(pair: Pair, baseline: MeasuredRun, candidate: MeasuredRun) -> Change | None:
    """Return the finding on a pair of which a side has no rounds; None where both have, or neither has any number."""
    values = _raw(pair, baseline, candidate)
    imported = imported_finding(pair, TIME, values, baseline, candidate)
    if imported is None and values == (None, None):
        # a rate says what the time says, so it is shown only in its place
        return imported_finding(pair, "items_per_second", values, baseline, candidate)
    if imported is not None or None not in values:
        return imported
    return Change(
        case=pair.baseline,
        metric=TIME,
        kind="time",
        status=ChangeStatus.INCOMPARABLE,
        code=ChangeCode.NOT_MEASURED,
        reason=f"the {'candidate' if values[1] is None else 'baseline'} has no number",
        baseline=values[0],
        candidate=values[1],
    )


def _threshold(pair: Pair, baseline: MeasuredRun, threshold_of: ThresholdOf) -> float:
    """Return the largest relative change that counts as none; what the clock cannot resolve never is one."""
    gate = GATED[TIME]
    chosen = threshold_of(TIME, pair.baseline)
    seconds = baseline.seconds[pair.baseline_id]
    smallest = gate.floor / seconds if seconds > 0 else 0.0
    return max(gate.threshold if chosen is None else chosen, smallest)


def _mean_threshold(pair: Pair, baseline: MeasuredRun, threshold_of: ThresholdOf) -> float:
    """Return the same of the mean over all samples: what is said of it by name, else no less than what time may do."""
    chosen = threshold_of(MEAN, pair.baseline)
    return max(GATED[MEAN].threshold, _threshold(pair, baseline, threshold_of)) if chosen is None else chosen


def _interleaved(
    cells: Sequence[Pair], ours: _Side, theirs: _Side, thresholds: stats.Floats, allowed: stats.Floats
) -> tuple[list[Decision], Mapping[int, str], list[int], ControlVerdict]:
    """Return decisions, why cells are unfit, the number of fresh blocks, and the control.

    The control was measured beside one of the arms, the baseline's as a rule, and is compared with that one. Blocks in
    which an arm was unfit are left out; of cells that this leaves unfit only those in which one arm alone was, since
    what disturbs both in turns gives no arm an advantage, and such cells are judged beyond `FAR`.
    """
    owner = theirs if theirs.run.has_controls and not ours.run.has_controls else ours
    own, fresh = (np.union1d(ours.numbers(role), theirs.numbers(role)) for role in (Role.OWN, Role.CONFIRMATION))
    tables = [(side.table(Role.OWN, own), side.table(Role.CONFIRMATION, fresh)) for side in (ours, theirs)]
    control = owner.table(Role.CONTROL, own)
    (before, fresh_before), (after, fresh_after) = tables
    unfit = _unfit_cells([(before, after), (fresh_before, fresh_after)], "blocks")
    busy = np.isin(np.arange(len(cells)), list(unfit))
    left_out, fresh_left_out = (
        np.where(busy[:, None], one.unfit ^ other.unfit, one.unfit | other.unfit)
        for one, other in ((before, after), (fresh_before, fresh_after))
    )
    blocks = Blocks(
        baseline=before.without(left_out),
        candidate=after.without(left_out),
        control=control.without(control.unfit | (before if owner is ours else after).unfit),
        confirm_baseline=fresh_before.without(fresh_left_out),
        confirm_candidate=fresh_after.without(fresh_left_out),
    )
    own_left_out = left_out | busy[:, None]  # the mean of a disturbed block tells nothing, however far it is
    means = Blocks(
        baseline=before.means_without(own_left_out),
        candidate=after.means_without(own_left_out),
        control=control.means_without(control.unfit | (before if owner is ours else after).unfit),
        confirm_baseline=fresh_before.means_without(fresh_left_out),
        confirm_candidate=fresh_after.means_without(fresh_left_out),
    )
    decisions = decide_interleaved(
        blocks, np.where(busy, np.maximum(thresholds, FAR), thresholds), means=_known(means, allowed, ours, theirs)
    )
    pairs = ~np.isnan(blocks.confirm_baseline) & ~np.isnan(blocks.confirm_candidate)
    measured = ~np.isnan(blocks.control).all(axis=1)
    if not measured.any():
        sentence = "no control: nothing says whether the same code, measured twice, would have seemed to differ"
        if not np.isnan(control.seconds).all():
            sentence = "control: measured, but in no block on a machine that was fit, so that it says nothing"
        verdict = ControlVerdict(cells=0, fired=False, sentence=sentence)
    else:
        arm = before if owner is ours else after
        beside, mean_beside = (
            Blocks(
                baseline=own[measured],
                candidate=own[measured],
                control=again[measured],
                confirm_baseline=own[measured, :0],
                confirm_candidate=own[measured, :0],
            )
            for own, again in ((arm.seconds, blocks.control), (arm.means, means.control))
        )
        fired, judged = judge_control(
            beside, thresholds[measured], _known(mean_beside, allowed[measured], ours, theirs)
        )
        names = [cells[cell].baseline_id for cell in np.flatnonzero(measured).tolist()]
        sentence = _control_sentence(names, fired, judged)
        verdict = ControlVerdict(cells=len(names), fired=bool(fired), sentence=sentence)
    return decisions, unfit, pairs.sum(axis=1).tolist(), verdict


def _stored(
    cells: Sequence[Pair], ours: _Side, theirs: _Side, thresholds: stats.Floats, allowed: stats.Floats
) -> tuple[list[Decision], Mapping[int, str], list[int], ControlVerdict]:
    """Return the same of runs that were measured one after the other, which have no fresh blocks."""
    before, after = ours.table(Role.OWN, None), theirs.table(Role.OWN, None)
    found = {name: _control_ratios(side.run) for name, side in (("baseline", ours), ("candidate", theirs))}
    controls = {name: ratios[0] for name, ratios in found.items() if ratios is not None}
    none = np.empty((len(cells), 0))
    means = Blocks(
        baseline=before.means_without(before.unfit),
        candidate=after.means_without(after.unfit),
        control=none,
        confirm_baseline=none,
        confirm_candidate=none,
    )
    decisions = decide_stored(
        before.without(before.unfit),
        after.without(after.unfit),
        thresholds,
        list(controls.values()),
        _known(means, allowed, ours, theirs),
        [ratios[1] for ratios in found.values() if ratios is not None],
    )
    unfit = _unfit_cells([(after,)], "rounds of the candidate") | _unfit_cells([(before,)], "rounds of the baseline")
    return decisions, unfit, [0] * len(cells), _stored_control(controls)


def _known(blocks: Blocks, thresholds: stats.Floats, *sides: _Side) -> Means | None:
    """Return the means to judge, None where the samples of a side were not read."""
    return Means(blocks=blocks, thresholds=thresholds) if all(side.run.has_means for side in sides) else None


def _stored_control(ratios: Mapping[str, float]) -> ControlVerdict:
    """Return what the controls of the two runs say, by side: log(control / own)."""
    if not ratios:
        sentence = "neither run has a control: nothing says how far apart two runs of the same code lie"
        return ControlVerdict(cells=0, fired=False, sentence=sentence)
    apart = [f"{format_percent(math.expm1(abs(ratio)))} apart in the {name}" for name, ratio in ratios.items()]
    sentence = f"control: one case, measured twice, was {' and '.join(apart)}; intervals are widened by that"
    if len(ratios) == 1:
        sentence += f"; the {'candidate' if 'baseline' in ratios else 'baseline'} has no control"
    return ControlVerdict(cells=len(ratios), fired=False, sentence=sentence)


def _control_ratios(run: MeasuredRun) -> tuple[float, float] | None:
    """Return log(control / own) of the cell that a run measured twice: of its medians, and of the means over samples.

    None where there is none.
    """
    rounds = run.rounds
    controls = np.unique(rounds.owners[rounds.roles == Role.CONTROL])
    for owner in controls.tolist():
        own, again = ((rounds.owners == owner) & (rounds.roles == role) for role in (Role.OWN, Role.CONTROL))
        seconds, means = rounds.seconds, run.means
        if own.any() and min(seconds[own].min(), seconds[again].min()) > 0:
            typical = float(np.median(seconds[again])) / float(np.median(seconds[own]))
            return math.log(typical), float(np.mean(np.log(means[again])) - np.mean(np.log(means[own])))
    return None


def _unfit_cells(parts: Sequence[Sequence[_Sided]], what: str) -> dict[int, str]:
    """Return why each cell with too many unfit blocks is unfit; the sides of a part share their blocks.

    Too many are they of all, or of the last part: blocks that confirm are tested by themselves, so those of them that
    are left must be a fair sample, too.
    """
    totals = np.array([np.any([~np.isnan(side.seconds) for side in sides], axis=0).sum(axis=1) for sides in parts])
    unfits = np.array([np.any([side.unfit for side in sides], axis=0).sum(axis=1) for sides in parts])
    total = totals.sum(axis=0)
    found = {}
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
        found[cell] = said_of(np.array(causes), np.array(values), int(total[cell]), what)
    return found


def _control_sentence(names: Sequence[str], fired: Sequence[Fired], decisions: Sequence[Decision]) -> str:
    """Say what the control did: where it fired, and how far apart it was at most where it did not."""
    if fired:
        place, change, of_mean = fired[0]
        said = f"{change_in_words(change)}{', by the mean of all samples,' if of_mean else ''} on {names[place]}"
        return f"control: the same code, measured twice, seemed to be {said}: no time verdict counts"
    changes = [(one.change, name) for name, one in zip(names, decisions, strict=True) if one.change is not None]
    measured = f"{counted(len(names), 'case')} measured twice"
    if not changes:
        return f"control: {measured}, in too few blocks to say anything"
    largest, name = max(changes, key=lambda each: (abs(each[0]), each[1]))
    return f"control: {measured} in the same blocks, none seemed to differ (at most {change_in_words(largest)}, {name})"


def _remarks(
    pair: Pair, decision: Decision, baseline: MeasuredRun, candidate: MeasuredRun, what: str
) -> tuple[str, ...]:
    remarks = []
    if other := other_numbers(pair, baseline, candidate):
        remarks.append(f"{other}: the time may differ for that")
    items = (baseline.items(pair.baseline_id), candidate.items(pair.candidate_id))
    if None not in items and items[0] != items[1]:
        seconds = (baseline.seconds[pair.baseline_id], candidate.seconds[pair.candidate_id])
        rates = [format_rate(item / second) for item, second in zip(items, seconds, strict=True) if item and second > 0]
        remarks.append(f"a step does {items[0]:g} → {items[1]:g} items, at {' → '.join(rates)}")
    apart = abs(decision.slow_share_candidate - decision.slow_share_baseline)
    if apart >= SLOW_SHARE_CHANGE and decision.slow_p <= SLOW_SHARE_LUCK:
        before, after = (f"{share:.0%}" for share in (decision.slow_share_baseline, decision.slow_share_candidate))
        mean = "" if decision.mean_change is None else f", mean {format_percent(decision.mean_change, sign=True)}"
        p90 = decision.p90_change
        top = "" if p90 is None else f", 90th percentile {format_percent(p90, sign=True)}"
        slow = f"slow {what}: {before} → {after} of them (p = {decision.slow_p:.1g})"
        remarks.append(f"{slow}{mean}{top}")
    return tuple(remarks)


def _details(decision: Decision, mean_threshold: float) -> dict[str, float]:
    named = {
        "slow_share_baseline": decision.slow_share_baseline,
        "slow_share_candidate": decision.slow_share_candidate,
        "mean_change": decision.mean_change,
        "mean_low": decision.mean_low,
        "mean_high": decision.mean_high,
        "mean_threshold": None if decision.mean_code is None else mean_threshold,
        "p90_change": decision.p90_change,
        "p_beyond": decision.p_beyond,
        "standard_error": decision.standard_error,
        "detectable_change": decision.detectable_change,
        "blocks_needed": decision.blocks_needed,
    }
    return {name: value for name, value in named.items() if value is not None}
