"""Which settings of GradScaler there are, and how they are sent.

Which trainings a study of loss scaling is made of, and which of them a stored run lacks.

Has worker processes train cases with each setting of GradScaler, a fresh one for each, and stores what they saw.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ampbench.base.precisions import BASELINE, SCALED
from ampbench.drive.pieces import (
    Explain,
    Watch,
    ask_case,
    built_in_rows,
    explain_pieces,
    prepared_session,
    require_named,
    resumed_plan,
)
from ampbench.drive.planning import PlannedCase, check_selection, make_plan
from ampbench.drive.servers import Channel, OpenChannel
from ampbench.drive.session import Prepared, check_same_network, describer
from ampbench.errors import UnknownNameError, UsageError
from ampbench.instruments.scaler.records import ScalerRun, ScalingAsked
from ampbench.records.case import Environment
from ampbench.records.kinds import SCALER
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Asked, ScalerSetting, Selection, Settings
from ampbench.records.wire import Task
from ampbench.store import RunWriter, StoredRun

SCALER_TASK = Task(SCALER, ScalingAsked, ScalerRun, "ampbench.instruments.scaler.measure:do_scaler")


def setting_name(setting: ScalerSetting | None) -> str:
    """Return what a training with a setting is called; None: in fp32."""
    return setting.name if setting else BASELINE


def trained(stored: StoredRun | None) -> set[tuple[str, str]]:
    """Return which trainings are in a run, by the ids of cases and the names of settings."""
    found = stored.several_of(ScalerRun).items() if stored else ()
    return {(case_id, run.setting.name) for case_id, runs in found for run in runs}


def unfinished(stored: StoredRun) -> list[tuple[str, str]]:
    """Return which trainings a run lacks, by the ids of cases and the names of settings, in the order of the run.

    Cases that failed or were skipped lack none, nor does a run that does not say what it was asked for.
    """
    done, asked = trained(stored), stored.header.asked
    if asked is None:
        return []
    return [
        (case_id, name)
        for case_id in stored.cases
        if case_id not in stored.given_up
        for name in map(setting_name, (None, *asked.settings))
        if (case_id, name) not in done
    ]


SETTINGS = (
    ScalerSetting(name="no scaling", enabled=False),
    ScalerSetting(name="default"),
    ScalerSetting(name="low start", init_scale=1.0, growth_interval=10),
    ScalerSetting(name="high start", init_scale=2.0**24),
    ScalerSetting(name="fast growth", growth_interval=10),
)
"""What is tried beside fp32: the third has to find its scale from below, the fourth from above, the last goes on
looking for a higher one."""

Piece = tuple[PlannedCase, ScalerSetting | None]
"""A case and what it is trained with; None: in fp32."""


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


@contextmanager
def prepare_scaling(
    selection: Selection,
    settings: Settings,
    asked: Asked,  # noqa: ARG001 - as all studies
    resumed: StoredRun | None = None,
    *,
    open_channel: OpenChannel | None = None,
) -> Iterator[Prepared]:
    """Plan which cases to train: everything that can be wrong with `selection` is raised here.

    With `resumed`, the run to go on with, whose selection, settings and `asked` these must be, only the cases that lack
    a setting are planned. Raises `UsageError` where no workload is named, for a precision that
    GradScaler is not for and a run that was begun in another environment or gives other cases now, and what `make_plan`
    raises.
    """
    require_named(selection, SCALER, "study the loss scaling")
    _require_scaled(selection)
    # "amp" is fp16 here, wherever it is trained: no other autocast is scaled
    precisions = [SCALED[0] if name.strip().lower() == "amp" else name for name in selection.precisions] or SCALED
    selection = dataclasses.replace(selection, phases=["training"], precisions=precisions)
    sources = check_selection(selection)

    def plan(environment: Environment, channel: Channel, settings: Settings) -> list[PlannedCase]:
        found = make_plan(selection, environment, describer(channel, settings))
        if resumed is None:
            return found
        return resumed_plan(resumed, environment, found, {case_id for case_id, _ in unfinished(resumed)})

    with prepared_session(selection, settings, sources, plan, open_channel) as session:
        yield session


def pieces(prepared: Prepared, asked: Asked, resumed: StoredRun | None = None) -> list[Piece]:
    """Return the trainings that are planned and not in `resumed` yet: of each case in fp32, then with each setting."""
    done = trained(resumed)
    return [
        (planned, setting)
        for planned in prepared.plan
        if not planned.skip
        for setting in (None, *asked.settings)
        if (planned.case.case_id, setting_name(setting)) not in done
    ]


def scale_cases(
    prepared: Prepared, asked: Asked, writer: RunWriter, watch: Watch, resumed: StoredRun | None = None
) -> str:
    """Train what is planned, as `explain_pieces` does, and return how the session ended.

    Raises `UsageError` where the weights of a case are not those that it was trained from in `resumed`.
    """

    def training(setting: ScalerSetting | None) -> Explain:
        def explain(channel: Channel, planned: PlannedCase) -> ScalerRun | Failure | Skip:
            wanted = ScalingAsked(setting=setting, steps=asked.steps)
            found = ask_case(channel, planned, prepared.settings, SCALER_TASK, wanted)
            if resumed is not None and isinstance(found, ScalerRun):
                for before in resumed.several_of(ScalerRun).get(planned.case.case_id, []):
                    check_same_network(resumed.header.run, planned.case.workload, before, found)
            return found

        return explain

    todo = [(planned, training(setting)) for planned, setting in pieces(prepared, asked, resumed)]
    return explain_pieces(prepared, todo, writer, watch)


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
