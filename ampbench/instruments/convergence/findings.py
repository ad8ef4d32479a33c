"""Whether trainings in a precision end as well as those in fp32: differences by seed against what rounding alone does.

A difference belongs to a seed: both trainings begin with the same weights and take the same batches. It is positive
where the precision is better. Trainings are chaotic: the smallest rounding ends in other weights and some other
decisions. How much of that there is, the spread of a difference, is estimated twice, and the larger estimate is taken:

* trainings that differ from fp32 by rounding alone, the control and fp64, give differences whose mean is zero;
* the differences of the precisions judged spread about their own means. A low precision disturbs more than one
  rounding does, so that its trainings may have parted where the control still follows fp32.

How well one training ended is the mean of its last scores, or why it has none. What numbers do not decide, and what
must be said beside those that do, are sentences here, too. docs/convergence.md has the error rates of these rules,
tests/instruments/convergence/test_convergence_findings.py simulates them.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ampbench.core import stats
from ampbench.core.precisions import BASELINE
from ampbench.core.units import UNDEFINED, counted
from ampbench.instruments.convergence.records import CONTROL, REFERENCE, Drift, Training
from ampbench.records.changes import ChangeStatus
from ampbench.records.labels import few
from ampbench.records.measured import Score

ALPHA = 0.05
"""At most so often is any precision of a study said to regress where none does; as often for improve."""
EQUIVALENCE_ALPHA = 0.05
"""The level of each of the two one-sided tests that show a difference to lie within the margin."""
POWER = 0.9
"""The seeds said to decide would do so with this probability if the spread were known; it is not, so with less."""

_LOUD = 6.0
"""A precision whose variance is so many times that of the others says nothing of theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the differences of one precision say. All numbers are in the unit of the differences.

    `difference` is their mean, `low` and `high` its 90% interval (infinite where nothing is known of the spread),
    `spread` the standard deviation of one difference that it was made with. `seeds_needed` would decide, were the
    spread the one seen and the difference none, or the one seen where the interval leaves out none (None: already
    decided, or never).
    """

    verdict: ChangeStatus
    difference: float
    low: float
    high: float
    spread: float | None
    seeds_needed: int | None = None


def judge(
    differences: Mapping[str, Sequence[float]],
    rounding: Sequence[float],
    margin: float,
    *,
    resolution: float = 0.0,
    alpha: float = ALPHA,
) -> dict[str, Judged]:
    """Return a verdict on each precision.

    `differences` are each precision's by seed, at least one; `rounding` those of trainings that differ from fp32 by
    rounding alone. `resolution` is the least step of the metric, as one decision of all. `margin`, or one step where
    that is more, is the largest difference that counts as none.

    Regressed: the mean is below -margin and its one-sided bound at `alpha`, divided by the number of precisions
    (Bonferroni), below 0; improved mirrored. Unchanged: the 90% interval lies within the margin (two one-sided tests:
    Schuirmann, "A comparison of the two one-sided tests procedure and the power approach", 1987). Else inconclusive.
    Bounds are Student's t. A spread is never taken to be below that of two numbers rounded to the resolution,
    resolution / sqrt(6).
    """
    margin = max(margin, resolution)
    level = alpha / max(len(differences), 1)
    return {
        name: _judged(values, *_spread(name, differences, rounding, resolution), margin, level)
        for name, values in differences.items()
    }


def _judged(values: Sequence[float], variance: float | None, freedom: float, margin: float, level: float) -> Judged:
    """Return the verdict on differences with a known variance, made from `freedom` degrees of freedom."""
    mean, count = float(np.mean(values)), len(values)
    if variance is None:
        return Judged(verdict=ChangeStatus.INCONCLUSIVE, difference=mean, low=-math.inf, high=math.inf, spread=None)
    from scipy.special import stdtrit

    error = math.sqrt(variance / count)
    bound = float(stdtrit(freedom, 1 - level)) * error
    wide = float(stdtrit(freedom, 1 - EQUIVALENCE_ALPHA)) * error
    needed = None
    if abs(mean) > margin and abs(mean) > bound:
        verdict = ChangeStatus.IMPROVED if mean > 0 else ChangeStatus.REGRESSED
    elif abs(mean) + wide <= margin:
        verdict = ChangeStatus.UNCHANGED
    else:
        verdict = ChangeStatus.INCONCLUSIVE
        needed = _needed(0.0 if abs(mean) <= wide else mean, variance, count, margin, level)
    return Judged(
        verdict=verdict,
        difference=mean,
        low=mean - wide,
        high=mean + wide,
        spread=math.sqrt(variance),
        seeds_needed=needed,
    )


def _needed(mean: float, variance: float, count: int, margin: float, level: float) -> int | None:
    """Return how many seeds would decide, always more than there are; None where no number would."""
    found = stats.count_to_decide(
        np.array([mean]), np.array([variance]), 0.0, np.array([margin]), (level, EQUIVALENCE_ALPHA), POWER
    )
    return max(math.ceil(found[0]), count + 1) if math.isfinite(found[0]) else None


def _spread(
    name: str, differences: Mapping[str, Sequence[float]], rounding: Sequence[float], resolution: float
) -> tuple[float | None, float]:
    """Return the variance of one difference of a precision and its degrees of freedom; None where nothing tells it."""
    known = [_about_zero(rounding), _about_means(_as_loud(name, differences, rounding, resolution))]
    found = [(variance, freedom) for variance, freedom in known if freedom]
    if not found:
        return None, 0.0
    variance, freedom = max(found)
    return max(variance, _least_variance(resolution)), freedom


def _least_variance(resolution: float) -> float:
    """Return the variance of a difference of two numbers each rounded to `resolution`: twice its square over 12."""
    return resolution**2 / 6


def _about_zero(rounding: Sequence[float]) -> tuple[float, float]:
    """Return the mean square of differences by rounding alone, and their number: their mean is known to be zero."""
    return (float(np.mean(np.square(rounding))), float(len(rounding))) if len(rounding) else (0.0, 0.0)


def _about_means(values: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the pooled variance of precisions' differences about their means, and its degrees of freedom.

    The differences of one seed share its fp32 training, and half their variance where all trainings vary alike; of k
    precisions the pooled variance then has 4 / (k + 3) times the degrees of freedom of independent ones (Satterthwaite,
    1946, with the eigenvalues of that covariance: 1, and once k + 1).
    """
    several = [each for each in values if len(each) > 1]
    total = sum(len(each) - 1 for each in several)
    if not total:
        return 0.0, 0.0
    squares = sum(float(np.sum(np.square(np.subtract(each, np.mean(each))))) for each in several)
    return squares / total, total * 4 / (len(several) + 3)


def _as_loud(
    name: str, differences: Mapping[str, Sequence[float]], rounding: Sequence[float], resolution: float
) -> list[Sequence[float]]:
    """Return the differences of a precision, and of the others those that do not vary far more than the rest."""
    floor = max(_about_zero(rounding)[0], _least_variance(resolution))

    def loud(one: str) -> bool:
        others = [values for other, values in differences.items() if other != one]
        return _about_means([differences[one]])[0] > _LOUD * max(floor, _about_means(others)[0])

    return [values for one, values in differences.items() if one == name or not loud(one)]


ACCURACY, LOSS = "accuracy", "loss"
"""What trainings are judged by: the share of decisions that are the targets', else the loss."""

MARGINS = {ACCURACY: 0.005, LOSS: 0.01}
"""The largest differences that count as none: half a point of accuracy, one percent of the loss."""

OF_FALL = 0.1
"""Nor do differences of losses count as none that are more than this share of what fp32's own loss falls by."""

LATE_MARGIN = math.log(1.05)
"""The largest difference of log training losses in the last quarter that counts as none: 5% of the loss."""

ROUNDING = 2.0**-20
"""A loss that falls by no more than this share of it has not fallen: some units in the last place of fp32."""

HARDLY = 0.01
"""A loss that falls by less than this share of it has hardly fallen."""

LAST = 0.75
"""From this share of the steps on, scores are those of the end."""

WINDOWS = 6
"""Losses are shown as means over so many parts of the training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What the trainings of a workload are judged by: `ACCURACY` or `LOSS`, `held_out` or on what was trained on.

    `decisions` are those that an accuracy is the share of; None for a loss. `fall` is by how much fp32's loss falls in
    training, relative to where it ends; None where that is not known, and for an accuracy.
    """

    name: str
    held_out: bool
    decisions: int | None = None
    fall: float | None = None

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return 1 if self.name == ACCURACY else -1

    @property
    def resolution(self) -> float:
        """The least step of the metric: one decision; 0 for a loss."""
        return 1 / self.decisions if self.decisions else 0.0

    @property
    def margin(self) -> float:
        """The largest difference that counts as none: of an accuracy, one decision at least.

        Of a loss, relative to fp32's: the smaller of one percent and `OF_FALL` of fp32's own fall, where it falls.
        """
        if self.fall is not None and self.fall > ROUNDING:
            return min(MARGINS[self.name], OF_FALL * self.fall)
        return max(MARGINS[self.name], self.resolution)

    @property
    def hardly_falls(self) -> bool:
        """Whether fp32's loss falls, but by less than `HARDLY`."""
        return self.fall is not None and 0 < self.fall < HARDLY

    def of(self, score: Score | None) -> float | None:
        """Return the value of a score; None where its loss is not finite, or there is no score."""
        if score is None or score.loss is None:
            return None  # of outputs that are not finite, an accuracy counts the classes that NaN falls on
        if self.name == LOSS:
            return score.loss
        return score.correct / score.decisions if score.correct is not None and score.decisions else None

    def final(self, training: Training) -> float | None:
        """Return the mean over the scores in the last quarter of the steps; None where one of them has no value.

        A single score also says at which moment it was taken: decisions near a border change from step to step.
        """
        last = final_score(training)
        if last is None:
            return None
        late = [score for score in training.scores if score.step >= LAST * training.steps]
        values = [value for score in late if (value := self.of(score)) is not None]
        return statistics.fmean(values) if len(values) == len(late) else None


def metric_of(trainings: Sequence[Training]) -> Metric:
    """Return what trainings, best those of fp32, are judged by: accuracy where every score counts decisions."""
    scores = [score for training in trainings for score in training.scores]
    held_out = any(training.held_out for training in trainings)
    if scores and all(score.decisions and score.correct is not None for score in scores):
        return Metric(name=ACCURACY, held_out=held_out, decisions=min(score.decisions or 0 for score in scores))
    return Metric(name=LOSS, held_out=held_out)


def format_metric(value: float | None, metric: Metric) -> str:
    """Return an accuracy as "97.87%", a loss as "0.3127"."""
    if value is None:
        return UNDEFINED
    return f"{value:.2%}" if metric.name == ACCURACY else f"{value:.4g}"


def format_change(value: float | None, metric: Metric) -> str:
    """Return a difference from fp32 as "+0.13", in points of accuracy, or "+0.13%", of a loss."""
    if value is None:
        return UNDEFINED
    number = f"{_rounded(value):+.2f}"
    return number if metric.name == ACCURACY else f"{number}%"


def size_said(value: float | None, metric: Metric) -> str:
    """Return the size of a difference as "0.13 points" or "0.13% of the loss"; "nothing" where there is none."""
    if value is None:
        return UNDEFINED
    if value == 0:
        return "nothing"
    number = f"{abs(_rounded(value)):.2f}" if abs(value) >= 5e-5 else "less than 0.01"
    return f"{number} points" if metric.name == ACCURACY else f"{number}% of the loss"


def margin_said(metric: Metric) -> str:
    """Return the margin as "half a point of accuracy" or "1.00% of the loss", and what it is a share of."""
    if metric.name == ACCURACY and metric.margin == MARGINS[ACCURACY]:
        return "half a point of accuracy"
    size = size_said(metric.margin, metric)
    return f"{size}, a tenth of what fp32's falls by" if metric.margin < MARGINS[metric.name] else size


def metric_said(metric: Metric) -> str:
    """Return what is measured, as "accuracy on held-out data" or "loss on the training data"."""
    return f"{metric.name} on {'held-out data' if metric.held_out else 'the training data'}"


def change_said(value: float, metric: Metric) -> str:
    """Return "its accuracy is 1.20 points lower" or "its loss is 0.50% higher"."""
    unit = " points" if metric.name == ACCURACY else "%"
    return f"its {metric.name} is {abs(_rounded(value)):.2f}{unit} {'lower' if value < 0 else 'higher'}"


def ratio_said(ratio: float, low: float | None, high: float | None) -> str:
    """Return "its training loss ends 2.41 times fp32's (90% interval 2.22 to 2.6)"."""
    between = "" if low is None or high is None else f" (90% interval {low:.3g} to {high:.3g})"
    return f"its training loss ends {ratio:.3g} times fp32's{between}"


def interval_said(low: float | None, high: float | None, metric: Metric) -> str:
    """Return "(90% interval -1.50 to -0.90)"; "" where there is none."""
    if low is None or high is None:
        return ""
    return f"(90% interval {format_change(low, metric)} to {format_change(high, metric)})"


def first_score(training: Training) -> Score | None:
    """Return the score before the first step."""
    return next((score for score in training.scores if score.step == 0), None)


def final_score(training: Training) -> Score | None:
    """Return the score after the last step, of the network that the training hands over; None where it ended early."""
    if broke_off(training):
        return None
    return next((score for score in training.scores if score.step == training.steps), None)


def mean_loss(training: Training, low: int, high: int) -> float | None:
    """Return the mean training loss of the steps from `low` to before `high`; None where some of them has none."""
    first, last = low // training.every, max(-(-high // training.every), low // training.every + 1)
    known = training.losses[first:last]
    whole = last <= len(training.losses) or len(training.losses) * training.every >= training.steps
    values = [loss for loss in known if loss is not None]
    return statistics.fmean(values) if values and len(values) == len(known) and whole else None


def late_loss(training: Training) -> float | None:
    """Return the mean training loss of the last quarter of the steps; None where one has none, or it ended early."""
    if broke_off(training):
        return None
    return mean_loss(training, math.floor(LAST * training.steps), training.steps)


def late_margin(own: Sequence[Training]) -> float | None:
    """Return the largest difference of log training losses that counts as none, given the trainings in fp32.

    That is `LATE_MARGIN` or, where it is less, `OF_FALL` of what fp32's own log loss falls by, from the first stored
    loss to the last quarter. None where fp32's loss does not fall, or no logarithm is known.
    """
    ends = [(each.losses[0] if each.losses else None, late_loss(each)) for each in own]
    falls = [math.log(first / last) for first, last in ends if first and last and first > 0 and last > 0]
    fall = statistics.fmean(falls) if falls else 0.0
    return min(LATE_MARGIN, OF_FALL * fall) if fall > ROUNDING else None


def windows_of(steps: int) -> list[tuple[int, int]]:
    """Return the parts of a training over which losses are averaged: from each first step to before the next."""
    edges = [round(steps * part / WINDOWS) for part in range(WINDOWS + 1)]
    return [(low, high) for low, high in pairwise(edges) if high > low]


def final_drift(training: Training) -> Drift | None:
    """Return how far the weights lay from others after the last step; None where it ended early."""
    return training.drift[-1] if training.drift and not broke_off(training) else None


def broke_off(training: Training) -> bool:
    """Return whether a training was given up or ended with an error."""
    return training.ended_at is not None or bool(training.error)


def trouble(training: Training, metric: Metric) -> str:
    """Return why a training has no final value of a metric, as "loss not finite from step 15"; "" where it has one.

    Steps count from 1.
    """
    if training.error:
        return f"raised {training.error}"
    if training.ended_at is not None:
        return _given_up(training, training.ended_at)
    skipped = ["every step skipped by GradScaler"] if training.skipped_steps == training.steps else []
    if final_score(training) is None:
        return ", ".join([*skipped, "not scored at the end"])
    if metric.final(training) is None:
        held_out = "held-out loss" if training.held_out else "loss"
        return ", ".join([*skipped, f"{held_out} not finite at the end"])
    late = training.losses[math.floor(LAST * len(training.losses)) :]
    if late and all(loss is None for loss in late):
        return ", ".join([*skipped, _lost(training)])
    return ", ".join(skipped)


def troubles_said(trainings: Sequence[Training], metric: Metric) -> str:
    """Return what kept trainings of several seeds from an end, as "loss not finite from step 15 in 2 of 3 seeds"."""
    found = [(training, said) for training in trainings if (said := trouble(training, metric))]
    if not found:
        return ""
    first, said = min(found, key=lambda each: math.inf if each[0].ended_at is None else each[0].ended_at)
    alike = {other for _, other in found} == {said}
    earliest = "" if alike or first.ended_at is None else " at the earliest"
    return f"{said}{earliest} in {len(found)} of {counted(len(trainings), 'seed')}"


def _given_up(training: Training, ended_at: int) -> str:
    """Return what was not finite when a training was given up, and from which step."""
    if training.losses and training.losses[-1] is None:
        return _lost(training)
    if training.scaler_scale is not None and training.scaler_scale < 1:
        return f"gradients not finite at any loss scale, given up at step {ended_at + 1:,}"
    return f"weights not finite from step {ended_at + 1:,}"


def _lost(training: Training) -> str:
    """Return from which step on no training loss was finite, where the last was not."""
    finite = max((place + 1 for place, loss in enumerate(training.losses) if loss is not None), default=0)
    return f"loss not finite from step {finite * training.every + 1:,}"


def _rounded(value: float) -> float:
    """Return 100 times a share, rounded to two digits, and never "-0.00"."""
    return round(100 * value, 2) + 0.0


NAMES = {CONTROL: "control", REFERENCE: "fp64"}
"""What the arms of fp32 are called: from weights one rounding away, and in fp64."""

NO_BASELINE = "fp32 has no training to compare with"
NO_END = "fp32 itself came to no end"
NO_PAIR = "no seed was trained to its end in fp32 and in this precision"
NOT_LEARNING = "fp32 itself does not learn"
ONE_SEED = "one seed shows no spread: it takes two, better three or more (--seeds)"
SAME_START = (
    "every seed gave the same weights and batches, so that there is but one training: torch, numpy and random are "
    "seeded before the function is called, so do not seed in it"
)
CONTROL_FIRED = "fp32 from weights one rounding away differs as much: what is seen here is no precision's doing"


MANY_SEEDS = 50
"""More seeds than this are not worth recommending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """The trainings of a case, or of one of its arms, by their seeds."""

    case_id: str
    arm: str
    by_seed: dict[int, Training]


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """A verdict that numbers do not decide; `without_numbers` where a difference would mislead.

    `of_fp32`: fp32's own trainings are why, which is said once of all precisions.
    """

    verdict: ChangeStatus = ChangeStatus.INCONCLUSIVE
    reason: str
    without_numbers: bool = False
    of_fp32: bool = False


def withheld(
    seeds: Mapping[int, Training],
    own: Mapping[int, Training],
    metric: Metric,
    learns: bool | None,
    controls: Mapping[str, Judged],
) -> Withheld | None:
    """Return the verdict on a precision that its differences do not decide; None where they do."""
    if not own:
        return Withheld(verdict=ChangeStatus.INCOMPARABLE, reason=NO_BASELINE, without_numbers=True)
    ended = ended_of(own, metric)
    if not ended:
        return Withheld(reason=NO_END, without_numbers=True, of_fp32=True)
    pairs = [(each, ended[seed]) for seed, each in seeds.items() if seed in ended]
    if not pairs:
        return Withheld(reason=NO_PAIR, without_numbers=True)
    for what, one in (("weights", "weights_digest"), ("batches", "inputs_digest")):
        if any(getattr(mine, one) != getattr(theirs, one) for mine, theirs in pairs):
            reason = f"its {what} are not those that fp32 was trained with"
            return Withheld(verdict=ChangeStatus.INCOMPARABLE, reason=reason, without_numbers=True)
    if troubles := troubles_said([mine for mine, _ in pairs], metric):
        return Withheld(verdict=ChangeStatus.REGRESSED, reason=troubles, without_numbers=True)
    if learns is False:
        return Withheld(reason=NOT_LEARNING, of_fp32=True)
    if reason := only_one(seeds, ended):
        return Withheld(reason=reason)
    return Withheld(reason=CONTROL_FIRED) if fires(controls.get(NAMES[CONTROL])) else None


def reason_of(judged: Judged, metric: Metric, low: float | None, high: float | None) -> str:
    """Return why a verdict that numbers decided is what it is; `low` and `high` are the interval as it is told."""
    between = interval_said(low, high, metric)
    if judged.verdict is ChangeStatus.UNCHANGED:
        return f"within {size_said(metric.margin, metric)} of fp32 {between}".strip()
    said = f"{change_said(judged.difference * metric.sign, metric)} than in fp32 {between}".strip()
    if judged.verdict is not ChangeStatus.INCONCLUSIVE:
        return said
    return seeds_said(said, judged.seeds_needed, size_said(metric.margin, metric))


def seeds_said(said: str, needed: int | None, margin: str) -> str:
    """Return what is `said` of a difference that is not decided, and how many seeds would decide (None: no number)."""
    if needed is None:
        return f"{said}, too near the margin of {margin} for any number of seeds"
    more = f"about {counted(needed, 'seed')}" if needed <= MANY_SEEDS else f"more than {MANY_SEEDS} seeds"
    return f"{said}; {more} would decide"


def ended_of(trainings: Mapping[int, Training], metric: Metric) -> dict[int, Training]:
    """Return those of the trainings by seed that came to an end."""
    return {seed: each for seed, each in trainings.items() if not trouble(each, metric)}


def only_one(seeds: Mapping[int, Training], own: Mapping[int, Training]) -> str:
    """Return why trainings beside those of fp32 show no spread, which leaves no interval either; "" where they do."""
    starts = [(own[seed].weights_digest, own[seed].inputs_digest) for seed in seeds if seed in own]
    if len(starts) == 1:
        return ONE_SEED
    return SAME_START if len({*starts}) == 1 else ""


def fires(judged: Judged | None) -> bool:
    """Return whether an arm of fp32 itself is said to differ from it."""
    return judged is not None and judged.verdict in (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED)


def control_remarks(controls: Mapping[str, Judged], metric: Metric) -> list[str]:
    """Return what it means where fp32 itself, one rounding away or in fp64, ends elsewhere."""
    said = {
        CONTROL: "no verdict is given: of fp32 from weights one rounding away, {} than of fp32",
        REFERENCE: "fp64 ends elsewhere than fp32: {}, so that fp32 is no exact measure here",
    }
    return [
        remark.format(change_said(judged.difference * metric.sign, metric))
        for arm, remark in said.items()
        if (judged := controls.get(NAMES[arm])) is not None and fires(judged)
    ]


def seed_remarks(arms: Mapping[str, Arm], asked: int, metric: Metric) -> list[str]:
    """Return which trainings are missing, and which of fp32 and its arms came to no end.

    `arms` are all that are planned. That fp32 came to no end from any seed is not a remark: it is said first.
    """
    remarks = []
    short = [name for name, arm in arms.items() if len(arm.by_seed) < asked]
    if short:
        remarks.append(f"not all of {counted(asked, 'seed')} were trained in {few(short)}")
    lost = BASELINE in arms and not ended_of(arms[BASELINE].by_seed, metric)
    for name in (*(() if lost else (BASELINE,)), *NAMES.values()):
        if name in arms and (troubles := troubles_said(list(arms[name].by_seed.values()), metric)):
            remarks.append(f"{'the control' if name == NAMES[CONTROL] else name} itself: {troubles}")
    if BASELINE in arms:
        own = arms[BASELINE].by_seed.values()
        if len(own) > 1 and len({each.weights_digest for each in own}) == 1:
            remarks.append("the weights are the same from every seed")
    return remarks
