"""`ampbench study scope`: what entering autocast around more or less of a training loop costs."""

from typing import Annotated

import typer

from ampbench.cli.explaining import asked_for
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
from ampbench.cli.study.studying import Study, begin, go_on
from ampbench.records.runs import SCOPE, Asked, Settings
from ampbench.units import parse_seconds

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
        return go_on(_study(), resume, results, chosen, everything=every)
    selection, settings = asked_for(
        names, workload, precision, device, None, None, memory_format, keyword, preset, set_, scaler,
        timeout, threads, seed,
    )  # fmt: skip
    asked = Asked(steps=steps, seconds=positive("--seconds", parse_seconds(seconds)))
    return begin(_study(), selection, settings, asked, results, label, chosen, everything=every)


def _study() -> Study:
    from ampbench.cli.study.scope_printing import print_scopes
    from ampbench.running.scope import prepare_scopes, study_scopes
    from ampbench.studied.unfinished import unfinished

    return Study(
        kind=SCOPE,
        said="studying",
        prepare=prepare_scopes,
        work=study_scopes,
        left=unfinished,
        needed=("steps", "seconds"),
        show=print_scopes,
    )
