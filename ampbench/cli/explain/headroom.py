"""`ampbench explain headroom`: how large a network's values are, and what fp16 and bf16 would make of them."""

from typing import Annotated

import typer

from ampbench.cli.explaining import Doing, asked_for, explain_and_store, telling
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    TIMEOUT,
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
    Seed,
    Sets,
    Threads,
    Workloads,
    chosen_format,
    many_names,
)
from ampbench.cli.printing import OutputFormat
from ampbench.records.kinds import HEADROOM
from ampbench.records.run import Settings

DEFAULTS = Settings()
MOST_STEPS = 10_000


def command(
    names: Names = None,
    workload: Workloads = None,
    precision: Annotated[
        list[str] | None,
        many_names("--precision", "Try it, too, beside fp32. Default: all low ones."),
    ] = None,
    device: Devices = None,
    phase: Annotated[
        list[str] | None,
        many_names("--phase", "inference or training. Default: training, if there is a loss."),
    ] = None,
    memory_format: MemoryFormats = None,
    keyword: Keyword = "",
    preset: Preset = "",
    set_: Sets = None,
    steps: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=MOST_STEPS, help="Steps to watch in fp32; 0: one for each batch there is."
        ),
    ] = 0,
    every: EveryRow = False,
    timeout: PieceTimeout = TIMEOUT,
    threads: Threads = DEFAULTS.threads,
    seed: Seed = DEFAULTS.seed,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    format: Format = OutputFormat.TABLE,
    json: Json = False,
) -> int:
    """Watch fp32 steps: how near each module's values are to what fp16 and bf16 hold, and which loss scales fit.

    Without --phase, the steps are of training, where there is a loss. What would overflow, flush to zero or be
    swallowed by rounding is predicted, then seen in a step of each low precision. The run is stored: ampbench show RUN
    prints it again, with --all all of it.

    \b
    Examples:
      ampbench explain headroom model.py:make
      ampbench explain headroom resnet50 --phase training --steps 4
      ampbench explain headroom mlp --precision fp16_autocast --precision fp16_pure --all
    """
    chosen = chosen_format(format, json)
    selection, settings = asked_for(
        names, workload, precision, device, phase, None, memory_format, keyword, preset, set_, True,
        timeout, threads, seed,
    )  # fmt: skip
    from ampbench.instruments.ranges.instrument import prepare_headroom, watch_cases

    return explain_and_store(
        prepare_headroom(selection, settings),
        HEADROOM, results, label,
        Doing("watching", lambda prepared, writer, watch: watch_cases(prepared, steps, writer, watch)),
        telling(chosen, everything=every),
    )  # fmt: skip
