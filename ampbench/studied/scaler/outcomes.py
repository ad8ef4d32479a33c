"""What came of a training with each setting of GradScaler, beside the one in fp32 from the same weights."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from ampbench.precisions import BASELINE
from ampbench.records.studies import ScalerRun

RAISED, BROKEN, COLLAPSED, BEHIND, NEAR, FOLLOWS, UNKNOWN = (
    "raised",
    "not finite",
    "collapsed",
    "behind",
    "nearly fp32",
    "as fp32",
    "unknown",
)
"""States of a training: a step raised; its weights or its last losses are not finite; its scale fell and fell, with
every step skipped; its loss falls less than fp32's; it lacks next to nothing of that fall, and yet ends well above
fp32's, which is near zero; it falls as much; it cannot be told, as fp32's does not fall."""

LAGS = 0.05
"""A training is behind where it lacks more than this share of what the loss falls by in fp32, or where its loss ends by
more than this share above fp32's, unless what it lacks is below `NOTHING`. This is one training: over seeds
`ampbench study convergence` tells precisions apart that differ by less."""

NOTHING = 0.01
"""A share of fp32's fall that is nothing to speak of: losses near zero differ by large factors."""

ROUNDING = 2.0**-11
"""A fall by no more than this share of the loss is none to judge by: half a unit in the last place of fp16."""

LAST = 4
"""The loss at the end is the mean over the last quarter of the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one training; None where it is undefined.

    `flushed` is the share of the gradient elements looked at that are zero though they are not in fp32, `grad_rel_l2`
    the median over the looks of the gradients' error. `loss` is that at the end, `lag` the share of what the loss falls
    by in fp32 that is missing then, `excess` by what share of `fp32_loss`, fp32's at the end, it is above that.
    `skipped_first` counts the steps skipped before the first that was taken.
    """

    run: ScalerRun
    state: str
    flushed: float | None
    grad_rel_l2: float | None
    loss: float | None
    lag: float | None
    excess: float | None
    fp32_loss: float | None
    skipped_first: int

    @property
    def skipped_later(self) -> int:
        """How many steps were skipped after the first that was taken."""
        return len(self.run.skipped) - self.skipped_first

    @property
    def name(self) -> str:
        """The name of the setting."""
        return self.run.setting.name

    @property
    def fails(self) -> bool:
        """Whether training with it falls short of fp32."""
        return self.state in (RAISED, BROKEN, COLLAPSED, BEHIND)

    @property
    def serves(self) -> bool:
        """Whether training with it is as good as in fp32, or nearly."""
        return self.state in (NEAR, FOLLOWS)


def outcomes(runs: Sequence[ScalerRun]) -> list[Outcome]:
    """Return what came of each of the trainings of a case, in their order."""
    full = in_fp32(runs)
    return [_outcome(run, full) for run in runs]


def in_fp32(runs: Sequence[ScalerRun]) -> ScalerRun | None:
    """Return the training that the others are held against; None where it was not reached."""
    return next((run for run in runs if run.precision == BASELINE), None)


def end_loss(run: ScalerRun) -> float | None:
    """Return the mean loss over the last quarter of the steps; None where it ended before or one is not finite."""
    return mean_loss(run, run.steps - max(run.steps // LAST, 1), run.steps)


def fall(run: ScalerRun) -> float | None:
    """Return by how much the loss falls from the first step to the end; None where one of the two is undefined."""
    first, end = next(iter(run.losses), None), end_loss(run)
    return None if first is None or end is None else first - end


def scatter(run: ScalerRun) -> float:
    """Return how far the losses of the second half differ from step to step, as a standard deviation of one of them."""
    late = [loss for loss in run.losses[len(run.losses) // 2 :] if loss is not None]
    changes = [(after - before) ** 2 for before, after in pairwise(late)]
    return math.sqrt(sum(changes) / len(changes) / 2) if changes else 0.0


def least_fall(run: ScalerRun) -> float:
    """Return what the loss must fall by for others to be judged by it: more than rounding and its own scatter."""
    return max(ROUNDING * max((abs(loss) for loss in run.losses if loss is not None), default=0.0), scatter(run))


def mean_loss(run: ScalerRun, start: int, end: int) -> float | None:
    """Return the mean loss of the steps from `start` to before `end`; None where one is missing or not finite."""
    known = [loss for loss in run.losses[start:end] if loss is not None]
    return sum(known) / len(known) if known and len(known) == end - start else None


def _outcome(run: ScalerRun, full: ScalerRun | None) -> Outcome:
    nonzero = sum(look.nonzero for look in run.looks)
    errors = [look.rel_l2 for look in run.looks if look.rel_l2 is not None]
    skipped = set(run.skipped)
    loss, best = end_loss(run), end_loss(full) if full else None
    fell = fall(full) if full else None
    lag = _share(loss, best, fell if full and fell is not None and fell > least_fall(full) else None)
    excess = _share(loss, best, None if best is None else abs(best))
    return Outcome(
        run=run,
        state=_state(run, loss, lag, excess),
        flushed=sum(look.flushed for look in run.looks) / nonzero if nonzero else None,
        grad_rel_l2=median(errors) if errors else None,
        loss=loss,
        lag=lag,
        excess=excess,
        fp32_loss=best,
        skipped_first=next(step for step in range(len(run.losses) + 1) if step not in skipped),
    )


def _share(loss: float | None, best: float | None, whole: float | None) -> float | None:
    """Return by what share of the `whole` a loss is above another; None where that is not above zero."""
    return None if loss is None or best is None or whole is None or whole <= 0 else (loss - best) / whole


def _state(run: ScalerRun, loss: float | None, lag: float | None, excess: float | None) -> str:
    if run.error:
        return RAISED
    if len(run.losses) < run.steps and run.setting.enabled:
        return COLLAPSED
    if loss is None:
        return BROKEN
    if lag is None:
        return UNKNOWN
    above = (excess or 0.0) > LAGS
    if lag > LAGS or (lag > NOTHING and above):
        return BEHIND
    return NEAR if above else FOLLOWS
