"""Which trainings there are, and how they are sent.

Which trainings a study is made of, in which order, and which of them a stored run lacks.

Has a worker train workloads in every precision, from several seeds, and stores each training before the next.

A worker has the fp64 and fp32 trainings of a seed in mind, which the others are compared with. One that has not, since
a study goes on or its worker was killed, makes them again first, by requests of their own: each training has all of its
time, and none is stored twice.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ampbench.base.precisions import BASELINE
from ampbench.drive.pieces import (
    Explain,
    Watch,
    ask_case,
    asked_of,
    explain_pieces,
    prepared_session,
    require_eager,
    resumed_plan,
)
from ampbench.drive.planning import PlannedCase, check_selection, make_plan
from ampbench.drive.servers import Channel, OpenChannel
from ampbench.drive.session import Prepared, check_same_network, describer
from ampbench.errors import UsageError
from ampbench.instruments.convergence.findings import NAMES
from ampbench.instruments.convergence.records import CONTROL, REFERENCE, Training, TrainingAsked
from ampbench.records.case import Case, Environment
from ampbench.records.kinds import CONVERGENCE
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Asked, Selection, Settings
from ampbench.records.wire import Task
from ampbench.store import RunWriter, StoredRun

CONVERGENCE_TASK = Task(CONVERGENCE, TrainingAsked, Training, "ampbench.instruments.convergence.measure:do_training")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One training: of a case, from a seed, as its own or as another `arm`."""

    case: Case
    seed: int
    arm: str = ""

    @property
    def start(self) -> tuple[str, int]:
        """What trainings share whose weights a worker has in mind at a time: all but precision and arm."""
        return in_precision(self.case, "").case_id, self.seed

    @property
    def compared_with(self) -> "list[Piece]":
        """The trainings whose weights this one's are compared with, in the order in which they are made."""
        own = in_precision(self.case, BASELINE)
        first = [Piece(case=own, seed=self.seed, arm=arm) for arm in (REFERENCE, "")]
        return first[: first.index(self)] if self in first else first


def pieces_of(cases: Iterable[Case], first_seed: int, seeds: int) -> list[Piece]:
    """Return the trainings of `cases` from so many seeds, in their order.

    That is workload by workload and seed by seed: the fp64 reference, fp32, its control, then the other precisions, so
    that a worker has the first two before it that all others are compared with.
    """
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(in_precision(case, "").case_id, []).append(case)
    pieces = []
    for group in groups.values():
        firsts = sorted(group, key=lambda case: case.precision != BASELINE)
        for seed in range(first_seed, first_seed + seeds):
            for case in firsts:
                arms = (REFERENCE, "", CONTROL) if case.precision == BASELINE else ("",)
                pieces += [Piece(case=case, seed=seed, arm=arm) for arm in arms]
    return pieces


def unfinished(stored: StoredRun) -> list[Piece]:
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
    pieces = pieces_of(cases, stored.header.settings.seed, asked_of(stored, "steps", "seeds").seeds)
    return [piece for piece in pieces if (piece.case.case_id, piece.seed, piece.arm) not in made]


def in_precision(case: Case, precision: str) -> Case:
    """Return `case` as it would be in fp32, which has no scaler to leave out, by another name."""
    return dataclasses.replace(case, precision=precision, input_dtype="fp32", scaler=True)


DEFAULT_WORKLOADS = ["digits", "characters"]
"""What is trained where nothing is named: real data that needs no download."""


@contextmanager
def prepare_convergence(
    selection: Selection,
    settings: Settings,
    asked: Asked,  # noqa: ARG001 - as all studies
    resumed: StoredRun | None = None,
    *,
    open_channel: OpenChannel | None = None,
) -> Iterator[Prepared]:
    """Plan which cases to train: everything that can be wrong with `selection` is raised here.

    Without workloads, `DEFAULT_WORKLOADS` are trained. fp32, which the others are compared with, is among the cases of
    every workload. With `resumed`, the run to go on with, whose selection, settings and asked these must be, only cases
    that lack a training are planned. Raises `UsageError` for a phase but training, a path but eager and a run that was
    begun in another environment or gives other cases now, and what `make_plan` raises.
    """
    if any(phase != "training" for phase in selection.phases):
        raise UsageError("convergence is a matter of training: leave the phase out")
    selection = dataclasses.replace(selection, workloads=selection.workloads or DEFAULT_WORKLOADS, phases=["training"])
    sources = check_selection(selection)
    require_eager(selection, CONVERGENCE)

    def plan(environment: Environment, channel: Channel, settings: Settings) -> list[PlannedCase]:
        found = _with_baselines(selection, environment, channel, settings)
        if resumed is None:
            return found
        return resumed_plan(resumed, environment, found, {piece.case.case_id for piece in unfinished(resumed)})

    with prepared_session(selection, settings, sources, plan, open_channel, own_precisions=True) as session:
        yield session


def pieces(prepared: Prepared, asked: Asked, resumed: StoredRun | None = None) -> list[tuple[PlannedCase, Piece]]:
    """Return the trainings of what is planned, or those that `resumed` lacks, in their order, each with its case."""
    planned = {each.case.case_id: each for each in prepared.plan if not each.skip}
    found = (
        pieces_of([each.case for each in planned.values()], prepared.settings.seed, asked.seeds)
        if resumed is None
        else unfinished(resumed)
    )
    return [(planned[piece.case.case_id], piece) for piece in found if piece.case.case_id in planned]


def train_cases(
    prepared: Prepared, asked: Asked, writer: RunWriter, watch: Watch, resumed: StoredRun | None = None
) -> str:
    """Train what is planned, as `explain_pieces` does, and return how the session ended.

    Raises `UsageError` where what a resumed run trained before began with other weights or inputs.
    """
    trainer = _Trainer(prepared.settings, asked, resumed)
    work = [(planned, trainer.explains(piece)) for planned, piece in pieces(prepared, asked, resumed)]
    return explain_pieces(prepared, work, writer, watch)


class _Trainer:
    """Has pieces trained by a worker, and knows which trainings it has in mind: those since it last failed."""

    def __init__(self, settings: Settings, asked: Asked, resumed: StoredRun | None):
        self._settings, self._asked, self._resumed = settings, asked, resumed
        self._known: list[Piece] = []
        self._failed: list[tuple[Piece, Failure]] = []

    def explains(self, piece: Piece) -> Explain:
        """Return what has a piece trained, after those that it is compared with."""

        def explain(channel: Channel, planned: PlannedCase) -> Training | Failure | Skip:
            for first in piece.compared_with:
                if why := next((why for failed, why in self._failed if failed == first), None):
                    return _for_want_of(first, why, piece)
            for first in piece.compared_with:
                if first not in self._known:
                    found = self._trained(channel, dataclasses.replace(planned, case=first.case), first)
                    if isinstance(found, Failure):
                        return _for_want_of(first, found, piece)
            return self._trained(channel, planned, piece)

        return explain

    def _trained(self, channel: Channel, planned: PlannedCase, piece: Piece) -> Training | Failure | Skip:
        settings = dataclasses.replace(self._settings, seed=piece.seed)
        asked = TrainingAsked(steps=self._asked.steps, schedule=self._asked.schedule, arm=piece.arm)
        found = ask_case(channel, planned, settings, CONVERGENCE_TASK, asked, fresh=False)
        if not isinstance(found, Training):
            self._known.clear()
            if isinstance(found, Failure):
                self._failed.append((piece, found))
            return found
        if self._resumed is not None:
            _check_same_network(self._resumed, planned.case, found)
        self._known = [known for known in self._known if known.start == piece.start]
        self._known.append(piece)
        return found


def _for_want_of(first: Piece, why: Failure, piece: Piece) -> Failure:
    """Return that a piece failed because the one did that it is compared with."""
    message = f"{NAMES.get(first.arm, BASELINE)}, which it is compared with, failed: {why.message}"
    return dataclasses.replace(why, case_id=piece.case.case_id, message=message)


def _check_same_network(resumed: StoredRun, case: Case, training: Training) -> None:
    """Raise `UsageError` where a training began with other weights or inputs than one of the run from its seed."""
    for case_id, trainings in resumed.several_of(Training).items():
        if resumed.cases[case_id].group != case.group or resumed.cases[case_id].device != case.device:
            continue
        for was in trainings:
            if was.seed == training.seed:
                check_same_network(resumed.header.run, case.workload, was, training)


def _with_baselines(
    selection: Selection, environment: Environment, channel: Channel, settings: Settings
) -> list[PlannedCase]:
    """Return the cases of `selection`, and for each the fp32 case of the same, whatever is selected."""
    describe = describer(channel, settings)
    asked = dataclasses.replace(selection, precisions=selection.precisions and [BASELINE, *selection.precisions])
    everything = make_plan(dataclasses.replace(asked, keyword=""), environment, describe)
    chosen = make_plan(selection, environment, describe)
    ids = {planned.case.case_id for planned in chosen}
    ids |= {in_precision(planned.case, BASELINE).case_id for planned in chosen}
    return [planned for planned in everything if planned.case.case_id in ids]
