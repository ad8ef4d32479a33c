"""`ampbench study input-storage`: what storing a network's inputs in half saves, and whether it loses anything."""

from typing import Annotated

import typer

from ampbench.cli.explaining import Study, asked_for, begin, studying_go_on
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    TIMEOUT,
    WITH_RESUME,
    AutocastPrecisions,
    Devices,
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
    many_names,
    refuse_beside_resume,
)
from ampbench.cli.printing import OutputFormat
from ampbench.cli.selecting import typed_seconds
from ampbench.records.kinds import INPUT_STORAGE
from ampbench.records.run import Asked, Settings

DEFAULTS = Settings()
SECONDS = "4"


def command(
    context: typer.Context,
    names: Names = None,
    workload: Workloads = None,
    precision: AutocastPrecisions = None,
    device: Devices = None,
    phase: Annotated[
        list[str] | None,
        many_names("--phase", "inference or training. Default: both, if there is a loss."),
    ] = None,
    memory_format: MemoryFormats = None,
    keyword: Keyword = "",
    preset: Preset = "",
    set_: Sets = None,
    scaler: Scaler = True,
    seconds: StudySeconds = SECONDS,
    timeout: PieceTimeout = TIMEOUT,
    threads: Threads = DEFAULTS.threads,
    seed: Seed = DEFAULTS.seed,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    resume: Resume = "",
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
        return studying_go_on(_study(), resume, results, chosen)
    selection, settings = asked_for(
        names, workload, precision, device, phase, None, memory_format, keyword, preset, set_, scaler,
        timeout, threads, seed,
    )  # fmt: skip
    asked = Asked(seconds=typed_seconds("--seconds", seconds))
    return begin(_study(), selection, settings, asked, results, label, chosen)


def _study() -> Study:
    from ampbench.drive.pieces import unfinished
    from ampbench.instruments.input_storage.instrument import measure_storages, prepare_storage

    return Study(
        kind=INPUT_STORAGE,
        said="comparing",
        prepare=prepare_storage,
        work=measure_storages,
        left=unfinished,
        needed=("seconds",),
    )
