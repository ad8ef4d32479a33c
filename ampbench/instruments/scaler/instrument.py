"""The study of loss scaling: cases trained in fp32 and with each setting of GradScaler, each time by a new worker."""

from collections.abc import Sequence
from functools import partial

from msgspec import structs

from ampbench.core.precisions import SCALED
from ampbench.drive.pieces import Piece, Seen, ask_case, asked_of, built_in_rows
from ampbench.drive.planning import PlannedCase, make_plan
from ampbench.drive.servers import Channel
from ampbench.drive.session import check_same_network, describer
from ampbench.errors import UnknownNameError, UsageError
from ampbench.instruments.scaler.findings import setting_name, trained, unfinished
from ampbench.instruments.scaler.records import ScalerAsked, ScalerRun, ScalingAsked
from ampbench.records.case import Environment
from ampbench.records.kinds import SCALER
from ampbench.records.run import ScalerSetting, Selection, Settings
from ampbench.records.wire import Task
from ampbench.store import StoredRun
from ampbench.studies.study import Given, Instrument, Option, Selects, Session

HELP = """\
Train in fp32, in fp16 without loss scaling and with GradScaler in several settings, from the same weights.

Tells what share of the gradients flushes to zero and how far they err, the scale in every step, skipped steps and
the parameters whose gradients overflow, and whether the loss falls as in fp32.

\b
Examples:
  ampbench study scaler model.py:make
  ampbench study scaler unet --preset tiny --steps 200
  ampbench study scaler mlp --setting default --init-scale 1024 --growth-interval 100
  ampbench study scaler --resume 1f9a3c              an interrupted study, by its id
"""
TASK = Task(SCALER, ScalingAsked, ScalerRun, "ampbench.instruments.scaler.measure:do_scaler")
YOURS = ScalerSetting(name="yours")
"""GradScaler's own defaults, of a setting that a user gives."""

SETTINGS = (
    ScalerSetting(name="no scaling", enabled=False),
    ScalerSetting(name="default"),
    ScalerSetting(name="low start", init_scale=1.0, growth_interval=10),
    ScalerSetting(name="high start", init_scale=2.0**24),
    ScalerSetting(name="fast growth", growth_interval=10),
)
"""What is tried beside fp32: the third has to find its scale from below, the fourth from above, the last goes on
looking for a higher one."""


def chosen_settings(names: Sequence[str], own: ScalerSetting | None, *, scaler: bool) -> list[ScalerSetting]:
    """Return the settings of `SETTINGS` that `names` name (none: all), and the user's `own`; without `scaler`, those
    that have none.

    Raises `UnknownNameError` for a name that there is not, and `UsageError` where none is left that was asked for.
    """
    known = {setting.name: setting for setting in SETTINGS}
    for name in names:
        if name not in known:
            raise UnknownNameError("setting", name, known)
    asked = [setting for name, setting in known.items() if name in names or not names]
    asked += [own] if own else []
    chosen = [setting for setting in asked if scaler or not setting.enabled]
    if not scaler and (own or not chosen):
        raise UsageError("--no-scaler leaves no setting but 'no scaling': leave it out, or the other settings")
    return chosen


def own_setting(given: Given) -> ScalerSetting | None:
    """Return the setting that the options give, if one is given; `UsageError` for what GradScaler does not take."""
    if not any(one.name in given.typed for one in structs.fields(ScalerSetting)):
        return None
    names = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
    init_scale, growth_factor, backoff_factor, growth_interval = (given.values[name] for name in names)
    for option, holds, wanted in (
        (f"--init-scale {init_scale:g}", 0 < init_scale < 2.0**128, "a finite number above 0, as fp32 holds it"),
        (f"--growth-factor {growth_factor:g}", 1 < growth_factor < float("inf"), "a number above 1"),
        (f"--backoff-factor {backoff_factor:g}", 0 < backoff_factor < 1, "between 0 and 1"),
        (f"--growth-interval {growth_interval}", growth_interval >= 1, "at least 1"),
    ):
        if not holds:
            raise UsageError(f"{option}: must be {wanted}")
    return structs.replace(YOURS, **{name: given.values[name] for name in names})


def _made(given: Given) -> ScalerAsked:
    settings = chosen_settings(given.values["setting"], own_setting(given), scaler=given.selection.scaler)
    return ScalerAsked(steps=given.values["steps"], settings=settings)


def _refined(selection: Selection, _: ScalerAsked) -> Selection:
    _require_scaled(selection)
    # "amp" is fp16 here, wherever it is trained: no other autocast is scaled
    precisions = [SCALED[0] if name.strip().lower() == "amp" else name for name in selection.precisions]
    return structs.replace(selection, precisions=precisions or list(SCALED))


def _plan(
    selection: Selection, _: ScalerAsked, environment: Environment, channel: Channel, settings: Settings
) -> list[PlannedCase]:
    return make_plan(selection, environment, describer(channel, settings))


def _left(stored: StoredRun) -> list[str]:
    asked_of(stored)  # of a run that does not say it, nothing is known to be left
    return [case_id for case_id, _ in unfinished(stored)]


def pieces(session: Session[ScalerAsked]) -> list[Piece]:
    """Return the trainings that are planned and not made yet: of each case in fp32, then with each setting."""
    done = trained(session.begun) if session.begun else ()
    return [
        Piece(planned, setting)
        for planned in session.prepared.plan
        if not planned.skip
        for setting in (None, *session.asked.settings)
        if (planned.case.case_id, setting_name(setting)) not in done
    ]


def _train(session: Session[ScalerAsked], channel: Channel, piece: Piece) -> Seen:
    """Train a case; raises `UsageError` where its weights are not those that it was trained from in the run before."""
    asked = ScalingAsked(setting=piece.part, steps=session.asked.steps)
    found = ask_case(channel, piece.planned, session.prepared.settings, TASK, asked)
    if session.begun is not None and isinstance(found, ScalerRun):
        case = piece.planned.case
        for before in session.begun.several_of(ScalerRun).get(case.case_id, []):
            check_same_network(session.begun.header.run, case.workload, before, found)
    return found


def _require_scaled(selection: Selection) -> None:
    """Raise `UsageError`, saying why it needs no scaler or can have none, for a precision without GradScaler."""
    for row in built_in_rows(selection):
        if row.name in SCALED:
            continue
        needless = "it has fp32's range" if "bfloat16" in (row.storage, row.autocast) else "nothing in it is fp16"
        why = f"needs no loss scaling: {needless}"
        if row.storage == "float16":
            why = "can have none: GradScaler refuses fp16 parameters (Attempting to unscale FP16 gradients)"
        if row.scaler:
            why = "scales the same gradients in the same way"
        raise UsageError(f"{row.name} {why}; loss scaling is studied in {' and '.join(SCALED)}")


_OF_YOURS = "Of a setting of yours."
INSTRUMENT: Instrument[ScalerAsked] = Instrument(
    kind=SCALER,
    help=HELP,
    doing="training",
    options=(
        Option(name="steps", default=100, metavar="N", least=1, most=1_000_000, help="Steps of each training."),
        Option(
            name="setting",
            default=None,
            names=True,
            help="Only this one beside fp32: 'no scaling', default, 'low start', 'high start' or 'fast growth'.",
        ),
        Option(name="init_scale", default=YOURS.init_scale, metavar="SCALE", help=_OF_YOURS),
        Option(name="growth_factor", default=YOURS.growth_factor, metavar="FACTOR", help=_OF_YOURS),
        Option(name="backoff_factor", default=YOURS.backoff_factor, metavar="FACTOR", help=_OF_YOURS),
        Option(name="growth_interval", default=YOURS.growth_interval, metavar="STEPS", help=_OF_YOURS),
    ),
    selects=Selects(
        question="study the loss scaling",
        precision="Only fp16_autocast, the default: GradScaler is for no other.",
        scaler="--no-scaler: train only in fp32 and without scaling (for devices without fp64, which GradScaler "
        "needs).",
        phases=("training",),
        recipes=True,
    ),
    made=_made,
    refined=_refined,
    plan=_plan,
    pieces=pieces,
    left=_left,
    work=lambda session: partial(_train, session),
)
