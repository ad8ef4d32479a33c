"""Judge times in seconds: of interleaved blocks, of stored rounds, and of a control.

Interleaved. d = log(candidate) - log(baseline) of one block. Both arms come from newly started servers in random order,
so without a change each d is equally likely to have either sign *for any noise*. The signed-rank test is exact under
this condition alone, also after outliers are removed by the size of d (`stats.outlying`). The price: n blocks give at
best p = 2**-n, so the look at 8 blocks can only prove `unchanged`.

Stored. Runs measured one after the other lack this symmetry: Welch's test on logarithms, widened by the spread of the
runs' controls. Drift of the machine between two runs looks like a change.

The mean over all samples is judged separately: the ratio of its sums over all blocks, outliers included, is tested and
bounded by the ratios over subsets of the blocks (`stats.mean_ratios`). docs/statistics.md has the rules and reasons.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import bdtrc, stdtr, stdtrit

from ampbench.core import stats
from ampbench.core.stats import Booleans, Floats, Integers
from ampbench.records.changes import ChangeCode, ChangeStatus

LOOKS = (8, 16, 24, 32)
"""The numbers of blocks after which a comparison is judged; every alpha is split over the `looks`."""
CONFIRMATION_BLOCKS = 10
"""The number of fresh blocks that confirm a change. At 1 in 20, five without outliers are the minimum: with 15% of
either arm's blocks slow, eight blocks confirm a true change in 86% of cases, ten in 98% (tests/simulation)."""

ALPHA = 0.001
FAMILY_ALPHA = 0.01
CONFIRMATION_ALPHA = 0.05
EQUIVALENCE_ALPHA = 0.05
CONTROL_ALPHA = 0.01
SLOW_ALPHA = 0.002
"""A share of slow blocks that changed with this certainty always forbids `unchanged`."""
POWER = 0.95
"""The probability that `blocks_needed` decide."""

SLOW = 1.25
"""A block over this many times its arm's median is slow: quiet blocks vary by 2%, slow ones take 20-150% longer."""
LARGEST_SHARE_OF_ROUNDS_APART = 0.25
"""Slow rounds of a stored run are outliers up to this share; two of four may be typical."""
MINIMUM_ROUNDS = 3

SLOW_SHARE = 0.15
"""The share of an arm's blocks that may be slow without a change of verdict (the project's rule for outliers)."""
LOPSIDED_ALPHA = 0.05
"""The one-sided p below which an excess of outliers on one side, beyond `SLOW_SHARE`, forbids `unchanged`: half of the
blocks slow in one arm alone is a change."""

EFFICIENCY = 3 / math.pi
"""The variance of a mean relative to the Hodges-Lehmann estimate's, for normal noise (Hodges and Lehmann, 1956)."""
MOST_BLOCKS = 10_000
"""The largest `blocks_needed`; above it, None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The values of interleaved blocks: arrays of shape (cells, blocks) in seconds, NaN where missing.

    A column is one block in `baseline`, `candidate` and `control`; the two arrays of the confirmation share other
    blocks. Without a control there are NaN, without a confirmation arrays of no columns.
    """

    baseline: Floats
    candidate: Floats
    control: Floats
    confirm_baseline: Floats
    confirm_candidate: Floats

    @classmethod
    def unconfirmed(cls, baseline: Floats, candidate: Floats, control: Floats | None = None) -> "Blocks":
        """Return blocks without a confirmation."""
        none = np.empty((len(baseline), 0))
        again = none if control is None else control
        return cls(baseline=baseline, candidate=candidate, control=again, confirm_baseline=none, confirm_candidate=none)


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Means over all samples of the same `blocks`, and the `thresholds`, shape (cells,), of their ratio.

    Runs measured one after the other use only `baseline` and `candidate` of `Blocks`, each with its own rounds.
    """

    blocks: Blocks
    thresholds: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The verdict on one cell's time, with its evidence.

    `change` is candidate / baseline - 1, with its 95% interval: from the fresh blocks alone if they confirm a change;
    None with too few blocks. `p_worse` and `p_better` are one-sided p-values for no change, `p_beyond` for a change of
    the threshold's size in the direction of the estimate; they leave out fresh blocks, and are not adjusted for looks
    or cells. `blocks` counts the pairs, or the rounds of the side with fewer. The slow shares, compared by Fisher's
    exact test (`slow_p`), and the change of the 90th percentile include outliers. `mean_change` is the change of the
    mean over all samples, with its 95% interval and its verdict `mean_code` (None: not judged, and `mean_change` is of
    the blocks' values). With a probability of 95%, `blocks_needed` blocks decide if estimate and spread stay the same
    (None: more blocks would not help).
    """

    status: ChangeStatus
    code: ChangeCode
    change: float | None
    low: float | None
    high: float | None
    p_worse: float | None
    p_better: float | None
    p_beyond: float | None
    blocks: int
    slow_share_baseline: float
    slow_share_candidate: float
    slow_p: float
    mean_change: float | None
    mean_low: float | None
    mean_high: float | None
    mean_code: ChangeCode | None
    p90_change: float | None
    standard_error: float | None
    blocks_needed: int | None


def decide_interleaved(
    blocks: Blocks, thresholds: Floats, looks: int = 4, confirm: bool = True, means: Means | None = None
) -> list[Decision]:
    """Return a decision per cell of interleaved blocks.

    `thresholds`, shape (cells,), are the largest ignored relative changes, at least the clock's smallest step. `looks`
    is the number of looks at these blocks. A cell has changed if its exact one-sided p for a change up to the threshold
    is at most 0.001/`looks`, and at most 0.01/`looks` after Holm over all cells; with `confirm`, fresh blocks alone
    must also show a change beyond the threshold at 0.05. So at most one in a thousand cells with a true change within
    the threshold is called changed; a threshold of 0 tests for any change. A cell is unchanged if both one-sided bounds
    at 0.05/`looks` are within the threshold.

    `means` are judged at the same levels against their own thresholds, as further members of Holm's family. A cell is
    unchanged only if its mean is unchanged too, or has certainly changed itself: else its tail is open.

    Pass all cells of a gate at every look, with NaN where measuring has stopped, so that Holm's family is the gate. A
    cell gets all its fresh blocks before it is judged again. A zero, negative or infinite time makes its cell
    incomparable. Swapping baseline and candidate mirrors every verdict.
    """
    invalid = _invalid(blocks.baseline) | _invalid(blocks.candidate)
    margin = np.log1p(thresholds)
    main = _Paired(blocks.baseline, blocks.candidate, margin, looks)
    fresh = _Paired(blocks.confirm_baseline, blocks.confirm_candidate, margin, 1)
    mean = _Mean(means, looks)
    worse, better = (_certain(np.concatenate(pair), looks) for pair in zip(main.beyond, mean.beyond, strict=True))
    cells = len(thresholds)
    mean_codes = None if means is None else mean.codes(worse[cells:], better[cells:], confirm)
    worse, better = worse[:cells], better[:cells]
    changed = worse | better
    if confirm:
        confirmable = changed & (0.5**fresh.counts <= CONFIRMATION_ALPHA)
        confirmed = confirmable & (np.where(worse, *fresh.beyond) <= CONFIRMATION_ALPHA)
    else:
        confirmable, confirmed = np.zeros(len(changed), np.bool_), changed
    few = 0.5**main.counts > EQUIVALENCE_ALPHA / looks
    evidence = _Evidence(main.baseline, main.candidate)
    unchanged = (main.bounds[0] > -margin) & (main.bounds[1] < margin)
    unchanged &= (evidence.slow_p > SLOW_ALPHA) & ~main.lopsided
    codes = np.select(
        [invalid, few, confirmed, changed & confirmable, changed, unchanged & _open(mean_codes), unchanged],
        [ChangeCode.INVALID, ChangeCode.TOO_FEW_BLOCKS, ChangeCode.BEYOND_THRESHOLD, ChangeCode.NOT_CONFIRMED,
         ChangeCode.UNCONFIRMED, ChangeCode.TAIL_UNDECIDED, ChangeCode.WITHIN_THRESHOLD],
        ChangeCode.UNDECIDED,
    )  # fmt: skip
    error = np.sqrt(main.variances / EFFICIENCY / np.maximum(main.kept, 1))
    needed = stats.count_to_decide(
        main.estimates, main.variances / EFFICIENCY, 0.0, margin, (ALPHA / looks, EQUIVALENCE_ALPHA / looks), POWER,
        against=margin,
    )  # fmt: skip
    least = np.where(np.abs(main.estimates) > margin, math.log2(looks / ALPHA), math.log2(looks / EQUIVALENCE_ALPHA))
    return _decisions(
        codes=[ChangeCode(code) for code in codes.tolist()],
        worse=main.estimates > 0,
        logs=(
            np.where(confirmable, fresh.estimates, main.estimates),
            np.where(confirmable, fresh.interval[0], main.interval[0]),
            np.where(confirmable, fresh.interval[1], main.interval[1]),
        ),
        p_worse=main.p_worse,
        p_better=main.p_better,
        p_beyond=np.where(main.estimates > 0, *main.beyond),
        counts=main.counts,
        evidence=evidence,
        means=None if mean_codes is None else (mean_codes, mean.change),
        standard_error=error,
        needed=np.maximum(needed, least) * stats.ratio(main.counts, main.kept),
    )


def decide_stored(
    baseline: Floats,
    candidate: Floats,
    thresholds: Floats,
    control_log_ratios: Sequence[float],
    means: Means | None = None,
    mean_control_log_ratios: Sequence[float] = (),
) -> list[Decision]:
    """Return a decision per cell of two runs that were measured one after the other, in seconds.

    `baseline` and `candidate` are round values of the shapes (cells, rounds of the run), NaN where missing;
    `thresholds` are as for `decide_interleaved`. Each of `control_log_ratios` is log(control / own) of a run: both
    contain a run's luck, so r²/2 estimates its variance with one degree of freedom and is added to the variance of the
    difference. Rounds over 1.25 times their side's median are left out if they are at most a quarter. Changed: the
    one-sided p for a change up to the threshold is at most 0.001, and at most 0.01 after Holm over all cells.
    Unchanged: as for `decide_interleaved`, judged once. Under three rounds on a side: too few. Swapping baseline and
    candidate mirrors every verdict.
    """
    invalid = _invalid(baseline) | _invalid(candidate)
    sides = [_usable(baseline), _usable(candidate)]
    counts: Integers = np.minimum(*(np.sum(~np.isnan(side), axis=1) for side in sides))
    kept = [np.log(without_slow(side)) for side in sides]
    components = [ratio**2 / 2 for ratio in control_log_ratios]
    estimates, error, freedom = stats.welch(kept[0], kept[1], components)
    p_worse, p_better = _t_tail(estimates, error, freedom), _t_tail(-estimates, error, freedom)
    margin = np.log1p(thresholds)
    beyond = _t_tail(estimates - margin, error, freedom), _t_tail(-estimates - margin, error, freedom)
    mean = _StoredMean(means, mean_control_log_ratios)
    worse, better = (_certain(np.concatenate(pair), 1) for pair in zip(beyond, mean.beyond, strict=True))
    cells = len(thresholds)
    mean_codes = None if means is None else mean.codes(worse[cells:], better[cells:], confirm=False)
    worse, better = worse[:cells], better[:cells]
    half = stdtrit(freedom, 1 - EQUIVALENCE_ALPHA) * error
    few = counts < MINIMUM_ROUNDS
    evidence = _Evidence(*sides)
    unchanged = (estimates - half > -margin) & (estimates + half < margin) & (evidence.slow_p > SLOW_ALPHA)
    codes = np.select(
        [invalid, few, worse | better, unchanged & _open(mean_codes), unchanged],
        [ChangeCode.INVALID, ChangeCode.TOO_FEW_BLOCKS, ChangeCode.BEYOND_THRESHOLD, ChangeCode.TAIL_UNDECIDED,
         ChangeCode.WITHIN_THRESHOLD],
        ChangeCode.UNDECIDED,
    )  # fmt: skip
    variance = stats.row_variances(kept[0])[2] + stats.row_variances(kept[1])[2]
    needed = stats.count_to_decide(
        estimates, variance, sum(components), margin, (ALPHA, EQUIVALENCE_ALPHA), POWER, against=margin
    )
    wide = stdtrit(freedom, 0.975) * error
    return _decisions(
        codes=[ChangeCode(code) for code in codes.tolist()],
        worse=estimates > 0,
        logs=(estimates, estimates - wide, estimates + wide),
        p_worse=p_worse,
        p_better=p_better,
        p_beyond=np.where(estimates > 0, *beyond),
        counts=counts,
        evidence=evidence,
        means=None if mean_codes is None else (mean_codes, mean.change),
        standard_error=error,
        needed=np.maximum(needed, MINIMUM_ROUNDS),
    )


class Fired(NamedTuple):
    """A control that differs from its own arm in the cell at `place` by `change`; `of_mean`: in the mean."""

    place: int
    change: float
    of_mean: bool


def judge_control(blocks: Blocks, thresholds: Floats, means: Means | None = None) -> tuple[list[Fired], list[Decision]]:
    """Return the cells in which the control fires, the surest first, and a decision per cell of control / baseline.

    It fires if the exact two-sided p of the blocks' values or of their `means`, after Holm over all of these, is at
    most 0.01 divided by the number of looks: by chance in at most one comparison of a hundred, for any number of cells.
    A certain difference that is proven to be within the threshold does not count.
    """
    pair = Blocks.unconfirmed(blocks.baseline, blocks.control)
    decisions = decide_interleaved(pair, thresholds, looks=1, confirm=False)
    two_sided = [
        2 * min(p for p in (decision.p_worse, decision.p_better, 0.5) if p is not None) for decision in decisions
    ]
    within = [decision.status is ChangeStatus.UNCHANGED for decision in decisions]
    changes = [decision.change for decision in decisions]
    if means is not None:
        same = stats.mean_ratios(_usable(means.blocks.baseline), _usable(means.blocks.control), (EQUIVALENCE_ALPHA,))
        two_sided += (2 * np.minimum(np.minimum(same.p_above, same.p_below), 0.5)).tolist()
        margin = 1 + means.thresholds
        within += ((same.lows[0] > 1 / margin) & (same.highs[0] < margin)).tolist()
        changes += (same.estimates - 1).tolist()
    certain = stats.holm(np.array(two_sided)) <= CONTROL_ALPHA / len(LOOKS)
    places = np.flatnonzero(certain & ~np.array(within, np.bool_)).tolist()
    cells = len(decisions)
    fired = [Fired(at % cells, changes[at] or 0.0, at >= cells) for at in sorted(places, key=two_sided.__getitem__)]
    return fired, decisions


def _invalid(seconds: Floats) -> Booleans:
    """Return which cells have a zero, negative or infinite time; NaN is a missing one."""
    invalid: Booleans = np.any(~np.isnan(seconds) & ~(np.isfinite(seconds) & (seconds > 0)), axis=1)
    return invalid


def _usable(seconds: Floats) -> Floats:
    return np.where(np.isfinite(seconds) & (seconds > 0), seconds, np.nan)


def _certain(p_values: Floats, looks: int) -> Booleans:
    ordered = np.where(np.isnan(p_values), 1.0, p_values)
    return (ordered <= ALPHA / looks) & (stats.holm(ordered) <= FAMILY_ALPHA / looks)


def _t_tail(estimates: Floats, error: Floats, freedom: Floats) -> Floats:
    """Return P(T >= estimate / error); without spread, 0 for an estimate above 0 and 1 for others."""
    spread = error > 0
    quotient = np.where(spread, estimates / np.where(spread, error, 1.0), np.where(estimates > 0, np.inf, -np.inf))
    tail: Floats = stdtr(freedom, -quotient)
    return tail


def without_slow(seconds: Floats) -> Floats:
    """Return the rounds of each side, shape (cells, rounds), with NaN for slow ones if these are few."""
    slow = stats.slow(seconds, SLOW)
    few: Booleans = np.sum(slow, axis=1) <= LARGEST_SHARE_OF_ROUNDS_APART * np.sum(~np.isnan(seconds), axis=1)
    return np.where(slow & few[:, None], np.nan, seconds)


class _Paired:
    """Tests and bounds of paired blocks; arrays of shape (cells,), pairs of bounds (2, cells).

    `baseline` and `candidate` are the blocks on both sides, `counts` their number, `kept` their number without
    outliers. `beyond` are the p-values for a slowdown and for a gain up to the `margin`, a logarithm. `bounds` are
    one-sided at 0.05/`looks`, `interval` is the 95% interval.
    """

    def __init__(self, baseline: Floats, candidate: Floats, margin: Floats, looks: int):
        whole = ~np.isnan(_usable(baseline)) & ~np.isnan(_usable(candidate))
        self.baseline, self.candidate = np.where(whole, baseline, np.nan), np.where(whole, candidate, np.nan)
        self.counts: Integers = np.sum(whole, axis=1)
        differences = np.log(self.candidate) - np.log(self.baseline)
        apart = stats.outlying(differences, math.log(SLOW))
        excess = np.abs(np.sum(apart & (differences > 0), axis=1) - np.sum(apart & (differences < 0), axis=1))
        # P(X >= excess), X binomial: more outliers on one side than `SLOW_SHARE` explains
        self.lopsided: Booleans = (excess > 0) & (
            bdtrc(np.maximum(excess - 1, 0), np.maximum(self.counts, 1), SLOW_SHARE) <= LOPSIDED_ALPHA
        )
        differences = np.where(apart, np.nan, differences)
        ranks = stats.signed_ranks(differences, (EQUIVALENCE_ALPHA / looks, 0.025), margin)
        self.p_worse, self.p_better, self.estimates = ranks.p_above, ranks.p_below, ranks.estimates
        self.beyond = (ranks.p_above_margin, ranks.p_below_margin)
        self.bounds = (ranks.lows[0], ranks.highs[0])
        self.interval = (ranks.lows[1], ranks.highs[1])
        self.kept, _, self.variances = stats.row_variances(differences)


class _Mean:
    """Tests of the ratio of means over all samples of interleaved blocks; arrays of shape (cells,).

    `beyond` are the p-values for a slowdown and for a gain up to the threshold. `change` has the change and the ends of
    its 95% interval, from the fresh blocks if they confirm a change.
    """

    def __init__(self, means: Means | None, looks: int):
        if means is None:
            self.beyond = (np.empty(0), np.empty(0))
            return
        blocks, margin = means.blocks, 1 + means.thresholds
        alphas = (EQUIVALENCE_ALPHA / looks, 0.025)
        self._main = stats.mean_ratios(_usable(blocks.baseline), _usable(blocks.candidate), alphas, margin)
        fresh = _usable(blocks.confirm_baseline), _usable(blocks.confirm_candidate)
        self._fresh = stats.mean_ratios(*fresh, alphas, margin)
        self._fresh_counts = np.sum(~np.isnan(fresh[0]) & ~np.isnan(fresh[1]), axis=1)
        self._within = (self._main.lows[0] > 1 / margin) & (self._main.highs[0] < margin)
        self.beyond = (self._main.p_above, self._main.p_below)
        self.change = _with_interval(self._main)

    def codes(self, worse: Booleans, better: Booleans, confirm: bool) -> list[ChangeCode]:
        """Return the code of each cell's mean, given which means are certainly beyond their thresholds."""
        changed = worse | better
        confirmable, confirmed = np.zeros(len(changed), np.bool_), changed
        if confirm:
            confirmable = changed & (0.5**self._fresh_counts <= CONFIRMATION_ALPHA)
            confirmed = confirmable & (np.where(worse, self._fresh.p_above, self._fresh.p_below) <= CONFIRMATION_ALPHA)
            change, low, high = (
                np.where(confirmable, new, old)
                for new, old in zip(_with_interval(self._fresh), self.change, strict=True)
            )
            self.change = change, low, high
        codes = np.select(
            [confirmed, confirmable, changed, self._within],
            [
                ChangeCode.BEYOND_THRESHOLD,
                ChangeCode.NOT_CONFIRMED,
                ChangeCode.UNCONFIRMED,
                ChangeCode.WITHIN_THRESHOLD,
            ],
            ChangeCode.UNDECIDED,
        )
        return [ChangeCode(code) for code in codes.tolist()]


class _StoredMean(_Mean):
    """The same of rounds measured one after the other, by Welch's test on logarithms, outliers included."""

    def __init__(self, means: Means | None, control_log_ratios: Sequence[float]):
        if means is None:
            self.beyond = (np.empty(0), np.empty(0))
            return
        sides = [np.log(_usable(side)) for side in (means.blocks.baseline, means.blocks.candidate)]
        margin = np.log1p(means.thresholds)
        ratios, error, freedom = stats.welch(sides[0], sides[1], [ratio**2 / 2 for ratio in control_log_ratios])
        self.beyond = (_t_tail(ratios - margin, error, freedom), _t_tail(-ratios - margin, error, freedom))
        half, wide = (stdtrit(freedom, level) * error for level in (1 - EQUIVALENCE_ALPHA, 0.975))
        self._within = (ratios - half > -margin) & (ratios + half < margin)
        self.change = (np.expm1(ratios), np.expm1(ratios - wide), np.expm1(ratios + wide))


def _with_interval(ratios: stats.MeanRatios) -> tuple[Floats, Floats, Floats]:
    """Return the change of a ratio of means and the ends of its 95% interval, NaN without one."""
    known = (ratios.lows[1] > 0) & np.isfinite(ratios.highs[1])
    return (
        ratios.estimates - 1,
        np.where(known, ratios.lows[1] - 1, np.nan),
        np.where(known, ratios.highs[1] - 1, np.nan),
    )


def _open(mean_codes: list[ChangeCode] | None) -> Booleans | bool:
    """Return whether each cell's mean is neither within its threshold nor certainly beyond; False if not judged."""
    if mean_codes is None:
        return False
    settled = (ChangeCode.WITHIN_THRESHOLD, ChangeCode.BEYOND_THRESHOLD)
    return np.array([code not in settled for code in mean_codes], np.bool_)


class _Evidence:
    """Numbers reported with a verdict, from all blocks, outliers included; arrays of shape (cells,)."""

    def __init__(self, baseline: Floats, candidate: Floats):
        slow = [np.sum(stats.slow(side, SLOW), axis=1) for side in (baseline, candidate)]
        (counts, means, _), (others, other_means, _) = stats.row_variances(baseline), stats.row_variances(candidate)
        self.slow_baseline = slow[0] / np.maximum(counts, 1)
        self.slow_candidate = slow[1] / np.maximum(others, 1)
        self.slow_p = stats.fisher_p(slow[0], counts, slow[1], others)
        self.mean_change = stats.ratio(other_means, means) - 1
        self.p90_change = stats.ratio(stats.row_quantiles(candidate, 0.9), stats.row_quantiles(baseline, 0.9)) - 1


_DIRECTIONLESS = {
    ChangeCode.INVALID: ChangeStatus.INCOMPARABLE,
    ChangeCode.WITHIN_THRESHOLD: ChangeStatus.UNCHANGED,
}


def _decisions(
    codes: list[ChangeCode],
    worse: Booleans,
    logs: tuple[Floats, Floats, Floats],
    counts: Integers,
    evidence: _Evidence,
    means: tuple[list[ChangeCode], tuple[Floats, Floats, Floats]] | None,
    needed: Floats,
    **others: Floats,
) -> list[Decision]:
    """Return the decisions; `logs` (the estimates and their interval) are of candidate / baseline.

    `means` holds the codes of the means over all samples, their change and its interval.
    """
    none = np.full(len(codes), np.nan)
    mean_codes: Sequence[ChangeCode | None] = [None] * len(codes) if means is None else means[0]
    change, low, high = (np.expm1(values) for values in logs)
    whole = np.isfinite(low) & np.isfinite(high)
    wanting = np.array([code in (ChangeCode.UNDECIDED, ChangeCode.TOO_FEW_BLOCKS) for code in codes], np.bool_)
    columns = others | {
        "change": change,
        "low": np.where(whole, low, np.nan),
        "high": np.where(whole, high, np.nan),
        "p90_change": evidence.p90_change,
        "blocks_needed": np.where(wanting & (needed <= MOST_BLOCKS), np.ceil(needed), np.nan),
    }
    mean = (evidence.mean_change, none, none) if means is None else means[1]
    columns |= dict(zip(("mean_change", "mean_low", "mean_high"), mean, strict=True))
    rows: dict[str, Sequence[Any]] = {
        name: [value if math.isfinite(value) else None for value in column.tolist()] for name, column in columns.items()
    }
    rows["blocks_needed"] = [None if count is None else int(count) for count in rows["blocks_needed"]]
    rows |= {"code": codes, "mean_code": mean_codes, "blocks": counts.tolist(), "slow_p": evidence.slow_p.tolist()}
    rows["slow_share_baseline"] = evidence.slow_baseline.tolist()
    rows["slow_share_candidate"] = evidence.slow_candidate.tolist()
    beyond = [ChangeStatus.REGRESSED if up else ChangeStatus.IMPROVED for up in worse.tolist()]
    rows["status"] = [
        way if code is ChangeCode.BEYOND_THRESHOLD else _DIRECTIONLESS.get(code, ChangeStatus.INCONCLUSIVE)
        for way, code in zip(beyond, codes, strict=True)
    ]
    return [Decision(**dict(zip(rows, row, strict=True))) for row in zip(*rows.values(), strict=True)]
