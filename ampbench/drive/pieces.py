"""The driver of studies: pieces of work done in their order, the default plan, and refusals."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec import structs

from ampbench.core.precisions import AUTOCAST, BUILT_IN, Precision, default_autocast, find_precision
from ampbench.core.units import one_of
from ampbench.drive.planning import PlannedCase, make_plan
from ampbench.drive.servers import ONLY, Channel, OpenChannel, Pool
from ampbench.drive.session import describer, now
from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.case import Environment
from ampbench.records.kinds import LINES, stage_of
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Entry, Footer, Selection, Settings
from ampbench.records.wire import Task, ask
from ampbench.store import CannotBeError, RunWriter, StoredRun

A = TypeVar("A")
R = TypeVar("R")


def asked_of(stored: StoredRun) -> Any:
    """Return what a run was asked for, to go on with it; `UsageError` where it does not say."""
    if stored.asked is None:
        raise UsageError(f"run {stored.header.run} does not say what it was asked for: begin a new one")
    return stored.asked


Seen = Entry
"""What comes of a piece of work: what was found, or a `Failure` or `Skip`."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of work: `of` a case or, where it is of none, what it is called; `part` tells apart those of one case."""

    of: PlannedCase | str
    part: Any = None

    @property
    def planned(self) -> PlannedCase:
        """The case it is of."""
        assert isinstance(self.of, PlannedCase)
        return self.of

    @property
    def key(self) -> str:
        """What it has in common with the pieces that take as long: the id of its case, or what it is called."""
        return self.of if isinstance(self.of, str) else self.of.case.case_id

    @property
    def named(self) -> str:
        """What it is, in a few words: "mlp bf16_autocast cpu training"."""
        if isinstance(self.of, str):
            return self.of
        case = self.of.case
        return f"{case.workload} {case.precision} {case.device} {case.phase}"


Work = Callable[[Channel, Piece], Seen]
"""Has a piece of work done on a channel, and returns what came of it."""
Watch = Callable[[Piece, Seen | None], None]
"""Told of each piece twice: before it is worked on (None) and after, before what was seen is stored."""


def ask_case(
    channel: Channel, planned: PlannedCase, settings: Settings, task: Task[A, R], asked: A, *, fresh: bool = True
) -> R | Failure | Skip:
    """Have a task of a case done on a channel, and return what came of it."""
    request = ask(
        task,
        asked,
        source=planned.source,
        case=planned.case,
        timeout_seconds=settings.timeout_seconds,
        memory_limit_bytes=settings.memory_limit_bytes,
        threads=settings.threads,
        seed=settings.seed,
        fresh=fresh,
    )
    return task.outcome(channel.serve(request), planned.case)


def do_pieces(open_channel: OpenChannel, pieces: Iterable[Piece], work: Work, writer: RunWriter, watch: Watch) -> str:
    """Have each piece of work done by `work`, every entry to `writer` at once; return how it ended.

    Pieces of a case that failed or cannot run are passed over; a case of which something cannot be stored failed. A
    server is opened for the first piece that asks one; what a killed worker leaves unanswered is asked once more, as
    `Pool` does. An interruption ends the session with a footer that says so; nothing seen is lost.
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
                    found = work(pool, piece)
                    writer.check(found)
                except CannotBeError as error:
                    found = _failure_of(piece, error)
                watch(piece, found)
                writer.append(found)
                if isinstance(found, Failure | Skip):
                    gone.add(piece.key)
        ended = "complete"
    except KeyboardInterrupt:
        pass
    finally:
        writer.append(Footer(ended=ended, finished_at=now()))
    return ended


def _failure_of(piece: Piece, error: CannotBeError) -> Failure:
    """Return the failure of the case of a piece of which something cannot be stored; raises `error` for one of none."""
    if isinstance(piece.of, str) or error.line not in LINES:
        raise error
    return error.failure(piece.key, stage_of(error.line))


def require_eager(selection: Selection, verb: str) -> None:
    """Raise `UsageError` for any path but eager: in a compiled or traced network no module runs by itself."""
    others = [path for path in selection.paths if path != "eager"]
    if others:
        raise UsageError(f"{verb} looks into the modules of the eager path, which a {others[0]} network does not run")


def require_among(selection: Selection, allowed: Sequence[str], why: str) -> None:
    """Raise `UsageError` unless all precisions selected are `allowed`; `why` says of "{name}" what is amiss with it.

    Those that may be a user's own are passed over, here as in what follows: `refuse_own` knows them.
    """
    for row in built_in_rows(selection):
        if row.same_ops in allowed:
            require_own_ops(selection)
        if row.name not in allowed:
            raise UsageError(f"{why.format(name=row.name)}: give {one_of(allowed)}")


def require_own_ops(selection: Selection) -> None:
    """Raise `UsageError` for a precision whose ops are those of another, which is the one to ask about."""
    for row in built_in_rows(selection):
        if row.same_ops:
            raise UsageError(f"{row.name} runs the ops of {row.same_ops}, with another optimizer step: give that")


def built_in_rows(selection: Selection) -> list[Precision]:
    """Return the rows of those precisions selected that are ampbench's own.

    Which names are a user's own is not known before his file is read, once `check_selection` let them pass.
    """
    found = []
    for name in selection.precisions:
        with suppress(UnknownNameError):
            found.append(find_precision(name))
    return [row for row in found if row.name in BUILT_IN]


def refuse_own(selection: Selection) -> None:
    """Raise `UsageError` for a precision that is a user's own, or nobody's, now that all of them are known."""
    for row in map(find_precision, selection.precisions):
        if row.name not in BUILT_IN:
            raise UsageError(
                f"{row.name} is a precision of your own, which `ampbench run` measures: this asks about ampbench's own"
            )


def plan_default_autocast(
    selection: Selection,
    environment: Environment,
    channel: Channel,
    settings: Settings,
    *,
    absent_devices: bool = False,
) -> list[PlannedCase]:
    """Return the eager cases of `selection`; without precisions, those of autocast to each device's default dtype.

    With `absent_devices`, that its device is absent skips no case. Raises what `make_plan` raises.
    """
    precisions = selection.precisions or AUTOCAST
    asked = structs.replace(selection, precisions=precisions, paths=[])
    plan = make_plan(asked, environment, describer(channel, settings), absent_devices=absent_devices)
    if selection.precisions:
        return plan
    return [planned for planned in plan if _is_default(planned, environment)]


def _is_default(planned: PlannedCase, environment: Environment) -> bool:
    """Return whether autocast, unless told otherwise, uses the dtype of this case on its device."""
    device = environment.device(planned.case.device)
    return device is None or planned.case.precision == default_autocast(device.autocast_dtype)
