"""Has worker processes measure what storing each case's inputs in half saves and loses, and stores what they saw."""

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
from ampbench.drive.planning import NO_LOSS, PlannedCase, check_selection
from ampbench.drive.servers import Channel, OpenChannel
from ampbench.drive.session import Prepared
from ampbench.instruments.input_storage.records import StorageAsked, StoragePass
from ampbench.records.case import PHASES, Environment
from ampbench.records.kinds import INPUT_STORAGE
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Asked, Selection, Settings
from ampbench.records.wire import Task
from ampbench.store import RunWriter, StoredRun

STORAGE_TASK = Task(INPUT_STORAGE, StorageAsked, StoragePass, "ampbench.instruments.input_storage.measure:do_storage")


@contextmanager
def prepare_storage(
    selection: Selection,
    settings: Settings,
    asked: Asked,  # noqa: ARG001 - as all studies
    resumed: StoredRun | None = None,
    *,
    open_channel: OpenChannel | None = None,
) -> Iterator[Prepared]:
    """Plan which cases with autocast to measure: everything that can be wrong with `selection` is raised here.

    Without precisions, each device gets the autocast precision of its default dtype; without phases, inference and,
    where there is a loss, training are measured. With `resumed`, the run to go on with, whose selection and settings
    these must be, only what that lacks is planned. Raises `UsageError` where no workload is named, for a path but
    eager, a precision without autocast and a run that was begun in another environment or gives other cases now, and
    what `make_plan` raises.
    """
    require_named(selection, INPUT_STORAGE, "study the inputs")
    sources = check_selection(selection)
    require_eager(selection, INPUT_STORAGE)
    require_among(selection, AUTOCAST, "input-storage asks what autocast does with inputs in half, and {name} has none")

    def plan(environment: Environment, channel: Channel, settings: Settings) -> list[PlannedCase]:
        asked = dataclasses.replace(selection, phases=selection.phases or list(PHASES))
        found = plan_default_autocast(asked, environment, channel, settings)
        if not selection.phases:
            found = [planned for planned in found if planned.skip != NO_LOSS] or found
        return found if resumed is None else resumed_plan(resumed, environment, found, unfinished(resumed))

    with prepared_session(selection, settings, sources, plan, open_channel) as session:
        yield session


def measure_storages(
    prepared: Prepared,
    asked: Asked,
    writer: RunWriter,
    watch: Watch,
    resumed: StoredRun | None = None,  # noqa: ARG001 - as all studies
) -> str:
    """Measure each planned case for `asked.seconds`, as `explain_cases` does, and return how the session ended."""

    def explain(channel: Channel, planned: PlannedCase) -> StoragePass | Failure | Skip:
        return ask_case(channel, planned, prepared.settings, STORAGE_TASK, StorageAsked(seconds=asked.seconds))

    return explain_cases(prepared, explain, writer, watch)
