"""`ampbench study input-storage`: what storing a network's inputs in half saves, and whether it loses anything."""

import shlex
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampbench.cli.explain.session import Doing, asked_for, explain_and_store, go_on
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    Devices,
    Format,
    Json,
    Keyword,
    Label,
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
    refuse_beside_resume,
)
from ampbench.records.runs import INPUT_STORAGE, Asked, Settings
from ampbench.units import counted

if TYPE_CHECKING:
    from ampbench.running.session import Prepared
    from ampbench.store import StoredRun

DEFAULTS = Settings()
SECONDS = 4.0
DOING = "comparing"
WITH_RESUME = frozenset({"resume", "results", "format", "json"})
"""What a command line may say beside --resume; all else is the run's own."""


def command(
    context: typer.Context,
    names: Names = None,
    workload: Workloads = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(
            "--precision",
            metavar="NAME",
            help="bf16_autocast or fp16_autocast. Repeatable. Default: autocast to the device's default dtype.",
        ),
    ] = None,
    device: Devices = None,
    phase: Annotated[
        list[str] | None,
        typer.Option(
            "--phase", metavar="NAME", help="inference or training. Repeatable. Default: both, if there is a loss."
        ),
    ] = None,
    memory_format: MemoryFormats = None,
    keyword: Keyword = "",
    preset: Preset = "",
    set_: Sets = None,
    scaler: Scaler = True,
    seconds: Annotated[float, typer.Option(min=0.01, max=3600, help="Timing per case, in seconds.")] = SECONDS,
    timeout: Timeout = f"{DEFAULTS.timeout_seconds:g}",
    threads: Threads = DEFAULTS.threads,
    seed: Seed = DEFAULTS.seed,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    resume: Annotated[str, typer.Option("--resume", metavar="RUN", help="Go on with this study: all is its own.")] = "",
    format: Format = OutputFormat.TABLE,
    json: Json = False,
) -> int:
    """Feed each network inputs in fp32 and inputs stored in half: what is saved, and whether anything is lost.

    Tells apart an input whose first op accepts half (a cast is saved, the results are the same to the last bit) from
    one whose op autocast runs in fp32 or promotes (information is lost). Workloads of token ids are skipped.

    \b
    Examples:
      ampbench study input-storage model.py:make
      ampbench study input-storage mlp transformer_encoder --phase inference
      ampbench study input-storage resnet18 --precision bf16_autocast --precision fp16_autocast
      ampbench study input-storage --resume 1f9a3c       an interrupted study, by its id
    """
    chosen = chosen_format(format, json)
    if resume:
        refuse_beside_resume(context, WITH_RESUME)
        return _go_on(resume, results, chosen)
    selection, settings = asked_for(
        names, workload, precision, device, phase, None, memory_format, keyword, preset, set_, scaler,
        timeout, threads, seed,
    )  # fmt: skip
    from ampbench.running.storage import prepare_storage

    return explain_and_store(
        prepare_storage(selection, settings),
        INPUT_STORAGE, results, label,
        _doing(Asked(seconds=seconds)),
        lambda stored: _tell(stored, results, chosen),
    )  # fmt: skip


def _doing(asked: Asked) -> Doing:
    from ampbench.running.storage import measure_storages

    return Doing(
        DOING,
        lambda prepared, writer, watch: measure_storages(prepared, asked.seconds, writer, watch),
        asked=asked,
    )


def _go_on(resume: str, results: Path, format: OutputFormat) -> int:
    """Measure what a stored run lacks; one that lacks nothing is shown."""
    from ampbench.running.storage import prepare_storage, unmeasured

    def further(begun: "StoredRun") -> "tuple[AbstractContextManager[Prepared], Doing]":
        header = begun.header
        return prepare_storage(header.selection, header.settings, begun), _doing(header.asked or Asked(seconds=SECONDS))

    return go_on(
        resume, results, INPUT_STORAGE,
        lambda begun: bool(unmeasured(begun)), further, lambda stored: _tell(stored, results, format),
    )  # fmt: skip


def _tell(stored: "StoredRun", results: Path, format: OutputFormat) -> None:
    """Print what a run found and, on stderr, what failed and how to go on with what is left."""
    from ampbench.cli.explain.pass_printing import print_failures
    from ampbench.cli.printing import print_note
    from ampbench.cli.study.storage_printing import print_storages
    from ampbench.running.storage import unmeasured

    print_storages(stored, list(stored.cases), format)
    print_failures(stored, format)
    if left := unmeasured(stored):
        where = "" if results == DEFAULT_RESULTS else f" --results {shlex.quote(str(results))}"
        to_go_on = f"ampbench study input-storage --resume {stored.header.run}{where}"
        print_note(f"{counted(len(left), 'case')} left; to go on: {to_go_on}")
