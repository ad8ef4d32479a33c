"""Has worker processes train cases in every scope of autocast, and stores what that came to."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from ampbench.base.precisions import AUTOCAST
from ampbench.drive.pieces import (
    Watch,
    ask_case,
    explain_cases,
    plan_default_autocast,
    prepared_session,
    require_among,
    require_eager,
    require_named,
    resumed_plan,
    unfinished,
)
from ampbench.drive.planning import PlannedCase, check_selection
from ampbench.drive.servers import Channel, OpenChannel
from ampbench.drive.session import Prepared
from ampbench.errors import UsageError
from ampbench.instruments.scope.records import ScopeAsked, ScopePass
from ampbench.records.case import Environment
from ampbench.records.kinds import SCOPE
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Asked, Selection, Settings
from ampbench.records.wire import Task
from ampbench.store import RunWriter, StoredRun

SCOPE_TASK = Task(SCOPE, ScopeAsked, ScopePass, "ampbench.instruments.scope.measure:do_scopes")


@contextmanager
def prepare_scopes(
    selection: Selection,
    settings: Settings,
    asked: Asked,  # noqa: ARG001 - as all studies
    resumed: StoredRun | None = None,
    *,
    open_channel: OpenChannel | None = None,
) -> Iterator[Prepared]:
    """Plan which training cases with autocast to study: everything that can be wrong is raised here.

    Without precisions, each device gets the autocast precision of its default dtype. With `resumed`, the run to go on
    with, whose selection and settings these must be, only what that lacks is planned. Raises `UsageError` where no
    workload is named, for a path but eager, inference, a precision without autocast and a run that was
    begun in another environment or gives other cases now, and what `make_plan` raises.
    """
    require_named(selection, SCOPE, "study the scope of autocast")
    selection = dataclasses.replace(selection, phases=selection.phases or ["training"])
    sources = check_selection(selection)
    require_eager(selection, SCOPE)
    _require_training(selection)
    require_among(selection, AUTOCAST, "{name} enters no autocast, so that it has no scope")

    def plan(environment: Environment, channel: Channel, settings: Settings) -> list[PlannedCase]:
        found = plan_default_autocast(selection, environment, channel, settings)
        return found if resumed is None else resumed_plan(resumed, environment, found, unfinished(resumed))

    with prepared_session(selection, settings, sources, plan, open_channel) as session:
        yield session


def study_scopes(
    prepared: Prepared,
    asked: Asked,
    writer: RunWriter,
    watch: Watch,
    resumed: StoredRun | None = None,  # noqa: ARG001 - as all studies
) -> str:
    """Study what is planned, as `explain_cases` does, and return how the session ended.

    Each case is trained for `asked.steps` steps in every scope, and these are timed for about `asked.seconds`.
    """

    def explain(channel: Channel, planned: PlannedCase) -> ScopePass | Failure | Skip:
        wanted = ScopeAsked(steps=asked.steps, seconds=asked.seconds)
        return ask_case(channel, planned, prepared.settings, SCOPE_TASK, wanted)

    return explain_cases(prepared, explain, writer, watch)


def _require_training(selection: Selection) -> None:
    others = [phase for phase in selection.phases if phase != "training"]
    if others:
        raise UsageError(f"scope studies a loop of training steps, which {others[0]} has not: leave the phase out")
