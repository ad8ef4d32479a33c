"""What the times of a cast pass come to: the untraced step's, the casts', what a change saves, and what is in doubt.

A build is worth its fastest sample (`stats.round_value`), the step the median over its builds, a change what signed
ranks make of the differences of its pairs of builds. Seconds of ops and casts are *traced*: tracing adds some
microseconds to each op, so they are never mixed with those of the untraced step without saying so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ampbench import stats
from ampbench.casts.summary import Saving, Totals, savings, sentence, totals
from ampbench.precisions import PRECISIONS
from ampbench.records.cases import Case
from ampbench.records.casts import CastPass, CheckedSaving
from ampbench.records.measurements import OTHER_SHARE, STEAL_SHARE, Fitness
from ampbench.records.rules import FAKE
from ampbench.units import counted, format_seconds, format_share

WIDEST = 3.0
"""An interval whose ends differ by a larger factor says nothing of a step's time: its middle may be off by as much as
the precisions that are compared differ."""
SLOWEST = 3.0
"""Where traced ops take more than so many times the untraced step, tracing is most of what was timed, and the casts'
share of the one says little of their share of the other."""
ALPHA = 0.025
"""The one-sided level of each end of a 95 % interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The times of a pass in seconds; None where there is none, or none to be trusted: then `doubts` say why.

    `step_seconds` is the untraced step's, with the 95 % interval `step_low` to `step_high`. `traced_seconds` is what
    all ops took while traced, `traced_cast_seconds` the casts among them, `cast_share` their share of it (0-1).
    `step_cast_seconds` is that share of the untraced step: an estimate. `doubts` are sentences without a full stop.
    """

    step_seconds: float | None = None
    step_low: float | None = None
    step_high: float | None = None
    traced_seconds: float | None = None
    traced_cast_seconds: float | None = None
    cast_share: float | None = None
    step_cast_seconds: float | None = None
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTime:
    """What a change saves a step: `seconds`, with its 95 % interval (None: too few pairs of builds, or too noisy ones).

    `seconds` is Hodges and Lehmann's estimate of the difference within a pair, `low` and `high` the bounds that belong
    to it. `before` and `after` are medians over the `pairs` builds; those of one side differ by more than `WIDEST`
    times where they are `noisy`.
    """

    before: float
    after: float
    seconds: float
    low: float | None
    high: float | None
    pairs: int
    noisy: bool

    @property
    def certain(self) -> bool:
        """Whether the interval leaves no doubt that time is saved."""
        return self.low is not None and self.low > 0


def costs(found: CastPass, whole: Totals | None = None) -> Costs:
    """Return the times of `found`; `whole` is what its casts add up to, where that is known already."""
    whole = whole or totals(found.trace)
    doubts = list(unfit(found.fitness))
    step, low, high = _step_time(found.step_samples)
    if step is None and found.step_samples:
        worth = [stats.round_value([build]) for build in found.step_samples]
        between = f"{format_seconds(min(worth))} to {format_seconds(max(worth))}"
        doubts.append(f"the time of the untraced step is too noisy to say: its {len(worth)} builds took {between}")
    traced = sum(op.seconds or 0.0 for op in found.trace.ops) if found.trace.timed else None
    estimate = None
    if step is not None and low is not None and traced and whole.share is not None and whole.casts:
        if traced <= SLOWEST * step:
            estimate = whole.share * step
        else:
            doubts.append(
                f"traced, the ops take {traced / step:.1f} times as long as the untraced step: what share of that its "
                "casts have is not known"
            )
    return Costs(
        step_seconds=step,
        step_low=low,
        step_high=high,
        traced_seconds=traced,
        traced_cast_seconds=whole.seconds,
        cast_share=whole.share,
        step_cast_seconds=estimate,
        doubts=tuple(doubts),
    )


def casts_said(found: CastPass, case: Case, whole: Totals | None = None, saved: Sequence[Saving] | None = None) -> str:
    """Return in a line how many casts a step of `case` makes, what they cost and how many could be saved."""
    trace = found.trace
    if not trace.casts and case.precision in PRECISIONS and PRECISIONS[case.precision].autocast is None:
        return f"no casts: {case.precision} runs without autocast"
    whole = whole or totals(trace)
    of = "a step"
    if found.how == FAKE and not trace.inference and all(op.phase == "forward" for op in trace.ops):
        of = "in the forward pass (backward pass not traced)"
    found_savings = list(savings(trace) if saved is None else saved)
    return sentence(whole, found_savings, of=of, step_cast_seconds=costs(found, whole).step_cast_seconds)


def times_said(found: CastPass, whole: Totals | None = None) -> list[str]:
    """Return what the step takes, untraced and traced, and what is in doubt about it: sentences without a full stop.

    `whole` as for `costs`.
    """
    known = costs(found, whole)
    parts = []
    if known.step_seconds is not None:
        builds = counted(len(found.step_samples), "build")
        between = f"from {builds}, too few for an interval"
        if known.step_low is not None and known.step_high is not None:
            between = f"95 %: {format_seconds(known.step_low)} to {format_seconds(known.step_high)}"
        parts.append(f"the step takes {format_seconds(known.step_seconds)} ({between}) when nothing traces it")
    if known.traced_seconds is not None:
        few = {1: "of one step", 2: "of two steps"}.get(found.traced_steps)
        times = f"{few}, in which one delay may be most of it" if few else f"medians of {found.traced_steps} steps"
        parts.append(f"traced, its ops take {format_seconds(known.traced_seconds)} ({times})")
    return [*(["; ".join(parts)] if parts else []), *known.doubts]


def saved_time(one: CheckedSaving) -> SavedTime:
    """Return what a change that was measured saves a step."""
    before = [stats.round_value([samples]) for samples in one.before]
    after = [stats.round_value([samples]) for samples in one.after]
    ranks = stats.signed_ranks(np.array([np.subtract(before, after)]), (ALPHA,))
    low, high = float(ranks.lows[0, 0]), float(ranks.highs[0, 0])
    noisy = any(max(side) > WIDEST * min(side) for side in (before, after))
    known = math.isfinite(low) and math.isfinite(high) and not noisy
    return SavedTime(
        before=stats.median(before),
        after=stats.median(after),
        seconds=float(ranks.estimates[0]),
        low=low if known else None,
        high=high if known else None,
        pairs=len(before),
        noisy=noisy,
    )


def saving_said(one: CheckedSaving) -> str:
    """Return "20.0 us → 15.0 us, 5.00 us saved (95 %: 4.00 us to 6.00 us)", or that no saving is certain."""
    saved = saved_time(one)
    took = f"{format_seconds(saved.before)} → {format_seconds(saved.after)}"
    if saved.noisy:
        return f"{took}, too noisy to say: builds of one step differ more than {WIDEST:g} times"
    if saved.low is None or saved.high is None:
        return f"{took}, without an interval (of {counted(saved.pairs, 'pair')} of builds)"
    if saved.low <= 0 <= saved.high:
        return f"{took}, no certain saving (95 %: {format_seconds(saved.low)} to {format_seconds(saved.high)})"
    low, high = sorted((abs(saved.low), abs(saved.high)))
    word = "saved" if saved.certain else "lost"
    return (
        f"{took}, {format_seconds(abs(saved.seconds))} {word} (95 %: {format_seconds(low)} to {format_seconds(high)})"
    )


def _step_time(builds: Sequence[Sequence[float]]) -> tuple[float | None, float | None, float | None]:
    """Return the step's seconds and the ends of their interval; nothing where that is too wide to say anything."""
    if not builds:
        return None, None, None
    worth = [stats.round_value([build]) for build in builds]
    interval = stats.log_t_interval(worth)
    if interval is None:
        return stats.median(worth), None, None
    if interval[1] > WIDEST * interval[0]:
        return None, None, None
    return stats.median(worth), *interval


def unfit(seen: Fitness) -> Sequence[str]:
    """Return what the machine did while something was timed that spoils its times."""
    causes = []
    if (seen.other_share or 0.0) > OTHER_SHARE:
        causes.append(f"other processes used {format_share(seen.other_share)} of the CPU")
    if (seen.steal_share or 0.0) > STEAL_SHARE:
        causes.append(f"the hypervisor gave {format_share(seen.steal_share)} of the CPU time to other machines")
    return [f"{' and '.join(causes)} while this was timed: do not trust its times"] if causes else []
