"""`ampbench study scope`: what entering autocast around more or less of a training loop costs."""

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
from ampbench.records.runs import SCOPE, Asked, Settings
from ampbench.running.scopes import SECONDS, STEPS

if TYPE_CHECKING:
    from ampbench.running.session import Prepared
    from ampbench.store import StoredRun

DEFAULTS = Settings()
DOING = "studying"
WITH_RESUME = frozenset({"resume", "results", "every", "format", "json"})
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
            help="One with autocast. Repeatable. Default: autocast to the device's default dtype.",
        ),
    ] = None,
    device: Devices = None,
    memory_format: MemoryFormats = None,
    keyword: Keyword = "",
    preset: Preset = "",
    set_: Sets = None,
    scaler: Scaler = True,
    steps: Annotated[int, typer.Option(help="Steps of training in each scope, at least two.")] = STEPS,
    every: Annotated[bool, typer.Option("--all", help="List the losses of all steps.")] = False,
    timeout: Timeout = f"{DEFAULTS.timeout_seconds:g}",
    threads: Threads = DEFAULTS.threads,
    seed: Seed = DEFAULTS.seed,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    resume: Annotated[str, typer.Option("--resume", metavar="RUN", help="Go on with this study: all is its own.")] = "",
    format: Format = OutputFormat.TABLE,
    json: Json = False,
) -> int:
    """Train with autocast around forward, forward and loss, backward too, or the whole loop, and say what each costs.

    In each scope the same steps run, from the same weights: casts and memory per step, time in turns, dtypes, errors
    against fp64, losses. PyTorch recommends forward and loss. The run is stored: ampbench show RUN prints it again.

    \b
    Examples:
      ampbench study scope model.py:make
      ampbench study scope mlp transformer_encoder --precision bf16_autocast --steps 16
      ampbench study scope --resume 1f9a3c        an interrupted study, by its id
    """
    chosen = chosen_format(format, json)
    if resume:
        refuse_beside_resume(context, WITH_RESUME)
        return _go_on(resume, results, chosen, everything=every)
    selection, settings = asked_for(
        names, workload, precision, device, None, None, memory_format, keyword, preset, set_, scaler,
        timeout, threads, seed,
    )  # fmt: skip
    from ampbench.running.scopes import prepare_scopes

    return explain_and_store(
        prepare_scopes(selection, settings, steps),
        SCOPE, results, label,
        _doing(Asked(steps=steps, seconds=SECONDS)),
        lambda stored: _tell(stored, results, chosen, everything=every),
    )  # fmt: skip


def _doing(asked: Asked) -> Doing:
    from ampbench.running.scopes import study_scopes

    return Doing(DOING, lambda prepared, writer, watch: study_scopes(prepared, asked, writer, watch), asked=asked)


def _go_on(resume: str, results: Path, format: OutputFormat, *, everything: bool) -> int:
    """Study what a stored run lacks; one that lacks nothing is shown."""
    from ampbench.running.scopes import prepare_scopes, unstudied

    def further(begun: "StoredRun") -> "tuple[AbstractContextManager[Prepared], Doing]":
        asked = begun.header.asked or Asked(steps=STEPS, seconds=SECONDS)
        header = begun.header
        return prepare_scopes(header.selection, header.settings, asked.steps, begun), _doing(asked)

    def tell(stored: "StoredRun") -> None:
        _tell(stored, results, format, everything=everything)

    return go_on(resume, results, SCOPE, lambda begun: bool(unstudied(begun)), further, tell)


def _tell(stored: "StoredRun", results: Path, format: OutputFormat, *, everything: bool) -> None:
    """Print what a run found and, on stderr, what failed and how to go on with what is left."""
    from ampbench.cli.explain.pass_printing import print_failures
    from ampbench.cli.printing import print_note
    from ampbench.cli.study.scope_printing import print_scopes
    from ampbench.running.scopes import unstudied

    print_scopes(stored, list(stored.cases), format, everything=everything)
    print_failures(stored, format)
    if unstudied(stored):
        where = "" if results == DEFAULT_RESULTS else f" --results {shlex.quote(str(results))}"
        print_note(f"to go on: ampbench study scope --resume {stored.header.run}{where}")
