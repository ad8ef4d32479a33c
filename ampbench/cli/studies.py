"""The verbs of `ampbench explain` and `ampbench study`, each from its study's options.

Each plans, works, stores and shows a new run, or resumes an interrupted one.
"""

import sys
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import click

from ampbench import store
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    DURATION,
    WITH_RESUME,
    Argument,
    Label,
    Option,
    PieceTimeout,
    Results,
    Resume,
    Value,
    Verbose,
    chosen_format,
    make_selection,
    make_settings,
    many_names,
    option,
    parameters_of,
    refuse_beside_resume,
    resumed_imports,
    run_words,
    stored_already,
    typed_seconds,
)
from ampbench.cli.printing import OutputFormat, print_document, print_note
from ampbench.cli.progress import piece_progress
from ampbench.core.units import counted, one_of
from ampbench.errors import CASE_FAILED, INTERRUPTED, StoreError, UsageError
from ampbench.records.kinds import KINDS, deed_of, verb_of
from ampbench.records.run import LATEST
from ampbench.show import studies
from ampbench.store import StoredRun
from ampbench.studies.check import pointers
from ampbench.studies.study import PHASE_HELP, Session, Study, asked_for, options_of, study_of
from ampbench.studies.study import Option as StudyOption
from ampbench.studies.work import Watching, Worked, asked_of, begin, lacking, prepared, work_through


def command(kind: str) -> Callable[..., int | None]:
    """Return the function of the verb that makes runs of a kind, for `cli.options.Verb`."""
    study = study_of(kind)

    def verb(context: click.Context, **values: Any) -> int:
        return _done(study, context, values)

    verb.__doc__ = study.help
    verb.__signature__ = Signature([option("context", click.Context), *_parameters(study)])  # type: ignore[attr-defined]
    return verb


def _parameters(study: Study[Any, Any]) -> list[Parameter]:
    """Return the parameters of a study's verb, in their order."""
    selects, limits, selecting = study.selects, parameters_of(make_settings), parameters_of(make_selection)
    options = {row.name: option(row.name, _annotation(row), row.default) for row in options_of(study)}
    parameters = [selecting["device"]]
    if selects is not None:
        phase = "" if selects.phases else PHASE_HELP[selects.one_phase]
        path = f"{one_of(selects.paths)}: this graph as well as eager mode." if selects.paths else ""
        helped = {"precision": selects.precision, "phase": phase, "path": path, "sweep": ""}
        for name, text in helped.items():
            annotation = Annotated[list[str] | None, many_names(f"--{name}", text)]
            selecting |= {name: selecting[name].replace(annotation=annotation)}
        parameters = [parameter for name, parameter in selecting.items() if helped.get(name, name)]
    if study.on_devices and study.on_devices.help:
        texts = many_names("--device", study.on_devices.help)
        parameters = [parameter.replace(annotation=Annotated[list[str] | None, texts]) for parameter in parameters]
    parameters += [*options.values(), option("verbose", Verbose, False)]
    parameters += [option("timeout", PieceTimeout, study.timeout), limits["threads"]]
    parameters += [limits["seed"]] if selects is not None else []
    parameters += [option("results", Results, DEFAULT_RESULTS), option("label", Label, "")]
    parameters += [option("resume", Resume, "")] if KINDS[study.kind].resumed else []
    return [*parameters, *parameters_of(chosen_format).values()]


def _annotation(option: StudyOption) -> Any:
    """Return an option's annotation for `cli.options.Verb`."""
    flag = f"--{option.name.replace('_', '-')}"
    if option.argument:
        return Annotated[list[str] | None, Argument(metavar=option.metavar, help=option.help)]
    if option.names:
        return Annotated[list[str] | None, many_names(flag, option.help)]
    if option.seconds:
        return Annotated[str, Option(flag, metavar="SECONDS", help=f"{option.help}, {DURATION}.")]
    bounded = Option(flag, metavar=option.metavar or None, min=option.least, max=option.most, help=option.help)
    return Annotated[type(option.default), bounded]


def _done(study: Study[Any, Any], context: click.Context, values: dict[str, Any]) -> int:
    """Make a run from a verb's options, or resume one, show it, and return the exit code.

    Results are printed even if storing them failed; that error is raised afterwards. An empty run file is removed.
    """
    chosen, results = chosen_format(values["format"], values["json"]), values["results"]
    tell = told_as(chosen, everything=values["verbose"])
    if values.get("resume"):
        refuse_beside_resume(context, WITH_RESUME)
        return go_on(study, values["resume"], results, tell)
    selection, settings = _called(make_selection, values), _called(make_settings, values)
    options = {row.name: values[row.name] for row in options_of(study)}
    options |= {row.name: typed_seconds(f"--{row.name}", values[row.name]) for row in options_of(study) if row.seconds}
    asked = asked_for(study, options)
    command, watching = ["ampbench", *sys.argv[1:]], _watching(study)
    try:
        done = begin(study, selection, settings, asked, results, values["label"], command, watching=watching)
    except KeyboardInterrupt:
        print_note("interrupted: nothing was seen")
        return INTERRUPTED
    return _finished(study, done, tell, results)


def _called(make: Callable[..., Value], values: Mapping[str, Any]) -> Value:
    """Return the result of a function on the `values` of its parameters."""
    return make(**{name: values[name] for name in parameters_of(make) if name in values})


Tell = Callable[[StoredRun], None]
"""Prints a run."""


def told_as(format: OutputFormat, *, everything: bool) -> Tell:
    """Return a function that prints a run by its study, then its failures."""

    def tell(stored: StoredRun) -> None:
        study = study_of(stored.header.explains)
        print_document(studies.document(study, stored, list(stored.cases), everything=everything), format)
        for line in studies.lines(pointers(stored)):
            print_note(line)
        for failure in stored.failures.values() if format is OutputFormat.CSV else ():  # CSV has no place for them
            print_note(f"failed: {failure.case_id}: {failure.said}")

    return tell


def go_on(study: Study[Any, Any], resume: str, results: Path, tell: Tell) -> int:
    """Resume the study's run that `resume` names, and return the exit code.

    A complete run is printed as it is. Raises `UsageError` for a run of another kind.
    """
    kind = study.kind
    if resume == LATEST:
        raise UsageError(f"--resume needs the id of a run of ampbench {verb_of(kind)}: latest is one that measured")
    file = store.find_run(resume, results)
    header = store.read_header(file)
    if header.explains != kind:
        raise UsageError(
            f"run {header.run} {deed_of(header.explains)}: --resume goes on with a run of ampbench {verb_of(kind)}"
        )
    begun = store.read_run(file)
    if not lacking(study, begun):
        print_note(f"run {header.run} is complete: nothing is left to do")
        tell(begun)
        return _exit_code(study, begun)
    if imports := resumed_imports(header):
        print_note(imports)
    writer, begun = store.RunWriter.reopen(file)
    with writer:
        if begun.cut:
            print_note(f"{file} {store.CUT}")
        asked, header = asked_of(begun), begun.header
        try:
            with prepared(study, header.selection, header.settings, asked, begun) as planned:
                session = Session(prepared=planned, asked=asked, begun=begun)
                done, _ = work_through(study, session, header, writer, _watching(study))
        except KeyboardInterrupt:
            print_note("interrupted: nothing was added to what was seen before")
            _tell_left(study, begun, results)
            return INTERRUPTED
    return _finished(study, done, tell, results)


def _watching(study: Study[Any, Any]) -> Watching:
    return lambda pieces: piece_progress(study.doing, pieces, study.progress)


def _finished(study: Study[Any, Any], done: Worked, tell: Tell, results: Path) -> int:
    """Print a run, its file and how to resume it, and return the exit code; raise the problem of measuring it."""
    if isinstance(done.problem, StoreError):
        tell(done.stored())
        raise done.problem
    with stored_already(f"ampbench show {run_words(done.path, results)}"):
        stored = done.stored()
        tell(stored)
    print_note(f"run {stored.header.run}: {stored.path}")
    print_note(f"ampbench show {run_words(stored.path, results)} shows it again")
    interrupted = stored.ending == "interrupted"
    if interrupted:
        print_note("interrupted: what was seen until then is kept")
    _tell_left(study, stored, results)
    if done.problem:
        raise done.problem
    return INTERRUPTED if interrupted else _exit_code(study, stored)


def _tell_left(study: Study[Any, Any], stored: StoredRun, results: Path) -> None:
    """Print how many pieces of a run are left and how to resume it, where that is possible."""
    undone = len(lacking(study, stored)) if KINDS[study.kind].resumed else 0
    if undone:
        go_on = f"ampbench {verb_of(study.kind)} --resume {run_words(stored.path, results)}"
        print_note(f"{counted(undone, 'piece')} left; {go_on} goes on")


def _exit_code(study: Study[Any, Any], stored: StoredRun) -> int:
    return CASE_FAILED if stored.failures or any(map(study.failed, stored.every(study.record))) else 0
