"""What steps that were timed beside each other say: how many times as long, how much is saved, and what is in doubt.

A build is worth its fastest sample (`stats.round_value`), a step the median over its builds. Two steps are compared by
signed ranks of what differs within each pair of builds, which stood side by side and were timed in turns.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ampbench.core.statement import Severity, Statement, state
from ampbench.core.units import format_share
from ampbench.records.measured import OTHER_SHARE, STEAL_SHARE, Fitness

WIDEST = 3.0
"""Numbers of one step that differ by a larger factor, the ends of an interval or its builds, say nothing of its time:
the middle may be off by as much as the precisions that are compared differ."""

ALPHA = 0.025
"""The one-sided level of each end of a 95% interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times as long one step takes as another; `low` to `high` is the 95% interval.

    They are None where there are not builds enough, or noisy ones.
    """

    value: float
    low: float | None = None
    high: float | None = None


def worth_of(builds: Iterable[Sequence[float]]) -> list[float]:
    """Return what each build is worth in seconds: its fastest sample (`stats.round_value`)."""
    from ampbench.core import stats

    return [stats.round_value([build]) for build in builds]


def is_noisy(worth: Iterable[float]) -> bool:
    """Return whether builds of one step differ by more than `WIDEST` times."""
    every = list(worth)
    return max(every) > WIDEST * min(every)


def step_seconds(builds: Sequence[Sequence[float]]) -> float | None:
    """Return the seconds of a step, the median over what its builds are worth.

    None where it was not timed, or its builds differ so much that this says nothing.
    """
    from ampbench.core import stats

    if not builds or not all(builds):
        return None
    worth = worth_of(builds)
    return None if is_noisy(worth) else stats.median(worth)


def ratio_of(after: Sequence[Sequence[float]], before: Sequence[Sequence[float]]) -> Ratio:
    """Return how many times as long `after` takes as `before`, each the samples of builds that stood in pairs."""
    import numpy as np

    from ampbench.core import stats

    new, old = (np.array(worth_of(side)) for side in zip(*zip(after, before, strict=False), strict=True))
    ranks = stats.signed_ranks(np.log(new / old)[None, :], (ALPHA,))
    value, low, high = (math.exp(each[0]) for each in (ranks.estimates, ranks.lows[0], ranks.highs[0]))
    certain = low > 0 and not math.isinf(high) and not (is_noisy(new) or is_noisy(old))
    return Ratio(value=value, low=low, high=high) if certain else Ratio(value=value)


def short_ratio(ratio: Ratio) -> str:
    """Return "1.04x 1.02–1.06", the 95% interval behind the ratio, where it is known."""
    between = "" if ratio.low is None or ratio.high is None else f" {ratio.low:.2f}–{ratio.high:.2f}"
    return f"{ratio.value:.2f}x{between}"


class Timing(StrEnum):
    """What a change does to the time of a step."""

    FASTER = "timing-faster"
    SLOWER = "timing-slower"
    SAME = "timing-same"
    FEW = "timing-few"
    """Too few builds for an interval."""
    NOISY = "timing-noisy"
    BUSY = "timing-busy"
    """The machine was busy: times are not judged."""


def busy(seen: Fitness) -> Statement | None:
    """Return that the machine was too busy for times to be trusted; None where it was not."""
    if not unfit(seen):
        return None
    return state(Timing.BUSY, "", Severity.ADVICE, other=seen.other_share or 0.0, steal=seen.steal_share or 0.0)


def compared_steps(
    unchanged: Sequence[Sequence[float]], changed: Sequence[Sequence[float]], seen: Fitness
) -> list[Statement]:
    """Return what a change does to the time of a step, from builds in pairs; nothing where none was timed."""
    spoilt = busy(seen)
    if spoilt is not None or not unchanged or not changed:
        return [spoilt] if spoilt is not None else []
    import numpy as np

    from ampbench.core import stats

    before, after = worth_of(unchanged), worth_of(changed)
    if is_noisy(before) or is_noisy(after):
        return [state(Timing.NOISY, "", Severity.INFO, widest=WIDEST)]
    ranks = stats.signed_ranks(np.array([np.subtract(before, after)]), (ALPHA,))
    low, high, seconds = float(ranks.lows[0, 0]), float(ranks.highs[0, 0]), float(ranks.estimates[0])
    facts: dict[str, float | str | None] = {"before": stats.median(before), "after": stats.median(after)}
    facts["pairs"] = len(before)
    if not (math.isfinite(low) and math.isfinite(high)):
        return [state(Timing.FEW, "", Severity.INFO, **facts)]
    code = Timing.FASTER if low > 0 else Timing.SAME
    if high < 0:
        low, high, seconds, code = -high, -low, -seconds, Timing.SLOWER
    return [state(code, "", Severity.INFO, **facts, low=low, high=high, seconds=seconds)]


def unfit(seen: Fitness) -> Sequence[str]:
    """Return what the machine did while something was timed that spoils its times."""
    causes = []
    if (seen.other_share or 0.0) > OTHER_SHARE:
        causes.append(f"other processes used {format_share(seen.other_share)} of the CPU")
    if (seen.steal_share or 0.0) > STEAL_SHARE:
        causes.append(f"the hypervisor gave {format_share(seen.steal_share)} of the CPU time to other machines")
    return [f"{' and '.join(causes)} while this was timed: do not trust its times"] if causes else []
