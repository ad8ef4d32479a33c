"""Trainings side by side: in every precision, or with several settings of GradScaler, and where each ends against fp32.

A training is judged by its weights alone, evaluated in fp32: a loss that fp16 computes is too coarse to tell trainings
apart. Where there is held-out data its decisions, or its loss, are the score; the loss on the training batches is
judged beside it. Nothing is judged where fp32's own loss falls by no more than a few spacings of what is read.

Stored trainings count for the cases of a run that measured, too: a whole training says more than one step.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import structs

from ampbench.core.precisions import BASELINE, SCALED, rank
from ampbench.core.units import UNDEFINED, all_of, counted
from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.bounds import Count, ErrorSize, Magnitude, Parts, Positive, Signed, Steps
from ampbench.records.case import Case, Environment
from ampbench.records.changes import ChangeStatus
from ampbench.records.kinds import TRAINING
from ampbench.records.labels import case_labels, few, told_apart
from ampbench.records.measured import Failure, Score, Skip
from ampbench.records.ranges import FirstNonfinite, format_scale
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Task
from ampbench.show.charts import curves
from ampbench.show.document import Column
from ampbench.show.page import place_of, run_name
from ampbench.studies.study import ALL_PRECISIONS_HELP, Selects, Session, Study, Table, View, asks, grouped
from ampbench.studies.training_verdict import (
    ACCURACY,
    ARMS,
    DEFAULT,
    NAMES,
    UNSCALED,
    Ending,
    Learned,
    Row,
    conclude,
    conclusions,
    mean_of,
)

if TYPE_CHECKING:
    from ampbench.drive.planning import PlannedCase
    from ampbench.drive.servers import Channel
    from ampbench.store import StoredRun
    from ampbench.studies.work import Piece, Work


class GradientLook(Parts, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The gradients of one step beside those in fp32 of the same weights and batch, the loss scale divided out.

    Of the `nonzero` elements that are not zero in fp32 `flushed` are zero in the training. `rel_l2` is the relative L2
    error of all (None: undefined).
    """

    PARTS = (("flushed", "nonzero"),)
    step: Count
    nonzero: Count
    flushed: Count
    rel_l2: ErrorSize | None = None


class Training(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One training of a case from the weights and batches of one `seed`.

    `arm` is one of `ARMS`, a setting of GradScaler as it is typed, or "": the case's own.
    `losses[i]` is the mean loss that steps `i * every` to `(i + 1) * every` computed, None where one is not finite;
    there are fewer than `steps` of them where it ended early. `scores` are of held-out data (empty: there is none) and
    `fits` of the training batches, both of the weights evaluated in fp32. `scales` holds steps and the loss scale from
    each on (empty: no scaler).
    `nonfinite` is in how many steps a parameter's gradient was not finite, `first_nonfinite` where the first value that
    is not finite comes from. `ended_at` is the step from 0 after which it was given up, `error` the first line of what
    a step raised.
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
    weights_digest: str
    inputs_digest: str
    notes: list[str] = []

    @property
    def skipped(self) -> list[int]:
        """The steps that GradScaler skipped: its scale is lower after each."""
        return [step - 1 for (_, scale), (step, after) in pairwise(self.scales) if after < scale]

    @property
    def broke_off(self) -> bool:
        """Whether it was given up or ended with an error."""
        return self.ended_at is not None or bool(self.error)


_SEEDS_HELP = "Number of seeds: --seed and the next ones. A verdict needs 2; 3 or more detect smaller differences."
_SETTING_HELP = (
    "Train fp16_autocast with a setting of GradScaler: 'no scaling', default, 'low start', 'high start', "
    "'fast growth', all of these, or values as 'init_scale=1024 growth_interval=100'."
)


class TrainingAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To train each case for `steps` steps from each of `seeds` seeds, as it is or with each `setting` of GradScaler.

    Settings are as they are typed: see `settings_of`.
    """

    steps: Annotated[int, asks("Steps of each training.", least=1, most=1_000_000, metavar="N")] = 300
    seeds: Annotated[int, asks(_SEEDS_HELP, least=1, most=1000, metavar="N")] = 3
    setting: Annotated[list[str], asks(_SETTING_HELP, names=True)] = []


class ArmAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To train a case for `steps` steps, as its own or as another `arm` (see `Training`)."""

    steps: Steps
    arm: str = ""


SETTINGS: Mapping[str, Mapping[str, Any]] = {
    UNSCALED: {"enabled": False},
    DEFAULT: {},
    "low start": {"init_scale": 1.0, "growth_interval": 10},
    "high start": {"init_scale": 2.0**24},
    "fast growth": {"growth_interval": 10},
}
"""Settings that have a name, by what GradScaler is given: the third has to find its scale from below, the fourth from
above, the last goes on looking for a higher one."""
ALL = "all"


class _Scaler(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What GradScaler takes for each of its parameters."""

    init_scale: Annotated[float, msgspec.Meta(gt=0, lt=2.0**128)] | None = None
    growth_factor: Annotated[float, msgspec.Meta(gt=1, lt=2.0**128)] | None = None
    backoff_factor: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    growth_interval: Annotated[int, msgspec.Meta(ge=1)] | None = None


def settings_of(typed: Iterable[str]) -> list[str]:
    """Return the settings of GradScaler that are typed: names, "all" of these, or parameters as "init_scale=1024".

    Raises what `scaler_arguments` raises.
    """
    settings = list(dict.fromkeys(name for text in typed for name in (SETTINGS if text == ALL else [text])))
    for setting in settings:
        scaler_arguments(setting)
    return settings


def scaler_arguments(setting: str) -> dict[str, Any]:
    """Return what GradScaler is given for a setting.

    Raises `UnknownNameError` for a name that there is not, and `UsageError` for what GradScaler does not take.
    """
    if "=" not in setting:
        if setting not in SETTINGS:
            raise UnknownNameError("setting", setting, [*SETTINGS, ALL])
        return dict(SETTINGS[setting])
    given = {name: value for name, _, value in (part.partition("=") for part in setting.split())}
    for name in given:
        if name not in _Scaler.__struct_fields__:
            raise UnknownNameError("parameter of GradScaler", name, _Scaler.__struct_fields__)
    try:
        arguments: dict[str, Any] = msgspec.to_builtins(msgspec.convert(given, _Scaler, strict=False))
    except msgspec.ValidationError as error:
        raise UsageError(f"--setting {setting}: {str(error).partition(' - at')[0]}") from None
    return arguments


def learned_in(runs: "Iterable[StoredRun]", case_ids: Collection[str] | None = None) -> list[Learned]:
    """Return the verdicts on each workload of runs (`learned`), the oldest first, each by a name of its own."""
    known = [(run, workload) for run in runs for workload in learned(run, case_ids)]
    labels = case_labels((run.cases[workload.rows[0].case_id] for run, workload in known), precision=False)
    names = told_apart([labels[workload.rows[0].case_id] for _, workload in known], (run_name(run) for run, _ in known))
    return [replace(workload, name=name) for name, (_, workload) in zip(names, known, strict=True)]


def learned(stored: "StoredRun", case_ids: Collection[str] | None = None) -> list[Learned]:
    """Return the verdicts on the trainings of each workload, per device, in the order of the run.

    With `case_ids`, only workloads of these cases, and of them only the rows of these and of fp32; verdicts are reached
    with all that was trained.
    """
    trained, workloads = stored.several_of(Training), []
    cases = [case for case in stored.cases.values() if trained.get(case.case_id)]
    for (workload, device), members in grouped(cases, lambda case: (case.group, case.device)).items():
        chosen = {case.case_id for case in members if case_ids is None or case.case_id in case_ids}
        if chosen:
            whole = conclude(workload, device, list(_rows(members, trained)), stored.asked)
            rows = [row for row in whole.rows if not row.judged or row.case_id in chosen]
            workloads.append(replace(whole, rows=rows))
    return workloads


def _rows(cases: Iterable[Case], trained: Mapping[str, Sequence[Training]]) -> Iterator[Row]:
    """Yield the rows of cases in the order of the table, those of a case as they were trained."""
    for case in sorted(cases, key=lambda case: (rank(case.precision), case.precision)):
        name = case.precision if case.scaler else f"{case.precision}, no scaler"
        by_arm = grouped(trained[case.case_id], lambda training: training.arm)
        for arm in sorted(by_arm, key=lambda arm: ARMS.index(arm) + 1 if arm in ARMS else 0):
            by_seed = {training.seed: training for training in sorted(by_arm[arm], key=lambda training: training.seed)}
            yield Row(name=NAMES.get(arm, arm) or name, case_id=case.case_id, arm=arm, by_seed=by_seed)


def heading(learned: Learned) -> str:
    """Return the workload, the device, the steps and the seeds, in one line."""
    trained, asked = len({seed for row in learned.rows for seed in row.by_seed}), counted(learned.asked.seeds, "seed")
    parts = [
        learned.workload,
        SCALED[0] if any(row.arm for row in learned.judged) else "",
        learned.device,
        counted(learned.asked.steps, "step"),
        f"{trained:,} of {asked}" if trained < learned.asked.seeds else asked,
    ]
    return " · ".join(filter(None, parts))


def _skipped(row: Row) -> int | None:
    """Return the number of steps that GradScaler skipped; None without loss scaling."""
    scaled = any(training.scales for training in row.trainings)
    return sum(len(training.skipped) for training in row.trainings) if scaled else None


def _flushed(row: Row) -> float | None:
    """Return the share of the gradient elements looked at that are zero though they are not in fp32."""
    looks = [look for training in row.trainings for look in training.looks]
    nonzero = sum(look.nonzero for look in looks)
    return sum(look.flushed for look in looks) / nonzero if nonzero else None


def _gradient_error(row: Row) -> float | None:
    """Return the median over the looks of the gradients' error."""
    return mean_of((look.rel_l2 for training in row.trainings for look in training.looks), statistics.median)


_NO_WORSE = {ChangeStatus.UNCHANGED: "no worse", ChangeStatus.REGRESSED: "worse", ChangeStatus.IMPROVED: "lower"}
"""The verdicts on the loss on the training batches."""


def _ending_columns(prefix: str, head: str, of: Callable[[Row], Ending]) -> list[Column[Row]]:
    """Return the columns of an ending of rows; `prefix` begins their keys, `head` is the heading of its mean."""

    def change(value: float | None, unit: str = "") -> str:
        return UNDEFINED if value is None else f"{round(100 * value, 2) + 0.0:+.2f}{unit}"

    def mean(row: Row) -> str:
        value, metric = of(row).mean, of(row).metric
        return UNDEFINED if value is None else f"{value:.2%}" if metric.name == ACCURACY else f"{value:.4g}"

    def interval(row: Row) -> str:
        return UNDEFINED if of(row).low is None else f"{change(of(row).low)} to {change(of(row).high)}"

    def verdict(row: Row) -> str:
        words: Mapping[Any, str] = _NO_WORSE if of(row).metric.is_fit else {}
        return words.get(of(row).verdict, of(row).verdict or "") if row.judged else ""

    return [
        Column(f"{prefix}mean", lambda row: of(row).mean, head, "loss", mean),
        Column(f"{prefix}sd", lambda row: of(row).sd),
        Column(
            f"{prefix}difference", lambda row: of(row).difference, "against fp32", "share",
            lambda row: change(of(row).difference, of(row).metric.unit),
        ),
        Column(f"{prefix}low", lambda row: of(row).low, "90% interval", "share", interval),
        Column(f"{prefix}high", lambda row: of(row).high),
        Column(f"{prefix}verdict", lambda row: of(row).verdict if row.judged else None, "verdict", said=verdict),
    ]  # fmt: skip


def _scales(row: Row) -> str:
    """Return the first and the last loss scale of a row's first training, "2^16 → 2^14"."""
    scales = next((training.scales for training in row.trainings if training.scales), None)
    return UNDEFINED if not scales else " → ".join(dict.fromkeys(format_scale(scales[at][1]) for at in (0, -1)))


def _nonfinite(row: Row) -> str:
    """Return the parameters whose gradients were not finite in most steps, "fc.weight, fc.bias and 3 more"."""
    steps = sum((Counter(training.nonfinite) for training in row.trainings), Counter())
    return few(name for name, _ in steps.most_common())


COLUMNS: Sequence[Column[Row]] = (
    Column("precision", lambda row: row.name, "precision"),
    Column("case_id", lambda row: row.case_id),
    Column("metric", lambda row: row.first.metric.name),
    *_ending_columns("", "score", lambda row: row.first),
    *_ending_columns("training_loss_", "training loss", lambda row: row.fit),
    Column("trains_as_fp32", lambda row: row.trains if row.judged else None),
    Column(
        "last_scale",
        lambda row: row.trainings[0].scales[-1][1] if row.trainings[0].scales else None,
        "scale",
        said=_scales,
    ),
    Column("skipped_steps", _skipped, "skipped steps", "whole"),
    Column("flushed_share", _flushed, "flushed", "share"),
    Column("grad_rel_l2", _gradient_error, "error", "error"),
    Column("nonfinite_gradients", _nonfinite, "not finite", rare=True),
)
"""Of the trainings in a precision, with a setting or of an arm of fp32: their end, loss scale and gradients."""


def _mean_losses(learned: Learned) -> Iterator[tuple[str, list[float | None]]]:
    """Yield the losses of each row, means over seeds, to where the first of them ends."""
    for row in learned.rows:
        if row.arm not in ARMS:
            means = (
                None if None in values else mean_of(values)
                for values in zip(*(each.losses for each in row.trainings if each.losses), strict=False)
            )
            yield row.name, [mean for mean in means for _ in range(row.trainings[0].every)]


def _scales_over_time(learned: Learned) -> Iterator[tuple[str, list[float | None]]]:
    """Yield the loss scale before each step of the first training of each row that has one, as a power of 2."""
    for row in learned.rows:
        training = next((each for each in row.trainings if each.scales), None)
        if training is not None:
            steps = training.steps if training.ended_at is None else training.ended_at + 1
            powers: list[float | None] = []
            for step, scale in training.scales:
                powers[step:] = [math.log2(scale) if scale else None] * (steps - step)
            yield row.name, powers


class ToTrain(NamedTuple):
    """One training: of a case, from a seed, as its own or as another `arm`."""

    case: Case
    seed: int
    arm: str

    @property
    def case_id(self) -> str:
        """The id of the case."""
        return self.case.case_id


def trainings_of(cases: Iterable[Case], first_seed: int, asked: TrainingAsked) -> list[ToTrain]:
    """Return the trainings of `cases` in their order.

    That is workload by workload and seed by seed: fp32, its control, the fp64 reference, then the other precisions.
    """
    return [
        ToTrain(case, seed, arm)
        for group in grouped(cases, lambda case: (case.group, case.device)).values()
        for seed in range(first_seed, first_seed + asked.seeds)
        for case in sorted(group, key=lambda case: case.precision != BASELINE)
        for arm in (["", *ARMS] if case.precision == BASELINE else settings_of(asked.setting) or [""])
    ]


def _work(session: Session[TrainingAsked]) -> "Work":
    """Return what has a training made by a worker; once one of fp32 failed, the others of its workload fail."""
    from ampbench.studies.work import ask_worker

    failed: dict[tuple[str, str], Failure] = {}
    starts: dict[tuple[str, str, int], Training] = {}
    if session.begun is not None:
        for before in session.begun.every(Training):
            case = session.begun.cases[before.case_id]
            starts.setdefault((case.group, case.device, before.seed), before)

    def work(channel: "Channel", piece: "Piece") -> Training | Failure | Skip:
        start: ToTrain = piece.part
        case, group = start.case, (start.case.group, start.case.device)
        if why := failed.get(group):
            message = f"{BASELINE}, which it is compared with, failed: {why.message}"
            return structs.replace(why, case_id=case.case_id, message=message)
        settings = structs.replace(session.prepared.settings, seed=start.seed)
        asked = ArmAsked(steps=session.asked.steps, arm=start.arm)
        outcome = ask_worker(channel, piece.planned, settings, TASK, asked, fresh=False)
        if isinstance(outcome, Failure) and case.precision == BASELINE:
            failed[group] = outcome
        elif isinstance(outcome, Training):
            first = starts.setdefault((*group, start.seed), outcome)
            for part in ("weights", "inputs"):
                if getattr(first, f"{part}_digest") != getattr(outcome, f"{part}_digest"):
                    raise UsageError(f"the {part} of {case.workload} differ between trainings from seed {start.seed}")
        return outcome

    return work


def _with_baseline(
    selection: Selection, _: TrainingAsked, environment: Environment, channel: "Channel", settings: Settings
) -> "list[PlannedCase]":
    """Return the cases of `selection`, and those of fp32, whatever is selected."""
    from ampbench.drive.planning import make_plan
    from ampbench.drive.session import describer

    named = [BASELINE, *selection.precisions] if selection.precisions else []
    selection = structs.replace(selection, precisions=named)
    return make_plan(selection, environment, describer(channel, settings), emulated=True)


def _refined(selection: Selection, asked: TrainingAsked) -> Selection:
    """Return the selection, for settings of GradScaler that of what it scales; `UsageError` for another precision."""
    from ampbench.studies.work import built_in_rows

    if not settings_of(asked.setting):
        return selection
    if selection.overrides.get("scaler") is False:
        raise UsageError("--set scaler=false leaves no setting of GradScaler to try: leave --setting out")
    if selection.precisions and {row.name for row in built_in_rows(selection)} != set(SCALED):
        raise UsageError(f"--setting is for {all_of(SCALED)}, which alone scales its loss by GradScaler's settings")
    return structs.replace(selection, precisions=list(SCALED))


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

    They count where they were made on the same host with the same torch, of the same case with the same weights and
    GradScaler as PyTorch makes it, and where they tell whether it trains as fp32 does.
    """
    found: dict[str, Trained] = {}
    for study in sorted(studies, key=lambda study: (study.header.started_at, study.header.run)):
        if study.header.explains != TRAINING or place_of(study) != place_of(measured):
            continue
        name = f"study {study.header.run.rpartition('-')[2]}"
        for workload in learned(study):
            steps = counted(workload.asked.steps, "step")
            for row in workload.judged:
                own = measured.divergence.get(row.case_id)
                same = own is not None and own.weights_digest in {each.weights_digest for each in row.trainings}
                if not row.arm and same and row.trains is not None:
                    ending = row.first if row.first.verdict is ChangeStatus.REGRESSED else row.fit
                    worse = None if row.trains or ending.difference is None else abs(ending.difference)
                    size = f"{steps} from {counted(len(row.by_seed), 'seed')}"
                    found[row.case_id] = Trained(trains=row.trains, study=f"{name}, {size}", worse=worse)
    return found


TASK = Task(TRAINING, ArmAsked, Training, "ampbench.studies.training_measure:do_training")
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
  ampbench study training model.py:make --setting all             does fp16 need a loss scale, and which?
  ampbench study training mlp --setting default --setting "init_scale=1024 growth_interval=100"
  ampbench study training --resume 1f9a3c        an interrupted study, by its id
""",
    doing="training",
    asked=TrainingAsked,
    record=Training,
    key="trainings",
    task=TASK,
    timeout="1800",
    selects=Selects(
        precision=ALL_PRECISIONS_HELP,
        workloads=("digits", "characters"),
        phases=("training",),
        recipes=True,
        own_precisions=True,
    ),
    refined=_refined,
    plan=_with_baseline,
    parts=lambda where, cases, asked: trainings_of(cases, where.settings.seed, asked),
    apart=("case_id", "seed", "arm"),
    work=_work,
    title="Trainings",
    subject="workload",
    subjects=learned_in,
    heading=heading,
    tables=(
        Table(
            key="precisions",
            columns=COLUMNS,
            rows=lambda learned: learned.rows,
            views=[
                View(
                    title="At the end",
                    keys="precision mean difference low verdict",
                    note="last quarter of the steps, mean over seeds; against fp32: of the same seed, in points or "
                    "percent of its loss; control: fp32 from weights one rounding away",
                    only=lambda row: row.first != row.fit,
                ),
                View(
                    title="Training loss at the end",
                    keys="precision training_loss_mean training_loss_difference training_loss_low "
                    "training_loss_verdict",
                    note="last quarter of the steps, of weights in fp32; against fp32: of the same seed, in percent",
                ),
                View(
                    title="Gradients and loss scale",
                    keys="precision last_scale skipped_steps flushed_share grad_rel_l2 nonfinite_gradients",
                    note="flushed: share of fp32's gradients that are zero in the training; error: median; not finite: "
                    "gradients of these parameters in some step",
                    only=lambda row: (
                        row.judged and any(training.looks or training.scales for training in row.trainings)
                    ),
                ),
            ],
        ),
    ),
    conclusions=conclusions,
    charts=(
        curves(
            "studies-losses",
            "Training loss",
            "training loss",
            "precision or setting",
            _mean_losses,
            alt="Means over seeds. A line ends with the first seed that was given up.",
        ),
        curves(
            "studies-scales",
            "Loss scale over time",
            "loss scale, as a power of 2",
            "precision or setting",
            _scales_over_time,
            alt="Each step that GradScaler skips halves the scale.",
        ),
    ),
)
