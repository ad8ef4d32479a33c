"""`ampbench study convergence`: whether training in each precision comes to what it comes to in fp32."""

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
    Precisions,
    Preset,
    Results,
    Scaler,
    Seed,
    Sets,
    Threads,
    Workloads,
    chosen_format,
    refuse_beside_resume,
)
from ampbench.records.runs import CONVERGENCE, Asked, Settings
from ampbench.units import counted

if TYPE_CHECKING:
    from ampbench.running.session import Prepared
    from ampbench.store import StoredRun

DEFAULTS = Settings()
STEPS, SEEDS = 300, 3
TIMEOUT = "1800"
WITH_RESUME = frozenset({"resume", "results", "every", "format", "json"})
"""What a command line may say beside --resume; all else is the run's own."""


def command(
    context: typer.Context,
    names: Names = None,
    workload: Workloads = None,
    precision: Precisions = None,
    device: Devices = None,
    memory_format: MemoryFormats = None,
    keyword: Keyword = "",
    preset: Preset = "",
    set_: Sets = None,
    scaler: Scaler = True,
    steps: Annotated[int, typer.Option(help="Steps of each training.")] = STEPS,
    seeds: Annotated[
        int, typer.Option(help="Train from so many seeds: --seed and those after it. A verdict needs three.")
    ] = SEEDS,
    every: Annotated[bool, typer.Option("--all", help="List every seed, too.")] = False,
    timeout: Annotated[str, typer.Option(metavar="SECONDS", help="The longest a training may take.")] = TIMEOUT,
    threads: Threads = DEFAULTS.threads,
    seed: Seed = DEFAULTS.seed,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    resume: Annotated[str, typer.Option("--resume", metavar="RUN", help="Go on with this study: all is its own.")] = "",
    format: Format = OutputFormat.TABLE,
    json: Json = False,
) -> int:
    """Train in every precision from the same weights on the same batches, and judge by held-out data.

    fp32 is trained, too, in fp64 and from weights one rounding away: what such a rounding changes is no precision's
    fault. Without workloads, digits and characters are trained: real data that needs no download. Your own workload
    gives a list of batches and, in ampbench.Workload's held_out, data to judge by.

    \b
    Examples:
      ampbench study convergence digits
      ampbench study convergence model.py:make --steps 1000 --seeds 5
      ampbench study convergence digits --precision fp16_autocast --no-scaler
      ampbench study convergence --resume 1f9a3c        an interrupted study, by its id
    """
    chosen = chosen_format(format, json)
    if resume:
        refuse_beside_resume(context, WITH_RESUME)
        return _go_on(resume, results, chosen, everything=every)
    asked = Asked(steps=steps, seeds=seeds)
    selection, settings = asked_for(
        names, workload, precision, device, None, None, memory_format, keyword, preset, set_, scaler,
        timeout, threads, seed,
    )  # fmt: skip
    from ampbench.running.convergence import prepare_convergence

    return explain_and_store(
        prepare_convergence(selection, settings, asked),
        CONVERGENCE, results, label, _training(asked),
        lambda stored: _tell(stored, results, chosen, everything=every),
    )  # fmt: skip


def _training(asked: Asked, begun: "StoredRun | None" = None) -> Doing:
    """Return the training of what is planned, or of what a run that was `begun` lacks."""
    from ampbench.running.convergence import pieces_of, train_cases

    return Doing(
        "training",
        lambda prepared, writer, watch: train_cases(prepared, asked, writer, watch, begun),
        lambda prepared: [piece.planned for piece in pieces_of(prepared.plan, prepared.settings, asked, begun)],
        asked,
    )


def _go_on(resume: str, results: Path, format: OutputFormat, *, everything: bool) -> int:
    """Train what a stored run lacks; one that lacks nothing is shown."""
    from ampbench.running.convergence import asked_of, prepare_convergence, untrained

    def further(begun: "StoredRun") -> "tuple[AbstractContextManager[Prepared], Doing]":
        asked = asked_of(begun)
        preparing = prepare_convergence(begun.header.selection, begun.header.settings, asked, begun)
        return preparing, _training(asked, begun)

    def tell(stored: "StoredRun") -> None:
        _tell(stored, results, format, everything=everything)

    return go_on(resume, results, CONVERGENCE, lambda begun: bool(untrained(begun)), further, tell)


def _tell(stored: "StoredRun", results: Path, format: OutputFormat, *, everything: bool) -> None:
    """Print what the trainings come to and, on stderr, what failed and how to go on with what is left."""
    from ampbench.cli.explain.pass_printing import telling
    from ampbench.cli.printing import print_note
    from ampbench.cli.study.convergence_printing import print_convergence
    from ampbench.running.convergence import untrained

    telling(print_convergence, format, everything=everything)(stored)
    if untrained(stored):
        made = counted(sum(map(len, stored.trainings.values())), "training")
        where = "" if results == DEFAULT_RESULTS else f" --results {shlex.quote(str(results))}"
        print_note(f"{made} kept; to go on: ampbench study convergence --resume {stored.header.run}{where}")
