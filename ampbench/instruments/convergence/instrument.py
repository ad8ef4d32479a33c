"""The study of convergence: which trainings it is made of, in which order, and how a worker makes them.

A worker has the fp64 and fp32 trainings of a seed in mind, which the others are compared with. One that has not, since
a study goes on or its worker was killed, makes them again first, by requests of their own: each training has all of its
time, and none is stored twice.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import structs

from ampbench.core.precisions import BASELINE
from ampbench.drive.pieces import Piece, ask_case, asked_of
from ampbench.drive.planning import PlannedCase, make_plan
from ampbench.drive.servers import Channel
from ampbench.drive.session import check_same_network, describer
from ampbench.instruments.convergence.records import (
    CONTROL,
    REFERENCE,
    ConvergenceAsked,
    Training,
    TrainingAsked,
)
from ampbench.records.case import Case, Environment
from ampbench.records.kinds import CONVERGENCE
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Task
from ampbench.store import StoredRun
from ampbench.studies.study import ALL_PRECISIONS_HELP, SCALER_HELP, Instrument, Option, Selects, Session

HELP = """\
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
"""
TASK = Task(CONVERGENCE, TrainingAsked, Training, "ampbench.instruments.convergence.measure:do_training")
DEFAULT_WORKLOADS = ("digits", "characters")
"""What is trained where nothing is named: real data that needs no download."""


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
    starts = []
    for group in groups.values():
        firsts = sorted(group, key=lambda case: case.precision != BASELINE)
        for seed in range(first_seed, first_seed + seeds):
            for case in firsts:
                arms = (REFERENCE, "", CONTROL) if case.precision == BASELINE else ("",)
                starts += [ToTrain(case=case, seed=seed, arm=arm) for arm in arms]
    return starts


def unfinished(stored: StoredRun) -> list[ToTrain]:
    """Return the trainings that a run lacks, of cases that neither failed nor were skipped.

    Raises `UsageError` where it does not say what it was asked for.
    """
    ended = stored.given_up
    made = {
        (case_id, training.seed, training.arm)
        for case_id, trainings in stored.several_of(Training).items()
        for training in trainings
    }
    cases = [case for case_id, case in stored.cases.items() if case_id not in ended]
    starts = trainings_of(cases, stored.header.settings.seed, asked_of(stored).seeds)
    return [start for start in starts if (start.case.case_id, start.seed, start.arm) not in made]


def in_precision(case: Case, precision: str) -> Case:
    """Return `case` as it would be in fp32, which has no scaler to leave out, by another name."""
    return structs.replace(case, precision=precision, input_dtype="fp32", scaler=True)


def pieces(session: Session[ConvergenceAsked]) -> list[Piece]:
    """Return the trainings of what is planned, or those that a run begun before lacks, in their order."""
    planned = {each.case.case_id: each for each in session.prepared.plan if not each.skip}
    found = (
        trainings_of([each.case for each in planned.values()], session.prepared.settings.seed, session.asked.seeds)
        if session.begun is None
        else unfinished(session.begun)
    )
    return [Piece(planned[one.case.case_id], one) for one in found if one.case.case_id in planned]


@dataclass(slots=True)
class _Trainer:
    """Has trainings made by a worker, and knows which it has in mind: those since it last failed."""

    session: Session[ConvergenceAsked]
    known: list[ToTrain] = field(default_factory=list)
    failed: list[tuple[ToTrain, Failure]] = field(default_factory=list)

    def train(self, channel: Channel, piece: Piece) -> Training | Failure | Skip:
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

    def _trained(self, channel: Channel, planned: PlannedCase, start: ToTrain) -> Training | Failure | Skip:
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
    from ampbench.instruments.convergence.findings import NAMES  # NumPy: not for `--help`

    message = f"{NAMES.get(first.arm, BASELINE)}, which it is compared with, failed: {why.message}"
    return structs.replace(why, case_id=start.case.case_id, message=message)


def _check_same_network(resumed: StoredRun, case: Case, training: Training) -> None:
    """Raise `UsageError` where a training began with other weights or inputs than one of the run from its seed."""
    for case_id, trainings in resumed.several_of(Training).items():
        if resumed.cases[case_id].group != case.group or resumed.cases[case_id].device != case.device:
            continue
        for was in trainings:
            if was.seed == training.seed:
                check_same_network(resumed.header.run, case.workload, was, training)


def _with_baselines(
    selection: Selection, _: ConvergenceAsked, environment: Environment, channel: Channel, settings: Settings
) -> list[PlannedCase]:
    """Return the cases of `selection`, and for each the fp32 case of the same, whatever is selected."""
    describe = describer(channel, settings)
    asked = structs.replace(selection, precisions=selection.precisions and [BASELINE, *selection.precisions])
    everything = make_plan(structs.replace(asked, keyword=""), environment, describe)
    chosen = make_plan(selection, environment, describe)
    ids = {planned.case.case_id for planned in chosen}
    ids |= {in_precision(planned.case, BASELINE).case_id for planned in chosen}
    return [planned for planned in everything if planned.case.case_id in ids]


INSTRUMENT: Instrument[ConvergenceAsked] = Instrument(
    kind=CONVERGENCE,
    help=HELP,
    doing="training",
    options=(
        Option(name="steps", default=300, metavar="N", least=1, most=1_000_000, help="Steps of each training."),
        Option(
            name="seeds",
            default=3,
            metavar="N",
            least=1,
            most=1000,
            help="Train from so many seeds: --seed and those after it. A verdict needs 2; 3 or more find more.",
        ),
    ),
    timeout="1800",
    selects=Selects(
        precision=ALL_PRECISIONS_HELP,
        scaler=SCALER_HELP,
        workloads=DEFAULT_WORKLOADS,
        phases=("training",),
        recipes=True,
        own_precisions=True,
    ),
    plan=_with_baselines,
    pieces=pieces,
    left=lambda stored: [start.case.case_id for start in unfinished(stored)],
    work=lambda session: _Trainer(session).train,
)
