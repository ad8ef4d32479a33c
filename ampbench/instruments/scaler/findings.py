"""What came of a training with each setting of GradScaler, beside the one in fp32 from the same weights, in sentences.

Is a scale needed, does GradScaler find it, what goes wrong, and what became of the gradients. Sentences are without
their full stops, and begin in lower case or with the name of a setting ("default: ").
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from statistics import median

from ampbench.core.precisions import BASELINE
from ampbench.core.units import apart, counted, format_error, format_share
from ampbench.instruments.scaler.records import ScalerRun
from ampbench.records.case import Case
from ampbench.records.labels import few
from ampbench.records.ranges import format_scale, nonfinite_sentence
from ampbench.records.run import ScalerSetting
from ampbench.store import StoredRun

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
    changes = [after - before for before, after in pairwise(late)]
    return math.hypot(*changes) / math.sqrt(2 * len(changes)) if changes else 0.0


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
        skipped_first=next(step for step in count() if step not in skipped),
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


FLUSHES = 0.01
"""The share of gradient elements at zero from which they are said to flush."""

MANY_SKIPPED = 3
"""From so many steps skipped at the start on, another init_scale is recommended."""

OFTEN_SKIPPED = 0.05
"""The share of steps, after the scale was first found, from which a scaler skips too many."""

DEFAULT, UNSCALED = "default", "no scaling"
"""The names of the settings that others are told beside."""

NO_SCALER = "only settings without a scaler were trained (--no-scaler): what scaling would do is not known"


def scaler_said(case: Case, runs: Sequence[ScalerRun]) -> list[str]:
    """Return what trainings of `case` say: first whether it needs a scale, then gradients, scales and overflows."""
    found = outcomes(runs)
    low = [one for one in found if one.run.precision == case.precision]
    said = [*_fp32_said(runs), *_verdict_said(low), *_flushed_said(low)]
    said += [sentence for one in low if one.run.setting.enabled for sentence in _scale_said(one, low)]
    said += _overflowing_said(low)
    if not case.scaler:
        said.append(NO_SCALER)
    if len({run.weights_digest for run in runs}) > 1:
        said.append(
            "the weights at the start are not the same in all settings: seed them, or losses cannot be compared"
        )
    return said


def collapse_said(run: ScalerRun) -> str:
    """Return why a scale fell and fell: the loss itself is not finite, or gradients overflow at every scale."""
    first = f": {nonfinite_sentence(run.first_nonfinite)}" if run.first_nonfinite else ""
    if run.losses and run.losses[-1] is None:
        return f"the loss itself is not finite, which no scale changes{first}"
    lowest = f" down to {format_scale(run.scales[-1])}" if run.scales else ""
    return f"gradients overflow at every scale{lowest}{first}"


def _fp32_said(runs: Sequence[ScalerRun]) -> list[str]:
    """Return what keeps the training in fp32 from being a measure of the others."""
    full = in_fp32(runs)
    if full is None:
        return ["fp32 was not trained, so that nothing is known of how the loss should fall"]
    if full.error:
        return [f"fp32: a step raised {full.error}: losses cannot be judged"]
    end = end_loss(full)
    if end is None:
        odd = [number for number, loss in enumerate(full.losses, 1) if loss is None]
        if not odd:
            what = f"weights are not finite after step {len(full.losses):,}"
        elif len(odd) == len(full.losses) + 1 - odd[0]:
            what = f"the loss is not finite from step {odd[0]:,} on"
        else:
            what = f"the loss of {counted(len(odd), 'step')}, from step {odd[0]:,}, is not finite"
        return [f"in fp32 itself {what}: losses cannot be judged"]
    steps, fell = counted(full.steps, "step"), fall(full)
    if fell is None or fell <= 0:
        return [f"in fp32 the loss does not fall in {steps}: only gradients can be judged"]
    if fell <= least_fall(full):
        began, ends = apart(full.losses[0] or 0.0, end)
        within = "by what its steps differ anyway" if scatter(full) >= fell else "within what rounding may change"
        judged = "only gradients can be judged (more --steps, or a larger learning rate, would tell)"
        return [f"in fp32 the loss falls by {fell:.2g} in {steps}, from {began} to {ends}, {within}: {judged}"]
    return []


def _verdict_said(low: Sequence[Outcome]) -> list[str]:
    """Return whether fp16 needs a loss scale, and whether one serves."""
    unscaled = next((one for one in low if not one.run.setting.enabled), None)
    scaled = [one for one in low if one.run.setting.enabled]
    serving = sorted((one for one in scaled if one.serves), key=lambda one: one.name != DEFAULT)
    said = []
    if scaled and all(one.state == COLLAPSED for one in scaled):
        keep = "keep the part that makes it in fp32 (ampbench explain keep-fp32), or train in bf16"
        said.append(f"no loss scale helps: {collapse_said(scaled[0].run)}; {keep}")
    elif unscaled is not None and unscaled.fails and serving:
        repaired = f"{_with(serving[0])} it falls {_as_fp32(serving[0])}"
        said.append(f"fp16 needs loss scaling here: without it {_failure_said(unscaled)}; {repaired}")
    elif unscaled is not None and unscaled.serves:
        said.append(_needless_said(unscaled))
        said += [f"{one.name}: {_failure_said(one)}" for one in scaled if one.fails]
    else:
        said += [f"{one.name}: {_failure_said(one)}" for one in low if one.fails]
    return said


def _needless_said(unscaled: Outcome) -> str:
    falls = f"the loss falls {_as_fp32(unscaled)}"
    if unscaled.flushed is None or unscaled.flushed < FLUSHES:
        return f"fp16 needs no loss scaling here: gradients hardly flush and {falls}"
    share = format_share(unscaled.flushed)
    return f"without loss scaling {share} of gradients flush to zero, and yet {falls} within these steps"


def _failure_said(one: Outcome) -> str:
    """Return how a training falls short of fp32."""
    run = one.run
    if one.state == RAISED:
        return f"a step raised {run.error}"
    if one.state == COLLAPSED:
        return f"the scale collapses: {collapse_said(run)}"
    if one.state == BROKEN:
        first = f": {nonfinite_sentence(run.first_nonfinite)}" if run.first_nonfinite else ""
        return f"training ends in values that are not finite after {counted(len(run.losses), 'step')}{first}"
    began, loss, best = run.losses[0], one.loss, one.fp32_loss
    if began is not None and loss is not None and best is not None and loss > began > best:
        first, last, fell = apart(began, loss, best)
        return f"the loss rises from {first} to {last}, where in fp32 it falls to {fell}"
    above = f"ends {format_share(one.excess)} above fp32's and " if one.excess is not None and one.excess < 1 else ""
    return f"the loss {above}lacks {format_share(min(one.lag or 0.0, 1.0))} of what it falls by in fp32"


def _flushed_said(low: Sequence[Outcome]) -> list[str]:
    """Return what share of gradients flushes and how far they err, without a scale and with GradScaler's defaults."""
    told = [one for one in low if one.name in (UNSCALED, DEFAULT) and one.flushed is not None]
    parts = [f"{format_share(one.flushed)} {_with(one)}" for one in told]
    if not parts:
        return []
    errors = [format_error(one.grad_rel_l2) for one in told]
    erring = f"; they err by {' and '.join(errors)} (relative L2 error against fp32 of the same weights)"
    return [f"gradients that fp32 has and fp16 flushes to zero: {', '.join(parts)}{erring}"]


def _scale_said(one: Outcome, low: Sequence[Outcome]) -> list[str]:
    """Return what a scale did, where it did more than hold, and what to set instead: of `low` what serves better."""
    run = one.run
    if one.state in (COLLAPSED, RAISED) or not run.scales or not run.skipped:
        return []
    done, first, later = len(run.losses), one.skipped_first, one.skipped_later
    said = f"{one.name}: {len(run.skipped):,} of {counted(done, 'step')} skipped"
    if first == done:
        still = f"from {format_scale(run.scales[0])} on: no step was accepted, its scale was still falling"
        return [f"{said} {still}: more --steps"]
    if first < MANY_SKIPPED and not _often_skipped(one):
        return []
    others = [other for other in low if other.run.setting.enabled]
    if first:
        said += f", the first {first:,} to come down from {format_scale(run.scales[0])}"
        settled = run.scales[first]
        if first >= MANY_SKIPPED:
            tried = next((other for other in others if other.run.scales[:1] == [settled]), None)
            said += f": init_scale={format_scale(settled).replace('^', '**')} {_spares(tried, 'these')}"
    if _often_skipped(one):
        interval = run.setting.growth_interval
        slower = [other for other in others if other.run.setting.growth_interval > interval]
        better = next((other for other in slower if other.serves and not _often_skipped(other)), None)
        said += f"; {later:,} later ones to find that no larger scale will do: "
        said += f"a longer growth_interval {_spares(better, 'most')}"
    return [said]


def _often_skipped(one: Outcome) -> bool:
    return one.skipped_later > max(OFTEN_SKIPPED * len(one.run.losses), 1)


def _spares(tried: Outcome | None, what: str) -> str:
    """Return whether a setting spares skipped steps: it does in one that was `tried`, else it is a guess."""
    return f"spares {what}, as in {tried.name}" if tried else f"may spare {what} (not tried)"


def _overflowing_said(low: Sequence[Outcome]) -> list[str]:
    """Return the parameters whose gradients were not finite most often."""
    counts: Counter[str] = Counter()
    for one in low:
        if one.run.setting.enabled and one.state != COLLAPSED:
            counts.update(one.run.nonfinite)
    if not counts:
        return []
    names = [name for name, _ in counts.most_common()]
    return [f"the gradients that overflow, most often first: {few(names)}"]


def _as_fp32(one: Outcome) -> str:
    """Return how the loss of a training that serves falls."""
    return "nearly as in fp32" if one.state == NEAR else "as in fp32"


def _with(one: Outcome) -> str:
    """Return "without scaling", "with GradScaler's defaults" or "with low start"."""
    if not one.run.setting.enabled:
        return "without scaling"
    return "with GradScaler's defaults" if one.name == DEFAULT else f"with {one.name}"


def setting_name(setting: ScalerSetting | None) -> str:
    """Return what a training with a setting is called; None: in fp32."""
    return setting.name if setting else BASELINE


def trained(stored: StoredRun) -> set[tuple[str, str]]:
    """Return which trainings are in a run, by the ids of cases and the names of settings."""
    found = stored.several_of(ScalerRun).items()
    return {(case_id, run.setting.name) for case_id, runs in found for run in runs}


def unfinished(stored: StoredRun) -> list[tuple[str, str]]:
    """Return which trainings a run lacks, by the ids of cases and the names of settings, in the order of the run.

    Cases that failed or were skipped lack none, nor does a run that does not say what it was asked for.
    """
    done, settings = trained(stored), [None, *stored.asked.settings] if stored.asked else []
    return [
        (case_id, name)
        for case_id in stored.cases
        if case_id not in stored.given_up
        for name in map(setting_name, settings)
        if (case_id, name) not in done
    ]
