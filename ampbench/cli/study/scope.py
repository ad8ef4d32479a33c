"""`ampbench study scope`: what entering autocast around more or less of a training loop costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampbench.cli.explain.session import Doing, asked_for, explain_and_store, go_on
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    WITH_RESUME,
    Devices,
    Format,
    Json,
    Keyword,
    Label,
    MemoryFormats,
    Names,
    OutputFormat,
    PieceTimeout,
    Preset,
    Results,
    ResumeStudy,
    Scaler,
    Seed,
    Sets,
    StudySeconds,
    Threads,
    Workloads,
    chosen_format,
    refuse_beside_resume,
)
from ampbench.cli.selecting import positive
from ampbench.records.runs import SCOPE, Asked, Settings
from ampbench.units import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ampbench.running.session import Prepared
    from ampbench.store import StoredRun

DEFAULTS = Settings()
STEPS = 8
SECONDS = "20"


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
    seconds: StudySeconds = SECONDS,
    every: Annotated[bool, typer.Option("--all", help="List the losses of all steps.")] = False,
    timeout: PieceTimeout = f"{DEFAULTS.timeout_seconds:g}",
    threads: Threads = DEFAULTS.threads,
    seed: Seed = DEFAULTS.seed,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    resume: ResumeStudy = "",
    format: Format = OutputFormat.TABLE,
    json: Json = False,
) -> int:
    """Train with autocast around forward, forward and loss, backward too, or the whole loop, and say what each costs.

    In each scope the same steps run, from the same weights: casts and memory per step, time in turns, dtypes, errors
    against fp64, losses. PyTorch recommends forward and loss. The run is stored: ampbench show RUN prints it again.

    \b
    Examples:
      ampbench study scope model.py:make
      ampbench study scope mlp transformer_encoder --precision bf16_autocast --steps 16 --seconds 1m
      ampbench study scope --resume 1f9a3c        an interrupted study, by its id
    """
    chosen = chosen_format(format, json)
    if resume:
        refuse_beside_resume(context, WITH_RESUME)
        return _go_on(resume, results, _telling(chosen, everything=every))
    selection, settings = asked_for(
        names, workload, precision, device, None, None, memory_format, keyword, preset, set_, scaler,
        timeout, threads, seed,
    )  # fmt: skip
    asked = Asked(steps=steps, seconds=positive("--seconds", parse_seconds(seconds)))
    from ampbench.running.scope import prepare_scopes

    return explain_and_store(
        prepare_scopes(selection, settings, steps),
        SCOPE, results, label, _studying(asked), _telling(chosen, everything=every),
    )  # fmt: skip


def _studying(asked: Asked) -> Doing:
    from ampbench.running.scope import study_scopes
    from ampbench.studied.unfinished import unfinished

    return Doing(
        "studying",
        lambda prepared, writer, watch: study_scopes(prepared, asked, writer, watch),
        asked=asked,
        left=unfinished,
    )


def _go_on(resume: str, results: Path, tell: "Callable[[StoredRun], None]") -> int:
    """Study what a stored run lacks; one that lacks nothing is shown."""
    from ampbench.running.scope import prepare_scopes
    from ampbench.studied.unfinished import asked_of, unfinished

    def further(begun: "StoredRun") -> "tuple[AbstractContextManager[Prepared], Doing]":
        header, asked = begun.header, asked_of(begun, "steps", "seconds")
        return prepare_scopes(header.selection, header.settings, asked.steps, begun), _studying(asked)

    return go_on(resume, results, SCOPE, unfinished, further, tell)


def _telling(format: OutputFormat, *, everything: bool) -> "Callable[[StoredRun], None]":
    from ampbench.cli.explain.pass_printing import telling
    from ampbench.cli.study.scope_printing import print_scopes

    return telling(print_scopes, format, everything=everything)
