"""What the times of a cast pass come to: the untraced step's, the casts', and what is in doubt.

Seconds of ops and casts are *traced*: tracing adds some
microseconds to each op, so they are never mixed with those of the untraced step without saying so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ampbench import stats
from ampbench.beside import WIDEST, unfit, worth_of
from ampbench.casts.summary import Saving, Totals, savings, sentence, totals
from ampbench.precisions import PRECISIONS
from ampbench.records.cases import Case
from ampbench.records.casts import CastPass
from ampbench.records.rules import FAKE
from ampbench.units import counted, format_seconds

SLOWEST = 3.0
"""Where traced ops take more than so many times the untraced step, tracing is most of what was timed, and the casts'
share of the one says little of their share of the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The times of a pass in seconds; None where there is none, or none to be trusted: then `doubts` say why.

    `step_seconds` is the untraced step's, with the 95% interval `step_low` to `step_high`. `traced_seconds` is what
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


def costs(found: CastPass, whole: Totals | None = None) -> Costs:
    """Return the times of `found`; `whole` is what its casts add up to, where that is known already."""
    whole = whole or totals(found.trace)
    doubts = list(unfit(found.fitness))
    step, low, high = _step_time(found.step_samples)
    if step is None and found.step_samples:
        worth = worth_of(found.step_samples)
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
            between = f"95%: {format_seconds(known.step_low)} to {format_seconds(known.step_high)}"
        parts.append(f"the step takes {format_seconds(known.step_seconds)} ({between}) when nothing traces it")
    if known.traced_seconds is not None:
        few = {1: "of one step", 2: "of two steps"}.get(found.traced_steps)
        times = f"{few}, in which one delay may be most of it" if few else f"medians of {found.traced_steps} steps"
        parts.append(f"traced, its ops take {format_seconds(known.traced_seconds)} ({times})")
    return [*(["; ".join(parts)] if parts else []), *known.doubts]


def _step_time(builds: Sequence[Sequence[float]]) -> tuple[float | None, float | None, float | None]:
    """Return the step's seconds and the ends of their interval; nothing where that is too wide to say anything."""
    if not builds:
        return None, None, None
    worth = worth_of(builds)
    interval = stats.log_t_interval(worth)
    if interval is None:
        return stats.median(worth), None, None
    if interval[1] > WIDEST * interval[0]:
        return None, None, None
    return stats.median(worth), *interval
