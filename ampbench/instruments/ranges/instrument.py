"""Has worker processes watch how large the values of cases are, or where their errors begin, and stores what they saw.

Both watch real values, so that a device that is absent skips its cases, as it does when measuring.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from ampbench.base.names import matches
from ampbench.base.precisions import BASELINE, LOW, SHORT_DTYPES, Precision, find_precision
from ampbench.drive.pieces import (
    Watch,
    ask_case,
    explain_cases,
    plan_default_autocast,
    prepared_session,
    require_among,
    require_eager,
    require_named,
)
from ampbench.drive.planning import NO_LOSS, PlannedCase, check_selection, lack, make_plan
from ampbench.drive.servers import Channel, OpenChannel
from ampbench.drive.session import Prepared, describer
from ampbench.errors import NothingToRunError
from ampbench.instruments.ranges.records import RangesAsked
from ampbench.records.case import Case, Environment
from ampbench.records.measured import Failure, Skip
from ampbench.records.ranges import OriginPass, RangePass
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Nothing, Task
from ampbench.store import RunWriter

RANGES_TASK = Task("ranges", RangesAsked, RangePass, "ampbench.instruments.ranges.measure:do_ranges")
ORIGIN_TASK = Task("origin", Nothing, OriginPass, "ampbench.instruments.ranges.measure:do_origin")


@contextmanager
def prepare_headroom(
    selection: Selection, settings: Settings, *, open_channel: OpenChannel | None = None
) -> Iterator[Prepared]:
    """Plan which fp32 cases to watch: everything that can be wrong with `selection` is raised here.

    Its precisions are those that are tried beside fp32. Without phases, a workload is watched in training where that
    can run, else in inference. Raises `UsageError` where no workload is named, for a path but eager and a precision
    that is not low, and what `make_plan` raises.
    """
    require_named(selection, "headroom", "explain the headroom")
    sources = check_selection(selection)
    require_eager(selection, "headroom")
    require_among(selection, LOW, "headroom tells what a low precision would make of fp32's values, and {name} is none")

    def plan(environment: Environment, channel: Channel, settings: Settings) -> list[PlannedCase]:
        asked = dataclasses.replace(selection, precisions=[BASELINE])
        try:
            found = make_plan(asked, environment, describer(channel, settings))
        except NothingToRunError as error:
            raise NothingToRunError(
                f"{error}, as all are of {BASELINE}: --precision says what is tried beside"
            ) from None
        return found if selection.phases else _one_phase_each(found)

    with prepared_session(selection, settings, sources, plan, open_channel) as session:
        yield session


def watch_cases(prepared: Prepared, steps: int, writer: RunWriter, watch: Watch) -> str:
    """Watch what is planned, as `explain_cases` does, and return how the session ended.

    Each case is run for `steps` steps in fp32 (0: one for each of its batches), then for one in each low precision
    selected, by default all. What the device cannot run of these is told in the pass's notes.
    """
    names = prepared.selection.precisions or LOW

    def explain(channel: Channel, planned: PlannedCase) -> RangePass | Failure | Skip:
        case, able, notes = planned.case, [], _phase_notes(planned.case, prepared.selection)
        for row in dict.fromkeys(find_precision(name, case.device) for name in names):
            lacking = _lacking(case, row, prepared.environment)
            if lacking:
                notes.append(f"{row.name}: skipped: {lacking}")
            else:
                able.append(row.name)
        asked = RangesAsked(steps=steps, precisions=able)
        found = ask_case(channel, planned, prepared.settings, RANGES_TASK, asked)
        return dataclasses.replace(found, notes=[*found.notes, *notes]) if isinstance(found, RangePass) else found

    return explain_cases(prepared, explain, writer, watch)


@contextmanager
def prepare_origin(
    selection: Selection, settings: Settings, *, open_channel: OpenChannel | None = None
) -> Iterator[Prepared]:
    """Plan of which low-precision cases to find where their errors begin; raises as `prepare_headroom` does.

    Without precisions, each device gets the autocast precision of its default dtype; without phases, inference runs.
    """
    require_named(selection, "origin", "explain the origin of the error")
    selection = dataclasses.replace(selection, phases=selection.phases or ["inference"])
    sources = check_selection(selection)
    require_eager(selection, "origin")
    require_among(selection, LOW, "origin tells where the error of a low precision begins, and {name} is none")

    def plan(environment: Environment, channel: Channel, settings: Settings) -> list[PlannedCase]:
        return plan_default_autocast(selection, environment, channel, settings)

    with prepared_session(selection, settings, sources, plan, open_channel) as session:
        yield session


def find_origins(prepared: Prepared, writer: RunWriter, watch: Watch) -> str:
    """Find where the error of each planned case begins, as `explain_cases` does, and return how the session ended."""

    def explain(channel: Channel, planned: PlannedCase) -> OriginPass | Failure | Skip:
        return ask_case(channel, planned, prepared.settings, ORIGIN_TASK, Nothing())

    return explain_cases(prepared, explain, writer, watch)


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
    return [f"watched in inference, so without gradients and updates: {NO_LOSS}"]


def _in_phase(case: Case, phase: str) -> Case:
    return dataclasses.replace(case, phase=phase)


def _lacking(case: Case, row: Precision, environment: Environment) -> str:
    """Return what the device of an fp32 case lacks to run it in a low precision, or nothing."""
    device = environment.device(case.device)
    low = dataclasses.replace(case, precision=row.name, input_dtype=SHORT_DTYPES[row.storage])
    told, _, _ = (lack(device, low, row) if device else "").partition(";")  # behind it stands an option of `run`
    return told
