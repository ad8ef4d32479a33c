"""`ampbench study scope`: what entering autocast around more or less of a training loop costs."""

from typing import Annotated

import typer

from ampbench.cli.explaining import Study, asked_for, begin, studying_go_on
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    TIMEOUT,
    WITH_RESUME,
    AutocastPrecisions,
    Devices,
    EveryRow,
    Format,
    Json,
    Keyword,
    Label,
    MemoryFormats,
    Names,
    PieceTimeout,
    Preset,
    Results,
    Resume,
    Scaler,
    Seed,
    Sets,
    StudySeconds,
    Threads,
    Workloads,
    chosen_format,
    refuse_beside_resume,
)
from ampbench.cli.printing import OutputFormat
from ampbench.cli.selecting import typed_seconds
from ampbench.instruments.scope.records import FEWEST_STEPS
from ampbench.records.kinds import SCOPE
from ampbench.records.run import Asked, Settings

DEFAULTS = Settings()
STEPS = 8
SECONDS = "20"


def command(
    context: typer.Context,
    names: Names = None,
    workload: Workloads = None,
    precision: AutocastPrecisions = None,
    device: Devices = None,
    memory_format: MemoryFormats = None,
    keyword: Keyword = "",
    preset: Preset = "",
    set_: Sets = None,
    scaler: Scaler = True,
    steps: Annotated[
        int, typer.Option(metavar="N", min=FEWEST_STEPS, max=1000, help="Steps of training in each scope.")
    ] = STEPS,
    seconds: StudySeconds = SECONDS,
    every: EveryRow = False,
    timeout: PieceTimeout = TIMEOUT,
    threads: Threads = DEFAULTS.threads,
    seed: Seed = DEFAULTS.seed,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    resume: Resume = "",
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
        return studying_go_on(_study(), resume, results, chosen, everything=every)
    selection, settings = asked_for(
        names, workload, precision, device, None, None, memory_format, keyword, preset, set_, scaler,
        timeout, threads, seed,
    )  # fmt: skip
    asked = Asked(steps=steps, seconds=typed_seconds("--seconds", seconds))
    return begin(_study(), selection, settings, asked, results, label, chosen, everything=every)


def _study() -> Study:
    from ampbench.drive.pieces import unfinished
    from ampbench.instruments.scope.instrument import prepare_scopes, study_scopes

    return Study(
        kind=SCOPE,
        said="studying",
        prepare=prepare_scopes,
        work=study_scopes,
        left=unfinished,
        needed=("steps", "seconds"),
    )
