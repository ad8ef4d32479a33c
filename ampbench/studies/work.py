"""Studies and instruments at work: cases are planned, or those found that a run lacks, and done piece by piece."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TypeVar

from msgspec import structs

from ampbench.drive.pieces import (
    Piece,
    Watch,
    Work,
    ask_case,
    do_pieces,
    plan_default_autocast,
    prepared_session,
    require_among,
    require_eager,
    resumed_plan,
)
from ampbench.drive.planning import PlannedCase, check_selection
from ampbench.drive.servers import Channel, OpenChannel, ServerChannel
from ampbench.drive.session import Prepared, check_same
from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.case import DEVICES, Environment
from ampbench.records.kinds import KINDS, verb_of
from ampbench.records.measured import Failure
from ampbench.records.run import Entry, Selection, Settings
from ampbench.records.wire import Task, ask
from ampbench.store import RunWriter, StoredRun
from ampbench.studies.study import Instrument, Selects, Session, instrument_of

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")


@contextmanager
def prepared(
    instrument: Instrument[A],
    selection: Selection,
    settings: Settings,
    asked: A,
    begun: StoredRun | None = None,
    *,
    open_channel: OpenChannel | None = None,
) -> Iterator[Prepared]:
    """Plan the cases that `selection` and `asked` give, and yield the session, whose server ends with the context.

    Everything that can be wrong is raised here. With `begun`, the run to go on with, whose selection, settings and
    `asked` these must be, only the cases that it lacks are planned. Raises `UsageError` where no workload is named, for
    a path or a precision that the instrument is not for, and for a run that was begun in another environment or gives
    other cases now; and what `make_plan` raises. Of an instrument without cases, `UnknownNameError` for a device that
    there is not.
    """
    if instrument.require is not None:
        with _without_cases(instrument, selection, settings, asked, begun, open_channel) as session:
            yield session
        return
    selects = instrument.selects
    assert selects is not None
    selection = _selected(instrument.kind, selects, selection)
    sources = check_selection(selection)
    if selects.eager:
        require_eager(selection, instrument.kind)
    if selects.among:
        require_among(selection, selects.among, selects.otherwise)
    selection = instrument.refined(selection, asked)

    def plan(environment: Environment, channel: Channel, settings: Settings) -> list[PlannedCase]:
        if instrument.plan is not None:
            found = instrument.plan(selection, asked, environment, channel, settings)
        else:
            found = plan_default_autocast(selection, environment, channel, settings)
        if begun is None:
            return found
        left = resumed_plan(begun, environment, found, set(instrument.left(begun)))
        instrument.same(begun, left, channel, settings)
        return left

    own_elsewhere = None if selects.own_precisions else _taking_own
    with prepared_session(selection, settings, sources, plan, open_channel, own_elsewhere=own_elsewhere) as session:
        yield session


def _taking_own() -> list[str]:
    """Return the verbs that measure in a user's own precisions."""
    selects = {row.name: instrument_of(row.name).selects for row in KINDS.values()}
    taking = [kind for kind, each in selects.items() if each is not None and each.own_precisions]
    return [f"ampbench {verb_of(kind)}" for kind in ("", *taking)]


def _without_cases(
    instrument: Instrument[A],
    selection: Selection,
    settings: Settings,
    asked: A,
    begun: StoredRun | None,
    open_channel: OpenChannel | None,
) -> AbstractContextManager[Prepared]:
    for name in selection.devices:
        if name not in DEVICES:
            raise UnknownNameError("device", name, DEVICES)

    def plan(environment: Environment, *_: object) -> list[PlannedCase]:
        if begun is not None:
            check_same(begun.header.environment, environment, begun.header.run)
        assert instrument.require is not None
        instrument.require(selection, asked, environment)
        return []

    open_new = open_channel or partial(ServerChannel, preload=instrument.preload)
    return prepared_session(selection, settings, [], plan, open_new)


def worked(
    instrument: Instrument[A], session: Session[A], pieces: Sequence[Piece], writer: RunWriter, watch: Watch
) -> str:
    """Have `pieces` of a session worked on one after another, as `do_pieces` does, and return how it ended."""

    def keep(piece: Piece, seen: Entry) -> None:
        writer.check(seen)
        watch(piece, seen)
        writer.append(seen)

    at_work = dataclasses.replace(session, keep=keep)

    return do_pieces(session.prepared.open_channel, pieces, _work_of(instrument, at_work), writer, watch)


def ask_device(channel: Channel, device: str, settings: Settings, task: Task[B, R], asked: B) -> R | Failure | str:
    """Have a task that is of no case done on a type of device; return what was found, or why nothing was.

    `drive.pieces.ask_case` is the same of a case.
    """
    reply = channel.serve(
        ask(
            task,
            asked,
            device=device,
            threads=settings.threads,
            timeout_seconds=settings.timeout_seconds,
            memory_limit_bytes=settings.memory_limit_bytes,
        )
    )
    found = task.found(reply)
    if found is not None:
        return found
    return reply.failure or reply.problem or "the worker gave no answer"


def _work_of(instrument: Instrument[A], session: Session[A]) -> Work:
    if instrument.work is not None:
        return instrument.work(session)
    task = instrument.task
    assert task is not None
    return lambda channel, piece: ask_case(channel, piece.planned, session.prepared.settings, task, session.asked)


def _selected(kind: str, selects: Selects, selection: Selection) -> Selection:
    if not selection.workloads and not selects.workloads:
        verb = f"ampbench {verb_of(kind)}"
        raise UsageError(
            f"{selects.question} of which workload? Name one, as in `{verb} mlp` or `{verb} model.py:make`; "
            "ampbench list workloads shows what there is"
        )
    return structs.replace(
        selection,
        workloads=selection.workloads or list(selects.workloads),
        phases=selection.phases or list(selects.phases),
    )
