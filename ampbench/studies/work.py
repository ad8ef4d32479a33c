"""Studies at work: cases are planned, or those found that a run lacks, and done piece by piece."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from ampbench import store
from ampbench.drive.pieces import (
    Piece,
    Watch,
    Work,
    ask_case,
    do_pieces,
    plan_default_autocast,
    refuse_own,
    require_among,
    require_eager,
)
from ampbench.drive.planning import PlannedCase, check_selection, in_one_phase, meant
from ampbench.drive.servers import Channel, OpenChannel, ServerChannel
from ampbench.drive.session import (
    Opened,
    Prepared,
    check_same,
    check_same_cases,
    default_memory_limit,
    new_header,
    opened_first,
    planned_skips,
    preload_modules,
    require_work,
)
from ampbench.errors import NothingToRunError, StoreError, UnknownNameError, UsageError
from ampbench.records.case import DEVICES, WorkloadSource
from ampbench.records.kinds import LINES, line_of, verb_of
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Entry, Header, Selection, Settings
from ampbench.records.wire import Task, ask
from ampbench.store import RunWriter, StoredRun
from ampbench.studies.study import Session, Study

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")


@contextmanager
def prepared(
    study: Study[A, Any],
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
    a path or a precision that the study is not for, and for a run that was begun in another environment or gives
    other cases now; and what `make_plan` raises. Of a study without cases, `UnknownNameError` for a device that
    there is not.
    """
    selection, sources = _checked(study, selection, asked)
    preload = [*study.preload]
    if study.selects is not None:  # what looks at ops is a dispatch mode, for which torch imports torch._dynamo
        preload += dict.fromkeys(["torch._dynamo", *preload_modules(selection, sources)])
    open_new = open_channel or (lambda: ServerChannel(preload=preload))
    with opened_first(open_new, settings.threads) as first:
        if settings.memory_limit_bytes is None and settings.isolation:
            settings = structs.replace(settings, memory_limit_bytes=default_memory_limit())
        if begun is not None:
            check_same(begun.header.environment, first.environment, begun.header.run)
        plan = _planned(study, selection, settings, asked, first)
        if begun is not None and study.selects is not None:
            check_same_cases(begun, plan)
            left = set(study.left(begun))
            plan = [planned for planned in plan if planned.case.case_id in left]
        yield Prepared(
            selection=selection,
            settings=settings,
            environment=first.environment,
            plan=plan,
            open_channel=first.open_channel,
        )


def _checked(study: Study[A, Any], selection: Selection, asked: A) -> tuple[Selection, list[WorkloadSource]]:
    """Return what is selected where nothing else is named, and its workloads, once all that needs no torch is checked.

    Raises `UsageError` for what cannot be meant.
    """
    selects = study.selects
    if selects is None:
        for name in selection.devices:
            if name not in DEVICES:
                raise UnknownNameError("device", name, DEVICES)
        return selection, []
    if not selection.workloads and not selects.workloads:
        verb = f"ampbench {verb_of(study.kind)}"
        raise UsageError(
            f"{selects.question} of which workload? Name one, as in `{verb} mlp` or `{verb} model.py:make`; "
            "ampbench list workloads shows what there is"
        )
    selection = structs.replace(
        selection,
        workloads=selection.workloads or list(selects.workloads),
        phases=selection.phases or list(selects.phases),
    )
    sources = check_selection(selection)
    if selects.eager:
        require_eager(selection, study.kind)
    if selects.among:
        require_among(selection, selects.among, selects.otherwise)
    return study.refined(selection, asked), sources


def _planned(
    study: Study[A, Any], selection: Selection, settings: Settings, asked: A, first: Opened
) -> list[PlannedCase]:
    """Return the cases of a selection on the machine of a first server; none where a study is of no cases."""
    selects = study.selects
    if selects is None:
        assert study.require is not None
        study.require(selection, asked, first.environment)
        return []
    if study.plan is not None:
        plan = study.plan(selection, asked, first.environment, first.channel, settings)
    else:
        plan = plan_default_autocast(selection, first.environment, first.channel, settings)
    if not selects.own_precisions:
        refuse_own(selection)
    return in_one_phase(plan) if selects.one_phase and not selection.phases else plan


def worked(study: Study[A, Any], session: Session[A], pieces: Sequence[Piece], writer: RunWriter, watch: Watch) -> str:
    """Have `pieces` of a session worked on one after another, as `do_pieces` does, and return how it ended."""

    def keep(piece: Piece, seen: Entry) -> None:
        writer.check(seen)
        watch(piece, seen)
        writer.append(seen)

    at_work = dataclasses.replace(session, keep=keep)

    return do_pieces(session.prepared.open_channel, pieces, _work_of(study, at_work), writer, watch)


Watching = Callable[[Sequence[Piece]], AbstractContextManager[Watch]]
"""Shows how far pieces of work are, within its context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """A session that ended: the `path` of its run and, where not all was seen or stored, the `problem`.

    `seen` are the entries of this session. `unstored` is the run as it was seen, where the file could not take it.
    """

    path: Path
    seen: Sequence[Entry]
    problem: StoreError | NothingToRunError | None = None
    unstored: StoredRun | None = None

    @property
    def empty(self) -> bool:
        """Whether the run says nothing of any case or device."""
        return not any(
            isinstance(entry, Failure) or (not isinstance(entry, Skip) and not LINES[line_of(type(entry))].beginning)
            for entry in self.seen
        )

    @property
    def failed(self) -> list[Failure]:
        """The failures, where all that was seen are failures."""
        failures = [entry for entry in self.seen if isinstance(entry, Failure)]
        return failures if len(failures) == sum(not isinstance(entry, Skip) for entry in self.seen) else []

    def stored(self) -> StoredRun:
        """Return the run: as it was seen, else as the file has it."""
        return self.unstored or store.read_run(self.path)


def begin(
    study: Study[Any, Any],
    selection: Selection,
    settings: Settings,
    asked: Any,
    results: Path,
    label: str,
    command: list[str],
    *,
    watching: Watching,
    note: Callable[[str], object] = lambda _: None,
    open_channel: OpenChannel | None = None,
) -> Worked:
    """Have a study work on what is selected into a new run file of the folder `results`.

    `note` is told in sentences which precisions stand for others. Where the session ends before anything was seen, no
    run is left, and `KeyboardInterrupt`, or why no server could start, is raised.
    """
    settings = structs.replace(settings, rounds=1, builds=1)
    store.require_writable(results)
    with prepared(study, selection, settings, asked, open_channel=open_channel) as planned:
        if study.selects is not None:
            require_work(planned)
        for sentence in meant(planned.selection, planned.plan):
            note(sentence)
        header = new_header(planned.selection, planned.settings, planned.environment, planned.plan, label, command)
        header = structs.replace(header, explains=study.kind, asked=msgspec.to_builtins(asked))
        with RunWriter.create(results, header, [each.case for each in planned.plan]) as writer:
            done, ended = work_through(study, Session(prepared=planned, asked=asked), header, writer, watching)
    if ended == "interrupted" and done.empty:
        done.path.unlink()  # a run of nothing would stand in every list
        raise done.problem or KeyboardInterrupt
    return done


def work_through(
    study: Study[A, Any], session: Session[A], header: Header, writer: RunWriter, watching: Watching
) -> tuple[Worked, str]:
    """Have all that is planned worked on, into the file of `writer`; return what came of it, and how it ended."""
    plan = session.prepared.plan
    seen: list[Entry] = list(planned_skips(plan))
    try:
        writer.append(*seen)
        pieces = study.pieces(session)
        with watching(pieces) as show:

            def watch(piece: Piece, entry: Entry | None) -> None:
                if entry is not None:
                    seen.append(entry)
                show(piece, entry)

            ended = worked(study, session, pieces, writer, watch)
    except StoreError as error:
        held = store.gathered(writer.path, header, [*(each.case for each in plan), *seen], session.begun)
        return Worked(path=writer.path, seen=seen, problem=error, unstored=held), ""
    except NothingToRunError as error:  # a server that cannot start any more
        return Worked(path=writer.path, seen=seen, problem=error), "interrupted"
    return Worked(path=writer.path, seen=seen), ended


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


def _work_of(study: Study[A, Any], session: Session[A]) -> Work:
    if study.work is not None:
        return study.work(session)
    task = study.task
    assert task is not None
    return lambda channel, piece: ask_case(channel, piece.planned, session.prepared.settings, task, session.asked)
