"""`ampbench check`: which known defects of mixed precision this torch has, each shown by a small program."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ampbench.cli.instruments import begin, go_on, told_as
from ampbench.cli.options import (
    A_RUN,
    DEFAULT_RESULTS,
    DEFAULTS,
    WITH_RESUME,
    Format,
    Label,
    PieceTimeout,
    Results,
    Resume,
    Threads,
    Verbose,
    make_selection,
    make_settings,
    many_names,
    refuse_beside_resume,
    run_option,
)
from ampbench.cli.printing import OutputFormat, print_document
from ampbench.core.units import one_of
from ampbench.defects.check import AREAS
from ampbench.errors import UsageError
from ampbench.records.case import DEVICES
from ampbench.records.kinds import CHECK

if TYPE_CHECKING:
    from pathlib import Path

    from ampbench.cli.instruments import Tell
    from ampbench.store import StoredRun


def _known() -> list[tuple[str, str]]:
    """Offer a shell the checks there are, with what each is called."""
    from ampbench.defects.catalogue import CHECKS

    return [(name, row.title) for name, row in CHECKS.items()]


def command(
    *,
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME...]",
            help="Checks, as --list has them. Default: all fast ones.",
            autocompletion=_known,
        ),
    ] = None,
    area: Annotated[list[str] | None, many_names("--area", f"All checks of {one_of(AREAS)}.")] = None,
    device: Annotated[
        list[str] | None, many_names("--device", f"{one_of(DEVICES)}, here or not. Default: all.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the checks; run none.")] = False,
    show: Annotated[
        str,
        typer.Option("--show", metavar="NAME", help="Print a check's program, to paste.", autocompletion=_known),
    ] = "",
    against: Annotated[str, run_option("--against", "Say only what came and went since this stored run.")] = "",
    every: Verbose = False,
    timeout: PieceTimeout = "60",
    threads: Threads = DEFAULTS.threads,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    resume: Resume = "",
    format: Format,
) -> int:
    """Look for known defects of mixed precision in the installed torch: in its autocast, scaler, kernels, compiler.

    Each check is a small program that was told of in public, run by a process of its own; --show prints it. What a
    device that is not here would do is asked of fake tensors where these answer truly, and said so. Stored like any
    run.

    \b
    Examples:
      ampbench check
      ampbench check --area compile
      ampbench check stale-weight-cast --device cpu
      ampbench check --show stale-weight-cast
      ampbench check --against 1f9a3c        what an upgrade changed
    """
    from ampbench.defects.catalogue import CHECKS, program_of
    from ampbench.instruments.check.instrument import INSTRUMENT, asked_of
    from ampbench.instruments.check.show import catalogue

    if list_:
        print_document(catalogue(), format)
        return 0
    if show:
        (name,) = asked_of([show], []).checks
        sys.stdout.write(program_of(CHECKS[name], next(iter(device or []), "cpu")))
        return 0
    tell = told_as(format, everything=every)
    if against:
        tell = _tell_changes(_read(against, results), format)
    if resume:
        refuse_beside_resume(context, WITH_RESUME)
        return go_on(INSTRUMENT, resume, results, tell)
    asked = asked_of(names or [], area or [])
    selection, settings = make_selection(device=device), make_settings(timeout=timeout, threads=threads)
    return begin(INSTRUMENT, selection, settings, asked, results, label, tell)


def _tell_changes(before: "StoredRun", format: OutputFormat) -> "Tell":
    """Return what prints the changes from a run to one that is told."""
    from ampbench.instruments.check.show import changes_document

    return lambda after: print_document(changes_document(before, after), format)


def _read(name: str, results: "Path") -> "StoredRun":
    """Return the run called `name`; `UsageError` where it holds no checks."""
    from ampbench import store

    stored = store.read_run(store.find_run(name, results))
    if stored.header.explains != CHECK:
        raise UsageError(f"run {stored.header.run} holds no checks: `ampbench check` stores some; {A_RUN} names one")
    return stored
