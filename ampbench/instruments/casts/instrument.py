"""Has worker processes trace one step of each case, a fresh one for each, and stores what they saw."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from ampbench.base.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.drive.pieces import (
    Watch,
    ask_case,
    built_in_rows,
    explain_cases,
    plan_default_autocast,
    prepared_session,
    require_named,
    require_own_ops,
)
from ampbench.drive.planning import PlannedCase, check_selection
from ampbench.drive.servers import Channel, OpenChannel
from ampbench.drive.session import Prepared
from ampbench.errors import UsageError
from ampbench.records.case import Case, Environment
from ampbench.records.casts import AUTOGRAD, CastPass, Tracing
from ampbench.records.kinds import CASTS
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Task
from ampbench.store import RunWriter

CASTS_TASK = Task(CASTS, Tracing, CastPass, "ampbench.instruments.casts.measure:do_casts", absent=True, flags=True)


def trace_case(
    channel: Channel, planned: PlannedCase, settings: Settings, tracing: Tracing
) -> CastPass | Failure | Skip:
    """Return what a fresh worker of `channel` saw of one step of the case, or why it saw nothing."""
    return ask_case(channel, planned, settings, CASTS_TASK, tracing)


@contextmanager
def prepare_casts(
    selection: Selection,
    settings: Settings,
    *,
    half_inputs: bool = False,
    open_channel: OpenChannel | None = None,
) -> Iterator[Prepared]:
    """Plan which cases to trace: everything that can be wrong with `selection` is raised here.

    Cases are eager, whatever paths are selected: these are the graphs to read beside the eager step. Without
    precisions, each device gets the autocast precision of its default dtype; without phases, inference is traced.
    `half_inputs` gives floating inputs in the dtype that autocast casts to. A device that is absent skips no case: its
    workers trace on fake tensors. Raises `UsageError` where no workload is named, for a precision that runs the ops of
    another and one that casts nothing where inputs are to be in half, and what `make_plan` raises.
    """
    require_named(selection, "casts", "explain the casts")
    selection = dataclasses.replace(selection, phases=selection.phases or ["inference"])
    sources = check_selection(selection)
    require_own_ops(selection)
    if half_inputs:
        _check_halvable(selection)

    def plan(environment: Environment, channel: Channel, settings: Settings) -> list[PlannedCase]:
        found = plan_default_autocast(selection, environment, channel, settings, absent_devices=True)
        if not half_inputs:
            return found
        return [dataclasses.replace(planned, case=_with_half_inputs(planned.case)) for planned in found]

    with prepared_session(selection, settings, sources, plan, open_channel) as session:
        yield session


def trace_cases(prepared: Prepared, tracing: Tracing, writer: RunWriter, watch: Watch) -> str:
    """Trace what is planned, as `explain_cases` does, and return how the session ended.

    Each case is asked for as `tracing` says, with the graphs of the paths selected and, in training, that of autograd.
    """

    def trace(channel: Channel, planned: PlannedCase) -> CastPass | Failure | Skip:
        asked = dataclasses.replace(tracing, graphs=graphs_of(planned, prepared.selection))
        return trace_case(channel, planned, prepared.settings, asked)

    return explain_cases(prepared, trace, writer, watch)


def graphs_of(planned: PlannedCase, selection: Selection) -> list[str]:
    """Return the graphs to read beside the eager step: of the paths selected, and autograd's in training."""
    paths = [path for path in dict.fromkeys(selection.paths) if path != "eager"]
    return [*paths, *([AUTOGRAD] if planned.case.phase == "training" else [])]


def _check_halvable(selection: Selection) -> None:
    """Raise `UsageError` for a precision without autocast, which has no dtype to store inputs in."""
    for row in built_in_rows(selection):
        if not row.autocast:
            raise UsageError(
                f"--half-inputs stores inputs in the dtype that autocast casts to, and {row.name} runs without "
                "autocast: leave one of them out"
            )


def _with_half_inputs(case: Case) -> Case:
    dtype = PRECISIONS[case.precision].autocast
    return dataclasses.replace(case, input_dtype=SHORT_DTYPES[dtype]) if dtype else case
