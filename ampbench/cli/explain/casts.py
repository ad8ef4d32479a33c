"""`ampbench explain casts`: every cast of a step, what it costs, and which could be saved."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampbench.casts.views import By
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    Devices,
    Format,
    Json,
    Keyword,
    MemoryFormats,
    Names,
    OutputFormat,
    Preset,
    Results,
    Scaler,
    Seed,
    Sets,
    Threads,
    Timeout,
    Workloads,
    chosen_format,
)
from ampbench.cli.selecting import make_selection, make_settings
from ampbench.records.runs import CASTS, Settings

if TYPE_CHECKING:
    from ampbench.records.casts import Tracing
    from ampbench.running.session import Prepared
    from ampbench.store import RunWriter

FAILED, INTERRUPTED = 3, 130
DEFAULTS = Settings()


def command(
    names: Names = None,
    workload: Workloads = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(
            "--precision", metavar="NAME", help="Repeatable. Default: autocast to the device's default dtype."
        ),
    ] = None,
    device: Devices = None,
    phase: Annotated[
        list[str] | None,
        typer.Option("--phase", metavar="NAME", help="inference or training. Repeatable. Default: inference."),
    ] = None,
    path: Annotated[
        list[str] | None,
        typer.Option("--path", metavar="NAME", help="compiled or traced: this graph, too, beside eager. Repeatable."),
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
    every: Annotated[bool, typer.Option("--all", help="List every row, not only the most telling ones.")] = False,
    sources: Annotated[bool, typer.Option("--sources", help="Also find each op's line of code.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Make the changes that save casts, and measure what they save.")
    ] = False,
    timeout: Timeout = f"{DEFAULTS.timeout_seconds:g}",
    threads: Threads = DEFAULTS.threads,
    seed: Seed = DEFAULTS.seed,
    results: Results = DEFAULT_RESULTS,
    format: Format = OutputFormat.TABLE,
    json: Json = False,
) -> int:
    """Trace one step of each case: every cast, of what, for which op, what it costs, what could be saved.

    A device that is not here is stood in for by fake tensors: the casts are seen, no hardware is. The run is stored:
    ampbench show RUN prints it again, with --by and --details.

    \b
    Examples:
      ampbench explain casts model.py:make
      ampbench explain casts mlp --phase training --check
      ampbench explain casts resnet50 --device cuda --by module
      ampbench explain casts decoder_lm --path compiled --format json
    """
    chosen = chosen_format(format, json)
    selection = make_selection(
        [*(names or []), *(workload or [])], precision, device, phase, path, memory_format, keyword, preset, set_,
        None, scaler,
    )  # fmt: skip
    settings = make_settings(1, 1, DEFAULTS.min_run_seconds, "", timeout, "", threads, seed)
    from ampbench import store
    from ampbench.records.casts import Tracing
    from ampbench.running import session
    from ampbench.running.casts import prepare_casts

    with prepare_casts(selection, settings, half_inputs=half_inputs) as prepared:
        session.require_work(prepared)
        header = session.new_header(
            prepared.selection, prepared.settings, prepared.environment, prepared.plan, "",
            ["ampbench", *sys.argv[1:]],
        )  # fmt: skip
        header = replace(header, explains=CASTS)
        with store.RunWriter.create(results, header, [planned.case for planned in prepared.plan]) as writer:
            writer.append(*session.planned_skips(prepared.plan))
            ended = _traced(prepared, Tracing(sources=sources, check=check), writer)
    return _print_end(writer.path, ended, chosen, by, every)


def _traced(prepared: "Prepared", tracing: "Tracing", writer: "RunWriter") -> str:
    from ampbench.cli.progress import trace_progress
    from ampbench.running.casts import trace_cases

    with trace_progress(sum(not planned.skip for planned in prepared.plan)) as watch:
        return trace_cases(prepared, tracing, writer, watch)


def _print_end(path: Path, ended: str, format: OutputFormat, by: By | None, every: bool) -> int:
    """Print what was traced and return the exit code."""
    from ampbench import store
    from ampbench.cli.explain.cast_printing import print_casts
    from ampbench.cli.printing import print_note

    stored = store.read_run(path)
    print_casts(stored, list(stored.cases), format, by, everything=every)
    print_note(f"run {stored.header.run}: {path}")
    if ended != "complete":
        print_note(f"{ended}: what was traced until then is kept")
        return INTERRUPTED
    return FAILED if stored.failures else 0
