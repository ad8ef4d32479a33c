"""The explanations of headroom and of where errors begin: a worker of its own watches the values of each case.

Both watch real values, so that a device that is absent skips its cases, as it does when measuring.
"""

from functools import partial

from msgspec import structs

from ampbench.core.keywords import matches
from ampbench.core.precisions import BASELINE, LOW, SHORT_DTYPES, Precision, find_precision
from ampbench.drive.pieces import Piece, Seen, ask_case
from ampbench.drive.planning import FEATURES_ALONE, NO_LOSS, PlannedCase, lack, make_plan
from ampbench.drive.servers import Channel
from ampbench.drive.session import describer
from ampbench.errors import NothingToRunError
from ampbench.records.case import Case, Environment
from ampbench.records.kinds import HEADROOM, ORIGIN
from ampbench.records.ranges import OriginPass, RangePass, RangesAsked
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Nothing, Task
from ampbench.studies.study import AUTOCAST_HELP, INFERENCE_HELP, Instrument, Option, Selects, Session
from ampbench.workloads.index import LIBRARIES

HEADROOM_HELP = """\
Watch fp32 steps: how near each module's values are to what fp16 and bf16 hold, and which loss scales fit.

Without --phase, the steps are of training, where there is a loss. What would overflow, flush to zero or be
swallowed by rounding is predicted, then seen in a step of each low precision. The run is stored: ampbench show RUN
prints it again, with --all all of it.

\b
Examples:
  ampbench explain headroom model.py:make
  ampbench explain headroom resnet50 --phase training --steps 4
  ampbench explain headroom mlp --precision fp16_autocast --precision fp16_pure --all
"""
ORIGIN_HELP = """\
Run each module on the exact inputs it has in fp32: what it errs by itself, and what it only inherits.

Without --phase, the step is one of inference. The module where an infinity or NaN begins is named, too. The run is
stored: ampbench show RUN prints it again, with --all every module.

\b
Examples:
  ampbench explain origin model.py:make
  ampbench explain origin resnet50 --precision fp16_pure --precision bf16_pure
  ampbench explain origin decoder_lm --all
"""
RANGES_TASK = Task("ranges", RangesAsked, RangePass, "ampbench.instruments.ranges.measure:do_ranges")
ORIGIN_TASK = Task("origin", Nothing, OriginPass, "ampbench.instruments.ranges.measure:do_origin")


def _plan_headroom(
    selection: Selection, _: RangesAsked, environment: Environment, channel: Channel, settings: Settings
) -> list[PlannedCase]:
    """Return the fp32 cases of a selection, whose precisions are those that are tried beside.

    Where no phase is named, a workload is watched in training if that can run, else in inference.
    """
    asked = structs.replace(selection, precisions=[BASELINE])
    try:
        found = make_plan(asked, environment, describer(channel, settings))
    except NothingToRunError as error:
        raise NothingToRunError(f"{error}, as all are of {BASELINE}: --precision says what is tried beside") from None
    return found if selection.phases else _one_phase_each(found)


def _watch(session: Session[RangesAsked], channel: Channel, piece: Piece) -> Seen:
    """Have a case run in fp32, then for a step in each low precision selected, by default all.

    What the device cannot run of these is told in the pass's notes.
    """
    prepared, case = session.prepared, piece.planned.case
    able, notes = [], _phase_notes(case, prepared.selection)
    for row in dict.fromkeys(find_precision(name, case.device) for name in prepared.selection.precisions or LOW):
        lacking = _lacking(case, row, prepared.environment)
        if lacking:
            notes.append(f"{row.name}: skipped: {lacking}")
        else:
            able.append(row.name)
    asked = structs.replace(session.asked, precisions=able)
    found = ask_case(channel, piece.planned, prepared.settings, RANGES_TASK, asked)
    return structs.replace(found, notes=[*found.notes, *notes]) if isinstance(found, RangePass) else found


def _one_phase_each(plan: list[PlannedCase]) -> list[PlannedCase]:
    """Return of cases that differ in phase alone the one that trains, unless that is skipped."""
    chosen: dict[str, PlannedCase] = {}
    for planned in plan:
        key = _in_phase(planned.case, "").case_id
        if key not in chosen or (planned.case.phase == "training" and not planned.skip):
            chosen[key] = planned
    return list(chosen.values())


def _phase_notes(case: Case, selection: Selection) -> list[str]:
    """Say why a case that was to be trained, if possible, is not."""
    if (
        selection.phases
        or case.phase == "training"
        or not matches(selection.keyword, _in_phase(case, "training").case_id)
    ):
        return []
    why = FEATURES_ALONE if case.family in LIBRARIES else NO_LOSS
    return [f"watched in inference, so without gradients and updates: {why}"]


def _in_phase(case: Case, phase: str) -> Case:
    return structs.replace(case, phase=phase)


def _lacking(case: Case, row: Precision, environment: Environment) -> str:
    """Return what the device of an fp32 case lacks to run it in a low precision, or nothing."""
    device = environment.device(case.device)
    low = structs.replace(case, precision=row.name, input_dtype=SHORT_DTYPES[row.storage])
    lacking = lack(device, low, row) if device else None
    return lacking[0] if lacking else ""


WATCHING: Instrument[RangesAsked] = Instrument(
    kind=HEADROOM,
    help=HEADROOM_HELP,
    doing="watching",
    options=(
        Option(
            name="steps",
            default=0,
            metavar="N",
            least=0,
            most=10_000,
            help="Steps to watch in fp32; 0: one for each batch there is.",
        ),
    ),
    selects=Selects(
        question="explain the headroom",
        precision="Try it, too, beside fp32. Default: all low ones.",
        phase="inference or training. Default: training, if there is a loss.",
        among=LOW,
        otherwise="headroom tells what a low precision would make of fp32's values, and {name} is none",
    ),
    plan=_plan_headroom,
    work=lambda session: partial(_watch, session),
)
FINDING: Instrument[Nothing] = Instrument(
    kind=ORIGIN,
    help=ORIGIN_HELP,
    doing="comparing the modules of",
    task=ORIGIN_TASK,
    selects=Selects(
        question="explain the origin of the error",
        precision=AUTOCAST_HELP,
        phase=INFERENCE_HELP,
        phases=("inference",),
        among=LOW,
        otherwise="origin tells where the error of a low precision begins, and {name} is none",
    ),
)
