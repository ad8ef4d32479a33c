"""Execution of studies: cases are planned, or the missing cases of a run found, and done piece by piece."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from ampbench import store
from ampbench.core.precisions import AUTOCAST, Precision, default_autocast, find_precision
from ampbench.core.units import one_of
from ampbench.drive.planning import WITHOUT_LOSS, PlannedCase, check_selection, in_one_phase, make_plan
from ampbench.drive.servers import ONLY, Channel, OpenChannel, Pool, ServerChannel
from ampbench.drive.session import (
    Opened,
    Prepared,
    check_same,
    check_same_cases,
    default_memory_limit,
    describer,
    new_header,
    now,
    opened_first,
    planned_skips,
    preload_modules,
    require_work,
)
from ampbench.errors import NothingToRunError, StoreError, UnknownNameError, UsageError
from ampbench.records.case import DEVICES, WorkloadSource
from ampbench.records.kinds import LINES, stage_of, verb_of
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Entry, Footer, Header, Selection, Settings
from ampbench.records.wire import Task, ask
from ampbench.store import CannotBeError, RunWriter, StoredRun
from ampbench.store.run_file import line_of
from ampbench.studies.study import Session, Study

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")


def asked_of(stored: StoredRun) -> Any:
    """Return the request of a run, to continue it; `UsageError` where the run has none."""
    if stored.asked is None:
        raise UsageError(f"run {stored.header.run} has no record of its request: begin a new run")
    return stored.asked


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of work: `of` a case or, without a case, of a name; `part` is the study's own."""

    of: PlannedCase | str
    part: Any = None

    @property
    def planned(self) -> PlannedCase:
        """The case it is of."""
        assert isinstance(self.of, PlannedCase)
        return self.of

    @property
    def key(self) -> str:
        """The key of pieces that take equally long: the id of the case, or the name."""
        return self.of if isinstance(self.of, str) else self.of.case.case_id

    @property
    def named(self) -> str:
        """What it is, in a few words: "mlp bf16_autocast cpu training"."""
        if isinstance(self.of, str):
            return self.of
        case = self.of.case
        return f"{case.workload} {case.precision} {case.device} {case.phase}"


Work = Callable[[Channel, Piece], Entry]
"""Does a piece of work on a channel, and returns its record, `Failure` or `Skip`."""
Watch = Callable[[Piece, Entry | None], None]
"""Called twice for each piece: before the work (None) and after it, before the entry is stored."""


def _key(study: Study[Any, Any], part: Any) -> tuple[Any, ...]:
    return tuple(getattr(part, name) for name in study.apart)


def lacking(study: Study[Any, Any], stored: StoredRun) -> list[Any]:
    """Return the requested parts that a run has no entry for; the end of a case ends all of its parts.

    Raises `UsageError` where the run has no request.
    """
    done = {_key(study, record) for record in stored.every(study.record)}
    cases = [case for case_id, case in stored.cases.items() if case_id not in stored.given_up]
    parts = study.parts(stored.header, cases, asked_of(stored))
    return [part for part in parts if _key(study, part) not in done]


def pieces_of(study: Study[A, Any], session: Session[A]) -> list[Piece]:
    """Return the planned pieces of work, or the missing pieces of the run begun before, in their order."""
    planned = {entry.case.case_id: entry for entry in session.prepared.plan if not entry.skip}
    if session.begun is None:
        parts = study.parts(session.prepared, [entry.case for entry in planned.values()], session.asked)
    else:
        parts = lacking(study, session.begun)
    if study.on_devices is not None:
        return [Piece(" ".join(_key(study, part)), part) for part in parts]
    return [Piece(planned[part.case_id], part) for part in parts if part.case_id in planned]


def ask_worker(
    channel: Channel, of: PlannedCase | str, settings: Settings, task: Task[B, R], asked: B, *, fresh: bool = True
) -> R | Failure | Skip:
    """Do a task of a case, or of a type of device, on a channel, and return its result."""
    place = {"device": of} if isinstance(of, str) else {"source": of.source, "case": of.case}
    request = ask(
        task,
        asked,
        **place,
        timeout_seconds=settings.timeout_seconds,
        memory_limit_bytes=settings.memory_limit_bytes,
        threads=settings.threads,
        seed=settings.seed,
        fresh=fresh,
    )
    return task.outcome(channel.serve(request), request.case)


def filled(channel: Channel, study: Study[A, Any], settings: Settings, asked: A, blank: R) -> R:
    """Return a device's record filled by a worker, or unfilled where no worker can."""
    task, on = study.task, study.on_devices
    assert task is not None
    assert on is not None
    request = on.request(asked, blank)
    if request is None:
        return blank
    settings = structs.replace(settings, threads=settings.threads or on.threads)
    answer = ask_worker(channel, blank.device, settings, task, request)  # type: ignore[attr-defined]
    return on.unanswered(blank, answer) if isinstance(answer, Failure) else answer  # type: ignore[return-value]


def do_pieces(open_channel: OpenChannel, pieces: Iterable[Piece], work: Work, writer: RunWriter, watch: Watch) -> str:
    """Do each piece of work by `work`, with every entry to `writer` at once; return the kind of end.

    Pieces of a case that failed or cannot run are skipped; a case with an unstorable entry failed. A killed worker's
    request is repeated once, as `Pool` does. An interruption ends the session with a footer.
    """
    ended = "interrupted"
    gone: set[str] = set()
    pool = Pool({ONLY: open_channel})
    try:
        with pool:
            for piece in pieces:
                if piece.key in gone:
                    continue
                watch(piece, None)
                try:
                    entry = work(pool, piece)
                    writer.check(entry)
                except CannotBeError as error:
                    if isinstance(piece.of, str) or error.line not in LINES:
                        raise
                    entry = error.failure(piece.key, stage_of(error.line))
                watch(piece, entry)
                writer.append(entry)
                if isinstance(entry, Failure | Skip):
                    gone.add(piece.key)
        ended = "complete"
    except KeyboardInterrupt:
        pass
    finally:
        writer.append(Footer(ended=ended, finished_at=now()))
    return ended


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
    """Plan the cases of a request, and yield the session, whose server ends with the context.

    With `begun`, the run to resume, only the cases that it lacks are planned. Raises `UsageError` where no workload is
    named, for a path or a precision that the study is not for, and for a run of another environment or with other
    cases; and as `make_plan`.
    """
    selection, sources = _checked(study, selection, asked)
    preload = [*study.on_devices.preload] if study.on_devices else []
    if study.selects is not None:  # tracing uses a dispatch mode, for which torch imports torch._dynamo
        preload += dict.fromkeys(["torch._dynamo", *preload_modules(selection, sources)])
    open_new = open_channel or (lambda: ServerChannel(preload=preload))
    with opened_first(open_new, settings.threads) as first:
        if settings.memory_limit_bytes is None and settings.isolation:
            settings = structs.replace(settings, memory_limit_bytes=default_memory_limit())
        if begun is not None:
            check_same(begun, first.environment)
        plan = _planned(study, selection, settings, first)
        if begun is not None and study.selects is not None:
            check_same_cases(begun, plan)
            left = {part.case_id for part in lacking(study, begun)}
            plan = [planned for planned in plan if planned.case.case_id in left]
        prepared_run = Prepared(
            selection=selection,
            settings=settings,
            environment=first.environment,
            plan=plan,
            open_channel=first.open_channel,
        )
        if study.on_devices is not None:
            study.parts(prepared_run, [], asked)
        yield prepared_run


def _checked(study: Study[A, Any], selection: Selection, asked: A) -> tuple[Selection, list[WorkloadSource]]:
    """Return the selection with defaults, and its workloads, after all checks that need no torch.

    Raises `UsageError` for an invalid selection.
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
            f"{verb} needs a workload: name one, as in `{verb} mlp` or `{verb} model.py:make`; "
            "ampbench list workloads shows all"
        )
    selection = structs.replace(
        selection,
        workloads=selection.workloads or list(selects.workloads),
        phases=selection.phases or list(selects.phases),
    )
    sources = check_selection(selection)
    paths = "eager", *selects.paths
    for path in selection.paths:
        if path not in paths:
            raise UsageError(f"{verb_of(study.kind)} is not for --path {path}: give {one_of(paths)}")
    if selects.among:
        require_among(selection, selects.among, verb_of(study.kind))
    return study.refined(selection, asked), sources


def _planned(study: Study[A, Any], selection: Selection, settings: Settings, first: Opened) -> list[PlannedCase]:
    """Return the eager cases of a selection on the machine of a first server; none where a study is of no cases."""
    selects = study.selects
    if selects is None:
        return []
    tried = selects.tried(selection.precisions)
    asked, describe = structs.replace(selection, precisions=[*tried], paths=[]), describer(first.channel, settings)
    how = {"absent_devices": selects.absent, "emulated": selects.emulated}
    plan = make_plan(asked, first.environment, describe, **how)
    if tried is AUTOCAST:  # to each device's default dtype
        plan = [
            planned
            for planned in plan
            if (device := first.environment.device(planned.case.device)) is None
            or planned.case.precision == default_autocast(device.autocast_dtype)
        ]
    for row in () if selects.own_precisions else map(find_precision, selection.precisions):
        if row.own:
            raise UsageError(
                f"{row.name} is your own precision: measure it with `ampbench run`; this verb takes ampbench's own"
            )
    if selection.phases:
        return plan
    return in_one_phase(plan) if selects.one_phase else [entry for entry in plan if entry.skip not in WITHOUT_LOSS]


def worked(study: Study[A, Any], session: Session[A], pieces: Sequence[Piece], writer: RunWriter, watch: Watch) -> str:
    """Have `pieces` of a session worked on one after another, as `do_pieces` does, and return how it ended."""

    def keep(piece: Piece, entry: Entry) -> None:
        writer.check(entry)
        watch(piece, entry)
        writer.append(entry)

    def answered(channel: Channel, piece: Piece) -> Any:
        settings, task = session.prepared.settings, study.task
        if study.on_devices is not None:
            return filled(channel, study, settings, session.asked, piece.part)
        assert task is not None
        return ask_worker(channel, piece.planned, settings, task, study.request(session, piece.planned))

    work = study.work(dataclasses.replace(session, keep=keep)) if study.work is not None else answered
    return do_pieces(session.prepared.open_channel, pieces, work, writer, watch)


Watching = Callable[[Sequence[Piece]], AbstractContextManager[Watch]]
"""Shows how far pieces of work are, within its context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """A finished session: the `path` of its run and, if incomplete or not stored, the `problem`.

    `seen` are the entries of this session. `unstored` is the run where the file could not be written.
    """

    path: Path
    seen: Sequence[Entry]
    problem: StoreError | NothingToRunError | None = None
    unstored: StoredRun | None = None

    @property
    def empty(self) -> bool:
        """Whether the run has no result of any case or device."""
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
        """Return the run: from memory if unstored, else from the file."""
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
    open_channel: OpenChannel | None = None,
) -> Worked:
    """Run a study on its selection into a new run file of the folder `results`.

    Where nothing was seen, no run is left, and the reason is raised.
    """
    settings = structs.replace(settings, rounds=1, builds=1)
    store.require_writable(results)
    with prepared(study, selection, settings, asked, open_channel=open_channel) as planned:
        if study.selects is not None:
            require_work(planned)
        header = new_header(planned.selection, planned.settings, planned.environment, planned.plan, label, command)
        header = structs.replace(header, explains=study.kind, asked=msgspec.to_builtins(asked))
        with RunWriter.create(results, header, [entry.case for entry in planned.plan]) as writer:
            done, ended = work_through(study, Session(prepared=planned, asked=asked), header, writer, watching)
    if ended == "interrupted" and done.empty:
        done.path.unlink()  # a run of nothing would stand in every list
        raise done.problem or KeyboardInterrupt
    return done


def work_through(
    study: Study[A, Any], session: Session[A], header: Header, writer: RunWriter, watching: Watching
) -> tuple[Worked, str]:
    """Do all planned work into the file of `writer`; return the result and the kind of end."""
    plan = session.prepared.plan
    entries: list[Entry] = list(planned_skips(plan))
    try:
        writer.append(*entries)
        pieces = pieces_of(study, session)
        with watching(pieces) as show:

            def watch(piece: Piece, entry: Entry | None) -> None:
                if entry is not None:
                    entries.append(entry)
                show(piece, entry)

            ended = worked(study, session, pieces, writer, watch)
    except StoreError as error:
        held = store.gathered(writer.path, header, [*(item.case for item in plan), *entries], session.begun)
        return Worked(path=writer.path, seen=entries, problem=error, unstored=held), ""
    except NothingToRunError as error:  # a server that cannot start any more
        return Worked(path=writer.path, seen=entries, problem=error), "interrupted"
    return Worked(path=writer.path, seen=entries), ended


def require_among(selection: Selection, allowed: Sequence[str], verb: str) -> None:
    """Raise `UsageError` unless all precisions selected are `allowed` for a verb.

    Possible precisions of a user are skipped: they are known once the plan is made.
    """
    for row in built_in_rows(selection):
        if row.same_ops in allowed:
            raise UsageError(f"{row.name} runs the ops of {row.same_ops}, with another optimizer step: give that")
        if row.kind not in allowed:
            raise UsageError(f"{verb} is not for {row.name}: give {one_of(allowed)}")


def built_in_rows(selection: Selection) -> list[Precision]:
    """Return the rows of the selected precisions that are ampbench's own.

    Which names are a user's own is not known before his file is read, once `check_selection` let them pass.
    """
    rows = []
    for name in selection.precisions:
        with suppress(UnknownNameError):
            rows.append(find_precision(name))
    return [row for row in rows if not row.own]
