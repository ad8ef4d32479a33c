"""Comparison of steps timed side by side: ratios of times, and doubts about them.

A build is worth its fastest sample (`stats.round_value`), a step the median over its builds. Two steps are compared by
signed ranks of the ratios of builds that stood side by side and were timed in turns.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from ampbench.core.statement import Severity, Statement, state
from ampbench.records.measured import OTHER_SHARE, STEAL_SHARE, Fitness

WIDEST = 3.0
"""Above this factor between builds of one step, its time is unknown: the median may be off by as much as precisions
differ."""

ALPHA = 0.025
"""The one-sided level of each end of a 95% interval."""


class Ratio(NamedTuple):
    """How many times as long one step takes as another; `low` to `high` is the 95% interval.

    They are None where there are not builds enough, or noisy ones.
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def differs(self) -> bool:
        """Whether the interval, as it is written, leaves 1 out."""
        return self.low is not None and self.high is not None and (round(self.low, 2) > 1 or round(self.high, 2) < 1)


def step_seconds(builds: Sequence[Sequence[float]]) -> float | None:
    """Return the seconds of a step, the median over the values of its builds.

    None where it was not timed, or its builds differ so much that this says nothing.
    """
    from ampbench.core import stats

    if not builds or not all(builds):
        return None
    worth = [min(build) for build in builds]
    return None if max(worth) > WIDEST * min(worth) else stats.median(worth)


def ratio_of(after: Sequence[Sequence[float]], before: Sequence[Sequence[float]]) -> Ratio:
    """Return how many times as long `after` takes as `before`, each the samples of builds that stood in pairs."""
    import numpy as np

    from ampbench.core import stats

    logs = [math.log(min(new) / min(old)) for new, old in zip(after, before, strict=False)]
    ranks = stats.signed_ranks(np.array([logs]), (ALPHA,))
    value, low, high = (math.exp(bound[0]) for bound in (ranks.estimates, ranks.lows[0], ranks.highs[0]))
    certain = 0 < low <= high < math.inf and step_seconds(after) is not None and step_seconds(before) is not None
    return Ratio(value, low, high) if certain else Ratio(value)


def short_ratio(ratio: Ratio) -> str:
    """Return "1.04x 1.02–1.06", the 95% interval behind the ratio, where it is known."""
    between = "" if ratio.low is None or ratio.high is None else f" {ratio.low:.2f}–{ratio.high:.2f}"
    return f"{ratio.value:.2f}x{between}"


class Timing(StrEnum):
    """What a change does to the time of a step."""

    FASTER = "timing-faster"
    SLOWER = "timing-slower"
    SAME = "timing-same"
    """No certain difference."""
    NOISY = "timing-noisy"
    BUSY = "timing-busy"
    """The machine was busy: times are not judged."""


def unfit(fitness: Fitness) -> float | None:
    """Return the share of CPU time that others took while something was timed, if it is enough to spoil its times."""
    others, steal = fitness.other_share or 0.0, fitness.steal_share or 0.0
    return max(others, steal) if others > OTHER_SHARE or steal > STEAL_SHARE else None


def busy(fitness: Fitness) -> Statement | None:
    """Return the statement that the machine was too busy for reliable times; None where it was not."""
    share = unfit(fitness)
    return None if share is None else state(Timing.BUSY, "", Severity.ADVICE, share=share)


def compared_steps(
    unchanged: Sequence[Sequence[float]], changed: Sequence[Sequence[float]], fitness: Fitness
) -> list[Statement]:
    """Return the effect of a change on the time of a step, from builds in pairs; nothing where none was timed."""
    spoilt = busy(fitness)
    if spoilt is not None or not unchanged or not changed:
        return [spoilt] if spoilt is not None else []
    before, after = step_seconds(unchanged), step_seconds(changed)
    if before is None or after is None:
        return [state(Timing.NOISY, "", Severity.INFO, widest=WIDEST)]
    ratio = ratio_of(changed, unchanged)
    faster, slower = (ratio.high or math.inf) < 1, (ratio.low or 0.0) > 1
    code = Timing.FASTER if faster else Timing.SLOWER if slower else Timing.SAME
    facts = {"before": before, "after": after, "ratio": ratio.value, "low": ratio.low, "high": ratio.high}
    return [state(code, "", Severity.INFO, **facts)]
