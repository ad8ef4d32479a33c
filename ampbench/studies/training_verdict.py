"""Verdicts on trainings: whether those of a precision, or of a setting of GradScaler, end where those of fp32 do.

A difference belongs to a seed: both trainings begin with the same weights and take the same batches. Trainings are
chaotic: the smallest rounding ends in other weights and some other decisions. The spread of a difference is estimated
twice, and the larger estimate is taken:

* trainings that differ from fp32 by rounding alone, the control and fp64, give differences whose mean is zero;
* the differences of the rows judged spread about their own means. A low precision disturbs more than one rounding
  does, so that its trainings may have parted where the control still follows fp32.

docs/training.md has the error rates of these rules, tests/studies/test_training_statistics.py simulates them.
"""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from ampbench.core.precisions import BASELINE
from ampbench.core.statement import Severity, Statement, state
from ampbench.core.units import all_of
from ampbench.records.changes import ChangeStatus
from ampbench.records.measured import Score
from ampbench.studies.study import grouped

if TYPE_CHECKING:
    from ampbench.studies.training import Training, TrainingAsked

CONTROL, REFERENCE = ARMS = "control", "reference"
"""Trainings of the fp32 case beside its own (""): from weights one rounding away, and in fp64."""
NAMES = {CONTROL: "control", REFERENCE: "fp64"}
"""The names of their rows."""
UNSCALED, DEFAULT = "no scaling", "default"
"""The settings of GradScaler without it, and as PyTorch makes it."""

ALPHA = 0.05
"""The largest share of studies in which a row wrongly regresses, and of those in which a row wrongly improves."""
CONTROL_ALPHA = 0.01
"""The control and fp64 are each said to differ from fp32 at this level, so that few studies lose their verdicts."""
EQUIVALENCE_ALPHA = 0.05
"""The level of each of the two one-sided tests that show a difference to be within the margin."""
POWER = 0.9
"""The seeds said to decide would do so with this probability if the spread were known; it is not, so with less."""
SHOWN = (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED)
"""The verdicts that show a difference."""
LOUD = 6.0
"""A row with more than this many times the variance of the others is left out of their spread."""


class Judged(NamedTuple):
    """The verdict on the differences of one row, with all numbers in their unit.

    `difference` is their mean, `low` and `high` its 90% interval (infinite where nothing is known of the spread),
    `seeds_needed` would decide, were the spread the one seen and the difference none, or the one seen where the
    interval leaves out none (None: already decided, or never).
    """

    verdict: ChangeStatus
    difference: float
    low: float
    high: float
    seeds_needed: int | None = None


def judge(
    differences: Mapping[str, Sequence[float]],
    rounding: Sequence[float],
    margin: float,
    *,
    resolution: float = 0.0,
    alpha: float = ALPHA,
    sign: int = 1,
) -> dict[str, Judged]:
    """Return a verdict on each row.

    `differences` are each row's by seed, at least one; `rounding` those of trainings that differ from fp32 by rounding
    alone. `resolution` is the least step of the metric, as one decision of all. `margin`, or one step where that is
    more, is the largest difference that counts as none. More is better with a `sign` of 1, less with -1.

    Regressed: the mean is worse than the margin and its one-sided bound at `alpha`, divided by the number of rows
    (Bonferroni), worse than 0; improved mirrored. Unchanged: the 90% interval is within the margin (two one-sided
    tests: Schuirmann, "A comparison of the two one-sided tests procedure and the power approach", 1987). Else
    inconclusive. Bounds are Student's t. A spread is never taken to be below that of two numbers rounded to the
    resolution, resolution / sqrt(6). Rows that are shown to differ tell nothing of the spread of others, which are
    judged again without them.
    """
    margin = max(margin, resolution)
    level = alpha / max(len(differences), 1)
    judged = {
        name: _judged(values, *_spread(name, differences, rounding, resolution), margin, level, sign)
        for name, values in differences.items()
    }
    rest = {name: differences[name] for name, verdict in judged.items() if verdict.verdict not in SHOWN}
    if 0 < len(rest) < len(differences):
        judged |= judge(rest, rounding, margin, resolution=resolution, alpha=level * len(rest), sign=sign)
    return judged


def _judged(
    values: Sequence[float], variance: float | None, freedom: float, margin: float, level: float, sign: int
) -> Judged:
    """Return the verdict on differences with a known variance, made from `freedom` degrees of freedom."""
    mean, count = statistics.fmean(values), len(values)
    if variance is None:
        return Judged(ChangeStatus.INCONCLUSIVE, mean, -math.inf, math.inf)
    from scipy.special import stdtrit

    error = math.sqrt(variance / count)
    bound = float(stdtrit(freedom, 1 - level)) * error
    wide = float(stdtrit(freedom, 1 - EQUIVALENCE_ALPHA)) * error
    needed, verdict = None, ChangeStatus.INCONCLUSIVE
    if abs(mean) > margin and abs(mean) > bound:
        verdict = ChangeStatus.IMPROVED if mean * sign > 0 else ChangeStatus.REGRESSED
    elif abs(mean) + wide <= margin:
        verdict = ChangeStatus.UNCHANGED
    else:
        needed = _needed(0.0 if abs(mean) <= wide else mean, variance, count, margin, level)
    return Judged(verdict, mean, mean - wide, mean + wide, needed)


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
    """Conclusions on the trainings of a workload: on fp32, loss scaling, and precisions with their reasons."""

    FLAT = "training-flat"
    """fp32 ends no better than it began, or its loss falls by less than `HARDLY`."""
    NEEDED = "training-scale-needed"
    NEEDLESS = "training-scale-needless"
    TRAINS = "training-trains"
    """Score and training loss are both shown to be no worse."""
    FAILS = "training-fails"
    """Either is shown to be worse."""
    OPEN = "training-open"
    BROKE = "training-broke"
    APART = "training-apart"
    WITHIN = "training-within"
    SEEDS = "training-seeds"
    ONE_START = "training-one-start"
    NO_RATIO = "training-no-ratio"
    """fp32's loss ends at 0, or does not fall, or is not known."""
    INEXACT = "training-inexact"


class Trouble(StrEnum):
    """Why a training has no final value."""

    RAISED = "raised"
    LOSS = "loss not finite"
    GRADIENTS = "gradients not finite"


ACCURACY, LOSS, FIT = "accuracy", "loss", "training loss"
"""The metrics: on held-out data the share of decisions that are the targets', else the loss there; and the loss on the
training batches."""
MARGIN_OF_ACCURACY, MARGIN_OF_LOSS, MARGIN_OF_FIT = 0.005, 0.01, 0.05
"""The largest differences that count as none: half a point of accuracy, one percent of the loss on held-out data, five
percent of the loss on the training batches, which differs more from seed to seed."""
OF_FALL = 0.1
"""A difference of losses above this share of the fall of fp32's own loss never counts as none."""
LEAST_FALL = 4 * 2.0**-23
"""A loss that falls by no more than this share of it, four spacings of fp32, is none to judge by."""
HARDLY = 0.01
"""A loss that falls by less than this share of it has hardly fallen."""
LAST = 0.75
"""From this share of the steps on, scores are those of the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A number that trainings are judged by: `name` is `ACCURACY`, `LOSS` or `FIT`.

    `decisions` is the total that an accuracy is a share of; None for a loss. `before` and `after` are fp32's before the
    first step and at the end, `fall` the fall of its loss, relative to the end; None where not known.
    """

    name: str
    decisions: int | None = None
    before: float | None = None
    after: float | None = None
    fall: float | None = None

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
        """The unit of a hundredth of a difference: a point of accuracy, or a percent of the loss."""
        return " points" if self.name == ACCURACY else "%"

    @property
    def resolution(self) -> float:
        """The least step of the metric: one decision; 0 for a loss."""
        return 1 / self.decisions if self.decisions else 0.0

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

    def scores_of(self, training: "Training") -> list[Score]:
        """Return the scores of a training that hold the metric."""
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

        A single score also tells at which moment it was taken: decisions near a border change from step to step.
        """
        late = [score for score in self.scores_of(training) if score.step >= LAST * training.steps]
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


def metrics_of(trainings: "Collection[Training]") -> tuple[Metric, Metric]:
    """Return the metric that trainings of fp32 are judged by first, and the loss on the training batches.

    The first is of held-out data, an accuracy where every score counts decisions; without such data both are the same.
    """

    def read(name: str, decisions: int | None = None) -> Metric:
        metric = Metric(name=name, decisions=decisions)
        firsts = [score for training in trainings for score in metric.scores_of(training) if score.step == 0]
        before, after = mean_of(map(metric.of, firsts)), mean_of(map(metric.final, trainings))
        fall = (before - after) / abs(after) if name != ACCURACY and before is not None and after else None
        return replace(metric, before=before, after=after, fall=fall)

    fit, scores = read(FIT), [score for training in trainings for score in training.scores]
    if not scores:
        return fit, fit
    decisions = min(score.decisions or 0 for score in scores)
    return (read(ACCURACY, decisions) if decisions else read(LOSS)), fit


def mean_of(values: Iterable[float | None], how: Callable[[list[float]], float] = statistics.fmean) -> float | None:
    """Return the mean, or the result of `how`, of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    return how(known) if known else None


def trouble(training: "Training", metric: Metric) -> tuple[Trouble, int | None] | None:
    """Return why a training has no final value of a metric, and from which step on, from 1; None where it has one."""
    if training.error:
        return Trouble.RAISED, None
    late = training.losses[math.floor(LAST * len(training.losses)) :]
    lost = (
        training.losses[-1:] == [None]
        if training.broke_off
        else bool(late) and not any(loss is not None for loss in late)
    )
    if lost:
        finite = max((place + 1 for place, loss in enumerate(training.losses) if loss is not None), default=0)
        return Trouble.LOSS, finite * training.every + 1
    if training.ended_at is not None:
        return Trouble.GRADIENTS, training.ended_at + 1
    if training.scales and len(training.skipped) == training.steps:
        return Trouble.GRADIENTS, 1
    return (Trouble.LOSS, training.steps) if metric.final(training) is None else None


def _broke(trainings: "Sequence[Training]", metric: Metric, subject: str = "") -> Statement | None:
    """Return the earliest trouble of trainings from several seeds; None without any."""
    broken = [(known, training) for training in trainings if (known := trouble(training, metric))]
    if not broken:
        return None
    (cause, step), training = min(broken, key=lambda pair: math.inf if pair[0][1] is None else pair[0][1])
    first = str(training.first_nonfinite) if training.first_nonfinite else None
    facts = {"step": step, "seeds": len(broken), "of": len(trainings)}
    return state(Learns.BROKE, subject, what=cause, error=training.error or None, first=first, **facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a row's trainings by one `metric`, against fp32's.

    `mean` and `sd` are those of the final value over seeds, None where undefined. `difference` from fp32 is a mean by
    seed, of an accuracy as a share, of a loss relative to fp32's (positive: larger), with its 90% interval. `verdict`
    has its reasons in `why`, and has none where fp32 itself gives nothing to compare with; of the training loss,
    unchanged means that it is no worse.
    """

    metric: Metric
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

    `name` is the precision's or the setting's, "control" or "fp64". `first` is its end by the metric that is judged
    first, `fit` by the loss on the training batches.
    """

    name: str
    case_id: str
    arm: str = ""
    by_seed: "Mapping[int, Training]"
    first: Ending = Ending(metric=Metric(name=FIT))
    fit: Ending = Ending(metric=Metric(name=FIT))

    @property
    def trainings(self) -> "list[Training]":
        """Its trainings."""
        return list(self.by_seed.values())

    @property
    def judged(self) -> bool:
        """Whether it is neither fp32 nor an arm of it."""
        return self.arm not in ARMS and self.name != BASELINE

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The trainings of one workload on one device, and their verdicts.

    `rows` are fp32 with its arms, then the precisions in the order of every table, then settings. They are judged first
    by `metric`, then by `fit`, the loss on the training batches.
    """

    name: str = ""
    workload: str
    device: str
    metric: Metric
    fit: Metric
    asked: "TrainingAsked"
    rows: list[Row]

    @property
    def judged(self) -> list[Row]:
        """The rows that have a verdict."""
        return [row for row in self.rows if row.judged]

    @property
    def notes(self) -> list[str]:
        """The notes of the measuring."""
        return list(dict.fromkeys(note for row in self.rows for training in row.trainings for note in training.notes))


def conclude(workload: str, device: str, rows: Sequence[Row], asked: "TrainingAsked") -> Learned:
    """Return the verdicts on rows, fp32's among them."""
    (fp32,) = (row.by_seed for row in rows if row.name == BASELINE)
    metric, fit = metrics_of(fp32.values())
    ended = {seed: training for seed, training in fp32.items() if trouble(training, metric) is None}
    pairs = {row.name: [(row.by_seed[seed], ended[seed]) for seed in row.by_seed if seed in ended] for row in rows}
    broken: dict[str, Statement] = {}
    for row in rows:
        if row.judged and (broke := _broke([training for training, _ in pairs[row.name]], metric)) is not None:
            broken[row.name] = broke
    ends, fits = (_endings(judged_by, rows, pairs, broken) for judged_by in (metric, fit))
    nothing = (
        not ended
        or metric.learns is False
        or any(row.arm == CONTROL and ends[row.name].verdict in SHOWN for row in rows)
    )
    concluded = []
    for row in rows:
        verdict: dict[str, Any] = {}
        if row.name in broken:
            verdict = {"verdict": ChangeStatus.REGRESSED, "why": (broken[row.name],)}
        elif row.judged and nothing:
            verdict = {"verdict": ChangeStatus.INCONCLUSIVE, "why": ()}
        elif row.judged and _one_start(pairs[row.name]):
            why = state(Learns.ONE_START, one=int(len(pairs[row.name]) == 1))
            verdict = {"verdict": ChangeStatus.INCONCLUSIVE, "why": (why,)}
        first, of_fit = (replace(known[row.name], **verdict) for known in (ends, fits))
        concluded.append(replace(row, first=first, fit=of_fit))
    return Learned(workload=workload, device=device, metric=metric, fit=fit, asked=asked, rows=concluded)


_Pairs = Mapping[str, "Sequence[tuple[Training, Training]]"]
"""The trainings of each row, each with fp32's of the same seed, if that came to an end."""


def _one_start(pairs: "Sequence[tuple[Training, Training]]") -> bool:
    """Return whether trainings all begin alike: they show no spread, which leaves no interval either."""
    return len({(fp32.weights_digest, fp32.inputs_digest) for _, fp32 in pairs}) == 1


def _endings(metric: Metric, rows: Sequence[Row], pairs: _Pairs, broken: Collection[str]) -> dict[str, Ending]:
    """Return the ends of rows by a metric, with the verdicts of their numbers; rows that broke tell of no spread."""
    exact: dict[str, list[float]] = {}
    differing: dict[str, list[float]] = {}
    for row in rows:
        changes = [metric.change(metric.final(training), metric.final(fp32)) for training, fp32 in pairs[row.name]]
        known = [change for change in changes if change is not None]
        if known and row.name not in (BASELINE, *broken):
            (differing if row.judged else exact)[row.name] = known
    judged: dict[str, Judged] = {}
    usual: dict[str, Any] = {"margin": metric.margin, "resolution": metric.resolution, "sign": metric.sign}
    for name, values in exact.items():
        rest = [value for other, others in exact.items() if other != name for value in others]
        judged |= judge({name: values}, rest, alpha=CONTROL_ALPHA, **usual)
    rounding = [value for name, values in exact.items() if judged[name].verdict not in SHOWN for value in values]
    fires = NAMES[CONTROL] in judged and judged[NAMES[CONTROL]].verdict in SHOWN
    judged |= judge(differing, rounding, **usual)
    endings = {}
    for row in rows:
        finals = [value for training in row.trainings if (value := metric.final(training)) is not None]
        ending = Ending(metric=metric, mean=mean_of(finals), sd=statistics.stdev(finals) if len(finals) > 1 else None)
        if row.name in judged:
            verdict, difference, low, high, _ = judged[row.name]
            ending = replace(ending, verdict=verdict, difference=difference)
            if math.isfinite(low) and not _one_start(pairs[row.name]):
                ending = replace(ending, low=low, high=high)
        endings[row.name] = _reasoned(ending, judged.get(row.name), metric, fires) if row.judged else ending
    return endings


def _reasoned(ending: Ending, judged: Judged | None, metric: Metric, fires: bool) -> Ending:
    """Return an ending with its verdict and the reasons of it; none where the control itself differs from fp32.

    The training loss is no worse where the one-sided bound at 5% is within the margin (non-inferiority).
    """
    if judged is None or not metric.learns or fires:
        return replace(ending, verdict=ChangeStatus.INCONCLUSIVE, why=() if fires else (state(Learns.NO_RATIO),))
    unit: dict[str, Any] = {"margin": 100 * metric.margin, "unit": metric.unit}
    no_worse = metric.is_fit and judged.high <= metric.margin
    if judged.verdict is ChangeStatus.UNCHANGED or (judged.verdict is ChangeStatus.INCONCLUSIVE and no_worse):
        within = state(Learns.WITHIN, "", Severity.INFO, metric=metric.name, **unit)
        return replace(ending, verdict=ChangeStatus.UNCHANGED, why=(within,))
    low, high = (None if end is None else 100 * end for end in (ending.low, ending.high))
    apart = {"by": 100 * abs(judged.difference), "less": int(judged.difference < 0), "low": low, "high": high}
    why = [state(Learns.APART, "", Severity.ADVICE, metric=metric.name, unit=metric.unit, **apart)]
    if judged.verdict is ChangeStatus.INCONCLUSIVE:
        facts = unit if judged.seeds_needed is None else {"seeds": judged.seeds_needed}
        why.append(state(Learns.SEEDS, "", Severity.ADVICE, **facts))
    return replace(ending, why=why)


def conclusions(_: Any, learned: Learned) -> Iterator[Statement]:
    """Yield the conclusions on fp32 and its arms, on loss scaling, then on each precision or setting."""
    metric = learned.metric
    for row in learned.rows:
        if not row.judged and (broke := _broke(row.trainings, metric, row.name)) is not None:
            yield broke
        if row.arm in ARMS and row.first.verdict in SHOWN:
            yield state(Learns.INEXACT, row.name, Severity.ADVICE, control=int(row.arm == CONTROL))
    if metric.learns is False or (metric.fall is not None and metric.fall < HARDLY):
        facts = {"before": metric.before, "value": metric.after, "learns": int(bool(metric.learns))}
        yield state(Learns.FLAT, BASELINE, Severity.ADVICE, metric=metric.name, **facts)
    rows = {row.arm: row for row in learned.judged}
    serving = [arm for arm in (DEFAULT, *rows) if arm not in ("", UNSCALED) and arm in rows and rows[arm].trains]
    if UNSCALED in rows and rows[UNSCALED].trains:
        yield state(Learns.NEEDLESS, "", Severity.INFO)
    elif UNSCALED in rows and rows[UNSCALED].trains is False and serving:
        yield state(Learns.NEEDED, setting=serving[0])
    verdicts = [(row.name, _of_row(row)) for row in learned.judged if row.first.why]
    alike = grouped(verdicts, lambda pair: repr(pair[1]))
    for group in sorted(alike.values(), key=lambda group: list(Learns).index(Learns(group[0][1][0].code))):
        subject = all_of([name for name, _ in group])
        for statement in group[0][1]:
            yield replace(statement, subject=subject, facts={**statement.facts, "count": len(group)})


def _of_row(row: Row) -> list[Statement]:
    """Return the verdict on a row and its reasons, those that are worse than fp32 first."""
    why: list[Statement] = []
    for ending in sorted((row.first, row.fit), key=lambda ending: ending.verdict is not ChangeStatus.REGRESSED):
        why += [reason for reason in ending.why if reason not in why]
    code = {True: Learns.TRAINS, False: Learns.FAILS, None: Learns.OPEN}[row.trains]
    severity = Severity.PROBLEM if code is Learns.FAILS else Severity.INFO
    return [state(code, "", severity), *(replace(reason, severity=Severity.INFO) for reason in why)]
