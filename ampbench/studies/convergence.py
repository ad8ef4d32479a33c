"""Convergence: whole trainings in every precision, each with its verdict against fp32, and the way that it went.

A difference belongs to a seed: both trainings begin with the same weights and take the same batches. It is positive
where the precision is better. Trainings are chaotic: the smallest rounding ends in other weights and some other
decisions. How much of that there is, the spread of a difference, is estimated twice, and the larger estimate is taken:

* trainings that differ from fp32 by rounding alone, the control and fp64, give differences whose mean is zero;
* the differences of the precisions judged spread about their own means. A low precision disturbs more than one
  rounding does, so that its trainings may have parted where the control still follows fp32.

The way of a training is what its parameters have moved by since its first step, as they are stored: Δθ, beside fp64's
Δθ*. An error that every step makes alike, a bias, makes their distance grow in proportion to the number of steps k;
independent errors, noise, make it grow with its root. Where training contracts, towards one minimum, it settles; where
it is chaotic, trainings part faster than either.

docs/convergence.md has the error rates of these rules, tests/studies/test_convergence_rules.py simulates them. Stored
trainings count for the cases of a run that measured, too: a whole training says more than one step.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import structs

from ampbench.core.precisions import BASELINE, rank
from ampbench.core.recipes import CONSTANT
from ampbench.core.statement import Severity, Statement, state
from ampbench.core.units import UNDEFINED, all_of, counted
from ampbench.records.bounds import Count, ErrorSize, KeptShare, Magnitude, Positive, Seconds, Signed, Steps, one_of
from ampbench.records.case import Case, Environment
from ampbench.records.changes import ChangeStatus
from ampbench.records.kinds import CONVERGENCE
from ampbench.records.labels import case_labels, few, told_apart
from ampbench.records.measured import Failure, Score, Skip
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Task
from ampbench.show.charts import curves
from ampbench.show.document import Column
from ampbench.show.page import place_of, run_name
from ampbench.studies.study import ALL_PRECISIONS_HELP, SCALER_HELP, Selects, Session, Study, Table, View, asks

if TYPE_CHECKING:
    from ampbench.drive.pieces import Piece
    from ampbench.drive.planning import PlannedCase
    from ampbench.drive.servers import Channel
    from ampbench.store import StoredRun

CONTROL, REFERENCE = ARMS = "control", "reference"
"""Trainings of the fp32 case beside its own (""): from weights one rounding away, and in fp64."""
NAMES = {CONTROL: "control", REFERENCE: "fp64"}
"""What these are called."""
OWN = "own"
"""The schedule that the workload itself brings."""


class Drift(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How far all parameters lie after `step` steps from those trained in fp32 and in fp64: relative L2 distances.

    `way` is the way that fp64 went, the norm of what its parameters have moved by since the first step. Of the way that
    the training went itself, from its own first parameters as they are stored, `way_rel_l2` is the L2 distance from
    fp64's, relative to that norm, and `way_kept` the share of fp64's way that it went: their inner product over the
    square of the norm. None where it is undefined, or where that is the training itself.
    """

    step: Count
    from_fp32: ErrorSize | None = None
    from_fp64: ErrorSize | None = None
    way: Magnitude | None = None
    way_rel_l2: ErrorSize | None = None
    way_kept: KeptShare | None = None


class Training(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One training of a case from the weights and batches of one `seed`.

    `arm` is one of `ARMS`, or "": the case's own. `losses[i]` is the mean training loss of steps `i * every` to `(i +
    1) * every`, None where one is not finite; there are fewer than `steps` of them where it ended early. `held_out`
    says whether `scores` are on data that was not trained on (else on the training batches). `ended_at` is the step
    from 0 after which it was given up because loss or weights were not finite, `error` the first line of what a step
    raised. `skipped_steps` are those that GradScaler skipped, `scaler_scale` its scale at the end. `schedule` is that
    of the learning rate, `CONSTANT`, the recipe's or `OWN`, `last_rate` the rate of the last step relative to the
    optimizer's, of the workload's own schedule to the first step's (None: not known). `seconds` is what the training
    took in all, scores and distances included.
    """

    case_id: str
    seed: int
    arm: Annotated[str, one_of("", *ARMS)] = ""
    steps: Steps
    every: Positive = 1
    losses: list[Signed | None] = []
    held_out: bool = False
    scores: list[Score] = []
    drift: list[Drift] = []
    ended_at: Count | None = None
    error: str = ""
    scaler_scale: Magnitude | None = None
    skipped_steps: Count | None = None
    schedule: str = CONSTANT
    last_rate: Magnitude | None = None
    weights_digest: str
    inputs_digest: str
    seconds: Seconds
    notes: list[str] = []


class TrainingAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To train a case for `steps` steps, as its own or as another `arm` (see `Training`).

    A worker that is not fresh knows the fp32 and fp64 trainings before it.
    """

    steps: Steps
    arm: str = ""


_SEEDS_HELP = "Train from so many seeds: --seed and those after it. A verdict needs 2; 3 or more find more."


class ConvergenceAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To train each case for `steps` steps from each of `seeds` seeds."""

    steps: Annotated[int, asks("Steps of each training.", least=1, most=1_000_000, metavar="N")] = 300
    seeds: Annotated[int, asks(_SEEDS_HELP, least=1, most=1000, metavar="N")] = 3


class Learns(StrEnum):
    """What trainings of a workload say: of fp32, of precisions and why, and of what is missing."""

    FLAT = "convergence-flat"
    """fp32 ends no better than it began."""
    NO_END = "convergence-no-end"
    HARDLY = "convergence-hardly"
    TRAINS = "convergence-trains"
    """Score and training loss are both shown to be no worse."""
    FAILS = "convergence-fails"
    """Either is shown to be worse."""
    SCORES = "convergence-scores"
    """The score is shown to be no worse; of the training loss nothing is."""
    BETTER = "convergence-better"
    OPEN = "convergence-open"
    INCOMPARABLE = "convergence-incomparable"
    BROKE = "convergence-broke"
    SCORE = "convergence-score"
    LOSS = "convergence-loss"
    WITHIN = "convergence-within"
    SEEDS = "convergence-seeds"
    TOO_NEAR = "convergence-too-near"
    NO_FP32 = "convergence-no-fp32"
    NO_PAIR = "convergence-no-pair"
    OTHER_START = "convergence-other-start"
    ONE_SEED = "convergence-one-seed"
    SAME_START = "convergence-same-start"
    CONTROL = "convergence-control"
    NO_SCALE = "convergence-no-scale"
    NO_LOGARITHM = "convergence-no-logarithm"
    WAY = "convergence-way"
    NONE_TRAINED = "convergence-none-trained"
    NONE_YET = "convergence-none-yet"
    REACHES = "convergence-reaches"
    CONTROL_FIRES = "convergence-control-fires"
    FP64 = "convergence-fp64"
    SHORT = "convergence-short"
    SAME_WEIGHTS = "convergence-same-weights"


class Trouble(StrEnum):
    """Why a training has no final value."""

    RAISED = "raised"
    LOSS = "loss not finite"
    SCALE = "gradients not finite at any loss scale"
    WEIGHTS = "weights not finite"
    SKIPPED = "every step skipped by GradScaler"
    UNSCORED = "not scored at the end"
    LAST = "loss not finite at the end"


ALPHA = 0.05
"""At most so often is any precision of a study said to regress where none does; as often for improve."""
CONTROL_ALPHA = 0.01
"""The control and fp64 are each said to differ from fp32 at this level, so that few studies lose their verdicts."""
EQUIVALENCE_ALPHA = 0.05
"""The level of each of the two one-sided tests that show a difference to lie within the margin."""
POWER = 0.9
"""The seeds said to decide would do so with this probability if the spread were known; it is not, so with less."""
LOUD = 6.0
"""A precision whose variance is so many times that of the others says nothing of theirs."""
MANY_SEEDS = 50
"""More seeds than this are not worth recommending."""
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
FEWEST_LOOKS = 3
"""A slope is told of no fewer distances."""
GROWS = ((0.25, "settles"), (0.75, "noise"), (1.25, "bias"), (math.inf, "parts"))
"""How a distance grows with the steps k: as k^0, k^0.5, k^1 or faster, whichever its slope is nearest to."""
LARGEST_LOG = 709.0
"""The logarithm of the largest number, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the differences of one precision say. All numbers are in the unit of the differences.

    `difference` is their mean, `low` and `high` its 90% interval (infinite where nothing is known of the spread),
    `seeds_needed` would decide, were the spread the one seen and the difference none, or the one seen where the
    interval leaves out none (None: already decided, or never).
    """

    verdict: ChangeStatus
    difference: float
    low: float
    high: float
    seeds_needed: int | None = None

    @property
    def fires(self) -> bool:
        """Whether a difference is shown."""
        return self.verdict in (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED)


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
    mean, count = statistics.fmean(values), len(values)
    if variance is None:
        return Judged(verdict=ChangeStatus.INCONCLUSIVE, difference=mean, low=-math.inf, high=math.inf)
    from scipy.special import stdtrit

    error = math.sqrt(variance / count)
    bound = float(stdtrit(freedom, 1 - level)) * error
    wide = float(stdtrit(freedom, 1 - EQUIVALENCE_ALPHA)) * error
    needed, verdict = None, ChangeStatus.INCONCLUSIVE
    if abs(mean) > margin and abs(mean) > bound:
        verdict = ChangeStatus.IMPROVED if mean > 0 else ChangeStatus.REGRESSED
    elif abs(mean) + wide <= margin:
        verdict = ChangeStatus.UNCHANGED
    else:
        needed = _needed(0.0 if abs(mean) <= wide else mean, variance, count, margin, level)
    return Judged(verdict=verdict, difference=mean, low=mean - wide, high=mean + wide, seeds_needed=needed)


def _needed(mean: float, variance: float, count: int, margin: float, level: float) -> int | None:
    """Return how many seeds would decide, always more than there are; None where no number would."""
    import numpy as np

    from ampbench.core import stats

    found = stats.count_to_decide(
        np.array([mean]), np.array([variance]), 0.0, np.array([margin]), (level, EQUIVALENCE_ALPHA), POWER
    )
    return max(math.ceil(found[0]), count + 1) if math.isfinite(found[0]) else None


def _spread(
    name: str, differences: Mapping[str, Sequence[float]], rounding: Sequence[float], resolution: float
) -> tuple[float | None, float]:
    """Return the variance of one difference of a precision and its degrees of freedom; None where nothing tells it.

    It is never below that of a difference of two numbers each rounded to `resolution`. Differences by rounding alone
    have a mean that is known to be zero. Of the others those count that do not vary far more than the rest.
    """
    least = resolution**2 / 6
    alone = statistics.fmean(value**2 for value in rounding) if rounding else 0.0

    def loud(one: str) -> bool:
        others = [values for other, values in differences.items() if other != one]
        return _about_means([differences[one]])[0] > LOUD * max(alone, least, _about_means(others)[0])

    beside = _about_means([values for one, values in differences.items() if one == name or not loud(one)])
    found = [each for each in ((alone, float(len(rounding))), beside) if each[1]]
    if not found:
        return None, 0.0
    variance, freedom = max(found)
    return max(variance, least), freedom


def _about_means(values: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the pooled variance of precisions' differences about their means, and its degrees of freedom.

    The differences of one seed share its fp32 training, and half their variance where all trainings vary alike; of k
    precisions the pooled variance then has 4 / (k + 3) times the degrees of freedom of independent ones (Satterthwaite,
    1946, with the eigenvalues of that covariance: 1, and once k + 1).
    """
    several = [(each, statistics.fmean(each)) for each in values if len(each) > 1]
    total = sum(len(each) - 1 for each, _ in several)
    if not total:
        return 0.0, 0.0
    squares = math.fsum((value - mean) ** 2 for each, mean in several for value in each)
    return squares / total, total * 4 / (len(several) + 3)


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
    def unit(self) -> str:
        """What a hundredth of a difference is: a point of accuracy, or a percent of the loss."""
        return " points" if self.name == ACCURACY else "%"

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
        if final_score(training) is None:
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
    return None if broke_off(training) else mean_loss(training, math.floor(LAST * training.steps), training.steps)


def late_margin(own: Sequence[Training]) -> float | None:
    """Return the largest difference of log training losses that counts as none, given the trainings in fp32.

    That is `LATE_MARGIN` or, where it is less, `OF_FALL` of what fp32's own log loss falls by, from the first stored
    loss to the last quarter. None where fp32's loss does not fall, or no logarithm is known.
    """
    ends = [(each.losses[0] if each.losses else None, late_loss(each)) for each in own]
    falls = [math.log(first / last) for first, last in ends if first and last and first > 0 and last > 0]
    fall = statistics.fmean(falls) if falls else 0.0
    return min(LATE_MARGIN, OF_FALL * fall) if fall > ROUNDING else None


def broke_off(training: Training) -> bool:
    """Return whether a training was given up or ended with an error."""
    return training.ended_at is not None or bool(training.error)


def final_drift(training: Training) -> Drift | None:
    """Return how far the weights lay from others after the last step; None where it ended early."""
    return training.drift[-1] if training.drift and not broke_off(training) else None


def trouble(training: Training, metric: Metric) -> tuple[Trouble, int | None] | None:
    """Return why a training has no final value of a metric, and from which step on, from 1; None where it has one."""
    at = None if training.ended_at is None else training.ended_at + 1
    if training.error:
        return Trouble.RAISED, None
    finite = max((place + 1 for place, loss in enumerate(training.losses) if loss is not None), default=0)
    lost = Trouble.LOSS, finite * training.every + 1
    if at is not None:
        if training.losses and training.losses[-1] is None:
            return lost
        scaled_away = training.scaler_scale is not None and training.scaler_scale < 1
        return Trouble.SCALE if scaled_away else Trouble.WEIGHTS, at
    if training.skipped_steps and training.skipped_steps == training.steps:
        return Trouble.SKIPPED, None
    if final_score(training) is None:
        return Trouble.UNSCORED, None
    if metric.final(training) is None:
        return Trouble.LAST, None
    late = training.losses[math.floor(LAST * len(training.losses)) :]
    return lost if late and all(loss is None for loss in late) else None


def _broke(trainings: Sequence[Training], metric: Metric, subject: str = "") -> Statement | None:
    """Return what kept trainings of several seeds from an end, the earliest of it; None where nothing did."""
    found = [(*known, each.error) for each in trainings if (known := trouble(each, metric))]
    if not found:
        return None
    what, step, error = min(found, key=lambda each: math.inf if each[1] is None else each[1])
    earliest = int(step is not None and len(set(found)) > 1)
    facts = {"step": step, "earliest": earliest, "seeds": len(found), "of": len(trainings)}
    return state(Learns.BROKE, subject, what=what, error=error or None, **facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How far the trainings of a row lie at the end from the way that fp64 went: medians over seeds.

    `error` is ‖Δθ − Δθ*‖ / ‖Δθ*‖, `kept` the share of fp64's way that was gone, ⟨Δθ, Δθ*⟩ / ‖Δθ*‖². `slope` is the
    exponent with which ‖Δθ − Δθ*‖ grows with the steps, the mean over seeds of least squares on logarithms from the
    root of the number of steps on; None where fewer than `FEWEST_LOOKS` distances are known.
    """

    error: float
    kept: float
    slope: float | None = None

    @property
    def grows(self) -> str | None:
        """The word for the slope, of `GROWS`."""
        return next((word for most, word in GROWS if self.slope is not None and self.slope < most), None)


def way_of(trainings: Sequence[Training]) -> Way | None:
    """Return how far trainings went astray: medians over them, a mean of slopes.

    None where none came to its end, or one that did does not tell; the slope is None where one of them has none.
    """
    whole = [each for each in trainings if not broke_off(each)]
    last = [each.drift[-1] for each in whole if each.drift]
    errors = [drift.way_rel_l2 for drift in last if drift.way_rel_l2 is not None]
    kept = [drift.way_kept for drift in last if drift.way_kept is not None]
    if not whole or len(errors) < len(whole) or len(kept) < len(whole):
        return None
    slopes = [slope for each in whole if (slope := slope_of(each)) is not None]
    slope = statistics.fmean(slopes) if len(slopes) == len(whole) else None
    return Way(error=statistics.median(errors), kept=statistics.median(kept), slope=slope)


def slope_of(training: Training) -> float | None:
    """Return the exponent with which a training's distance from fp64's way grows; None where too little is known.

    Of a step that is there more than once, the last distance counts.
    """
    points = {
        math.log(drift.step): math.log(drift.way) + math.log(drift.way_rel_l2)
        for drift in training.drift
        if drift.step >= max(1.0, math.sqrt(training.steps)) and drift.way and drift.way_rel_l2
    }
    if len(points) < FEWEST_LOOKS:
        return None
    return statistics.linear_regression(list(points), list(points.values())).slope


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """The trainings of one precision, or of an arm of fp32, and what they come to.

    `name` is the precision's, "control" or "fp64"; `mean` and `sd` are those of the final metric over seeds, None where
    undefined. `difference` from fp32 is a mean by seed, of an accuracy as a share, of a loss relative to fp32's
    (positive: larger), with its 90% interval. `verdict` is None for fp32 and its arms, `why` its reasons; `of_fp32`:
    the trainings of fp32 are why. `from_fp32` and `from_fp64` are medians of the weights' relative distances at the
    end, `seconds` the mean of a training. `loss` is the mean training loss of the last quarter, `loss_ratio` the
    geometric mean of what it is times fp32's, with its 90% interval; `loss_verdict` is unchanged or improved where it
    is shown to be no worse, `loss_why` its reasons.
    """

    name: str
    case_id: str
    arm: str = ""
    trainings: list[Training] = field(default_factory=list)
    mean: float | None = None
    sd: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: ChangeStatus | None = None
    why: Sequence[Statement] = ()
    of_fp32: bool = False
    seeds_needed: int | None = None
    from_fp32: float | None = None
    from_fp64: float | None = None
    skipped_steps: int | None = None
    seconds: float | None = None
    loss: float | None = None
    loss_ratio: float | None = None
    loss_low: float | None = None
    loss_high: float | None = None
    loss_verdict: ChangeStatus | None = None
    loss_why: Sequence[Statement] = ()
    way: Way | None = None

    @property
    def trains(self) -> bool | None:
        """Whether it trains as fp32 does: score and training loss are both shown to be no worse.

        False where either is shown to be worse, None where neither is known.
        """
        found = self.verdict, self.loss_verdict
        if ChangeStatus.REGRESSED in found:
            return False
        return True if all(one in (ChangeStatus.UNCHANGED, ChangeStatus.IMPROVED) for one in found) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What the trainings of one workload on one device come to.

    `rows` are fp32 with its arms, then the precisions in the order of every table; `before` is fp32's metric before the
    first step, `last_rate` what the schedule left of the first step's rate in fp32's last. `rounding` is what rounding
    alone does to the metric: the root mean square of the differences of control and fp64 from fp32. `learns`: whether
    fp32 ends better than it began. `loss_margin` is the largest difference of log training losses that counts as none.
    `unjudged` says why no precision is judged. `asked` is how many seeds there were to be, `left` whether a training is
    missing that can yet be made. None: not known. `remarks` are on control, fp64 and what is missing.
    """

    name: str = ""
    workload: str
    device: str
    metric: Metric
    steps: int
    schedule: str = CONSTANT
    last_rate: float | None = None
    seeds: list[int]
    asked: int
    left: bool = False
    rows: list[Learning]
    before: float | None = None
    rounding: float | None = None
    learns: bool | None = None
    loss_margin: float | None = None
    unjudged: Learns | None = None
    remarks: Sequence[Statement] = ()

    @property
    def baseline(self) -> Learning | None:
        """The row of fp32; None where it was not trained."""
        return next((row for row in self.rows if row.name == BASELINE), None)

    @property
    def judged(self) -> list[Learning]:
        """The rows that have a verdict."""
        return [row for row in self.rows if row.verdict is not None]

    @property
    def notes(self) -> list[str]:
        """What the measuring noted."""
        return list(dict.fromkeys(note for row in self.rows for each in row.trainings for note in each.notes))


def learned_in(runs: "Iterable[StoredRun]", case_ids: Collection[str] | None = None) -> list[Learned]:
    """Return what `learned` does of runs, the oldest first; of a workload that a newer one has whole, only that."""
    found: list[tuple[StoredRun, Learned, str]] = []
    seen: list[tuple[tuple[str, str], set[str]]] = []
    for run in reversed(list(runs)):
        for one in reversed(learned(run, case_ids)):
            ids = {row.case_id for row in one.rows}
            if not any(place_of(run) == place and ids <= known for place, known in seen):
                found.append((run, one, one.rows[0].case_id))
                seen.append((place_of(run), ids))
    found.reverse()
    labels = case_labels((run.cases[case_id] for run, _, case_id in found), precision=False)
    names = told_apart([labels[case_id] for _, _, case_id in found], (run_name(run) for run, _, _ in found))
    return [replace(one, name=name) for name, (_, one, _) in zip(names, found, strict=True)]


def learned(stored: "StoredRun", case_ids: Collection[str] | None = None) -> list[Learned]:
    """Return what each workload's trainings come to, per device, in the order of the run.

    Of a workload whose own fp32 training failed, nothing is told. With `case_ids`, only workloads of these cases, and
    of them only the rows of these and of fp32; verdicts are reached with all that was trained.
    """
    trained = told_trainings(stored)
    ended = {*stored.failures, *stored.skips}
    groups: dict[tuple[str, str], list[str]] = {}
    for case_id, case in stored.cases.items():
        if case_id in trained or case_id not in ended:
            groups.setdefault((case.group, case.device), []).append(case_id)
    asked = stored.asked.seeds if isinstance(stored.asked, ConvergenceAsked) else 0
    found = []
    for (workload, device), ids in groups.items():
        shown = [one for one in ids if one in trained and (case_ids is None or one in case_ids)]
        if shown:
            cases = {one: stored.cases[one] for one in ids}
            whole = _learned(workload, device, cases, trained, asked, ended)
            rows = [row for row in whole.rows if row.case_id in shown or cases[row.case_id].precision == BASELINE]
            found.append(replace(whole, rows=rows))
    return found


def told_trainings(stored: "StoredRun") -> dict[str, list[Training]]:
    """Return the trainings of the cases that have any, but for workloads whose own fp32 training failed."""
    found = stored.several_of(Training)
    failed = {
        (case.group, case.device)
        for case_id, case in stored.cases.items()
        if case.precision == BASELINE
        and case_id in stored.failures
        and all(training.arm for training in found.get(case_id, []))
    }
    return {
        case_id: trainings
        for case_id, trainings in found.items()
        if trainings and (stored.cases[case_id].group, stored.cases[case_id].device) not in failed
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    """The trainings of a case, or of one of its arms, by their seeds."""

    case_id: str
    arm: str
    by_seed: dict[int, Training]


def _learned(
    workload: str,
    device: str,
    cases: Mapping[str, Case],
    stored: Mapping[str, Sequence[Training]],
    asked: int,
    ended: Collection[str],
) -> Learned:
    """Return what the trainings of `cases`, which differ in their precision, come to.

    `asked` is from how many seeds there were to be; of the cases `ended` no more are made.
    """
    planned = _by_seed(cases, stored)
    arms = {name: arm for name, arm in planned.items() if arm.by_seed}
    own = arms[BASELINE].by_seed if BASELINE in arms else {}
    trained = list(own.values()) or [each for arm in arms.values() for each in arm.by_seed.values()]
    metric = metric_of(trained)
    firsts = [next((score for score in each.scores if score.step == 0), None) for each in own.values()]
    before, after = _mean(map(metric.of, firsts)), _mean(map(metric.final, own.values()))
    if metric.name == LOSS and before is not None and after:
        metric = replace(metric, fall=(before - after) / abs(after))
    learns = None if before is None or after is None else (after - before) * metric.sign > 0
    scores = _Differences(_of_scores(arms, own, metric), metric.margin, metric.resolution)
    others = {name: arm for name, arm in arms.items() if name not in (BASELINE, *NAMES.values())}
    held = {name: _withheld(arm.by_seed, own, metric, learns, scores) for name, arm in others.items()}
    verdicts = scores.verdicts({name for name, each in held.items() if each is not None and each.without_numbers})
    whole = _ended(own, metric)
    margin = late_margin(list(whole.values()))
    losses = _Differences(_of_losses(arms, whole), margin or 0.0)
    of_losses = losses.verdicts()
    rows = []
    for name, arm in arms.items():
        told = _only_one(arm.by_seed, whole) is None
        row = _row(name, arm, metric, verdicts.get(name), held.get(name), told=told)
        rows.append(_with_loss(row, of_losses.get(name), losses, margin, held.get(name), told=told))
    seeds = sorted({seed for arm in arms.values() for seed in arm.by_seed})
    unjudged = Learns.NONE_YET if planned.keys() - {BASELINE, *NAMES.values()} else Learns.NONE_TRAINED
    return Learned(
        workload=workload,
        device=device,
        metric=metric,
        steps=max(each.steps for arm in arms.values() for each in arm.by_seed.values()),
        schedule=trained[0].schedule,
        last_rate=trained[0].last_rate,
        seeds=seeds,
        asked=max(asked, len(seeds)),
        left=any(len(arm.by_seed) < asked and arm.case_id not in ended for arm in planned.values()),
        rows=rows,
        before=before,
        rounding=math.sqrt(statistics.fmean(value * value for value in scores.rounding)) if scores.rounding else None,
        learns=learns,
        loss_margin=margin,
        unjudged=None if others else unjudged,
        remarks=list(_remarks(planned, asked, metric, scores)),
    )


def _by_seed(cases: Mapping[str, Case], stored: Mapping[str, Sequence[Training]]) -> dict[str, _Arm]:
    """Return the trainings by the names of rows, in the order of the table; those that have none yet, too."""
    arms = {}
    for case_id, case in sorted(cases.items(), key=lambda item: (rank(item[1].precision), item[1].precision)):
        for arm in ("", *NAMES) if case.precision == BASELINE else ("",):
            seeds = {training.seed: training for training in stored.get(case_id, []) if training.arm == arm}
            name = NAMES.get(arm) or (case.precision if case.scaler else f"{case.precision}, no scaler")
            arms[name] = _Arm(case_id=case_id, arm=arm, by_seed=dict(sorted(seeds.items())))
    return arms


def _of_scores(arms: Mapping[str, _Arm], own: Mapping[int, Training], metric: Metric) -> dict[str, list[float]]:
    """Return the differences from fp32 by seed, positive where better; of a loss relative to fp32's mean."""
    finals = {seed: value for seed, each in own.items() if (value := metric.final(each)) is not None}
    scale = abs(statistics.fmean(finals.values())) if finals and metric.name == LOSS else 1.0
    found = {}
    for name, arm in arms.items():
        pairs = [(metric.final(each), finals.get(seed)) for seed, each in arm.by_seed.items()] if scale else []
        found[name] = [
            (one - other) * metric.sign / scale for one, other in pairs if one is not None and other is not None
        ]
    return found


def _of_losses(arms: Mapping[str, _Arm], whole: Mapping[int, Training]) -> dict[str, list[float]]:
    """Return the differences of log training losses in the last quarter from fp32's by seed, positive where lower.

    None of a precision of which one of them is not known.
    """
    own = {seed: loss for seed, each in whole.items() if (loss := late_loss(each)) is not None and loss > 0}
    found = {}
    for name, arm in arms.items():
        pairs = [(late_loss(each), own[seed]) for seed, each in arm.by_seed.items() if seed in own]
        known = [math.log(fp32 / loss) for loss, fp32 in pairs if loss is not None and loss > 0]
        found[name] = known if len(known) == len(pairs) else []
    return found


class _Differences:
    """Differences from fp32 by name: those of its arms tell what rounding alone does, unless they differ themselves."""

    def __init__(self, found: Mapping[str, list[float]], margin: float, resolution: float = 0.0):
        self._judge = partial(judge, margin=margin, resolution=resolution)
        null = {name: found.get(name, []) for name in NAMES.values()}
        self._others = {name: values for name, values in found.items() if values and name not in (BASELINE, *null)}
        self.controls: dict[str, Judged] = {}
        for name, values in null.items():
            if values:
                beside = [value for other, each in null.items() if other != name for value in each]
                self.controls |= self._judge({name: values}, beside, alpha=CONTROL_ALPHA)
        self.rounding = [value for name, values in null.items() if not self.fires(name) for value in values]

    def fires(self, arm: str) -> bool:
        """Return whether an arm of fp32 itself is said to differ from it."""
        return arm in self.controls and self.controls[arm].fires

    def verdicts(self, without: Collection[str] = ()) -> dict[str, Judged]:
        """Return the verdicts on arms and precisions, but for those `without` one."""
        plain = {name: values for name, values in self._others.items() if name not in without}
        return self.controls | self._judge(plain, self.rounding)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Withheld:
    """A verdict that numbers do not decide, and why; `without_numbers` where a difference would mislead.

    Without a reason, fp32's own trainings are why, which is said once of all precisions.
    """

    verdict: ChangeStatus = ChangeStatus.INCONCLUSIVE
    why: Statement | None = None
    without_numbers: bool = False


def _withheld(
    seeds: Mapping[int, Training],
    own: Mapping[int, Training],
    metric: Metric,
    learns: bool | None,
    scores: _Differences,
) -> _Withheld | None:
    """Return the verdict on a precision that its differences do not decide; None where they do."""
    incomparable = partial(_Withheld, verdict=ChangeStatus.INCOMPARABLE, without_numbers=True)
    if not own:
        return incomparable(why=state(Learns.NO_FP32))
    ended = _ended(own, metric)
    if not ended:
        return _Withheld(without_numbers=True)
    pairs = [(each, ended[seed]) for seed, each in seeds.items() if seed in ended]
    if not pairs:
        return _Withheld(why=state(Learns.NO_PAIR), without_numbers=True)
    for what, one in (("weights", "weights_digest"), ("batches", "inputs_digest")):
        if any(getattr(mine, one) != getattr(theirs, one) for mine, theirs in pairs):
            return incomparable(why=state(Learns.OTHER_START, what=what))
    if (broke := _broke([mine for mine, _ in pairs], metric)) is not None:
        return _Withheld(verdict=ChangeStatus.REGRESSED, why=broke, without_numbers=True)
    if learns is False:
        return _Withheld()
    if (alone := _only_one(seeds, ended)) is not None:
        return _Withheld(why=state(alone))
    return _Withheld(why=state(Learns.CONTROL)) if scores.fires(NAMES[CONTROL]) else None


def _ended(trainings: Mapping[int, Training], metric: Metric) -> dict[int, Training]:
    """Return those of the trainings by seed that came to an end."""
    return {seed: each for seed, each in trainings.items() if trouble(each, metric) is None}


def _only_one(seeds: Mapping[int, Training], own: Mapping[int, Training]) -> Learns | None:
    """Return why trainings beside those of fp32 show no spread, which leaves no interval either; None where they do."""
    starts = [(own[seed].weights_digest, own[seed].inputs_digest) for seed in seeds if seed in own]
    if len(starts) == 1:
        return Learns.ONE_SEED
    return Learns.SAME_START if len({*starts}) == 1 else None


def _row(
    name: str, arm: _Arm, metric: Metric, judged: Judged | None, held: _Withheld | None, *, told: bool
) -> Learning:
    """Return what the trainings of one row come to; the interval of its difference where that is `told`."""
    trainings = list(arm.by_seed.values())
    finals = [value for each in trainings if (value := metric.final(each)) is not None]
    drifts = [drift for each in trainings if (drift := final_drift(each)) is not None]
    skipped = [each.skipped_steps for each in trainings if each.skipped_steps is not None]
    difference = low = high = verdict = None
    if judged is not None:
        difference = judged.difference * metric.sign
        low, high = sorted((judged.low * metric.sign, judged.high * metric.sign))
        low, high = (low, high) if told and math.isfinite(low) else (None, None)
    why: Sequence[Statement] = ()
    if held is not None:
        verdict, why = held.verdict, (held.why,) if held.why else ()
    elif not (arm.arm or name == BASELINE):
        verdict, why = ChangeStatus.INCONCLUSIVE, (state(Learns.NO_SCALE),)
        if judged is not None:
            verdict, why = judged.verdict, _of_score(judged, metric, low, high)
    return Learning(
        name=name,
        case_id=arm.case_id,
        arm=arm.arm,
        trainings=trainings,
        mean=_mean(finals),
        sd=statistics.stdev(finals) if len(finals) > 1 else None,
        difference=difference,
        low=low,
        high=high,
        verdict=verdict,
        why=why,
        of_fp32=held is not None and held.why is None,
        seeds_needed=judged.seeds_needed if judged is not None and held is None else None,
        from_fp32=_mean((drift.from_fp32 for drift in drifts), statistics.median),
        from_fp64=_mean((drift.from_fp64 for drift in drifts), statistics.median),
        skipped_steps=sum(skipped) if skipped else None,
        seconds=_mean(each.seconds for each in trainings),
        way=way_of(trainings),
    )


def _of_score(judged: Judged, metric: Metric, low: float | None, high: float | None) -> list[Statement]:
    """Return why a verdict that numbers decided is what it is; `low` and `high` are the interval as it is told."""
    if judged.verdict is ChangeStatus.UNCHANGED:
        return []
    said = [_apart(Learns.SCORE, judged, metric, low, high)]
    return said if judged.fires else [*said, *_seeds(judged, metric.margin, metric.unit)]


def _apart(
    code: Learns, judged: Judged, metric: Metric, low: float | None = None, high: float | None = None, subject: str = ""
) -> Statement:
    """Return by how much a metric differs from fp32's."""
    difference = 100 * judged.difference * metric.sign
    facts: dict[str, float | str | None] = {"low": _hundredfold(low), "high": _hundredfold(high), "unit": metric.unit}
    facts |= {"metric": metric.name, "by": abs(difference), "lower": int(difference < 0)}
    return state(code, subject, Severity.ADVICE, **facts)


def _seeds(judged: Judged, margin: float, unit: str) -> list[Statement]:
    """Return how many seeds would decide what is open; where no interval is known, nothing."""
    if judged.seeds_needed is None:
        return [state(Learns.TOO_NEAR, "", Severity.ADVICE, margin=100 * margin, unit=unit)]
    few_enough = judged.seeds_needed <= MANY_SEEDS
    facts = {"seeds": judged.seeds_needed} if few_enough else {"more": MANY_SEEDS}
    return [state(Learns.SEEDS, "", Severity.ADVICE, **facts)]


def _with_loss(
    row: Learning,
    judged: Judged | None,
    losses: _Differences,
    margin: float | None,
    held: _Withheld | None,
    *,
    told: bool,
) -> Learning:
    """Return the row with what its training losses in the last quarter come to, against fp32's of the same seed.

    No worse: the one-sided bound at 5% lies within the `margin`, the largest difference of logarithms that counts as
    none (non-inferiority). Worse, or lower, as `judge` says.
    """
    row = replace(row, loss=_mean(map(late_loss, row.trainings)))
    if judged is not None:
        row = replace(row, loss_ratio=_times(-judged.difference))
        if told and math.isfinite(judged.low):
            row = replace(row, loss_low=_times(-judged.high), loss_high=_times(-judged.low))
    if row.verdict is None:
        return row
    if held is not None:
        return replace(row, loss_verdict=held.verdict, loss_why=row.why)
    verdict, why = ChangeStatus.INCONCLUSIVE, [state(Learns.NO_LOGARITHM)]
    if judged is not None and margin is not None and row.loss_ratio is not None:
        if losses.fires(NAMES[CONTROL]):
            why = [state(Learns.CONTROL)]
        else:
            facts = {"ratio": row.loss_ratio, "low": row.loss_low, "high": row.loss_high}
            why = [state(Learns.LOSS, "", Severity.ADVICE, **facts)]
            if judged.fires:
                verdict = judged.verdict
            elif judged.low >= -margin:
                verdict = ChangeStatus.UNCHANGED
            else:
                why += _seeds(judged, math.expm1(margin), "% of the loss")
    return replace(row, loss_verdict=verdict, loss_why=why)


def _times(log: float) -> float | None:
    """Return how many times as large a loss is, by the logarithm of that; None beyond what a number holds."""
    return math.exp(log) if log < LARGEST_LOG else None


def _mean(values: Iterable[float | None], how: Callable[[list[float]], float] = statistics.fmean) -> float | None:
    known = [value for value in values if value is not None]
    return how(known) if known else None


def _hundredfold(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _remarks(planned: Mapping[str, _Arm], asked: int, metric: Metric, scores: _Differences) -> Iterator[Statement]:
    """Yield which arms of fp32 end elsewhere, which trainings are missing, and which of fp32 came to no end.

    That fp32 came to no end from any seed is no remark: it is said first.
    """
    for arm, code in ((CONTROL, Learns.CONTROL_FIRES), (REFERENCE, Learns.FP64)):
        if scores.fires(NAMES[arm]):
            yield _apart(code, scores.controls[NAMES[arm]], metric, subject=NAMES[arm])
    if short := [name for name, arm in planned.items() if len(arm.by_seed) < asked]:
        yield state(Learns.SHORT, "", Severity.ADVICE, seeds=asked, names=few(short))
    own = planned[BASELINE].by_seed if BASELINE in planned else {}
    for name in (*((BASELINE,) if _ended(own, metric) else ()), *NAMES.values()):
        seeds = planned[name].by_seed if name in planned else {}
        if (broke := _broke(list(seeds.values()), metric, name)) is not None:
            yield broke
    if len(own) > 1 and len({each.weights_digest for each in own.values()}) == 1:
        yield state(Learns.SAME_WEIGHTS, "", Severity.ADVICE)


def conclusions(_: Any, one: Learned) -> Iterator[Statement]:
    """Yield what to conclude of each precision, what fp32 reaches and how much seeds and rounding move that."""
    own, metric = one.baseline, one.metric
    ends = bool(own and _ended({each.seed: each for each in own.trainings}, metric))
    if own is not None and one.learns is False:
        yield _reached(Learns.FLAT, one, own)
    if own is not None and not ends and (broke := _broke(own.trainings, metric, BASELINE)) is not None:
        yield from (state(Learns.NO_END, BASELINE), broke)
    if metric.fall is not None and 0 < metric.fall < HARDLY:
        yield state(Learns.HARDLY, BASELINE, Severity.ADVICE, fall=_hundredfold(metric.fall))
    yield from _of_precisions(one)
    if one.unjudged is not None:
        yield state(one.unjudged, "", Severity.ADVICE)
    if own is not None and ends and one.learns is not False:
        yield _reached(Learns.REACHES, one, own)
    yield from one.remarks


def _reached(code: Learns, one: Learned, own: Learning) -> Statement:
    """Return what fp32 reaches, and what seeds and rounding move that by, as shares."""
    metric = one.metric
    scale = 100 if metric.name == ACCURACY else 1
    sd = None if own.sd is None or not own.mean else own.sd / (1 if scale > 1 else abs(own.mean))
    return state(
        code,
        BASELINE,
        Severity.INFO if code is Learns.REACHES else Severity.ADVICE,
        metric=metric.name,
        held_out=int(metric.held_out),
        value=None if own.mean is None else scale * own.mean,
        before=None if one.before is None else scale * one.before,
        percent=int(scale > 1),
        unit=None if sd is one.rounding is None else metric.unit,
        sd=_hundredfold(sd),
        rounding=_hundredfold(one.rounding),
    )


def _of_precisions(one: Learned) -> Iterator[Statement]:
    """Yield the verdicts on precisions with their reasons, of those that share both at once, and ways gone astray."""
    found: list[tuple[list[Statement], list[str]]] = []
    for row in one.judged:
        own = _of_row(row, one)
        alike = next((names for said, names in found if said == own), None)
        if own and alike is None:
            found.append((own, [row.name]))
        elif alike is not None:
            alike.append(row.name)
    codes = list(Learns)
    for said, names in sorted(found, key=lambda each: codes.index(Learns(each[0][0].code))):
        for each in said:
            yield replace(each, subject=all_of(names), facts={**each.facts, "count": len(names)})


def _of_row(row: Learning, one: Learned) -> list[Statement]:
    """Return the verdict on a precision and its reasons, of one that fails also how far it went astray and how that
    grows; nothing where fp32 is why.
    """
    metric, within = one.metric, []
    if row.verdict is ChangeStatus.UNCHANGED:
        facts: dict[str, float | str | None] = {"metric": metric.name, "margin": 100 * metric.margin}
        facts |= {"unit": metric.unit, "of_fall": int(metric.margin < MARGINS[metric.name])}
        facts |= {"loss": 100 * math.expm1(one.loss_margin or 0.0) if row.trains else None}
        within = [state(Learns.WITHIN, "", Severity.INFO, **facts)]
    loss_why = [each for each in row.loss_why if each not in row.why]
    if row.of_fp32:
        return []
    if row.trains is False:
        why = row.why if row.verdict is ChangeStatus.REGRESSED else [*loss_why, *row.why, *within]
        code = Learns.FAILS
        if way := row.way:
            why = [*why, state(Learns.WAY, kept=way.kept, error=way.error, slope=way.slope)]
    elif row.verdict is ChangeStatus.UNCHANGED:
        code, why = (Learns.TRAINS, within) if row.trains else (Learns.SCORES, [*within, *loss_why])
    elif row.verdict is ChangeStatus.IMPROVED:
        code, why = Learns.BETTER, [*row.why, *(() if row.trains else loss_why)]
    else:
        code = Learns.OPEN if row.verdict is ChangeStatus.INCONCLUSIVE else Learns.INCOMPARABLE
        why = list(row.why)
    severity = Severity.PROBLEM if code is Learns.FAILS else Severity.INFO
    return [state(code, "", severity), *(replace(each, severity=Severity.INFO) for each in why)]


def heading(one: Learned) -> str:
    """Return what was trained, in one line."""
    seeds = counted(one.asked, "seed")
    if len(one.seeds) < one.asked:
        seeds = f"{len(one.seeds):,} of {seeds}{' so far' if one.left else ''}"
    rate = "" if one.last_rate is None else f" to {one.last_rate:.2g} of the learning rate"
    named = "its own schedule" if one.schedule == OWN else f"{one.schedule} schedule"
    schedule = "" if one.schedule == CONSTANT else f"{named}{rate}"
    return " · ".join(filter(None, [one.workload, one.device, counted(one.steps, "step"), schedule, seeds]))


def format_metric(value: float | None, metric: Metric) -> str:
    """Return an accuracy as "97.87%", a loss as "0.3127"."""
    if value is None:
        return UNDEFINED
    return f"{value:.2%}" if metric.name == ACCURACY else f"{value:.4g}"


def format_change(value: float | None, metric: Metric) -> str:
    """Return a difference from fp32 as "+0.13", in points of accuracy, or "+0.13%", of a loss."""
    if value is None:
        return UNDEFINED
    number = f"{round(100 * value, 2) + 0.0:+.2f}"
    return number if metric.name == ACCURACY else f"{number}%"


class Made(NamedTuple):
    """A training of what was learned, the precision or arm it is of, and that of fp32 with the same seed."""

    of: Learned
    row: Learning
    training: Training
    fp32: Training | None

    @property
    def ended(self) -> tuple[Trouble, int | None] | None:
        """Why it has no final value."""
        return trouble(self.training, self.of.metric)


def trainings(one: Learned) -> list[Made]:
    """Return the trainings of what was learned."""
    own = {each.seed: each for row in one.rows if row.name == BASELINE for each in row.trainings}
    return [Made(one, row, each, own.get(each.seed)) for row in one.rows for each in row.trainings]


def _training(key: str, head: str = "", unit: str = "", said: Callable[[Made], str] | None = None) -> Column[Made]:
    return Column(key, lambda made: getattr(made.training, key), head, unit, said, rare=True)


def _part(of: Callable[[Training], Any], *keys: str) -> list[Column[Made]]:
    """Return columns of what a training has at its end; None where that is nothing."""
    return [Column(key, lambda made, key=key: getattr(of(made.training), key, None)) for key in keys]  # type: ignore[misc]


def _ended_words(made: Made) -> str:
    ended = made.ended
    return "" if ended is None else ended[0] if ended[1] is None else f"{ended[0]} from step {ended[1]:,}"


TRAININGS: Sequence[Column[Made]] = (
    Column("case_id", lambda made: made.row.case_id),
    Column("workload", lambda made: made.of.workload),
    Column("device", lambda made: made.of.device),
    Column("precision", lambda made: made.row.name, "precision"),
    Column("arm", lambda made: made.row.arm),
    _training("seed", "seed", "whole", lambda made: f"{made.training.seed}"),
    _training("steps"),
    Column("metric", lambda made: made.of.metric.name),
    _training("held_out"),
    Column(
        "metric_value", lambda made: made.of.metric.final(made.training), "score", "loss",
        lambda made: format_metric(made.of.metric.final(made.training), made.of.metric),
    ),
    Column("fp32_value", lambda made: made.of.metric.final(made.fp32) if made.fp32 else None),
    *_part(final_score, "loss", "correct", "decisions"),
    *_part(final_drift, "from_fp32", "from_fp64", "way_rel_l2", "way_kept"),
    _training("schedule"),
    _training("ended_at"),
    Column("ended", lambda made: made.ended[0] if made.ended else None, "ended", said=_ended_words, rare=True),
    Column("ended_step", lambda made: made.ended[1] if made.ended else None),
    Column("reason", lambda made: made.training.error),
    _training("scaler_scale", "scale", "count"),
    _training("skipped_steps", "skipped steps", "whole"),
    _training("seconds", "time", "s"),
)  # fmt: skip
"""Of a training: case, seed and arm ("control" and "reference" are those of fp32), how it ended, and fp32's of its
seed.

`metric` is "accuracy" or "loss", `loss` that of the last score; `from_fp32` and `from_fp64` are of the weights and
`way_rel_l2` and `way_kept` of the way, at the end. `ended_at` counts from 0, as in the records, and `ended_step`, from
which on it is not finite, from 1; `reason` is the error that a step raised.
"""


def _interval(low: float | None, high: float | None, said: Callable[[float | None], str]) -> str:
    return UNDEFINED if low is None or high is None else f"{said(low)} to {said(high)}"


def _ratio(value: float | None) -> str:
    """Return a ratio of losses as "1.04", one under a tenth as "0.0123"."""
    return UNDEFINED if value is None else f"{value:.3g}" if value < 0.1 else f"{value:.2f}"


def _sd(row: Learning, metric: Metric) -> str:
    if row.sd is None:
        return UNDEFINED
    return f"{100 * row.sd:.2f}" if metric.name == ACCURACY else f"{row.sd:.2g}"


_NO_WORSE = {ChangeStatus.UNCHANGED: "no worse", ChangeStatus.REGRESSED: "worse", ChangeStatus.IMPROVED: "lower"}


def _way(row: Learning, name: str) -> Any:
    return getattr(row.way, name, None)


def precisions(one: Learned) -> list[Column[Learning]]:
    """Return the columns of what was concluded of a precision, or of an arm of fp32."""
    metric = one.metric
    change = partial(format_change, metric=metric)
    return [
        Column("precision", lambda row: row.name, "precision"),
        Column("case_id", lambda row: row.case_id),
        Column("seeds", lambda row: len(row.trainings)),
        Column("mean", lambda row: row.mean, metric.name, "loss", lambda row: format_metric(row.mean, metric)),
        Column("sd", lambda row: row.sd, "SD", "loss", lambda row: _sd(row, metric)),
        Column("difference", lambda row: row.difference, "against fp32", "share", lambda row: change(row.difference)),
        Column(
            "low", lambda row: row.low, "90% interval", "share", lambda row: _interval(row.low, row.high, change)
        ),
        Column("high", lambda row: row.high),
        Column("verdict", lambda row: row.verdict, "verdict", said=lambda row: row.verdict or ""),
        Column("reason", lambda row: next((each.code for each in row.why), None)),
        Column("seeds_needed", lambda row: row.seeds_needed),
        Column("weights_from_fp32", lambda row: row.from_fp32, "from fp32", "error"),
        Column("weights_from_fp64", lambda row: row.from_fp64, "from fp64", "error"),
        Column("skipped_steps", lambda row: row.skipped_steps, "skipped steps", "whole", rare=True),
        Column("seconds", lambda row: row.seconds, "time", "s"),
        Column("training_loss", lambda row: row.loss, "loss", "loss"),
        Column(
            "training_loss_ratio", lambda row: row.loss_ratio, "times fp32's", "ratio",
            lambda row: _ratio(row.loss_ratio),
        ),
        Column(
            "training_loss_low", lambda row: row.loss_low, "90% interval", "ratio",
            lambda row: _interval(row.loss_low, row.loss_high, _ratio),
        ),
        Column("training_loss_high", lambda row: row.loss_high),
        Column(
            "training_loss_verdict", lambda row: row.loss_verdict, "verdict",
            said=lambda row: _NO_WORSE.get(row.loss_verdict, row.loss_verdict) if row.loss_verdict else "",
        ),
        Column("training_loss_reason", lambda row: next((each.code for each in row.loss_why), None)),
        Column("trains_as_fp32", lambda row: row.trains),
        Column("way_rel_l2", lambda row: _way(row, "error"), "of the way aside", "error", rare=True),
        Column(
            "way_kept", lambda row: _way(row, "kept"), "of the way gone", "kept",
            lambda row: UNDEFINED if row.way is None else f"{100 * row.way.kept:.1f}%", rare=True,
        ),
        Column(
            "way_slope", lambda row: _way(row, "slope"), "grows as", "ratio",
            lambda row: UNDEFINED if _way(row, "slope") is None else f"k^{_way(row, 'slope'):.2f}", rare=True,
        ),
        Column("way_grows", lambda row: _way(row, "grows"), "like", rare=True),
    ]  # fmt: skip


WORKLOADS: Sequence[Column[Learned]] = (
    *(Column(name, lambda one, name=name: getattr(one, name))  # type: ignore[misc]
      for name in ("workload", "device", "steps", "schedule", "last_rate", "seeds", "before", "learns", "rounding")),
    Column("seeds_asked", lambda one: one.asked),
    *(Column(key, lambda one, name=name: getattr(one.metric, name))  # type: ignore[misc]
      for key, name in (("metric", "name"), *((name, name) for name in ("held_out", "decisions", "margin")))),
    Column("loss_margin", lambda one: one.loss_margin),
)  # fmt: skip


def _mean_losses(one: Learned) -> Iterator[tuple[str, list[float | None]]]:
    """Yield the losses of each precision, means over seeds, to where the first of them ends."""
    for row in one.rows:
        if not row.arm:
            means = (
                None if None in values else _mean(values)
                for values in zip(*(each.losses for each in row.trainings if each.losses), strict=False)
            )
            yield row.name, [mean for mean in means for _ in range(row.trainings[0].every)]


def _distances(one: Learned) -> Iterator[tuple[str, dict[int, float]]]:
    """Yield how far the weights of each row lie from fp32's after steps, medians over seeds; fp64's from fp32's own.

    What is 0 has no place on a log axis.
    """
    for row in one.rows:
        reference = row.arm == REFERENCE
        own = one.baseline.trainings if reference and one.baseline else row.trainings
        found: dict[int, list[float]] = {}
        for drift in sorted((drift for each in own for drift in each.drift), key=lambda drift: drift.step):
            if drift.step and (value := drift.from_fp64 if reference else drift.from_fp32):
                found.setdefault(drift.step, []).append(value)
        if row.name != BASELINE:
            yield row.name, {step: statistics.median(values) for step, values in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToTrain:
    """One training: of a case, from a seed, as its own or as another `arm`."""

    case: Case
    seed: int
    arm: str = ""

    @property
    def weights(self) -> tuple[str, int]:
        """What trainings share whose weights a worker has in mind at a time: all but precision and arm."""
        return in_precision(self.case, "").case_id, self.seed

    @property
    def compared_with(self) -> "list[ToTrain]":
        """The trainings whose weights this one's are compared with, in the order in which they are made."""
        own = in_precision(self.case, BASELINE)
        first = [ToTrain(case=own, seed=self.seed, arm=arm) for arm in (REFERENCE, "")]
        return first[: first.index(self)] if self in first else first


def trainings_of(cases: Iterable[Case], first_seed: int, seeds: int) -> list[ToTrain]:
    """Return the trainings of `cases` from so many seeds, in their order.

    That is workload by workload and seed by seed: the fp64 reference, fp32, its control, then the other precisions, so
    that a worker has the first two before it that all others are compared with.
    """
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(in_precision(case, "").case_id, []).append(case)
    return [
        ToTrain(case=case, seed=seed, arm=arm)
        for group in groups.values()
        for seed in range(first_seed, first_seed + seeds)
        for case in sorted(group, key=lambda case: case.precision != BASELINE)
        for arm in ((REFERENCE, "", CONTROL) if case.precision == BASELINE else ("",))
    ]


def in_precision(case: Case, precision: str) -> Case:
    """Return `case` as it would be in fp32, which has no scaler to leave out, by another name."""
    return structs.replace(case, precision=precision, input_dtype="fp32", scaler=True)


def unfinished(stored: "StoredRun") -> list[ToTrain]:
    """Return the trainings that a run lacks, of cases that neither failed nor were skipped.

    Raises `UsageError` where it does not say what it was asked for.
    """
    from ampbench.drive.pieces import asked_of

    found = stored.several_of(Training).items()
    made = {(case_id, each.seed, each.arm) for case_id, trainings in found for each in trainings}
    cases = [case for case_id, case in stored.cases.items() if case_id not in stored.given_up]
    starts = trainings_of(cases, stored.header.settings.seed, asked_of(stored).seeds)
    return [start for start in starts if (start.case.case_id, start.seed, start.arm) not in made]


def pieces(session: Session[ConvergenceAsked]) -> "list[Piece]":
    """Return the trainings of what is planned, or those that a run begun before lacks, in their order."""
    from ampbench.drive.pieces import Piece

    planned = {each.case.case_id: each for each in session.prepared.plan if not each.skip}
    found = (
        trainings_of([each.case for each in planned.values()], session.prepared.settings.seed, session.asked.seeds)
        if session.begun is None
        else unfinished(session.begun)
    )
    return [Piece(planned[one.case.case_id], one) for one in found if one.case.case_id in planned]


@dataclass(slots=True)
class _Trainer:
    """Has trainings made by a worker, and knows which it has in mind: those since it last failed.

    A worker has the fp64 and fp32 trainings of a seed in mind, which the others are compared with. One that has not,
    since a study goes on or its worker was killed, makes them again first, by requests of their own: each training has
    all of its time, and none is stored twice.
    """

    session: Session[ConvergenceAsked]
    known: list[ToTrain] = field(default_factory=list)
    failed: list[tuple[ToTrain, Failure]] = field(default_factory=list)

    def train(self, channel: "Channel", piece: "Piece") -> Training | Failure | Skip:
        """Return what came of a training, after those that it is compared with."""
        planned, start = piece.planned, piece.part
        for first in start.compared_with:
            if why := next((why for failed, why in self.failed if failed == first), None):
                return _for_want_of(first, why, start)
        for first in start.compared_with:
            if first not in self.known:
                found = self._trained(channel, dataclasses.replace(planned, case=first.case), first)
                if isinstance(found, Failure):
                    return _for_want_of(first, found, start)
        return self._trained(channel, planned, start)

    def _trained(self, channel: "Channel", planned: "PlannedCase", start: ToTrain) -> Training | Failure | Skip:
        from ampbench.drive.pieces import ask_case

        session = self.session
        settings = structs.replace(session.prepared.settings, seed=start.seed)
        asked = TrainingAsked(steps=session.asked.steps, arm=start.arm)
        found = ask_case(channel, planned, settings, TASK, asked, fresh=False)
        if not isinstance(found, Training):
            self.known.clear()
            if isinstance(found, Failure):
                self.failed.append((start, found))
            return found
        if session.begun is not None:
            _check_same_network(session.begun, planned.case, found)
        self.known = [known for known in self.known if known.weights == start.weights]
        self.known.append(start)
        return found


def _for_want_of(first: ToTrain, why: Failure, start: ToTrain) -> Failure:
    """Return that a piece failed because the one did that it is compared with."""
    message = f"{NAMES.get(first.arm, BASELINE)}, which it is compared with, failed: {why.message}"
    return structs.replace(why, case_id=start.case.case_id, message=message)


def _check_same_network(resumed: "StoredRun", case: Case, training: Training) -> None:
    """Raise `UsageError` where a training began with other weights or inputs than one of the run from its seed."""
    from ampbench.drive.session import check_same_network

    for case_id, trainings in resumed.several_of(Training).items():
        if (resumed.cases[case_id].group, resumed.cases[case_id].device) == (case.group, case.device):
            for was in trainings:
                if was.seed == training.seed:
                    check_same_network(resumed.header.run, case.workload, was, training)


def _with_baselines(
    selection: Selection, _: ConvergenceAsked, environment: Environment, channel: "Channel", settings: Settings
) -> "list[PlannedCase]":
    """Return the cases of `selection`, and for each the fp32 case of the same, whatever is selected."""
    from ampbench.drive.planning import make_plan
    from ampbench.drive.session import describer

    describe = describer(channel, settings)
    asked = structs.replace(selection, precisions=selection.precisions and [BASELINE, *selection.precisions])
    everything = make_plan(structs.replace(asked, keyword=""), environment, describe)
    chosen = make_plan(selection, environment, describe)
    ids = {planned.case.case_id for planned in chosen}
    ids |= {in_precision(planned.case, BASELINE).case_id for planned in chosen}
    return [planned for planned in everything if planned.case.case_id in ids]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a study found of a case: whether it `trains` as fp32 does, and by which share it ends `worse`.

    `study` names it: "study 8879c8, 300 steps from 3 seeds".
    """

    trains: bool
    study: str
    worse: float | None = None


def trained_cases(measured: "StoredRun", studies: "Iterable[StoredRun]") -> dict[str, Trained]:
    """Return by case id what `studies` found of the cases of a run that measured; of several the newest counts.

    They count where they were made on the same host with the same torch, of the same case with the same weights, and
    where they tell whether it trains as fp32 does.
    """
    found: dict[str, Trained] = {}
    for study in sorted(studies, key=lambda one: (one.header.started_at, one.header.run)):
        if study.header.explains != CONVERGENCE or place_of(study) != place_of(measured):
            continue
        for one in learned(study):
            for row in one.judged:
                own = measured.divergence.get(row.case_id)
                same = own is not None and own.weights_digest in {each.weights_digest for each in row.trainings}
                if same and row.trains is not None:
                    worse = row.loss_ratio - 1 if row.loss_ratio is not None else None
                    if row.verdict is ChangeStatus.REGRESSED:
                        worse = abs(row.difference) if row.difference is not None else None
                    name = f"study {study.header.run.rpartition('-')[2]}, {counted(one.steps, 'step')} from"
                    name += f" {counted(len(row.trainings), 'seed')}"
                    found[row.case_id] = Trained(trains=row.trains, study=name, worse=None if row.trains else worse)
    return found


TASK = Task(CONVERGENCE, TrainingAsked, Training, "ampbench.studies.convergence_measure:do_training")
STUDY: Study[ConvergenceAsked, Learned] = Study(
    kind=CONVERGENCE,
    help="""\
Train in every precision from the same weights on the same batches, and judge by held-out data.

fp32 is trained, too, in fp64 and from weights one rounding away: what such a rounding changes is no precision's
fault. Without workloads, digits and characters are trained: real data that needs no download. Your own workload
gives a list of batches and, in ampbench.Workload's held_out, data to judge by.

\b
Examples:
  ampbench study convergence digits
  ampbench study convergence model.py:make --steps 1000 --seeds 5
  ampbench study convergence digits --optimizer sgd-vision
  ampbench study convergence digits --precision fp16_autocast --no-scaler
  ampbench study convergence --resume 1f9a3c        an interrupted study, by its id
""",
    doing="training",
    asked=ConvergenceAsked,
    record=Training,
    key="trainings",
    task=TASK,
    timeout="1800",
    selects=Selects(
        precision=ALL_PRECISIONS_HELP,
        scaler=SCALER_HELP,
        workloads=("digits", "characters"),
        phases=("training",),
        recipes=True,
        own_precisions=True,
    ),
    plan=_with_baselines,
    pieces=pieces,
    left=lambda stored: [start.case.case_id for start in unfinished(stored)],
    work=lambda session: _Trainer(session).train,
    title="Convergence",
    caption="How the precisions of each workload end",
    done="Trained",
    subject="workload",
    subjects=learned_in,
    heading=heading,
    tables=(
        Table(
            key="trainings",
            columns=TRAININGS,
            rows=trainings,
            views=[
                View(
                    title="Each seed",
                    keys="precision seed metric_value skipped_steps scaler_scale seconds ended",
                    shown=0,
                    folded=True,
                )
            ],
        ),
        Table(
            key="precisions",
            columns=precisions,
            rows=lambda one: one.rows,
            views=[
                View(
                    title="At the end",
                    keys="precision mean sd difference low verdict skipped_steps seconds",
                    note="last quarter of the steps; means over seeds, SD: over seeds; against fp32: of the same seed, "
                    "in points or of the loss; control: fp32 from weights one rounding away; time: of a training by "
                    "the clock, no measure of speed",
                ),
                View(
                    title="Training loss at the end",
                    keys="precision training_loss training_loss_ratio training_loss_low training_loss_verdict",
                    note="last quarter of the steps; times fp32's: of the same seed, geometric mean over seeds",
                ),
                View(
                    title="Weights at the end",
                    keys="precision weights_from_fp32 weights_from_fp64 way_rel_l2 way_kept way_slope way_grows",
                    note="relative L2 distances, medians over seeds; way: what weights moved by, against fp64's: bias "
                    "adds up with the steps k, noise with their root",
                    folded=True,
                ),
            ],
        ),
        Table(key="workloads", columns=WORKLOADS, rows=lambda one: [one]),
    ),
    conclusions=conclusions,
    charts=(
        curves(
            "studies-losses",
            "Training loss by precision",
            "training loss",
            "precision",
            _mean_losses,
            alt="Means over seeds. A line ends with the first seed that was given up.",
        ),
        curves(
            "studies-drift",
            "How far weights drift from those of fp32",
            "distance of weights from fp32's",
            "precision",
            _distances,
            alt="Relative L2 distances, medians over seeds. What rounding alone does: fp64, and the control, which is "
            "fp32 from weights one rounding away.",
            unit="error",
            logarithmic=True,
        ),
    ),
)
