"""`ampbench explain casts`: every cast of a step, what it costs, and which could be saved."""

from typing import TYPE_CHECKING, Annotated

import typer

from ampbench.cli.explaining import Doing, asked_for, explain_and_store, telling
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    TIMEOUT,
    AutocastPrecisions,
    Devices,
    EveryRow,
    Format,
    InferencePhases,
    Json,
    Keyword,
    Label,
    MemoryFormats,
    Names,
    PieceTimeout,
    Preset,
    Results,
    Scaler,
    Seed,
    Sets,
    Threads,
    Workloads,
    chosen_format,
    many_names,
)
from ampbench.cli.printing import OutputFormat
from ampbench.errors import UsageError
from ampbench.records.casts import By, CastPass
from ampbench.records.kinds import CASTS
from ampbench.records.run import Settings

if TYPE_CHECKING:
    from ampbench.store import StoredRun

DEFAULTS = Settings()
WITH_SOURCES = (By.OP, By.CAST)
"""The tables that have a column for the line of code."""


def command(
    names: Names = None,
    workload: Workloads = None,
    precision: AutocastPrecisions = None,
    device: Devices = None,
    phase: InferencePhases = None,
    path: Annotated[
        list[str] | None,
        many_names("--path", "compiled or traced: this graph, too, beside eager."),
    ] = None,
    memory_format: MemoryFormats = None,
    keyword: Keyword = "",
    preset: Preset = "",
    set_: Sets = None,
    scaler: Scaler = True,
    half_inputs: Annotated[
        bool, typer.Option("--half-inputs", help="Floating inputs are stored in the dtype that autocast casts to.")
    ] = False,
    by: Annotated[
        By | None, typer.Option("--by", help="Which table. Default: the summary; for CSV: a row per cast.")
    ] = None,
    every: EveryRow = False,
    sources: Annotated[bool, typer.Option("--sources", help="Find each op's line of code; implies --by op.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Make the changes that save casts, and measure what they save.")
    ] = False,
    timeout: PieceTimeout = TIMEOUT,
    threads: Threads = DEFAULTS.threads,
    seed: Seed = DEFAULTS.seed,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    format: Format = OutputFormat.TABLE,
    json: Json = False,
) -> int:
    """Trace one step of each case: every cast, of what, for which op, what it costs, what could be saved.

    Without --phase, the step is one of inference. A device that is not here is stood in for by fake tensors: the casts
    are seen, no hardware is. The run is stored: ampbench show RUN prints it again, with --by and --all.

    \b
    Examples:
      ampbench explain casts model.py:make
      ampbench explain casts mlp --phase training --check
      ampbench explain casts resnet50 --device cuda --by module
      ampbench explain casts decoder_lm --path compiled --format json
    """
    chosen = chosen_format(format, json)
    selection, settings = asked_for(
        names, workload, precision, device, phase, path, memory_format, keyword, preset, set_, scaler,
        timeout, threads, seed,
    )  # fmt: skip
    by = _table(by, chosen, sources=sources)
    from ampbench.instruments.casts.instrument import prepare_casts, trace_cases
    from ampbench.records.casts import Tracing

    tracing = Tracing(sources=sources, check=check)

    show = telling(chosen, everything=every, by=by)

    def tell(stored: "StoredRun") -> None:
        show(stored)
        if sources:
            _print_unfound(stored)

    return explain_and_store(
        prepare_casts(selection, settings, half_inputs=half_inputs),
        CASTS, results, label,
        Doing("tracing", lambda prepared, writer, watch: trace_cases(prepared, tracing, writer, watch)),
        tell,
    )  # fmt: skip


def _table(by: By | None, format: OutputFormat, *, sources: bool) -> By | None:
    """Return which table to print; `UsageError` where it has no lines of code and they are asked for."""
    if not sources or format is OutputFormat.JSON:
        return by
    told = WITH_SOURCES if format is not OutputFormat.CSV else (By.OP,)
    if by not in (None, *told):
        raise UsageError(f"--sources is told by --by {' and --by '.join(told)}: --by {by} has no lines of code")
    return by or By.OP


def _print_unfound(stored: "StoredRun") -> None:
    """Print on stderr of which cases no line of code was found."""
    from ampbench.cli.printing import print_note

    for case_id, found in stored.of(CastPass).items():
        if not any(operation.source for operation in found.trace.ops):
            print_note(f"{case_id}: no line of code outside torch and ampbench asked for an op")
