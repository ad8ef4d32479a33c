"""`ampbench study convergence`: whether training in each precision comes to what it comes to in fp32."""

from typing import Annotated

import typer

from ampbench.cli.explaining import Study, asked_for, begin, studying_go_on
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    WITH_RESUME,
    Devices,
    EveryRow,
    Format,
    Json,
    Keyword,
    Label,
    MemoryFormats,
    Names,
    PieceTimeout,
    Precisions,
    Preset,
    Results,
    Resume,
    Scaler,
    Seed,
    Sets,
    Threads,
    Workloads,
    chosen_format,
    refuse_beside_resume,
)
from ampbench.cli.printing import OutputFormat
from ampbench.errors import UnknownNameError
from ampbench.instruments.convergence.records import SCHEDULES
from ampbench.records.kinds import CONVERGENCE
from ampbench.records.run import Asked, Settings

DEFAULTS = Settings()
STEPS, SEEDS = 300, 3
TIMEOUT = "1800"


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
    steps: Annotated[int, typer.Option(metavar="N", min=1, max=1_000_000, help="Steps of each training.")] = STEPS,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=1000,
            help="Train from so many seeds: --seed and those after it. A verdict needs 2; 3 or more find more.",
        ),
    ] = SEEDS,
    schedule: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            show_default="the workload's own, or constant",
            help="How the learning rate goes on: constant, linear or cosine. The last two end next to 0, where updates "
            "vanish.",
        ),
    ] = "",
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
    """Train in every precision from the same weights on the same batches, and judge by held-out data.

    fp32 is trained, too, in fp64 and from weights one rounding away: what such a rounding changes is no precision's
    fault. Without workloads, digits and characters are trained: real data that needs no download. Your own workload
    gives a list of batches and, in ampbench.Workload's held_out, data to judge by.

    \b
    Examples:
      ampbench study convergence digits
      ampbench study convergence model.py:make --steps 1000 --seeds 5
      ampbench study convergence digits --schedule cosine     to where updates vanish
      ampbench study convergence digits --precision fp16_autocast --no-scaler
      ampbench study convergence --resume 1f9a3c        an interrupted study, by its id
    """
    chosen = chosen_format(format, json)
    if resume:
        refuse_beside_resume(context, WITH_RESUME)
        return studying_go_on(_study(), resume, results, chosen, everything=every)
    if schedule and schedule not in SCHEDULES:
        raise UnknownNameError("schedule", schedule, SCHEDULES)
    asked = Asked(steps=steps, seeds=seeds, schedule=schedule)
    selection, settings = asked_for(
        names, workload, precision, device, None, None, memory_format, keyword, preset, set_, scaler,
        timeout, threads, seed,
    )  # fmt: skip
    return begin(_study(), selection, settings, asked, results, label, chosen, everything=every)


def _study() -> Study:
    from ampbench.instruments.convergence.instrument import pieces, prepare_convergence, train_cases, unfinished

    return Study(
        kind=CONVERGENCE,
        said="training",
        prepare=prepare_convergence,
        work=train_cases,
        pieces=lambda *given: [planned for planned, _ in pieces(*given)],
        left=unfinished,
        needed=("steps", "seeds"),
    )
