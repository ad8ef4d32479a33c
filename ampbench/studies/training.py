"""Trainings side by side: in every precision, or with several settings of GradScaler, and where each ends against fp32.

A training is judged by its weights alone, evaluated in fp32: a loss that fp16 computes is too coarse to tell trainings
apart. Where there is held-out data its decisions, or its loss, are the score; the loss on the training batches is
judged beside it. Nothing is judged where fp32's own loss falls by no more than a few spacings of what is read.

Stored trainings count for the cases of a run that measured, too: a whole training says more than one step.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import structs

from ampbench.core.precisions import BASELINE, SCALED, rank
from ampbench.core.recipes import CONSTANT
from ampbench.core.units import UNDEFINED, all_of, counted
from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.bounds import Count, ErrorSize, KeptShare, Magnitude, Parts, Positive, Signed, Steps, one_of
from ampbench.records.case import Case, Environment
from ampbench.records.changes import ChangeStatus
from ampbench.records.kinds import TRAINING
from ampbench.records.labels import case_labels, told_apart
from ampbench.records.measured import Failure, Score, Skip
from ampbench.records.ranges import FirstNonfinite, format_scale
from ampbench.records.run import ScalerSetting, Selection, Settings
from ampbench.records.wire import Task
from ampbench.show.charts import curves
from ampbench.show.document import Column
from ampbench.show.page import place_of, run_name
from ampbench.studies.study import ALL_PRECISIONS_HELP, Given, Option, Selects, Session, Study, Table, View
from ampbench.studies.training_verdict import (
    ACCURACY,
    ARMS,
    CONTROL,
    DEFAULT,
    NAMES,
    OWN,
    REFERENCE,
    Ending,
    Learned,
    Metric,
    Row,
    conclude,
    conclusions,
    mean_of,
    trouble,
)

if TYPE_CHECKING:
    from ampbench.drive.pieces import Piece
    from ampbench.drive.planning import PlannedCase
    from ampbench.drive.servers import Channel
    from ampbench.store import StoredRun


class Drift(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How far all parameters are after `step` steps from those trained in fp32 and in fp64: relative L2 distances.

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


class GradientLook(Parts, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The gradients of one step beside those in fp32 of the same weights and batch, the loss scale divided out.

    Of `elements`, `nonzero` are not zero in fp32; of these `flushed` are zero and `nonfinite` not finite in the
    training. `rel_l2` is the relative L2 error of all (None: undefined).
    """

    PARTS = (("nonzero", "elements"), ("flushed", "nonzero"), ("nonfinite", "elements"))
    step: Count
    elements: Count
    nonzero: Count
    flushed: Count
    nonfinite: Count
    rel_l2: ErrorSize | None = None


class Training(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One training of a case from the weights and batches of one `seed`.

    `arm` is one of `ARMS`, or "": the case's own. `setting` is that of GradScaler (None: as the precision has it).
    `losses[i]` is the mean loss that steps `i * every` to `(i + 1) * every` computed, None where one is not finite;
    there are fewer than `steps` of them where it ended early. `scores` are of held-out data (empty: there is none) and
    `fits` of the training batches, both of the weights evaluated in fp32, where numbers next to each other are a
    `spacing` apart, relative to them. `scales` holds steps and the loss scale from each on (empty: no scaler).
    `nonfinite` is in how many steps a parameter's gradient was not finite, `first_nonfinite` where the first value that
    is not finite comes from. `ended_at` is the step from 0 after which it was given up, `error` the first line of what
    a step raised. `schedule` is that of the learning rate, `CONSTANT`, the recipe's or `OWN`, `last_rate` the rate of
    the last step relative to the optimizer's, of the workload's own schedule to the first step's (None: not known).
    """

    case_id: str
    seed: int
    arm: Annotated[str, one_of("", *ARMS)] = ""
    setting: ScalerSetting | None = None
    steps: Steps
    every: Positive = 1
    losses: list[Signed | None] = []
    scores: list[Score] = []
    fits: list[Score] = []
    spacing: Magnitude = 2.0**-23
    drift: list[Drift] = []
    scales: list[tuple[Count, Magnitude]] = []
    nonfinite: dict[str, Count] = {}
    looks: list[GradientLook] = []
    first_nonfinite: FirstNonfinite | None = None
    ended_at: Count | None = None
    error: str = ""
    schedule: str = CONSTANT
    last_rate: Magnitude | None = None
    weights_digest: str
    inputs_digest: str
    notes: list[str] = []

    @property
    def skipped(self) -> list[int]:
        """The steps that GradScaler skipped: its scale is lower after each."""
        return [step - 1 for (_, scale), (step, after) in pairwise(self.scales) if after < scale]

    @property
    def last_scale(self) -> float | None:
        """The loss scale at the end; None without a scaler."""
        return self.scales[-1][1] if self.scales else None

    @property
    def broke_off(self) -> bool:
        """Whether it was given up or ended with an error."""
        return self.ended_at is not None or bool(self.error)


class TrainingAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To train each case for `steps` steps from each of `seeds` seeds, as it is or with each of the `settings`."""

    steps: Steps = 300
    seeds: Count = 3
    settings: list[ScalerSetting] = []


class ArmAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To train a case for `steps` steps, as its own or as another `arm`, with a `setting` (see `Training`).

    The worker knows the fp32 and fp64 trainings before it.
    """

    steps: Steps
    arm: str = ""
    setting: ScalerSetting | None = None


SETTINGS = (
    ScalerSetting(name="no scaling", enabled=False),
    ScalerSetting(name=DEFAULT),
    ScalerSetting(name="low start", init_scale=1.0, growth_interval=10),
    ScalerSetting(name="high start", init_scale=2.0**24),
    ScalerSetting(name="fast growth", growth_interval=10),
)
"""Settings that have a name: the third has to find its scale from below, the fourth from above, the last goes on
looking for a higher one."""
ALL = "all"


def learned_in(runs: "Iterable[StoredRun]", case_ids: Collection[str] | None = None) -> list[Learned]:
    """Return what `learned` does of runs, the oldest first, each by a name of its own."""
    known = [(run, workload, workload.rows[0].case_id) for run in runs for workload in learned(run, case_ids)]
    labels = case_labels((run.cases[case_id] for run, _, case_id in known), precision=False)
    names = told_apart([labels[case_id] for _, _, case_id in known], (run_name(run) for run, _, _ in known))
    return [replace(workload, name=name) for name, (_, workload, _) in zip(names, known, strict=True)]


def learned(stored: "StoredRun", case_ids: Collection[str] | None = None) -> list[Learned]:
    """Return what each workload's trainings come to, per device, in the order of the run.

    With `case_ids`, only workloads of these cases, and of them only the rows of these and of fp32; verdicts are reached
    with all that was trained.
    """
    trained, asked = stored.several_of(Training), stored.asked or TrainingAsked(seeds=0)
    groups: dict[tuple[str, str], dict[str, Case]] = {}
    for case_id, case in stored.cases.items():
        if trained.get(case_id) or case_id not in stored.given_up:
            groups.setdefault((case.group, case.device), {})[case_id] = case
    found = []
    for (workload, device), cases in groups.items():
        if any(trained.get(case_id) and (case_ids is None or case_id in case_ids) for case_id in cases):
            whole = conclude(workload, device, _planned(cases, trained, asked), asked.seeds)
            rows = [row for row in whole.rows if case_ids is None or row.case_id in case_ids or not row.judged]
            found.append(replace(whole, rows=rows, of_settings=bool(asked.settings)))
    return found


def _planned(cases: Mapping[str, Case], trained: Mapping[str, Sequence[Training]], asked: TrainingAsked) -> list[Row]:
    """Return the rows in the order of the table, those that have no trainings yet, too."""
    rows = []
    for case_id, case in sorted(cases.items(), key=lambda item: (rank(item[1].precision), item[1].precision)):
        name = case.precision if case.scaler else f"{case.precision}, no scaler"
        for arm, setting in _arms(case, asked.settings):
            own = [each for each in trained.get(case_id, []) if (each.arm, each.setting) == (arm, setting)]
            by_seed = {training.seed: training for training in sorted(own, key=lambda each: each.seed)}
            known = NAMES.get(arm) or (setting.name if setting else name)
            rows.append(Row(name=known, case_id=case_id, arm=arm, setting=setting, by_seed=by_seed))
    return rows


def _arms(case: Case, settings: Sequence[ScalerSetting]) -> list[tuple[str, ScalerSetting | None]]:
    """Return the arms and settings that a case is trained in."""
    if case.precision == BASELINE:
        return [("", None), *((arm, None) for arm in ARMS)]
    given: Sequence[ScalerSetting | None] = settings or [None]
    return [("", setting) for setting in given]


def heading(learned: Learned) -> str:
    """Return what was trained, in one line."""
    trained, asked = len(learned.seeds), counted(learned.asked, "seed")
    rate = "" if learned.last_rate is None else f" to {learned.last_rate:.2g} of the learning rate"
    named = "its own schedule" if learned.schedule == OWN else f"{learned.schedule} schedule"
    parts = [
        learned.workload,
        SCALED[0] if learned.of_settings else "",
        learned.device,
        counted(learned.steps, "step"),
        "" if learned.schedule == CONSTANT else f"{named}{rate}",
        f"{trained:,} of {asked}" if trained < learned.asked else asked,
    ]
    return " · ".join(filter(None, parts))


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
    """A training of what was learned, and the row that it is of."""

    of: Learned
    row: Row
    training: Training


def _ended_words(made: Made) -> str:
    what, step = trouble(made.training, made.of.metric) or ("", None)
    return what if step is None else f"{what} from step {step:,}"


TRAININGS: Sequence[Column[Made]] = (
    Column("case_id", lambda made: made.row.case_id),
    Column("precision", lambda made: made.row.name, "precision"),
    Column("seed", lambda made: made.training.seed, "seed", "whole", lambda made: f"{made.training.seed}"),
    Column(
        "metric_value", lambda made: made.of.metric.final(made.training), "score", "loss",
        lambda made: format_metric(made.of.metric.final(made.training), made.of.metric),
    ),
    Column("training_loss", lambda made: made.of.fit.final(made.training)),
    Column("skipped_steps", lambda made: made.row.skipped_in([made.training]), "skipped steps", "whole", rare=True),
    Column("scaler_scale", lambda made: made.training.last_scale, "scale", "count", rare=True),
    Column("ended", lambda made: _ended_words(made) or None, "ended", said=_ended_words, rare=True),
)  # fmt: skip
"""Of a training: its case, precision, setting or arm of fp32, and seed, and how it ended."""


def _interval(ending: Ending, said: Callable[[float | None], str]) -> str:
    return UNDEFINED if ending.low is None or ending.high is None else f"{said(ending.low)} to {said(ending.high)}"


def _ratio(difference: float | None) -> str:
    """Return a relative difference of losses as their ratio: "1.04", one under a tenth as "0.0123"."""
    if difference is None:
        return UNDEFINED
    return f"{1 + difference:.3g}" if 1 + difference < 0.1 else f"{1 + difference:.2f}"


def _lag(share: float | None) -> str:
    """Return what is missing of a fall as "5.1%"; where the loss rises, more than all of it is."""
    if share is None:
        return UNDEFINED
    return ">100%" if share > 1 else f"{round(100 * share, 1) + 0.0:.1f}%"


def _sd(row: Row, metric: Metric) -> str:
    if row.first.sd is None:
        return UNDEFINED
    return f"{100 * row.first.sd:.2f}" if metric.name == ACCURACY else f"{row.first.sd:.2g}"


_NO_WORSE = {ChangeStatus.UNCHANGED: "no worse", ChangeStatus.REGRESSED: "worse", ChangeStatus.IMPROVED: "lower"}


def _scales(row: Row) -> str:
    """Return the first and the last loss scale of a row's first training, "2^16 → 2^14"."""
    scales = next((training.scales for training in row.trainings if training.scales), None)
    return UNDEFINED if not scales else " → ".join(dict.fromkeys(format_scale(scales[at][1]) for at in (0, -1)))


def precisions(learned: Learned) -> list[Column[Row]]:
    """Return the columns of what was concluded of a row."""
    metric = learned.metric
    change = partial(format_change, metric=metric)
    return [
        Column("precision", lambda row: row.name, "precision"),
        Column("case_id", lambda row: row.case_id),
        Column(
            "mean", lambda row: row.first.mean, metric.name, "loss", lambda row: format_metric(row.first.mean, metric)
        ),
        Column("sd", lambda row: row.first.sd, "SD", "loss", lambda row: _sd(row, metric)),
        Column(
            "difference", lambda row: row.first.difference, "against fp32", "share",
            lambda row: change(row.first.difference),
        ),
        Column("low", lambda row: row.first.low, "90% interval", "share", lambda row: _interval(row.first, change)),
        Column("high", lambda row: row.first.high),
        Column("verdict", lambda row: row.first.verdict, "verdict", said=lambda row: row.first.verdict or ""),
        Column("training_loss", lambda row: row.fit.mean, "loss", "loss"),
        Column(
            "training_loss_ratio", lambda row: None if row.fit.difference is None else 1 + row.fit.difference,
            "times fp32's", "ratio", lambda row: _ratio(row.fit.difference),
        ),
        Column(
            "training_loss_low", lambda row: None if row.fit.low is None else 1 + row.fit.low, "90% interval", "ratio",
            lambda row: _interval(row.fit, _ratio),
        ),
        Column("training_loss_high", lambda row: None if row.fit.high is None else 1 + row.fit.high),
        Column("lag", lambda row: row.fit.lag, "of the fall missing", "share", lambda row: _lag(row.fit.lag)),
        Column(
            "training_loss_verdict", lambda row: row.fit.verdict, "verdict",
            said=lambda row: _NO_WORSE.get(row.fit.verdict, row.fit.verdict) if row.fit.verdict else "",
        ),
        Column("trains_as_fp32", lambda row: row.trains),
        Column("last_scale", lambda row: row.trainings[0].last_scale, "scale", said=_scales),
        Column("skipped_steps", lambda row: row.skipped_in(row.trainings), "skipped steps", "whole"),
        Column("flushed_share", lambda row: row.flushed, "flushed", "share"),
        Column("grad_rel_l2", lambda row: row.grad_rel_l2, "error", "error"),
    ]  # fmt: skip


WORKLOADS: Sequence[Column[Learned]] = (
    Column("workload", lambda learned: learned.workload),
    Column("device", lambda learned: learned.device),
    Column("steps", lambda learned: learned.steps),
    Column("schedule", lambda learned: learned.schedule),
    Column("seeds", lambda learned: learned.seeds),
    Column("seeds_asked", lambda learned: learned.asked),
    Column("metric", lambda learned: learned.metric.name),
    Column("held_out", lambda learned: learned.metric.held_out),
    Column("before", lambda learned: learned.metric.before),
    Column("learns", lambda learned: learned.metric.learns),
    Column("margin", lambda learned: learned.metric.margin),
    Column("loss_margin", lambda learned: learned.fit.margin if learned.fit.learns else None),
)


def overflowing(learned: Learned) -> list[tuple[str, str, int]]:
    """Return of each row the parameters whose gradients were not finite, and in how many steps of all seeds."""
    return [
        (row.name, parameter, steps)
        for row in learned.rows
        for parameter, steps in sum((Counter(each.nonfinite) for each in row.trainings), Counter()).most_common()
    ]


OVERFLOWS: Sequence[Column[tuple[str, str, int]]] = (
    Column("precision", lambda row: row[0], "precision"),
    Column("parameter", lambda row: row[1], "parameter"),
    Column("steps", lambda row: row[2], "steps", "whole"),
)


def _mean_losses(learned: Learned) -> Iterator[tuple[str, list[float | None]]]:
    """Yield the losses of each row, means over seeds, to where the first of them ends."""
    for row in learned.rows:
        if not row.arm:
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
            end = training.steps if training.ended_at is None else training.ended_at + 1
            spans = pairwise([*training.scales, (end, 0.0)])
            powers = [(math.log2(scale) if scale else None, after - step) for (step, scale), (after, _) in spans]
            yield row.name, [power for power, steps in powers for _ in range(steps)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToTrain:
    """One training: of a case, from a seed, as its own or as another `arm`, with a `setting` of GradScaler."""

    case: Case
    seed: int
    arm: str = ""
    setting: ScalerSetting | None = None

    @property
    def weights(self) -> tuple[str, int]:
        """What trainings share whose weights a worker has in mind at a time: all but precision, arm and setting."""
        return in_precision(self.case, "").case_id, self.seed

    @property
    def compared_with(self) -> "list[ToTrain]":
        """The trainings whose weights this one's are compared with, in the order in which they are made."""
        own = in_precision(self.case, BASELINE)
        first = [ToTrain(case=own, seed=self.seed, arm=arm) for arm in (REFERENCE, "")]
        return first[: first.index(self)] if self in first else first


def in_precision(case: Case, precision: str) -> Case:
    """Return `case` as it would be in fp32, which has no scaler to leave out, by another name."""
    return structs.replace(case, precision=precision, input_dtype="fp32", scaler=True)


def trainings_of(cases: Iterable[Case], first_seed: int, asked: TrainingAsked) -> list[ToTrain]:
    """Return the trainings of `cases` in their order.

    That is workload by workload and seed by seed: the fp64 reference, fp32, its control, then the other precisions, so
    that a worker has the first two before it that all others are compared with.
    """
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(in_precision(case, "").case_id, []).append(case)
    order = (REFERENCE, "", CONTROL)
    return [
        ToTrain(case=case, seed=seed, arm=arm, setting=setting)
        for group in groups.values()
        for seed in range(first_seed, first_seed + asked.seeds)
        for case in sorted(group, key=lambda case: case.precision != BASELINE)
        for arm, setting in sorted(_arms(case, asked.settings), key=lambda each: order.index(each[0]))
    ]


def unfinished(stored: "StoredRun") -> list[ToTrain]:
    """Return the trainings that a run lacks, of cases that neither failed nor were skipped.

    Raises `UsageError` where it does not say what it was asked for.
    """
    from ampbench.drive.pieces import asked_of

    found = stored.several_of(Training).items()
    made = [(case_id, each.seed, each.arm, each.setting) for case_id, trainings in found for each in trainings]
    cases = [case for case_id, case in stored.cases.items() if case_id not in stored.given_up]
    starts = trainings_of(cases, stored.header.settings.seed, asked_of(stored))
    return [each for each in starts if (each.case.case_id, each.seed, each.arm, each.setting) not in made]


def pieces(session: Session[TrainingAsked]) -> "list[Piece]":
    """Return the trainings of what is planned, or those that a run begun before lacks, in their order."""
    from ampbench.drive.pieces import Piece

    planned = {each.case.case_id: each for each in session.prepared.plan if not each.skip}
    found = (
        trainings_of([each.case for each in planned.values()], session.prepared.settings.seed, session.asked)
        if session.begun is None
        else unfinished(session.begun)
    )
    return [Piece(planned[each.case.case_id], each) for each in found if each.case.case_id in planned]


@dataclass(slots=True)
class _Trainer:
    """Has trainings made by a worker, and knows which it has in mind: those since it last failed.

    A worker has the fp64 and fp32 trainings of a seed in mind, which the others are compared with. One that has not,
    since a study goes on or its worker was killed, makes them again first, by requests of their own: each training has
    all of its time, and none is stored twice.
    """

    session: Session[TrainingAsked]
    known: list[ToTrain] = field(default_factory=list)
    failed: list[tuple[ToTrain, Failure]] = field(default_factory=list)

    def train(self, channel: "Channel", piece: "Piece") -> Training | Failure | Skip:
        """Return what came of a training, after those that it is compared with; it fails where one of these does."""
        planned, start = piece.planned, piece.part
        for first in start.compared_with:
            if first not in self.known and not self._failure(start):
                self._trained(channel, dataclasses.replace(planned, case=first.case), first)
        return self._failure(start) or self._trained(channel, planned, start)

    def _failure(self, start: ToTrain) -> Failure | None:
        """Return that a training fails because one did that it is compared with."""
        for first, why in self.failed:
            if first in start.compared_with:
                message = f"{NAMES.get(first.arm, BASELINE)}, which it is compared with, failed: {why.message}"
                return structs.replace(why, case_id=start.case.case_id, message=message)
        return None

    def _trained(self, channel: "Channel", planned: "PlannedCase", start: ToTrain) -> Training | Failure | Skip:
        from ampbench.drive.pieces import ask_case
        from ampbench.drive.session import check_same_network

        begun, case = self.session.begun, planned.case
        settings = structs.replace(self.session.prepared.settings, seed=start.seed)
        asked = ArmAsked(steps=self.session.asked.steps, arm=start.arm, setting=start.setting)
        found = ask_case(channel, planned, settings, TASK, asked, fresh=False)
        if not isinstance(found, Training):
            self.known.clear()
            self.failed += [(start, found)] if isinstance(found, Failure) else []
            return found
        for before in begun.every(Training) if begun is not None else ():
            was = begun.cases[before.case_id]  # type: ignore[union-attr]
            if (was.group, was.device, before.seed) == (case.group, case.device, found.seed):
                check_same_network(begun.header.run, case.workload, before, found)  # type: ignore[union-attr]
        self.known = [known for known in self.known if known.weights == start.weights] + [start]
        return found


def _with_baselines(
    selection: Selection, _: TrainingAsked, environment: Environment, channel: "Channel", settings: Settings
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


def settings_of(typed: Sequence[str]) -> list[ScalerSetting]:
    """Return the settings of GradScaler that are typed: by their names, "all" of these, or as "init_scale=1024".

    Raises `UnknownNameError` for a name that there is not, and `UsageError` for what GradScaler does not take.
    """
    known = {setting.name: setting for setting in SETTINGS}
    found: dict[str, ScalerSetting] = {}
    for text in typed:
        if "=" in text:
            found[text] = _own_setting(text)
        elif text == ALL:
            found |= known
        elif text in known:
            found[text] = known[text]
        else:
            raise UnknownNameError("setting", text, [*known, ALL])
    return list(found.values())


_TAKES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "init_scale": (lambda value: 0 < value < 2.0**128, "a finite number above 0, as fp32 holds it"),
    "growth_factor": (lambda value: 1 < value < math.inf, "a number above 1"),
    "backoff_factor": (lambda value: 0 < value < 1, "between 0 and 1"),
    "growth_interval": (lambda value: value >= 1 and value == int(value), "a whole number, at least 1"),
}
"""What GradScaler takes for each of its parameters."""


def _own_setting(text: str) -> ScalerSetting:
    values: dict[str, Any] = {}
    for part in text.split():
        name, _, typed = part.partition("=")
        if name not in _TAKES:
            raise UnknownNameError("parameter of GradScaler", name, _TAKES)
        holds, wanted = _TAKES[name]
        try:
            value = float(typed)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and holds(value)):
            raise UsageError(f"--setting {name}={typed}: must be {wanted}")
        values[name] = int(value) if name == "growth_interval" else value
    return ScalerSetting(name=text, **values)


def _made(given: Given) -> TrainingAsked:
    values = given.values
    return TrainingAsked(steps=values["steps"], seeds=values["seeds"], settings=settings_of(values["setting"]))


def _refined(selection: Selection, asked: TrainingAsked) -> Selection:
    """Return the selection, for settings of GradScaler that of what it scales; `UsageError` for another precision."""
    from ampbench.drive.pieces import built_in_rows

    if not asked.settings:
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
        for workload in learned(study):
            for row in workload.judged:
                own = measured.divergence.get(row.case_id)
                same = own is not None and own.weights_digest in {each.weights_digest for each in row.trainings}
                if row.setting is None and same and row.trains is not None:
                    ending = row.first if row.first.verdict is ChangeStatus.REGRESSED else row.fit
                    worse = None if row.trains or ending.difference is None else abs(ending.difference)
                    name = f"study {study.header.run.rpartition('-')[2]}, {counted(workload.steps, 'step')} from"
                    name += f" {counted(len(row.by_seed), 'seed')}"
                    found[row.case_id] = Trained(trains=row.trains, study=name, worse=worse)
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
    options=(
        Option(name="steps", default=300, metavar="N", least=1, most=1_000_000, help="Steps of each training."),
        Option(
            name="seeds",
            default=3,
            metavar="N",
            least=1,
            most=1000,
            help="Number of seeds: --seed and the next ones. A verdict needs 2; 3 or more detect smaller differences.",
        ),
        Option(
            name="setting",
            default=None,
            names=True,
            help="Train fp16_autocast with a setting of GradScaler: 'no scaling', default, 'low start', 'high start', "
            "'fast growth', all of these, or values as 'init_scale=1024 growth_interval=100'.",
        ),
    ),
    made=_made,
    selects=Selects(
        precision=ALL_PRECISIONS_HELP,
        workloads=("digits", "characters"),
        phases=("training",),
        recipes=True,
        own_precisions=True,
    ),
    refined=_refined,
    plan=_with_baselines,
    pieces=pieces,
    left=lambda stored: [start.case.case_id for start in unfinished(stored)],
    work=lambda session: _Trainer(session).train,
    title="Trainings",
    caption="How the precisions of each workload end, or GradScaler's settings",
    done="Trained",
    subject="workload",
    subjects=learned_in,
    heading=heading,
    tables=(
        Table(
            key="trainings",
            columns=TRAININGS,
            rows=lambda learned: [Made(learned, row, each) for row in learned.rows for each in row.trainings],
            views=[View(title="Each seed", shown=0, folded=True)],
        ),
        Table(
            key="precisions",
            columns=precisions,
            rows=lambda learned: learned.rows,
            views=[
                View(
                    title="At the end",
                    keys="precision mean sd difference low verdict",
                    note="last quarter of the steps; means over seeds, SD: over seeds; against fp32: of the same seed, "
                    "in points or of the loss; control: fp32 from weights one rounding away",
                    only=lambda row: row.first != row.fit,
                ),
                View(
                    title="Training loss at the end",
                    keys="precision training_loss training_loss_ratio training_loss_low lag training_loss_verdict",
                    note="last quarter of the steps, of the weights in fp32; times fp32's: of the same seed",
                ),
                View(
                    title="Gradients and loss scale",
                    keys="precision last_scale skipped_steps flushed_share grad_rel_l2",
                    note="flushed: share of fp32's gradients that are zero in the training; error: median",
                    only=lambda row: (
                        row.judged and (row.grad_rel_l2 is not None or row.skipped_in(row.trainings) is not None)
                    ),
                ),
            ],
        ),
        Table(key="workloads", columns=WORKLOADS, rows=lambda learned: [learned]),
        Table(
            key="overflows",
            columns=OVERFLOWS,
            rows=overflowing,
            views=[View(title="Gradients that were not finite", note="in how many steps", shown=12, folded=True)],
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
