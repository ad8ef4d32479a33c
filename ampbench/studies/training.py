"""Trainings in every precision or with several GradScaler settings, from equal weights and batches, against fp32.

Weights are evaluated in fp32, as a loss that fp16 computes is too coarse to tell trainings apart. Held-out data gives
the score, and the training batches a loss. Trainings are chaotic: the smallest rounding ends in other weights and some
other decisions. The spread of a difference from fp32 is therefore estimated twice, and the larger estimate is taken:

* trainings that differ from fp32 by rounding alone, the control and fp64, give differences whose mean is zero;
* the differences of the judged rows spread about their own means, as a low precision disturbs more than one rounding.

docs/training.md has the error rates of these rules, tests/studies/test_training_statistics.py simulates them.
"""

import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import structs

from ampbench.core import by_key
from ampbench.core.precisions import BASELINE, SCALED, rank
from ampbench.core.statement import Severity, Statement, state
from ampbench.core.units import UNDEFINED, all_of, counted
from ampbench.errors import UsageError
from ampbench.records import Count, ErrorSize, Magnitude, Positive, Signed, Steps
from ampbench.records.case import Case
from ampbench.records.changes import ChangeStatus
from ampbench.records.kinds import TRAINING
from ampbench.records.labels import case_labels, few, told_apart
from ampbench.records.measured import Failure, Score, Skip
from ampbench.records.ranges import FirstNonfinite, format_scale
from ampbench.records.run import Selection
from ampbench.records.wire import Task
from ampbench.show.charts import curves
from ampbench.show.document import Column
from ampbench.show.rows import place_of, run_name
from ampbench.studies.study import Selects, Session, Study, Table, advise, asks, average, chosen, info

if TYPE_CHECKING:
    from ampbench.drive.servers import Channel
    from ampbench.store import StoredRun
    from ampbench.studies.work import Piece, Work


CONTROL, REFERENCE = ARMS = "control", "reference"
"""Further trainings of the fp32 case: from weights one rounding away, and in fp64."""
NAMES = {CONTROL: "control", REFERENCE: "fp64"}
UNSCALED, DEFAULT = "no scaling", "default"
"""The settings of GradScaler without it, and as PyTorch makes it."""


class GradientLook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The unscaled gradients of one step against fp32 gradients of the same weights and batch.

    Of the elements that are `nonzero` in fp32 `flushed` are zero. `rel_l2` is the error of all (None: undefined).
    """

    step: Count
    nonzero: Count
    flushed: Count
    rel_l2: ErrorSize | None = None


class Training(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One training of a case from the weights and batches of one `seed`; also the request for it, without results.

    `arm` is one of `ARMS`, a setting of GradScaler as it is typed, or "": the case's own. `losses[i]` is the mean loss
    of steps `i * every` to `(i + 1) * every`, None where one is not finite; a training that ended early has fewer.
    `scores` are of held-out data (empty: there is none) and `fits` of the training batches. `scales` holds steps and
    the loss scale from each on (empty: no scaler), `nonfinite` the number of steps in which a parameter's gradient was
    not finite. `ended_at` is the step from 0 after which it was given up, `error` the first line of a step's error.
    """

    case_id: str
    seed: int
    arm: str = ""
    steps: Steps
    every: Positive = 1
    losses: list[Signed | None] = []
    scores: list[Score] = []
    fits: list[Score] = []
    scales: list[tuple[Count, Magnitude]] = []
    nonfinite: dict[str, Count] = {}
    looks: list[GradientLook] = []
    first_nonfinite: FirstNonfinite | None = None
    ended_at: Count | None = None
    error: str = ""
    weights_digest: str = ""
    inputs_digest: str = ""
    notes: list[str] = []

    @property
    def skipped(self) -> list[int]:
        """The steps that GradScaler skipped: its scale is lower after each."""
        return [step - 1 for (_, scale), (step, after) in pairwise(self.scales) if after < scale]


_SEEDS_HELP = "Number of seeds: --seed and the next ones. A verdict needs 2; 3 or more detect smaller differences."
_SETTING_HELP = (
    "Train fp16_autocast with a setting of GradScaler: 'no scaling', default, 'low start', 'high start', "
    "'fast growth', all of these, or values as 'init_scale=1024 growth_interval=100'."
)


class TrainingAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Options: steps of each training, the number of seeds, and settings of GradScaler as in `settings_of`."""

    steps: Annotated[int, asks("Steps of each training.", least=1, most=1_000_000, metavar="N")] = 300
    seeds: Annotated[int, asks(_SEEDS_HELP, least=1, most=1000, metavar="N")] = 3
    setting: Annotated[list[str], asks(_SETTING_HELP, names=True)] = []


SETTINGS: Mapping[str, Mapping[str, Any]] = {
    UNSCALED: {"enabled": False},
    DEFAULT: {},
    "low start": {"init_scale": 1.0, "growth_interval": 10},
    "high start": {"init_scale": 2.0**24},
    "fast growth": {"growth_interval": 10},
}
"""Named settings: "low start" finds its scale from below, "high start" from above, "fast growth" tries higher ones."""
ALL = "all"


class _Scaler(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Bounds of GradScaler's parameters."""

    init_scale: Annotated[float, msgspec.Meta(gt=0, lt=2.0**128)] | None = None
    growth_factor: Annotated[float, msgspec.Meta(gt=1, lt=2.0**128)] | None = None
    backoff_factor: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    growth_interval: Annotated[int, msgspec.Meta(ge=1)] | None = None


def settings_of(typed: Iterable[str]) -> list[str]:
    """Return the typed settings of GradScaler, those of "all" by name; raises as `scaler_arguments`."""
    settings = list(dict.fromkeys(name for text in typed for name in (SETTINGS if text == ALL else [text])))
    for setting in settings:
        scaler_arguments(setting)
    return settings


def scaler_arguments(setting: str) -> dict[str, Any]:
    """Return GradScaler's arguments for a named setting or for values as "init_scale=1024 growth_interval=100".

    Raises `UnknownNameError` for an unknown name, and `UsageError` for arguments that GradScaler refuses.
    """
    if "=" not in setting:
        (name,) = chosen("setting", [setting], [*SETTINGS, ALL])
        return dict(SETTINGS[name])
    values = {name: value for name, _, value in (part.partition("=") for part in setting.split())}
    try:
        arguments: dict[str, Any] = msgspec.to_builtins(msgspec.convert(values, _Scaler, strict=False))
    except msgspec.ValidationError as error:
        raise UsageError(f"--setting {setting}: {str(error).partition(' - at')[0]}") from None
    return arguments


ACCURACY, LOSS, FIT = "accuracy", "loss", "training loss"
"""The share of right decisions on held-out data, else the loss there; and the loss on the training batches."""
MARGINS = {ACCURACY: 0.005, LOSS: 0.01, FIT: 0.05}
"""The largest differences that count as none; the training loss differs more from seed to seed."""
OF_FALL = 0.1
"""A difference of losses above this share of the fall of fp32's own loss never counts as none."""
LEAST_FALL = 4 * 2.0**-23
"""A loss that falls by at most this share, four spacings of fp32, cannot be judged."""
HARDLY = 0.01
"""A loss that falls by less than this share of it has hardly fallen."""
LAST = 0.75
"""Scores from this share of the steps on count as the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A number that trainings are judged by: `ACCURACY`, of that many `decisions`, `LOSS` or `FIT`.

    `before` and `after` are fp32's before the first step and at the end, None where not known.
    """

    name: str
    decisions: int | None = None
    before: float | None = None
    after: float | None = None

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
    def fall(self) -> float | None:
        """The fall of fp32's loss, relative to its end; None for an accuracy, or where not known."""
        known = self.name != ACCURACY and self.before is not None and self.after
        return (self.before - self.after) / abs(self.after) if known else None  # type: ignore[operator, arg-type]

    @property
    def learns(self) -> bool | None:
        """Whether fp32 ends better than it began, a loss by more than a few spacings; None where unknown."""
        if self.before is None or self.after is None:
            return None
        least = 0.0 if self.name == ACCURACY else LEAST_FALL * max(abs(self.before), abs(self.after))
        return (self.after - self.before) * self.sign > least

    @property
    def margin(self) -> float:
        """The largest difference that counts as none: one decision at least, `OF_FALL` of fp32's own fall at most."""
        usual = max(MARGINS[self.name], self.resolution)
        return min(usual, OF_FALL * self.fall) if self.fall is not None and self.learns else usual

    def scores_of(self, training: Training) -> list[Score]:
        """Return the scores of a training that hold the metric."""
        return training.fits if self.name == FIT else training.scores

    def of(self, score: Score) -> float | None:
        """Return the value of a score; None where its loss is not finite."""
        if score.loss is None or self.name != ACCURACY:
            return score.loss  # of outputs that are not finite, an accuracy counts the classes that NaN falls on
        return score.correct / score.decisions if score.correct is not None and score.decisions else None

    def final(self, training: Training) -> float | None:
        """Return the mean over the scores in the last quarter of the steps; None where one of them has no value."""
        late = [score for score in self.scores_of(training) if score.step >= LAST * training.steps]
        values = [value for score in late if (value := self.of(score)) is not None]
        broke_off = training.ended_at is not None or training.error
        if broke_off or not late or late[-1].step != training.steps or len(values) < len(late):
            return None
        return statistics.fmean(values)

    def change(self, value: float | None, fp32: float | None) -> float | None:
        """Return by how much a value differs from fp32's (positive: larger), of a loss relative to fp32's."""
        if value is None or fp32 is None:
            return None
        if self.name == ACCURACY:
            return value - fp32
        return (value - fp32) / abs(fp32) if fp32 else None


ALPHA = 0.05
"""The largest share of studies in which a row wrongly regresses, and of those in which a row wrongly improves."""
CONTROL_ALPHA = 0.01
"""The level of the tests of the control and fp64 against fp32, so that few studies lose their verdicts."""
EQUIVALENCE_ALPHA = 0.05
"""The level of each of the two one-sided tests that show a difference to be within the margin."""
POWER = 0.9
"""The power of the recommended number of seeds if the spread were known; it is estimated, so the power is less."""
SHOWN = (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED)
LOUD = 6.0
"""A row with more than this many times the variance of the others is left out of their spread."""


class Ending(NamedTuple):
    """The end of a row's trainings by a metric, and its verdict against fp32's with the reasons, `why`.

    `difference` from fp32's is a mean over seeds, of a loss relative to fp32's, with its 90% interval. `seeds_needed`
    would decide, were the spread the one seen and the difference none, or the one seen where the interval leaves out
    none. `mean` and `sd` are those of the final value over seeds.
    """

    verdict: ChangeStatus | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    seeds_needed: int | None = None
    mean: float | None = None
    sd: float | None = None
    why: Sequence[Statement] = ()


def judge(
    differences: Mapping[str, Sequence[float]], rounding: Sequence[float], metric: Metric, alpha: float = ALPHA
) -> dict[str, Ending]:
    """Return a verdict on each row.

    `differences` of a metric are each row's by seed, at least one; `rounding` those of trainings that differ from fp32
    by rounding alone.

    Regressed: the mean is worse than the margin and its one-sided bound at `alpha`, divided by the number of rows
    (Bonferroni), worse than 0; improved mirrored. Unchanged: the 90% interval is within the margin (two one-sided
    tests: Schuirmann, 1987). Else inconclusive. Bounds are Student's t. A spread is at least the one of two numbers
    rounded to the resolution, resolution / sqrt(6). Rows with a proven difference are left out of the spread of others,
    which are judged again without them.
    """
    level = alpha / max(len(differences), 1)
    judged = {
        name: _judged(values, *_spread(name, differences, rounding, metric.resolution), metric, level)
        for name, values in differences.items()
    }
    undecided = {name: differences[name] for name, verdict in judged.items() if verdict.verdict not in SHOWN}
    if 0 < len(undecided) < len(differences):
        judged |= judge(undecided, rounding, metric, level * len(undecided))
    return judged


def _judged(values: Sequence[float], variance: float | None, freedom: float, metric: Metric, level: float) -> Ending:
    """Return the verdict on differences with a known variance, made from `freedom` degrees of freedom."""
    mean, count, margin = statistics.fmean(values), len(values), metric.margin
    if variance is None:
        return Ending(ChangeStatus.INCONCLUSIVE, mean)
    import numpy as np
    from scipy.special import stdtrit

    from ampbench.core import stats

    error = math.sqrt(variance / count)
    bound = float(stdtrit(freedom, 1 - level)) * error
    wide = float(stdtrit(freedom, 1 - EQUIVALENCE_ALPHA)) * error
    needed, verdict = None, ChangeStatus.INCONCLUSIVE
    if abs(mean) > margin and abs(mean) > bound:
        verdict = ChangeStatus.IMPROVED if mean * metric.sign > 0 else ChangeStatus.REGRESSED
    elif abs(mean) + wide <= margin:
        verdict = ChangeStatus.UNCHANGED
    else:
        planned = np.array([0.0 if abs(mean) <= wide else mean])
        levels = (level, EQUIVALENCE_ALPHA)
        (seeds,) = stats.count_to_decide(planned, np.array([variance]), 0.0, np.array([margin]), levels, POWER)
        needed = max(math.ceil(seeds), count + 1) if math.isfinite(seeds) else None
    return Ending(verdict, mean, mean - wide, mean + wide, needed)


def _spread(
    name: str, differences: Mapping[str, Sequence[float]], rounding: Sequence[float], resolution: float
) -> tuple[float | None, float]:
    """Return the variance of one difference of a row and its degrees of freedom; None where unknown.

    It is at least the variance of a difference of two numbers each rounded to `resolution`. Differences by rounding
    alone have a mean that is known to be zero. Other rows count unless they vary far more than the rest.
    """
    least = resolution**2 / 6
    alone = statistics.fmean(value**2 for value in rounding) if rounding else 0.0

    rows = []
    for row, values in differences.items():
        rest = _about_means([others for other, others in differences.items() if other != row])[0]
        if row == name or _about_means([values])[0] <= LOUD * max(alone, least, rest):
            rows.append(values)
    quiet = _about_means(rows)
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
    NEEDED = "training-scale-needed"
    NEEDLESS = "training-scale-needless"
    TRAINS = "training-trains"
    FAILS = "training-fails"
    OPEN = "training-open"
    BROKE = "training-broke"
    APART = "training-apart"
    WITHIN = "training-within"
    SEEDS = "training-seeds"
    ONE_START = "training-one-start"
    NO_RATIO = "training-no-ratio"
    INEXACT = "training-inexact"
    SEEN = "training-seen"


class Trouble(StrEnum):
    """Why a training has no final value."""

    RAISED = "raised"
    LOSS = "loss not finite"
    GRADIENTS = "gradients not finite"


def metrics_of(trainings: Collection[Training]) -> tuple[Metric, Metric]:
    """Return the metric that trainings of fp32 are judged by first, and the loss on the training batches.

    The first is of held-out data, an accuracy where every score counts decisions; without such data both are one.
    """

    def read(name: str, decisions: int | None = None) -> Metric:
        metric = Metric(name=name, decisions=decisions)
        firsts = [score for training in trainings for score in metric.scores_of(training) if score.step == 0]
        return replace(metric, before=average(map(metric.of, firsts)), after=average(map(metric.final, trainings)))

    fit, scores = read(FIT), [score for training in trainings for score in training.scores]
    decisions = min((score.decisions or 0 for score in scores), default=0)
    return (read(ACCURACY, decisions) if decisions else read(LOSS) if scores else fit), fit


def trouble(training: Training, metric: Metric) -> tuple[Trouble, int | None] | None:
    """Return the reason why a training has no final value of a metric, with its step from 1; None where it has one."""
    if training.error:
        return Trouble.RAISED, None
    late = (
        training.losses[-1:]
        if training.ended_at is not None
        else training.losses[math.floor(LAST * len(training.losses)) :]
    )
    if late and not any(loss is not None for loss in late):
        finite = max((place + 1 for place, loss in enumerate(training.losses) if loss is not None), default=0)
        return Trouble.LOSS, finite * training.every + 1
    if training.ended_at is not None:
        return Trouble.GRADIENTS, training.ended_at + 1
    if training.scales and len(training.skipped) == training.steps:
        return Trouble.GRADIENTS, 1
    return (Trouble.LOSS, training.steps) if metric.final(training) is None else None


def _broke(trainings: Sequence[Training], metric: Metric, subject: str = "") -> Statement | None:
    """Return the earliest trouble of trainings from several seeds; None without any."""
    broken = [(known, training) for training in trainings if (known := trouble(training, metric))]
    if not broken:
        return None
    (cause, step), training = min(broken, key=lambda pair: math.inf if pair[0][1] is None else pair[0][1])
    first = str(training.first_nonfinite) if training.first_nonfinite else None
    facts = {"step": step, "seeds": len(broken), "of": len(trainings)}
    return state(Learns.BROKE, subject, what=cause, error=training.error or None, first=first, **facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The trainings of a precision, of a setting of GradScaler or of an arm of fp32, in the order of their seeds.

    `pairs` are its trainings with fp32's of the same seed, where that came to an end, `broke` says why one of these did
    not. `first` is its end by the metric that is judged first, `fit` by the loss on the training batches.
    """

    name: str
    case_id: str
    arm: str = ""
    trainings: Sequence[Training]
    pairs: Sequence[tuple[Training, Training]] = ()
    broke: Statement | None = None
    first: Ending = field(default_factory=Ending)
    fit: Ending = field(default_factory=Ending)

    @property
    def judged(self) -> bool:
        """Whether it is neither fp32 nor an arm of it."""
        return self.arm not in ARMS and self.name != BASELINE

    @property
    def trains(self) -> bool | None:
        """Whether score and training loss are both shown to be no worse than fp32's; False: either is worse."""
        verdicts = {self.first.verdict, self.fit.verdict}
        if ChangeStatus.REGRESSED in verdicts:
            return False
        return True if verdicts <= {ChangeStatus.UNCHANGED, ChangeStatus.IMPROVED} else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The trainings of one workload on one device, and their verdicts.

    `rows` are fp32 with its arms, then precisions, then settings. They are judged first by `metric`, then by `fit`.
    """

    name: str = ""
    workload: str
    device: str
    metric: Metric
    fit: Metric
    asked: TrainingAsked
    rows: list[Row]

    @property
    def judged(self) -> list[Row]:
        """The rows that have a verdict."""
        return [row for row in self.rows if row.judged]

    @property
    def notes(self) -> list[str]:
        """The notes of the measuring."""
        return list(dict.fromkeys(note for row in self.rows for training in row.trainings for note in training.notes))


def conclude(workload: str, device: str, rows: Sequence[Row], asked: TrainingAsked) -> Learned:
    """Return the verdicts on rows, with fp32's; no verdicts where fp32 learns nothing, or its control differs."""
    (fp32,) = (row.trainings for row in rows if row.name == BASELINE)
    metric, fit = metrics_of(fp32)
    ended = {training.seed: training for training in fp32 if trouble(training, metric) is None}
    known = []
    for row in rows:
        pairs = [(training, ended[training.seed]) for training in row.trainings if training.seed in ended]
        broke = _broke([training for training, _ in pairs], metric) if row.judged else None
        known.append(replace(row, pairs=pairs, broke=broke))
    firsts, nothing = _endings(metric, known, nothing=not ended or metric.learns is False)
    fits, _ = _endings(fit, known, nothing=nothing)
    concluded = [replace(row, first=firsts[row.name], fit=fits[row.name]) for row in known]
    return Learned(workload=workload, device=device, metric=metric, fit=fit, asked=asked, rows=concluded)


def _endings(metric: Metric, rows: Sequence[Row], *, nothing: bool) -> tuple[dict[str, Ending], bool]:
    """Return the ends of rows by a metric with their verdicts, and whether `nothing` is concluded.

    Nothing is where the control differs, too. Broken rows do not count for the spread. Trainings that all begin alike
    show no spread, and have no interval.
    """
    exact: dict[str, list[float]] = {}
    differing: dict[str, list[float]] = {}
    for row in rows:
        changes = [metric.change(metric.final(training), metric.final(fp32)) for training, fp32 in row.pairs]
        known = [change for change in changes if change is not None]
        if known and row.name != BASELINE and row.broke is None:
            (differing if row.judged else exact)[row.name] = known
    judged: dict[str, Ending] = {}
    for name, values in exact.items():
        spread_values = [value for row_name, others in exact.items() if row_name != name for value in others]
        judged |= judge({name: values}, spread_values, metric, CONTROL_ALPHA)
    rounding = [value for name, values in exact.items() if judged[name].verdict not in SHOWN for value in values]
    nothing = nothing or (NAMES[CONTROL] in judged and judged[NAMES[CONTROL]].verdict in SHOWN)
    judged |= judge(differing, rounding, metric)
    ends = {}
    for row in rows:
        finals = [value for training in row.trainings if (value := metric.final(training)) is not None]
        ending = judged.get(row.name, Ending())._replace(
            mean=average(finals), sd=statistics.stdev(finals) if len(finals) > 1 else None
        )
        starts = {(fp32.weights_digest, fp32.inputs_digest) for _, fp32 in row.pairs}
        if len(starts) == 1:
            ending = ending._replace(low=None, high=None)
        if row.broke is not None:
            ending = ending._replace(verdict=ChangeStatus.REGRESSED, why=(row.broke,))
        elif row.judged and nothing:
            ending = ending._replace(verdict=ChangeStatus.INCONCLUSIVE)
        elif row.judged:
            verdict, why = _reasoned(metric, ending, len(row.pairs) if len(starts) == 1 else 0)
            ending = ending._replace(verdict=verdict, why=why)
        ends[row.name] = ending
    return ends, nothing


def _reasoned(metric: Metric, ending: Ending, alike: int) -> tuple[ChangeStatus, list[Statement]]:
    """Return the verdict on a row that came to an end and its reasons; `alike` pairs are all, and begin alike.

    The training loss is no worse where the one-sided bound at 5% is within the margin (non-inferiority).
    """
    if alike:
        return ChangeStatus.INCONCLUSIVE, [info(Learns.ONE_START, one=int(alike == 1))]
    if ending.verdict is None or ending.difference is None or not metric.learns:
        return ChangeStatus.INCONCLUSIVE, [info(Learns.NO_RATIO)]
    unit: dict[str, Any] = {"margin": 100 * metric.margin, "unit": metric.unit}
    undecided = ending.verdict is ChangeStatus.INCONCLUSIVE
    bounded = ending.high is not None and ending.high <= metric.margin
    if (undecided and metric.name == FIT and bounded) or ending.verdict is ChangeStatus.UNCHANGED:
        return ChangeStatus.UNCHANGED, [info(Learns.WITHIN, metric=metric.name, **unit)]
    low, high = (None if end is None else 100 * end for end in (ending.low, ending.high))
    apart = {"by": 100 * abs(ending.difference), "less": int(ending.difference < 0), "low": low, "high": high}
    seeds = unit if ending.seeds_needed is None else {"seeds": ending.seeds_needed}
    why = [info(Learns.APART, metric=metric.name, unit=metric.unit, **apart)]
    return ending.verdict, [*why, info(Learns.SEEDS, **seeds)] if undecided else why


def conclusions(_: Any, learned: Learned) -> Iterator[Statement]:
    """Yield the conclusions on fp32 and its arms, on loss scaling, then on each precision or setting."""
    metric = learned.metric
    for row in learned.rows:
        if not row.judged and (broke := _broke(row.trainings, metric, row.name)) is not None:
            yield broke
        if row.arm in ARMS and row.first.verdict in SHOWN:
            yield advise(Learns.INEXACT, row.name, control=int(row.arm == CONTROL))
    if metric.learns is False or (metric.fall is not None and metric.fall < HARDLY):
        facts = {"before": metric.before, "value": metric.after, "learns": int(bool(metric.learns))}
        yield advise(Learns.FLAT, BASELINE, metric=metric.name, **facts)
    trains = {row.arm: row.trains for row in learned.judged}
    serving = [arm for arm in (DEFAULT, *trains) if arm not in ("", UNSCALED) and trains.get(arm)]
    if trains.get(UNSCALED):
        yield info(Learns.NEEDLESS)
    elif trains.get(UNSCALED) is False and serving:
        yield state(Learns.NEEDED, setting=serving[0])
    alike: dict[str, tuple[list[Statement], list[str]]] = {}
    for row in learned.judged:
        if row.first.why:
            statements = _of_row(row)
            alike.setdefault(repr(statements), (statements, []))[1].append(row.name)
    for statements, names in sorted(alike.values(), key=lambda pair: list(Learns).index(Learns(pair[0][0].code))):
        for statement in statements:
            yield replace(statement, subject=all_of(names), facts={**statement.facts, "count": len(names)})
    if metric.name == FIT:
        yield info(Learns.SEEN)


def _of_row(row: Row) -> list[Statement]:
    """Return the verdict on a row and its reasons, worse ones first."""
    endings = sorted((row.first, row.fit), key=lambda ending: ending.verdict is not ChangeStatus.REGRESSED)
    why = [replace(reason, severity=Severity.INFO) for ending in endings for reason in ending.why]
    code = {True: Learns.TRAINS, False: Learns.FAILS, None: Learns.OPEN}[row.trains]
    severity = Severity.PROBLEM if code is Learns.FAILS else Severity.INFO
    return [state(code, "", severity), *(reason for place, reason in enumerate(why) if reason not in why[:place])]


def learned(runs: "Iterable[StoredRun]", case_ids: Collection[str] | None = None) -> list[Learned]:
    """Return the verdicts on the trainings of each workload of runs, per device, each with a name of its own.

    With `case_ids`, only rows of these cases and of fp32; verdicts are reached with all that was trained.
    """
    known: list[tuple[StoredRun, Learned]] = []
    for run in runs:
        trained = run.several_of(Training)
        cases = [case for case in run.cases.values() if trained.get(case.case_id)]
        for (workload, device), members in by_key(cases, lambda case: (case.group, case.device)).items():
            if case_ids is None or any(case.case_id in case_ids for case in members):
                whole = conclude(workload, device, list(_rows(members, trained)), run.asked)
                rows = [row for row in whole.rows if not row.judged or case_ids is None or row.case_id in case_ids]
                known.append((run, replace(whole, rows=rows)))
    labels = case_labels((run.cases[workload.rows[0].case_id] for run, workload in known), precision=False)
    names = told_apart([labels[workload.rows[0].case_id] for _, workload in known], (run_name(run) for run, _ in known))
    return [replace(workload, name=name) for name, (_, workload) in zip(names, known, strict=True)]


def _rows(cases: Iterable[Case], trained: Mapping[str, Sequence[Training]]) -> Iterator[Row]:
    """Yield the rows of cases in the order of the table, rows of a case in the order of training."""
    for case in sorted(cases, key=lambda case: (rank(case.precision), case.precision)):
        name = case.precision if case.scaler else f"{case.precision}, no scaler"
        by_arm = by_key(trained[case.case_id], lambda training: training.arm)
        for arm in sorted(by_arm, key=lambda arm: ARMS.index(arm) + 1 if arm in ARMS else 0):
            trainings = sorted(by_arm[arm], key=lambda training: training.seed)
            yield Row(name=NAMES.get(arm, arm) or name, case_id=case.case_id, arm=arm, trainings=trainings)


def heading(learned: Learned) -> str:
    """Return the workload, the device, the steps and the seeds, in one line."""
    seeds = {training.seed for row in learned.rows for training in row.trainings}
    scaled = [SCALED[0]] if any(row.arm for row in learned.judged) else []
    size = [counted(learned.asked.steps, "step"), counted(len(seeds), "seed")]
    return " · ".join([learned.workload, *scaled, learned.device, *size])


Ended = tuple[Row, Metric, Ending]
"""A row and its end by one metric."""


def endings(learned: Learned) -> list[Ended]:
    """Return the ends of all rows by the metric that is judged first, then, if it is another, by the training loss."""
    ends: list[Ended] = [(row, learned.metric, row.first) for row in learned.rows]
    return ends if learned.metric == learned.fit else ends + [(row, learned.fit, row.fit) for row in learned.rows]


def _percent(value: float | None, unit: str = "") -> str:
    return UNDEFINED if value is None else f"{round(100 * value, 2) + 0.0:+.2f}{unit}"


ENDINGS: Sequence[Column[Ended]] = (
    Column("precision", lambda ended: ended[0].name, "precision"),
    Column("case_id", lambda ended: ended[0].case_id),
    Column("metric", lambda ended: ended[1].name, "metric"),
    Column(
        "mean", lambda ended: ended[2].mean, "end", "loss",
        lambda ended: (
            UNDEFINED if ended[2].mean is None else f"{ended[2].mean:.{'2%' if ended[1].name == ACCURACY else '4g'}}"
        ),
    ),
    Column("sd", lambda ended: ended[2].sd),
    Column(
        "difference", lambda ended: ended[2].difference, "vs fp32", "share",
        lambda ended: _percent(ended[2].difference, "" if ended[1].name == ACCURACY else "%"),
    ),
    Column(
        "low", lambda ended: ended[2].low, "90% interval", "share",
        lambda ended: UNDEFINED if ended[2].low is None else f"{_percent(ended[2].low)} to {_percent(ended[2].high)}",
    ),
    Column("high", lambda ended: ended[2].high),
    Column("verdict", lambda ended: ended[2].verdict if ended[0].judged else None, "verdict",
           said=lambda ended: ended[2].verdict or "" if ended[0].judged else ""),
    Column("trains_as_fp32", lambda ended: ended[0].trains if ended[0].judged else None),
)  # fmt: skip


def gradients(learned: Learned) -> list[dict[str, Any]]:
    """Return the loss scales and the gradients of rows that have some."""
    rows = []
    for row in learned.judged:
        looks = [look for training in row.trainings for look in training.looks]
        scaled = [training for training in row.trainings if training.scales]
        if looks or scaled:
            nonzero = sum(look.nonzero for look in looks)
            steps = sum((Counter(training.nonfinite) for training in row.trainings), Counter())
            rows.append(
                {
                    "precision": row.name,
                    "case_id": row.case_id,
                    "last_scale": row.trainings[0].scales[-1][1] if row.trainings[0].scales else None,
                    "skipped_steps": sum(len(training.skipped) for training in scaled) if scaled else None,
                    "flushed_share": sum(look.flushed for look in looks) / nonzero if nonzero else None,
                    "grad_rel_l2": average((look.rel_l2 for look in looks), statistics.median),
                    "nonfinite_gradients": few(name for name, _ in steps.most_common()),
                    "scales": [format_scale(scaled[0].scales[at][1]) for at in (0, -1)] if scaled else [UNDEFINED],
                }
            )
    return rows


GRADIENTS: Sequence[Column[Mapping[str, Any]]] = [
    Column(key, itemgetter(key), *shown)
    for key, *shown in (
        ("precision", "precision"), ("case_id",),
        ("last_scale", "scale", "", lambda row: " → ".join(dict.fromkeys(row["scales"]))),
        ("skipped_steps", "skipped steps", "whole"), ("flushed_share", "flushed", "share"),
        ("grad_rel_l2", "error", "error"), ("nonfinite_gradients", "not finite", "", None, True),
    )
]  # fmt: skip


def _mean_losses(learned: Learned) -> Iterator[tuple[str, list[float | None]]]:
    """Yield the losses of each row, means over seeds, to where the first of them ends."""
    for row in learned.rows:
        if row.arm not in ARMS:
            means = (
                None if None in values else average(values)
                for values in zip(*(training.losses for training in row.trainings if training.losses), strict=False)
            )
            yield row.name, [mean for mean in means for _ in range(row.trainings[0].every)]


def _scales_over_time(learned: Learned) -> Iterator[tuple[str, list[float | None]]]:
    """Yield the loss scale before each step of the first training of each row that has one, as a power of 2."""
    for row in learned.rows:
        training = next((candidate for candidate in row.trainings if candidate.scales), None)
        if training is not None:
            steps = training.steps if training.ended_at is None else training.ended_at + 1
            powers: list[float | None] = []
            for step, scale in training.scales:
                powers[step:] = [math.log2(scale) if scale else None] * (steps - step)
            yield row.name, powers


def trainings_of(cases: Iterable[Case], first_seed: int, asked: TrainingAsked) -> list[Training]:
    """Return the trainings of `cases`, workload by workload and seed by seed, fp32 with its arms first."""
    return [
        Training(case_id=case.case_id, seed=seed, arm=arm, steps=asked.steps)
        for group in by_key(cases, lambda case: (case.group, case.device)).values()
        for seed in range(first_seed, first_seed + asked.seeds)
        for case in sorted(group, key=lambda case: case.precision != BASELINE)
        for arm in (["", *ARMS] if case.precision == BASELINE else settings_of(asked.setting) or [""])
    ]


def _work(session: Session[TrainingAsked]) -> "Work":
    """Return a function that has a worker train; after a failure of fp32, the other trainings of its workload fail."""
    from ampbench.studies.work import ask_worker

    failed: dict[tuple[str, str], Failure] = {}
    starts: dict[tuple[str, str, int], Training] = {}
    if session.begun is not None:
        for before in session.begun.every(Training):
            case = session.begun.cases[before.case_id]
            starts.setdefault((case.group, case.device, before.seed), before)

    def work(channel: "Channel", piece: "Piece") -> Training | Failure | Skip:
        start, case = piece.part, piece.planned.case
        group = case.group, case.device
        if why := failed.get(group):
            message = f"its baseline {BASELINE} failed: {why.message}"
            return structs.replace(why, case_id=case.case_id, message=message)
        settings = structs.replace(session.prepared.settings, seed=start.seed)
        outcome = ask_worker(channel, piece.planned, settings, TASK, start, fresh=False)
        if isinstance(outcome, Failure) and case.precision == BASELINE:
            failed[group] = outcome
        elif isinstance(outcome, Training):
            first = starts.setdefault((*group, start.seed), outcome)
            for part in ("weights", "inputs"):
                if getattr(first, f"{part}_digest") != getattr(outcome, f"{part}_digest"):
                    raise UsageError(f"the {part} of {case.workload} differ between trainings from seed {start.seed}")
        return outcome

    return work


def _refined(selection: Selection, asked: TrainingAsked) -> Selection:
    """Return the selection; for settings of GradScaler, the scaled precisions, with `UsageError` for another one."""
    from ampbench.studies.work import built_in_rows

    if not settings_of(asked.setting):
        return selection
    if selection.overrides.get("scaler") is False:
        raise UsageError("--set scaler=false leaves no setting of GradScaler to try: leave --setting out")
    if selection.precisions and {row.name for row in built_in_rows(selection)} != set(SCALED):
        raise UsageError(f"--setting is for {all_of(SCALED)}: no other precision scales its loss with GradScaler")
    return structs.replace(selection, precisions=list(SCALED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A result of a `study` ("study 8879c8, 300 steps from 3 seeds"): a case `trains` as fp32 does or ends `worse`."""

    trains: bool
    study: str
    worse: float | None = None


def trained_cases(measured: "StoredRun", studies: "Iterable[StoredRun]") -> dict[str, Trained]:
    """Return by case id the newest result of `studies` for each case of a run that measured.

    It counts if host, torch, case and weights are the same, and it shows whether the case trains as fp32 does.
    """
    trained: dict[str, Trained] = {}
    for study in sorted(studies, key=lambda study: (study.header.started_at, study.header.run)):
        if study.header.explains != TRAINING or place_of(study.header) != place_of(measured.header):
            continue
        name = f"study {study.header.run.rpartition('-')[2]}"
        for workload in learned([study]):
            steps = counted(workload.asked.steps, "step")
            for row in workload.judged:
                divergence = measured.divergence.get(row.case_id)
                same = divergence is not None and divergence.weights_digest in {
                    training.weights_digest for training in row.trainings
                }
                if not row.arm and same and row.trains is not None:
                    ending = row.first if row.first.verdict is ChangeStatus.REGRESSED else row.fit
                    worse = None if row.trains or ending.difference is None else abs(ending.difference)
                    size = f"{steps} from {counted(len(row.trainings), 'seed')}"
                    trained[row.case_id] = Trained(trains=row.trains, study=f"{name}, {size}", worse=worse)
    return trained


TASK = Task(TRAINING, Training, Training, "ampbench.studies.training_measure:do_training")
STUDY: Study[TrainingAsked, Learned] = Study(
    kind=TRAINING,
    help="""\
Train in every precision, or with several settings of GradScaler, from the same weights on the same batches.

Trainings are judged by their weights evaluated in fp32, on held-out data where there is some. fp32 is trained, too, in
fp64 and from weights one rounding away: what such a rounding changes is no precision's fault. Without workloads, digits
and characters are trained: real data that needs no download.

\b
Examples:
  ampbench study training digits
  ampbench study training model.py:make --steps 1000 --seeds 5
  ampbench study training digits --optimizer sgd-vision
  ampbench study training model.py:make --setting all    which loss scale?
  ampbench study training mlp --setting "init_scale=1024 growth_interval=100"
  ampbench study training --resume 1f9a3c    an interrupted study, by its id
""",
    doing="training",
    asked=TrainingAsked,
    key="trainings",
    task=TASK,
    timeout="1800",
    selects=Selects(
        precision="See ampbench list precisions. Default: all; on a CPU master weights by name (bf16_master).",
        workloads=("digits", "characters"),
        phases=("training",),
        own_precisions=True,
        tried=lambda selected: [BASELINE, *selected] if selected else [],
        emulated=True,
    ),
    refined=_refined,
    parts=lambda where, cases, asked: trainings_of(cases, where.settings.seed, asked),
    apart=("case_id", "seed", "arm"),
    work=_work,
    title="Trainings",
    subject="workload",
    subjects=learned,
    heading=heading,
    tables=(
        Table(
            "endings", ENDINGS, endings, "At the end",
            "last quarter of the steps, of weights in fp32, mean over seeds; vs fp32: of the same "
            "seed, in points or percent of its loss; control: fp32 from weights one rounding away",
            keys="precision metric mean difference low verdict",
        ),
        Table(
            "gradients", GRADIENTS, gradients, "Gradients and loss scale",
            "flushed: share of fp32's gradients that are zero in the training; error: median; not finite: "
            "gradients of these parameters in some step",
            keys="precision last_scale skipped_steps flushed_share grad_rel_l2 nonfinite_gradients",
        ),
    ),
    conclusions=conclusions,
    charts=(
        curves(
            "studies-losses", "Training loss", "training loss", "precision or setting", _mean_losses,
            alt="Means over seeds. A line ends with the first seed that was given up.",
        ),
        curves(
            "studies-scales", "Loss scale over time", "loss scale, as a power of 2", "precision or setting",
            _scales_over_time, alt="Each step that GradScaler skips halves the scale.",
        ),
    ),
)  # fmt: skip
