"""What an instrument is: what its verb asks, of which cases, and what does the work; and how any of them works.

An instrument is a row of `records.kinds.KINDS` and a folder of this package. Its `Instrument`, in the `instrument` of
that folder, is data and a few functions. What all do alike is done here, once: cases are planned, or those found that
a run lacks, and its pieces of work done one after another.
"""

import dataclasses
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec import structs

from ampbench.drive.pieces import (
    Piece,
    Seen,
    Watch,
    Work,
    ask_case,
    do_pieces,
    plan_default_autocast,
    prepared_session,
    require_among,
    require_eager,
    resumed_plan,
    unfinished,
)
from ampbench.drive.planning import PlannedCase, check_selection
from ampbench.drive.servers import Channel, OpenChannel, ServerChannel
from ampbench.drive.session import Prepared, check_same
from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.case import DEVICES, Environment
from ampbench.records.kinds import KINDS, named, verb_of
from ampbench.records.measured import Failure
from ampbench.records.run import Entry, Selection, Settings
from ampbench.records.wire import Task, ask
from ampbench.store import RunWriter, StoredRun

A = TypeVar("A")
"""What an instrument is asked for beyond selection and settings: a record, which the header of a run keeps."""
B = TypeVar("B")
R = TypeVar("R")
AUTOCAST_HELP = "See ampbench list precisions. Default: autocast to the device's default dtype."
ALL_PRECISIONS_HELP = "See ampbench list precisions. Default: all."
INFERENCE_HELP = "inference or training. Default: inference."
SCALER_HELP = "GradScaler in fp16_autocast training."
"""What the help says of options that several verbs have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of a verb: `--` and its `name`, its `default`, which also tells its type, and its `help`.

    `least` and `most` bound a number. One of `seconds` is typed as a duration, "90" or "2m"; one of `names` is typed
    once for each, or with commas, and is a list. `default_said` stands for the default in the help. What is `shown`
    chooses what is printed of a run, not what the run is.
    """

    name: str
    default: Any
    help: str
    metavar: str = ""
    least: float | None = None
    most: float | None = None
    seconds: bool = False
    names: bool = False
    type: Any = None
    default_said: str = ""
    shown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Selects:
    """Which cases an instrument is for; texts are the help of options, those with "" its verb does not have.

    Where no workload is named it is asked "`question` of which workload?", or `workloads` are taken; where no phase
    is, `phases`. Precisions must be `among` these (none: all), or what is said `otherwise` of "{name}". Cases are
    `eager`, or of a path selected; a user's own precisions are allowed with `own_precisions`. With `recipes` its verb
    has `--optimizer`.
    """

    precision: str = ""
    phase: str = ""
    path: str = ""
    scaler: str = ""
    question: str = ""
    workloads: Sequence[str] = ()
    phases: Sequence[str] = ()
    among: Sequence[str] = ()
    otherwise: str = ""
    recipes: bool = False
    eager: bool = True
    own_precisions: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a verb was given: the values of its options by their names, which were `typed`, and what is selected."""

    values: Mapping[str, Any]
    typed: Container[str]
    selection: Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Session(Generic[A]):
    """An instrument at work: what is planned and asked for, and the run `begun` before that it goes on with.

    `keep` stores what a piece of work saw before that piece is done.
    """

    prepared: Prepared
    asked: A
    begun: StoredRun | None = None
    keep: Callable[[Piece, Entry], None] = lambda *_: None


def _each_case(session: Session[Any]) -> list[Piece]:
    return [Piece(planned) for planned in session.prepared.plan if not planned.skip]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument(Generic[A]):
    """An instrument: `kind` is its name in `KINDS`, `doing` what progress calls its work ("tracing").

    Of its verb, `help` is the text, `options` are those of its own; what they give is `made` into what is asked (None:
    each is a field of the record that the row names). One that `lists_all` has `--all`, and a piece of its work may
    take `timeout`.

    `plan` finds the cases of a selection (None: those in autocast to the devices' default dtypes) after `refined` has
    looked at it. One without cases has `require` instead, which raises `NothingToRunError` where nothing of what is
    asked for can be done here, and the modules that its servers `preload`. `work` makes what has the `pieces` done, of
    which several may be of one case; without it, each is asked for by the `task`.

    `left` are the pieces that a run lacks, each as its `Piece.key`; `same` raises `UsageError` where what is left of a
    run is not what it began with. `failed` counts what went wrong beside failed cases.

    `showing` makes options of the document of what was given and the format's name, `noted` lines to print beside it,
    and `progress` what says of a piece at work how far it is, told of what it saw.
    """

    kind: str
    doing: str
    help: str = ""
    lists_all: bool = True
    task: Task[A, Any] | None = None
    work: Callable[[Session[A]], Work] | None = None
    timeout: str = f"{Settings().timeout_seconds:g}"
    options: Sequence[Option] = ()
    made: Callable[[Given], A] | None = None
    selects: Selects | None = None
    refined: Callable[[Selection, A], Selection] = lambda selection, _: selection
    plan: Callable[[Selection, A, Environment, Channel, Settings], list[PlannedCase]] | None = None
    require: Callable[[Selection, A, Environment], None] | None = None
    preload: Sequence[str] = ()
    pieces: Callable[[Session[A]], Sequence[Piece]] = _each_case
    left: Callable[[StoredRun], Sequence[str]] = unfinished
    same: Callable[[StoredRun, list[PlannedCase], Channel, Settings], None] = lambda *_: None
    failed: Callable[[StoredRun], int] = lambda _: 0
    showing: Callable[[Given, str], dict[str, Any]] = lambda *_: {}
    noted: Callable[[StoredRun, Given], list[str]] = lambda *_: []
    progress: Callable[[], Callable[[Seen | None], str]] = field(default=lambda: lambda _: "")


def instrument_of(kind: str) -> Instrument[Any]:
    """Return the instrument of a kind of run."""
    found: Instrument[Any] = named(KINDS[kind].instrument)
    return found


def asked_for(instrument: Instrument[A], given: Given) -> A:
    """Return what an instrument is asked for by what its verb was given; `UsageError` for what cannot be meant."""
    if instrument.made is not None:
        return instrument.made(given)
    record = named(KINDS[instrument.kind].asked)
    found: A = record(**{one.name: given.values[one.name] for one in instrument.options if not one.shown})
    return found


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
    selects = {row.name: instrument_of(row.name).selects for row in KINDS.values() if row.instrument}
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
