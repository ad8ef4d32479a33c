"""Has a worker train workloads in every precision, from several seeds, and stores each training before the next.

That makes a study resumable: what it lacks is what no training of it is stored of.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ampbench.errors import UsageError
from ampbench.planning import PlannedCase, check_selection, make_plan
from ampbench.precisions import BASELINE
from ampbench.records.cases import Case
from ampbench.records.environments import Environment
from ampbench.records.measurements import Failure, Skip
from ampbench.records.runs import CONVERGENCE, Asked, Selection, Settings
from ampbench.records.studies import CONTROL, REFERENCE, Training
from ampbench.running.channel import Channel, OpenChannel
from ampbench.running.passes import Explain, Watch, ended_by, explain_pieces, request_for
from ampbench.running.preparing import prepared_session, require_eager
from ampbench.running.session import Prepared, check_same, check_same_cases, describer
from ampbench.store import RunWriter, StoredRun

DEFAULT_WORKLOADS = ["digits", "characters"]
"""What is trained where nothing is named: real data that needs no download."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One training: of a case, from a seed, as its own or as another `arm`."""

    planned: PlannedCase
    seed: int
    arm: str = ""


@contextmanager
def prepare_convergence(
    selection: Selection,
    settings: Settings,
    asked: Asked,
    resumed: StoredRun | None = None,
    *,
    open_channel: OpenChannel | None = None,
) -> Iterator[Prepared]:
    """Plan which cases to train: everything that can be wrong with `selection` is raised here.

    Without workloads, `DEFAULT_WORKLOADS` are trained. fp32, which the others are compared with, is among the cases of
    every workload. With `resumed`, the run to go on with, whose selection, settings and asked these must be, only cases
    that lack a training are planned. Raises `UsageError` for less than a step or a seed, a phase but training, a path
    but eager and a run that was begun in another environment or gives other cases now, and what `make_plan` raises.
    """
    if asked.steps < 1:
        raise UsageError(f"--steps {asked.steps} trains nothing: give at least 1")
    if asked.seeds < 1:
        raise UsageError(f"--seeds {asked.seeds} trains nothing: give at least 1, and three for a verdict")
    if any(phase != "training" for phase in selection.phases):
        raise UsageError("convergence is a matter of training: leave the phase out")
    selection = dataclasses.replace(selection, workloads=selection.workloads or DEFAULT_WORKLOADS, phases=["training"])
    sources = check_selection(selection)
    require_eager(selection, CONVERGENCE)

    def plan(environment: Environment, channel: Channel, settings: Settings) -> list[PlannedCase]:
        if resumed is not None:
            check_same(resumed.header.environment, environment, resumed.header.run)
        found = _with_baselines(selection, environment, channel, settings)
        if resumed is None:
            return found
        check_same_cases(resumed, found)
        left = {piece.planned.case.case_id for piece in pieces_of(found, settings, asked, resumed)}
        return [planned for planned in found if planned.case.case_id in left]

    with prepared_session(selection, settings, sources, plan, open_channel) as session:
        yield session


def pieces_of(
    plan: Sequence[PlannedCase], settings: Settings, asked: Asked, resumed: StoredRun | None = None
) -> list[Piece]:
    """Return the trainings of what is planned, or those that `resumed` lacks, in their order.

    That is workload by workload and seed by seed: the fp64 reference, fp32, its control, then the other precisions, so
    that a worker has the first two before it that all others are compared with.
    """
    ended = {*resumed.failures, *resumed.skips} if resumed else set()
    made = {
        (case_id, training.seed, training.arm)
        for case_id, trainings in (resumed.trainings.items() if resumed else ())
        for training in trainings
    }
    groups: dict[str, list[PlannedCase]] = {}
    for planned in plan:
        if not planned.skip and planned.case.case_id not in ended:
            groups.setdefault(_in_precision(planned.case, "").case_id, []).append(planned)
    pieces = []
    for group in groups.values():
        firsts = sorted(group, key=lambda planned: planned.case.precision != BASELINE)
        for seed in range(settings.seed, settings.seed + asked.seeds):
            for planned in firsts:
                arms = (REFERENCE, "", CONTROL) if planned.case.precision == BASELINE else ("",)
                pieces += [Piece(planned=planned, seed=seed, arm=arm) for arm in arms]
    return [piece for piece in pieces if (piece.planned.case.case_id, piece.seed, piece.arm) not in made]


def train_cases(
    prepared: Prepared, asked: Asked, writer: RunWriter, watch: Watch, resumed: StoredRun | None = None
) -> str:
    """Train what is planned, as `explain_pieces` does, and return how the session ended.

    Raises `UsageError` where what a resumed run trained before began with other weights or inputs.
    """
    pieces = pieces_of(prepared.plan, prepared.settings, asked, resumed)
    work = [(piece.planned, _training_of(piece, prepared.settings, asked, resumed)) for piece in pieces]
    return explain_pieces(prepared, work, writer, watch)


def untrained(stored: StoredRun) -> list[str]:
    """Return the ids of the cases of a run of trainings that lack one, in the order of the run."""
    asked = stored.header.asked
    if asked is None:
        return []
    sources = {source.name: source for source in stored.header.sources}
    plan = [PlannedCase(case=case, source=sources[case.workload]) for case in stored.cases.values()]
    lacking = {piece.planned.case.case_id for piece in pieces_of(plan, stored.header.settings, asked, stored)}
    return [case_id for case_id in stored.cases if case_id in lacking]


def asked_of(stored: StoredRun) -> Asked:
    """Return what a run of trainings was asked for; `UsageError` where it does not say that."""
    if stored.header.asked is None:
        raise UsageError(f"run {stored.header.run} does not say what it trains: begin a new one")
    return stored.header.asked


def _training_of(piece: Piece, settings: Settings, asked: Asked, resumed: StoredRun | None) -> Explain:
    """Return what has a piece trained, by the worker that has those before it in mind."""
    settings = dataclasses.replace(settings, seed=piece.seed)

    def explain(channel: Channel, planned: PlannedCase) -> Training | Failure | Skip:
        request = request_for(planned, settings, "training", steps=asked.steps, arm=piece.arm, fresh=False)
        reply = channel.serve(request)
        if reply.training is None:
            return ended_by(reply, planned.case, "training")
        if resumed is not None:
            _check_same_network(resumed, planned.case, reply.training)
        return reply.training

    return explain


def _check_same_network(resumed: StoredRun, case: Case, training: Training) -> None:
    """Raise `UsageError` where a training began with other weights or inputs than one of the run from its seed."""
    for case_id, trainings in resumed.trainings.items():
        if resumed.cases[case_id].group != case.group or resumed.cases[case_id].device != case.device:
            continue
        for was in trainings:
            for what in ("weights", "inputs"):
                if was.seed == training.seed and getattr(was, f"{what}_digest") != getattr(training, f"{what}_digest"):
                    raise UsageError(
                        f"run {resumed.header.run} cannot be resumed: the {what} of {case.workload} are others than it "
                        "began with; start a new run"
                    )


def _with_baselines(
    selection: Selection, environment: Environment, channel: Channel, settings: Settings
) -> list[PlannedCase]:
    """Return the cases of `selection`, and for each the fp32 case of the same, whatever is selected."""
    describe = describer(channel, settings)
    asked = dataclasses.replace(selection, precisions=selection.precisions and [BASELINE, *selection.precisions])
    everything = make_plan(dataclasses.replace(asked, keyword=""), environment, describe)
    chosen = make_plan(selection, environment, describe)
    ids = {planned.case.case_id for planned in chosen}
    ids |= {_in_precision(planned.case, BASELINE).case_id for planned in chosen}
    return [planned for planned in everything if planned.case.case_id in ids]


def _in_precision(case: Case, precision: str) -> Case:
    """Return `case` as it would be in fp32, which has no scaler to leave out, by another name."""
    return dataclasses.replace(case, precision=precision, input_dtype="fp32", scaler=True)
