"""What trainings come to: whether those of a precision, or of a setting of GradScaler, end where those of fp32 do.

A difference belongs to a seed: both trainings begin with the same weights and take the same batches. It is positive
where the precision is better. Trainings are chaotic: the smallest rounding ends in other weights and some other
decisions. The spread of a difference is estimated twice, and the larger estimate is taken:

* trainings that differ from fp32 by rounding alone, the control and fp64, give differences whose mean is zero;
* the differences of the rows judged spread about their own means. A low precision disturbs more than one rounding
  does, so that its trainings may have parted where the control still follows fp32.

docs/training.md has the error rates of these rules, tests/studies/test_training_statistics.py simulates them.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from ampbench.core.precisions import BASELINE
from ampbench.core.statement import Severity, Statement, state
from ampbench.core.units import all_of
from ampbench.records.changes import ChangeStatus
from ampbench.records.labels import few
from ampbench.records.measured import Score
from ampbench.records.ranges import format_scale

if TYPE_CHECKING:
    from ampbench.studies.training import Training

CONTROL, REFERENCE = ARMS = "control", "reference"
"""Trainings of the fp32 case beside its own (""): from weights one rounding away, and in fp64."""
NAMES = {CONTROL: "control", REFERENCE: "fp64"}
"""What these are called."""
UNSCALED, DEFAULT = "no scaling", "default"
"""The settings of GradScaler without it, and as PyTorch makes it."""

ALPHA = 0.05
"""At most so often is any row of a study said to regress where none does; as often for improve."""
CONTROL_ALPHA = 0.01
"""The control and fp64 are each said to differ from fp32 at this level, so that few studies lose their verdicts."""
EQUIVALENCE_ALPHA = 0.05
"""The level of each of the two one-sided tests that show a difference to lie within the margin."""
POWER = 0.9
"""The seeds said to decide would do so with this probability if the spread were known; it is not, so with less."""
LOUD = 6.0
"""A row with more than this many times the variance of the others is left out of their spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the differences of one row say. All numbers are in the unit of the differences.

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
    """Return a verdict on each row.

    `differences` are each row's by seed, at least one; `rounding` those of trainings that differ from fp32 by rounding
    alone. `resolution` is the least step of the metric, as one decision of all. `margin`, or one step where that is
    more, is the largest difference that counts as none.

    Regressed: the mean is below -margin and its one-sided bound at `alpha`, divided by the number of rows (Bonferroni),
    below 0; improved mirrored. Unchanged: the 90% interval lies within the margin (two one-sided tests: Schuirmann, "A
    comparison of the two one-sided tests procedure and the power approach", 1987). Else inconclusive. Bounds are
    Student's t. A spread is never taken to be below that of two numbers rounded to the resolution, resolution /
    sqrt(6). Rows that are shown to differ say nothing of the spread of others, which are judged again without them.
    """
    margin = max(margin, resolution)
    level = alpha / max(len(differences), 1)
    judged = {
        name: _judged(values, *_spread(name, differences, rounding, resolution), margin, level)
        for name, values in differences.items()
    }
    rest = {name: differences[name] for name, verdict in judged.items() if not verdict.fires}
    if 0 < len(rest) < len(differences):
        judged |= judge(rest, rounding, margin, resolution=resolution, alpha=level * len(rest))
    return judged


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

    needed = stats.count_to_decide(
        np.array([mean]), np.array([variance]), 0.0, np.array([margin]), (level, EQUIVALENCE_ALPHA), POWER
    )
    return max(math.ceil(needed[0]), count + 1) if math.isfinite(needed[0]) else None


def _spread(
    name: str, differences: Mapping[str, Sequence[float]], rounding: Sequence[float], resolution: float
) -> tuple[float | None, float]:
    """Return the variance of one difference of a row and its degrees of freedom; None where nothing tells it.

    It is never below that of a difference of two numbers each rounded to `resolution`. Differences by rounding alone
    have a mean that is known to be zero. Of the others those count that do not vary far more than the rest.
    """
    least = resolution**2 / 6
    alone = statistics.fmean(value**2 for value in rounding) if rounding else 0.0

    def loud(row: str) -> bool:
        others = [values for other, values in differences.items() if other != row]
        return _about_means([differences[row]])[0] > LOUD * max(alone, least, _about_means(others)[0])

    quiet = _about_means([values for row, values in differences.items() if row == name or not loud(row)])
    estimates = [estimate for estimate in ((alone, float(len(rounding))), quiet) if estimate[1]]
    if not estimates:
        return None, 0.0
    variance, freedom = max(estimates)
    return max(variance, least), freedom


def _about_means(rows: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the pooled variance of rows' differences about their means, and its degrees of freedom.

    The differences of one seed share its fp32 training, and half their variance where all trainings vary alike; of k
    rows the pooled variance then has 4 / (k + 3) times the degrees of freedom of independent ones (Satterthwaite, 1946,
    with the eigenvalues of that covariance: 1, and once k + 1).
    """
    several = [(values, statistics.fmean(values)) for values in rows if len(values) > 1]
    total = sum(len(values) - 1 for values, _ in several)
    if not total:
        return 0.0, 0.0
    squares = math.fsum((value - mean) ** 2 for values, mean in several for value in values)
    return squares / total, total * 4 / (len(several) + 3)


class Learns(StrEnum):
    """What trainings of a workload say: of fp32, of loss scaling, of precisions and why, and of what is missing."""

    FLAT = "training-flat"
    """fp32 ends no better than it began, or by no more than a few spacings of the numbers that it is read in."""
    NO_END = "training-no-end"
    HARDLY = "training-hardly"
    NEEDED = "training-scale-needed"
    NEEDLESS = "training-scale-needless"
    USELESS = "training-scale-useless"
    TRAINS = "training-trains"
    """Score and training loss are both shown to be no worse."""
    FAILS = "training-fails"
    """Either is shown to be worse."""
    SCORES = "training-scores"
    BETTER = "training-better"
    OPEN = "training-open"
    INCOMPARABLE = "training-incomparable"
    BROKE = "training-broke"
    SCORE = "training-score"
    LOSS = "training-loss"
    WITHIN = "training-within"
    SEEDS = "training-seeds"
    NO_PAIR = "training-no-pair"
    """fp32 was not trained, or to its end from no seed of these."""
    OTHER_START = "training-other-start"
    ONE_START = "training-one-start"
    NO_RATIO = "training-no-ratio"
    """fp32's loss ends at 0, or does not fall, or is not known."""
    COMES_DOWN = "training-scale-comes-down"
    SKIPS_AGAIN = "training-scale-skips-again"
    INEXACT = "training-inexact"
    SHORT = "training-short"


class Trouble(StrEnum):
    """Why a training has no final value."""

    RAISED = "raised"
    LOSS = "loss not finite"
    SCALE = "gradients not finite at any loss scale"
    WEIGHTS = "weights not finite"
    SKIPPED = "every step skipped by GradScaler"
    LAST = "loss not finite at the end"


ACCURACY, LOSS, FIT = "accuracy", "loss", "training loss"
"""What trainings are judged by: on held-out data the share of decisions that are the targets', else the loss there; and
the loss on the training batches."""
MARGIN_OF_ACCURACY, MARGIN_OF_LOSS, MARGIN_OF_FIT = 0.005, 0.01, 0.05
"""The largest differences that count as none: half a point of accuracy, one percent of the loss on held-out data, five
of that on the training batches, which differs from seed to seed by more."""
OF_FALL = 0.1
"""Nor do differences of losses count as none that are more than this share of what fp32's own loss falls by."""
LEAST_FALL = 4 * 2.0**-23
"""A loss that falls by no more than this share of it, four spacings of fp32, is none to judge by."""
HARDLY = 0.01
"""A loss that falls by less than this share of it has hardly fallen."""
LAST = 0.75
"""From this share of the steps on, scores are those of the end."""
MANY_SKIPPED = 3
"""From this number of steps skipped at the start, another init_scale is recommended."""
OFTEN_SKIPPED = 0.05
"""The share of steps, after the scale was first found, from which a scaler skips too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What trainings are judged by: `name` is `ACCURACY`, `LOSS` or `FIT`.

    `decisions` are those that an accuracy is the share of; None for a loss. `before` and `after` are fp32's before the
    first step and at the end (None: not known).
    """

    name: str
    decisions: int | None = None
    before: float | None = None
    after: float | None = None

    @property
    def is_fit(self) -> bool:
        """Whether it is the loss on the training batches, which is judged by whether it is no worse."""
        return self.name == FIT

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
    def fall(self) -> float | None:
        """By how much fp32's loss falls in training, relative to where it ends; None for an accuracy, or unknown."""
        if self.name == ACCURACY or self.before is None or not self.after:
            return None
        return (self.before - self.after) / abs(self.after)

    @property
    def learns(self) -> bool | None:
        """Whether fp32 ends better than it began, a loss by more than a few spacings; None where that is not known."""
        if self.before is None or self.after is None:
            return None
        least = 0.0 if self.name == ACCURACY else LEAST_FALL * max(abs(self.before), abs(self.after))
        return (self.after - self.before) * self.sign > least

    @property
    def margin(self) -> float:
        """The largest difference that counts as none: of an accuracy, one decision at least.

        Of a loss, relative to fp32's: the smaller of the usual one and `OF_FALL` of fp32's own fall, where it falls.
        """
        if self.name == ACCURACY:
            return max(MARGIN_OF_ACCURACY, self.resolution)
        usual = MARGIN_OF_FIT if self.is_fit else MARGIN_OF_LOSS
        return min(usual, OF_FALL * self.fall) if self.fall is not None and self.learns else usual

    def seen_in(self, training: "Training") -> list[Score]:
        """Return the scores of a training that it is about."""
        return training.fits if self.is_fit else training.scores

    def of(self, score: Score) -> float | None:
        """Return the value of a score; None where its loss is not finite."""
        if score.loss is None:
            return None  # of outputs that are not finite, an accuracy counts the classes that NaN falls on
        if self.name != ACCURACY:
            return score.loss
        return score.correct / score.decisions if score.correct is not None and score.decisions else None

    def final(self, training: "Training") -> float | None:
        """Return the mean over the scores in the last quarter of the steps; None where one of them has no value.

        A single score also says at which moment it was taken: decisions near a border change from step to step.
        """
        late = [score for score in self.seen_in(training) if score.step >= LAST * training.steps]
        values = [value for score in late if (value := self.of(score)) is not None]
        if training.broke_off or not late or late[-1].step != training.steps or len(values) < len(late):
            return None
        return statistics.fmean(values)

    def change(self, value: float | None, fp32: float | None) -> float | None:
        """Return by how much a value differs from fp32's (positive: larger), of a loss relative to fp32's."""
        if value is None or fp32 is None:
            return None
        if self.name == ACCURACY:
            return value - fp32
        return (value - fp32) / abs(fp32) if fp32 else None


def metrics_of(trainings: "Sequence[Training]") -> tuple[Metric, Metric]:
    """Return what trainings, best those of fp32, are judged by first, and the loss on the training batches.

    The first is of held-out data, an accuracy where every score counts decisions; without such data both are the same.
    """
    fit = _read(Metric(name=FIT), trainings)
    scores = [score for training in trainings for score in training.scores]
    if not scores:
        return fit, fit
    if not all(score.decisions and score.correct is not None for score in scores):
        return _read(Metric(name=LOSS), trainings), fit
    decisions = min(score.decisions or 0 for score in scores)
    return _read(Metric(name=ACCURACY, decisions=decisions), trainings), fit


def _read(metric: Metric, trainings: "Sequence[Training]") -> Metric:
    """Return a metric that knows what trainings begin and end with."""
    firsts = [score for training in trainings for score in metric.seen_in(training) if score.step == 0]
    return replace(metric, before=mean_of(map(metric.of, firsts)), after=mean_of(map(metric.final, trainings)))


def trouble(training: "Training", metric: Metric) -> tuple[Trouble, int | None] | None:
    """Return why a training has no final value of a metric, and from which step on, from 1; None where it has one."""
    if training.error:
        return Trouble.RAISED, None
    finite = max((place + 1 for place, loss in enumerate(training.losses) if loss is not None), default=0)
    lost = Trouble.LOSS, finite * training.every + 1
    if training.ended_at is not None:
        if training.losses and training.losses[-1] is None:
            return lost
        return (Trouble.SCALE if training.scales else Trouble.WEIGHTS), training.ended_at + 1
    if training.scales and len(training.skipped) == training.steps:
        return Trouble.SKIPPED, None
    if metric.final(training) is None:
        return Trouble.LAST, None
    late = training.losses[math.floor(LAST * len(training.losses)) :]
    return lost if late and all(loss is None for loss in late) else None


def _broke(trainings: "Sequence[Training]", metric: Metric, subject: str = "") -> Statement | None:
    """Return what kept trainings of several seeds from an end, the earliest of it; None where nothing did."""
    broken = [(known, training) for training in trainings if (known := trouble(training, metric))]
    if not broken:
        return None
    (what, step), training = min(broken, key=lambda each: math.inf if each[0][1] is None else each[0][1])
    first = str(training.first_nonfinite) if training.first_nonfinite else None
    earliest = int(step is not None and len({known for known, _ in broken}) > 1)
    facts = {"step": step, "earliest": earliest, "seeds": len(broken), "of": len(trainings)}
    return state(Learns.BROKE, subject, what=what, error=training.error or None, first=first, **facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the trainings of a row end by one metric, against fp32's.

    `mean` and `sd` are those of the final value over seeds, None where undefined. `difference` from fp32 is a mean by
    seed, of an accuracy as a share, of a loss relative to fp32's (positive: larger), with its 90% interval. `verdict`
    is None for fp32 and its arms, `why` its reasons; of the training loss unchanged says that it is no worse.
    """

    mean: float | None = None
    sd: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: ChangeStatus | None = None
    why: Sequence[Statement] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The trainings of one precision, of one setting of GradScaler or of an arm of fp32, by seed.

    `name` is the precision's or the setting's, "control" or "fp64". `first` is how it ends by what is judged first,
    `fit` by the loss on the training batches.
    """

    name: str
    case_id: str
    arm: str = ""
    by_seed: "Mapping[int, Training]" = field(default_factory=dict)
    first: Ending = Ending()
    fit: Ending = Ending()

    @property
    def trainings(self) -> "list[Training]":
        """Its trainings."""
        return list(self.by_seed.values())

    @property
    def judged(self) -> bool:
        """Whether it is neither fp32 nor an arm of it."""
        return self.arm not in ARMS and self.name != BASELINE

    @property
    def of_fp32(self) -> bool:
        """Whether it has no verdict because of fp32's trainings."""
        return self.first.verdict is ChangeStatus.INCONCLUSIVE and not self.first.why

    @property
    def trains(self) -> bool | None:
        """Whether it trains as fp32 does: score and training loss are both shown to be no worse.

        False where either is shown to be worse, None where neither is known.
        """
        verdicts = self.first.verdict, self.fit.verdict
        if ChangeStatus.REGRESSED in verdicts:
            return False
        as_good = all(verdict in (ChangeStatus.UNCHANGED, ChangeStatus.IMPROVED) for verdict in verdicts)
        return True if as_good else None

    @staticmethod
    def skipped_in(trainings: "Sequence[Training]") -> int | None:
        """Return how many steps GradScaler skipped in trainings; None where it scales none of their losses."""
        scaled = any(training.scales for training in trainings)
        return sum(len(training.skipped) for training in trainings) if scaled else None

    @property
    def flushed(self) -> float | None:
        """The share of the gradient elements looked at that are zero though they are not in fp32."""
        looks = [look for training in self.trainings for look in training.looks]
        nonzero = sum(look.nonzero for look in looks)
        return sum(look.flushed for look in looks) / nonzero if nonzero else None

    @property
    def grad_rel_l2(self) -> float | None:
        """The median over the looks of the gradients' error."""
        errors = (look.rel_l2 for training in self.trainings for look in training.looks)
        return mean_of(errors, statistics.median)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What the trainings of one workload on one device come to.

    `rows` are fp32 with its arms, then the precisions in the order of every table, then settings. `metric` is what they
    are judged by first, `fit` the loss on the training batches. `asked` is how many seeds there were to be, `remarks`
    are on control, fp64 and what is missing.
    """

    name: str = ""
    workload: str
    device: str
    metric: Metric
    fit: Metric
    steps: int
    seeds: list[int]
    asked: int
    rows: list[Row]
    remarks: Sequence[Statement] = ()

    @property
    def baseline(self) -> Row | None:
        """The row of fp32; None where it was not trained."""
        return next((row for row in self.rows if row.name == BASELINE), None)

    @property
    def judged(self) -> list[Row]:
        """The rows that have a verdict."""
        return [row for row in self.rows if row.judged]

    @property
    def notes(self) -> list[str]:
        """What the measuring noted."""
        return list(dict.fromkeys(note for row in self.rows for training in row.trainings for note in training.notes))


class _Compared:
    """What the rows of a workload come to by one metric, against `own`, the trainings of fp32 that came to an end.

    `controls` are the verdicts on the arms of fp32, which tell what rounding alone does unless they differ.
    """

    def __init__(self, metric: Metric, rows: Sequence[Row], own: "Mapping[int, Training]"):
        self.metric, self.own = metric, own
        self._judge = partial(judge, margin=metric.margin, resolution=metric.resolution)
        differences = {row.name: self._differences(row) for row in rows if row.name != BASELINE}
        self._differing = {name: values for name, values in differences.items() if values}
        exact = {name: self._differing.pop(name) for name in NAMES.values() if name in self._differing}
        self.controls: dict[str, Judged] = {}
        for name, values in exact.items():
            rest = [value for other, others in exact.items() if other != name for value in others]
            self.controls |= self._judge({name: values}, rest, alpha=CONTROL_ALPHA)
        self._rounding = [value for name, values in exact.items() if not self.fires(name) for value in values]

    def _differences(self, row: Row) -> list[float]:
        final, pairs = self.metric.final, _pairs(row, self.own)
        changes = [self.metric.change(final(training), final(fp32)) for training, fp32 in pairs]
        return [change * self.metric.sign for change in changes if change is not None]

    def fires(self, name: str) -> bool:
        """Return whether an arm of fp32 is itself said to differ from fp32."""
        return name in self.controls and self.controls[name].fires

    def endings(self, rows: Iterable[Row], withheld: "Mapping[str, _Withheld]") -> dict[str, Ending]:
        """Return how rows end; those with a verdict `withheld` from their numbers, but for an open one, have none."""
        hidden = [name for name, (verdict, _) in withheld.items() if verdict is not ChangeStatus.INCONCLUSIVE]
        differing = {name: values for name, values in self._differing.items() if name not in hidden}
        judged = self.controls | self._judge(differing, self._rounding)
        return {row.name: self._ending(row, judged.get(row.name), withheld.get(row.name)) for row in rows}

    def _ending(self, row: Row, judged: Judged | None, withheld: "_Withheld | None") -> Ending:
        finals = [value for training in row.trainings if (value := self.metric.final(training)) is not None]
        ending = Ending(mean=mean_of(finals), sd=statistics.stdev(finals) if len(finals) > 1 else None)
        if judged is not None:
            sign = self.metric.sign
            ending = replace(ending, difference=judged.difference * sign)
            if math.isfinite(judged.low) and not _one_start(_pairs(row, self.own)):
                low, high = sorted((judged.low * sign, judged.high * sign))
                ending = replace(ending, low=low, high=high)
        if withheld is not None:
            verdict, why = withheld
            return replace(ending, verdict=verdict, why=(why,) if why else ())
        return self._judged(ending, judged) if row.judged else ending

    def _judged(self, ending: Ending, judged: Judged | None) -> Ending:
        """Return an ending with the verdict that its numbers give.

        The training loss is no worse where the one-sided bound at 5% is within the margin (non-inferiority).
        """
        metric = self.metric
        if judged is None or not metric.learns:
            return replace(ending, verdict=ChangeStatus.INCONCLUSIVE, why=(state(Learns.NO_RATIO),))
        if self.fires(NAMES[CONTROL]):
            return replace(ending, verdict=ChangeStatus.INCONCLUSIVE)
        verdict = judged.verdict
        if verdict is ChangeStatus.INCONCLUSIVE and metric.is_fit and judged.low >= -metric.margin:
            verdict = ChangeStatus.UNCHANGED
        why = [] if verdict is ChangeStatus.UNCHANGED else [_apart(ending, metric)]
        if verdict is ChangeStatus.INCONCLUSIVE:
            needed = judged.seeds_needed
            facts = {"margin": 100 * metric.margin, "unit": metric.unit} if needed is None else {"seeds": needed}
            why.append(state(Learns.SEEDS, "", Severity.ADVICE, **facts))
        return replace(ending, verdict=verdict, why=why)


_Withheld = tuple[ChangeStatus, Statement | None]
"""A verdict that numbers do not decide, and why; None: fp32's own trainings, which is said once of all precisions."""


def conclude(workload: str, device: str, planned: Sequence[Row], asked: int) -> Learned:
    """Return what the trainings of rows that differ in their precision come to; `asked` is from how many seeds."""
    rows = [row for row in planned if row.by_seed]
    own = next((row.by_seed for row in rows if row.name == BASELINE), {})
    trainings = list(own.values()) or [training for row in rows for training in row.trainings]
    metric, fit = metrics_of(trainings)
    ended = {seed: training for seed, training in own.items() if trouble(training, metric) is None}
    first, second = (_Compared(judged_by, rows, ended) for judged_by in (metric, fit))
    reasons = {row.name: _withheld(row, own, first) for row in rows if row.judged}
    withheld = {name: reason for name, reason in reasons.items() if reason is not None}
    endings, of_fit = (compared.endings(rows, withheld) for compared in (first, second))
    seeds = sorted({seed for row in rows for seed in row.by_seed})
    return Learned(
        workload=workload,
        device=device,
        metric=metric,
        fit=fit,
        steps=max(training.steps for row in rows for training in row.trainings),
        seeds=seeds,
        asked=max(asked, len(seeds)),
        rows=[replace(row, first=endings[row.name], fit=of_fit[row.name]) for row in rows],
        remarks=list(_remarks(planned, asked, first)),
    )


def _withheld(row: Row, own: "Mapping[int, Training]", first: _Compared) -> _Withheld | None:
    """Return the verdict on a row that its differences do not decide; None where they do."""
    pairs = _pairs(row, first.own)
    if own and not first.own:
        return ChangeStatus.INCONCLUSIVE, None
    if not pairs:
        verdict = ChangeStatus.INCONCLUSIVE if own else ChangeStatus.INCOMPARABLE
        return verdict, state(Learns.NO_PAIR, trained=int(bool(own)))
    for what, digest in (("weights", "weights_digest"), ("batches", "inputs_digest")):
        if any(getattr(training, digest) != getattr(fp32, digest) for training, fp32 in pairs):
            return ChangeStatus.INCOMPARABLE, state(Learns.OTHER_START, what=what)
    if (broke := _broke([training for training, _ in pairs], first.metric)) is not None:
        return ChangeStatus.REGRESSED, broke
    if first.metric.learns is False or first.fires(NAMES[CONTROL]):
        return ChangeStatus.INCONCLUSIVE, None
    if _one_start(pairs):
        return ChangeStatus.INCONCLUSIVE, state(Learns.ONE_START, one=int(len(pairs) == 1))
    return None


def _pairs(row: Row, own: "Mapping[int, Training]") -> "list[tuple[Training, Training]]":
    """Return the trainings of a row, each with that of fp32 from the same seed."""
    return [(training, own[seed]) for seed, training in row.by_seed.items() if seed in own]


def _one_start(pairs: "Iterable[tuple[Training, Training]]") -> bool:
    """Return whether trainings beside those of fp32 show no spread, which leaves no interval either."""
    return len({(fp32.weights_digest, fp32.inputs_digest) for _, fp32 in pairs}) == 1


def _apart(ending: Ending, metric: Metric) -> Statement:
    """Return by how much a metric differs from fp32's: an accuracy in points, a loss as a ratio."""
    difference, ends = ending.difference or 0.0, (ending.low, ending.high)
    if metric.name != ACCURACY:
        low, high = (None if value is None else 1 + value for value in ends)
        ratio = 1 + difference
        return state(Learns.LOSS, "", Severity.ADVICE, metric=metric.name, ratio=ratio, low=low, high=high)
    low, high = (None if value is None else 100 * value for value in ends)
    by, lower = abs(100 * difference), int(difference < 0)
    return state(Learns.SCORE, "", Severity.ADVICE, by=by, lower=lower, low=low, high=high)


def mean_of(values: Iterable[float | None], how: Callable[[list[float]], float] = statistics.fmean) -> float | None:
    """Return the mean, or what `how` makes, of those that are known; None without any."""
    known = [value for value in values if value is not None]
    return how(known) if known else None


def _remarks(planned: Sequence[Row], asked: int, first: _Compared) -> Iterator[Statement]:
    """Yield which arms of fp32 end elsewhere, which trainings are missing, and which of fp32 came to no end.

    That fp32 came to no end from any seed is no remark: it is said first.
    """
    for arm, name in NAMES.items():
        if first.fires(name):
            yield state(Learns.INEXACT, name, Severity.ADVICE, control=int(arm == CONTROL))
    if short := [row.name for row in planned if len(row.by_seed) < asked]:
        yield state(Learns.SHORT, "", Severity.ADVICE, seeds=asked, names=few(short))
    for row in planned:
        exact = row.arm in ARMS or (first.own and row.name == BASELINE)
        if exact and (broke := _broke(row.trainings, first.metric, row.name)) is not None:
            yield broke


def conclusions(_: Any, learned: Learned) -> Iterator[Statement]:
    """Yield what to conclude of fp32, loss scaling, each precision and what is missing."""
    own, metric = learned.baseline, learned.metric
    if own is not None and own.first.mean is None and (broke := _broke(own.trainings, metric, BASELINE)) is not None:
        yield from (state(Learns.NO_END, BASELINE), broke)
    if metric.learns is False:
        before, after = (metric.before or 0.0, metric.after or 0.0)
        falls = int(metric.name != ACCURACY and after < before)
        facts = {"before": before, "value": after, "falls": falls}
        yield state(Learns.FLAT, BASELINE, Severity.ADVICE, metric=metric.name, **facts)
    if metric.learns and metric.fall is not None and metric.fall < HARDLY:
        yield state(Learns.HARDLY, BASELINE, Severity.ADVICE, fall=100 * metric.fall)
    yield from _of_scaling(learned.judged)
    yield from _of_precisions(learned)
    for row in learned.judged:
        yield from _of_scales(row)
    yield from learned.remarks


def _of_scaling(rows: Sequence[Row]) -> Iterator[Statement]:
    """Yield whether fp16 needs a loss scale, and which setting of GradScaler serves."""
    unscaled = next((row for row in rows if row.arm == UNSCALED), None)
    scaled = [row for row in rows if row.arm not in ("", UNSCALED)]
    serving = sorted((row for row in scaled if row.trains), key=lambda row: row.name != DEFAULT)
    if scaled and all(each.ended_at is not None and each.scales for row in scaled for each in row.trainings):
        yield state(Learns.USELESS)
    elif unscaled is not None and unscaled.trains is False and serving:
        yield state(Learns.NEEDED, setting=serving[0].name)
    elif unscaled is not None and unscaled.trains:
        yield state(Learns.NEEDLESS, "", Severity.INFO)


def _of_scales(row: Row) -> Iterator[Statement]:
    """Yield what to set where GradScaler skips many steps."""
    last = max(row.trainings, key=lambda training: len(training.skipped))
    skipped, steps = last.skipped, last.steps
    if not skipped or last.broke_off or len(skipped) == steps:
        return
    first = next((place for place, step in enumerate(skipped) if place != step), len(skipped))
    if first >= MANY_SKIPPED:
        began = format_scale(last.scales[0][1])
        settled = format_scale(next(scale for step, scale in last.scales if step == first)).replace("^", "**")
        yield state(
            Learns.COMES_DOWN, row.name, Severity.ADVICE, first=first, steps=steps, began=began, settled=settled
        )
    later = len(skipped) - first
    if later > max(OFTEN_SKIPPED * steps, 1):
        yield state(Learns.SKIPS_AGAIN, row.name, Severity.ADVICE, skipped=later, steps=steps)


def _of_precisions(learned: Learned) -> Iterator[Statement]:
    """Yield the verdicts on rows with their reasons, those that share both at once."""
    of_rows = [(row.name, _of_row(row, learned)) for row in learned.judged if not row.of_fp32]
    alike: list[list[Statement]] = []
    for _, statements in of_rows:
        alike += [statements] if statements not in alike else []
    codes = list(Learns)
    for statements in sorted(alike, key=lambda each: codes.index(Learns(each[0].code))):
        names = [name for name, own in of_rows if own == statements]
        for statement in statements:
            yield replace(statement, subject=all_of(names), facts={**statement.facts, "count": len(names)})


def _of_row(row: Row, learned: Learned) -> list[Statement]:
    """Return the verdict on a row and its reasons."""
    metric, verdict, why = learned.metric, row.first.verdict, list(row.first.why)
    of_fit = [reason for reason in row.fit.why if reason not in why]
    if verdict is ChangeStatus.UNCHANGED:
        loss = 100 * learned.fit.margin if row.trains and not metric.is_fit else None
        why.append(state(Learns.WITHIN, metric=metric.name, margin=100 * metric.margin, unit=metric.unit, loss=loss))
    code = _CODES.get(verdict, Learns.TRAINS if row.trains else Learns.SCORES)
    if row.trains is False:
        code, why = Learns.FAILS, why if verdict is ChangeStatus.REGRESSED else [*of_fit, *why]
    elif code in (Learns.SCORES, Learns.BETTER) and not row.trains:
        why += of_fit
    severity = Severity.PROBLEM if code is Learns.FAILS else Severity.INFO
    return [state(code, "", severity), *(replace(reason, severity=Severity.INFO) for reason in why)]


_CODES: Mapping[ChangeStatus | None, Learns] = {
    ChangeStatus.IMPROVED: Learns.BETTER,
    ChangeStatus.INCONCLUSIVE: Learns.OPEN,
    ChangeStatus.INCOMPARABLE: Learns.INCOMPARABLE,
}
"""What a verdict is called, but for one that tells apart scores and training."""
