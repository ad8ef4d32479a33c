"""The verbs of `ampbench explain` and `ampbench study`, each made of what its instrument asks and selects.

Once its options are read, each plans, works, stores, tells and ends cleanly, or goes on with a run that broke off.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ampbench.base.units import counted
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    DURATION,
    WITH_RESUME,
    Devices,
    EveryRow,
    Format,
    Json,
    Keyword,
    Label,
    MemoryFormats,
    Names,
    Optimizers,
    PieceTimeout,
    Preset,
    Results,
    Resume,
    Sdpa,
    Seed,
    Sets,
    Threads,
    Workloads,
    chosen_format,
    is_typed,
    many_names,
    refuse_beside_resume,
    run_words,
    stored_already,
)
from ampbench.cli.printing import OutputFormat, print_document, print_note
from ampbench.cli.selecting import chosen_recipes, make_selection, make_settings, resumed_imports, typed_seconds
from ampbench.errors import CASE_FAILED, INTERRUPTED, NothingToRunError, StoreError, UsageError
from ampbench.records.kinds import KINDS, LINES, deed_of, named, verb_of
from ampbench.records.run import LATEST, Selection, Settings

if TYPE_CHECKING:
    from ampbench.drive.pieces import Piece, Seen
    from ampbench.instruments.instrument import Instrument, Option, Session
    from ampbench.records.run import Entry, Header
    from ampbench.store import RunWriter, StoredRun


def command(kind: str) -> Callable[..., int]:
    """Return the verb that makes runs of a kind, as typer takes it."""
    if KINDS[kind].verb:
        own: Callable[..., int] = named(KINDS[kind].verb)
        return own
    from ampbench.instruments.instrument import instrument_of

    instrument = instrument_of(kind)

    def verb(context: typer.Context, **values: Any) -> int:
        return _done(instrument, context, values)

    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, annotation, default in _parameters(instrument)
    ]
    context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    verb.__signature__ = Signature([context, *parameters])  # type: ignore[attr-defined]
    verb.__annotations__ = {"context": typer.Context} | {one.name: one.annotation for one in parameters}
    verb.__doc__ = instrument.help
    return verb


def _parameters(instrument: "Instrument[Any]") -> "list[tuple[str, Any, Any]]":
    """Return the name, the annotation and the default of each parameter of an instrument's verb, in their order."""
    selects, settings = instrument.selects, Settings()
    told: list[tuple[str, Any, Any]] = [("device", Devices, None)]
    if selects is not None:
        several = {
            name: (name, Annotated[list[str] | None, many_names(f"--{name}", help)], None)
            for name, help in (("precision", selects.precision), ("phase", selects.phase), ("path", selects.path))
            if help
        }
        told = [("names", Names, None), ("workload", Workloads, None), several.pop("precision"), *told]
        told += several.values()
        told += [("memory_format", MemoryFormats, None), ("sdpa", Sdpa, None), ("keyword", Keyword, "")]
        told += [("preset", Preset, ""), ("set_", Sets, None)]
        if selects.scaler:
            flag = typer.Option("--scaler/--no-scaler", help=selects.scaler)
            told += [("scaler", Annotated[bool, flag], True)]
        told += [("optimizer", Optimizers, None)] if selects.recipes else []
    told += [(one.name, _annotation(one), one.default) for one in instrument.options]
    told += [("every", EveryRow, False)] if instrument.lists_all else []
    told += [("timeout", PieceTimeout, instrument.timeout), ("threads", Threads, settings.threads)]
    told += [("seed", Seed, settings.seed)] if selects is not None else []
    told += [("results", Results, DEFAULT_RESULTS), ("label", Label, "")]
    told += [("resume", Resume, "")] if KINDS[instrument.kind].resumed else []
    return [*told, ("format", Format, OutputFormat.TABLE), ("json", Json, False)]


def _annotation(option: "Option") -> Any:
    """Return an option as typer takes it."""
    flag = f"--{option.name.replace('_', '-')}"
    if option.names:
        return Annotated[list[str] | None, many_names(flag, option.help)]
    type_ = option.type or type(option.default)
    if option.seconds:
        info = typer.Option(flag, metavar="SECONDS", help=f"{option.help}, {DURATION}.")
        return Annotated[str, info]
    info = typer.Option(
        flag,
        metavar=option.metavar or None,
        min=option.least,
        max=option.most,
        help=option.help,
        show_default=option.default_said or True,
    )
    return Annotated[type_ | None if option.default is None else type_, info]


def _done(instrument: "Instrument[Any]", context: typer.Context, values: dict[str, Any]) -> int:
    """Begin a run of what the options of a verb give, or go on with one, and return the exit code."""
    from ampbench.instruments.instrument import Given, asked_for

    chosen = chosen_format(values["format"], values["json"])
    everything = values.get("every", False)
    if values.get("resume"):
        refuse_beside_resume(context, WITH_RESUME)
        return go_on(instrument, values["resume"], values["results"], told_as(chosen, everything=everything))
    selection, settings = selected(
        **{name: values[name] for name in SELECTING if name in values},
        recipes=chosen_recipes(values.get("optimizer")),
    )
    given = Given(
        values={one.name: _typed(one, values[one.name]) for one in instrument.options},
        typed={one.name for one in instrument.options if is_typed(context, one.name)},
        selection=selection,
    )
    asked = asked_for(instrument, given)
    show = told_as(chosen, everything=everything, **instrument.showing(given, chosen))

    def tell(stored: "StoredRun") -> None:
        show(stored)
        for line in instrument.noted(stored, given):
            print_note(line)

    return begin(instrument, selection, settings, asked, values["results"], values["label"], tell)


def _typed(option: "Option", value: Any) -> Any:
    if option.names:
        return value or []
    return typed_seconds(f"--{option.name.replace('_', '-')}", value) if option.seconds else value


SELECTING = (
    "names", "workload", "precision", "device", "phase", "path", "memory_format", "sdpa", "keyword", "preset", "set_",
    "scaler", "timeout", "threads", "seed",
)  # fmt: skip
"""The options by which cases are selected and settings given."""


def selected(
    names: list[str] | None = None,
    workload: list[str] | None = None,
    precision: list[str] | None = None,
    device: list[str] | None = None,
    phase: list[str] | None = None,
    path: list[str] | None = None,
    memory_format: list[str] | None = None,
    sdpa: list[str] | None = None,
    keyword: str = "",
    preset: str = "",
    set_: list[str] | None = None,
    scaler: bool = True,
    timeout: str = "",
    threads: int = 0,
    seed: int = 0,
    recipes: Sequence[str] = (),
) -> tuple[Selection, Settings]:
    """Return what the options of these names select, and the settings; raises `UsageError` for a malformed one."""
    selection = make_selection(
        [*(names or []), *(workload or [])], precision, device, phase, path, memory_format, sdpa, keyword, preset, set_,
        None, scaler, recipes,
    )  # fmt: skip
    return selection, make_settings(1, 1, "", "", timeout, "", threads, seed)


Tell = Callable[["StoredRun"], None]
"""Prints what is in a run."""


def told_as(format: OutputFormat, *, everything: bool, **options: Any) -> Tell:
    """Return what prints all of a run, as its instrument tells of it with `options`, and then its failures."""
    from ampbench.instruments import registry

    def tell(stored: "StoredRun") -> None:
        print_document(registry.document(stored, list(stored.cases), everything=everything, **options), format)
        for line in registry.pointers(stored):
            print_note(line)
        for failure in stored.failures.values() if format is OutputFormat.CSV else ():  # which has no place for them
            print_note(f"failed: {failure.case_id}: {failure.said}")

    return tell


def begin(
    instrument: "Instrument[Any]",
    selection: Selection,
    settings: Settings,
    asked: Any,
    results: Path,
    label: str,
    tell: Tell,
) -> int:
    """Have an instrument work on what is selected into a new run file, `tell` of it, and return the exit code.

    What was seen is told even where it could not be stored, which is then raised; a run of nothing is not left behind.
    """
    from ampbench import store
    from ampbench.drive import session
    from ampbench.drive.planning import meant
    from ampbench.instruments.instrument import Session, prepared

    nothing = "nothing was seen"
    store.require_writable(results)
    try:
        with prepared(instrument, selection, settings, asked) as planned:
            if instrument.selects is not None:
                session.require_work(planned)
            for said in meant(planned.selection, planned.plan):
                print_note(said)
            header = session.new_header(
                planned.selection, planned.settings, planned.environment, planned.plan, label,
                ["ampbench", *sys.argv[1:]],
            )  # fmt: skip
            header = replace(header, explains=instrument.kind, asked=msgspec.to_builtins(asked))
            with store.RunWriter.create(results, header, [one.case for one in planned.plan]) as writer:
                session_ = Session(prepared=planned, asked=asked)
                stored, problem = _worked(instrument, session_, header, writer, results)
    except KeyboardInterrupt:
        print_note(f"interrupted: {nothing}")
        return INTERRUPTED
    if not isinstance(problem, StoreError) and stored.ending == "interrupted" and not _holds_something(stored):
        writer.path.unlink()  # a run of nothing would stand in every list
        if problem:
            raise problem
        print_note(f"interrupted: {nothing}")
        return INTERRUPTED
    return _told(instrument, stored, problem, tell, results)


def go_on(instrument: "Instrument[Any]", resume: str, results: Path, tell: Tell) -> int:
    """Go on with the run that `resume` names, one of the instrument's, and return the exit code.

    One that lacks nothing is told as it is. Raises `UsageError` for a run of another kind.
    """
    from ampbench import store
    from ampbench.drive.pieces import asked_of
    from ampbench.instruments.instrument import Session, prepared

    kind = instrument.kind
    if resume == LATEST:
        raise UsageError(f"--resume needs the id of a run of ampbench {verb_of(kind)}: latest is one that measured")
    file = store.find_run(resume, results)
    header = store.read_header(file)
    if header.explains != kind:
        raise UsageError(
            f"run {header.run} {deed_of(header.explains)}: --resume goes on with a run of ampbench {verb_of(kind)}"
        )
    begun = store.read_run(file)
    if not instrument.left(begun):
        print_note(f"run {header.run} is complete: nothing is left to do")
        tell(begun)
        return _exit_code(instrument, begun)
    if imports := resumed_imports(header):
        print_note(imports)
    writer, begun = store.RunWriter.reopen(file)
    with writer:
        if begun.cut:
            print_note(f"{file} {store.CUT}")
        asked, header = asked_of(begun), begun.header
        try:
            with prepared(instrument, header.selection, header.settings, asked, begun) as planned:
                session = Session(prepared=planned, asked=asked, begun=begun)
                stored, problem = _worked(instrument, session, header, writer, results)
        except KeyboardInterrupt:
            print_note("interrupted: nothing was added to what was seen before")
            _tell_left(instrument, begun, results)
            return INTERRUPTED
    return _told(instrument, stored, problem, tell, results)


def _worked(
    instrument: "Instrument[Any]", session: "Session[Any]", header: "Header", writer: "RunWriter", results: Path
) -> "tuple[StoredRun, StoreError | NothingToRunError | None]":
    """Return what was seen, and why that is not all or could not all be stored, if so."""
    from ampbench import store
    from ampbench.cli.progress import piece_progress
    from ampbench.drive.session import planned_skips
    from ampbench.instruments.instrument import worked

    plan, problem = session.prepared.plan, None
    seen: list[Entry] = list(planned_skips(plan))
    try:
        writer.append(*seen)
        pieces = instrument.pieces(session)
        with piece_progress(instrument.doing, pieces, instrument.progress) as show:

            def watch(piece: "Piece", found: "Seen | None") -> None:
                if found is not None:
                    seen.append(found)
                show(piece, found)

            worked(instrument, session, pieces, writer, watch)
    except StoreError as error:
        return store.gathered(writer.path, header, [*(one.case for one in plan), *seen], session.begun), error
    except NothingToRunError as error:  # a server that cannot start any more
        problem = error
    with stored_already(f"ampbench show {run_words(writer.path, results)}"):
        return store.read_run(writer.path), problem


def _holds_something(stored: "StoredRun") -> bool:
    return bool(stored.failures) or any(held for line, held in stored.found.items() if not LINES[line].beginning)


def _told(
    instrument: "Instrument[Any]",
    stored: "StoredRun",
    problem: "StoreError | NothingToRunError | None",
    tell: Tell,
    results: Path,
) -> int:
    """Tell what is in a run, where it is and how to go on with what is left, and return the exit code.

    Raises the `problem` there was with seeing or storing it.
    """
    if isinstance(problem, StoreError):
        tell(stored)
        raise problem
    with stored_already(f"ampbench show {run_words(stored.path, results)}"):
        tell(stored)
    print_note(f"run {stored.header.run}: {stored.path}")
    interrupted = stored.ending == "interrupted"
    if interrupted:
        print_note("interrupted: what was seen until then is kept")
    _tell_left(instrument, stored, results)
    if problem:
        raise problem
    return INTERRUPTED if interrupted else _exit_code(instrument, stored)


def _tell_left(instrument: "Instrument[Any]", stored: "StoredRun", results: Path) -> None:
    """Say how much of a run is left and how to go on with it, where that can be done."""
    undone = len(instrument.left(stored)) if KINDS[instrument.kind].resumed else 0
    if undone:
        go_on = f"ampbench {verb_of(instrument.kind)} --resume {run_words(stored.path, results)}"
        print_note(f"{counted(undone, 'piece')} left; {go_on} goes on")


def _exit_code(instrument: "Instrument[Any]", stored: "StoredRun") -> int:
    return CASE_FAILED if stored.failures or instrument.failed(stored) else 0
