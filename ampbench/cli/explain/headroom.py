"""`ampbench explain headroom`: how large a network's values are, and what fp16 and bf16 would make of them."""

from typing import Annotated

import typer

from ampbench.cli.explaining import Doing, asked_for, explain_and_store
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
    Seed,
    Sets,
    Threads,
    Timeout,
    Workloads,
    chosen_format,
)
from ampbench.records.runs import HEADROOM, Settings

DEFAULTS = Settings()
MOST_STEPS = 10_000


def command(
    names: Names = None,
    workload: Workloads = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(
            "--precision", metavar="NAME", help="Try this low precision, too, beside fp32. Repeatable. Default: all."
        ),
    ] = None,
    device: Devices = None,
    phase: Annotated[
        list[str] | None,
        typer.Option(
            "--phase", metavar="NAME", help="inference or training. Repeatable. Default: training, if there is a loss."
        ),
    ] = None,
    memory_format: MemoryFormats = None,
    keyword: Keyword = "",
    preset: Preset = "",
    set_: Sets = None,
    steps: Annotated[
        int, typer.Option(min=0, max=MOST_STEPS, help="Steps to watch in fp32; 0: one for each batch there is.")
    ] = 0,
    every: Annotated[bool, typer.Option("--all", help="List every row, not only the most telling ones.")] = False,
    timeout: Timeout = f"{DEFAULTS.timeout_seconds:g}",
    threads: Threads = DEFAULTS.threads,
    seed: Seed = DEFAULTS.seed,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    format: Format = OutputFormat.TABLE,
    json: Json = False,
) -> int:
    """Watch fp32 steps: how near each module's values are to what fp16 and bf16 hold, and which loss scales fit.

    What would overflow, flush to zero or be swallowed by rounding is predicted, then seen in a step of each low
    precision. The run is stored: ampbench show RUN prints it again, with --details all of it.

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
    from ampbench.cli.explain.headroom_printing import print_headroom
    from ampbench.cli.pass_printing import telling
    from ampbench.running.ranges import prepare_headroom, watch_cases

    return explain_and_store(
        prepare_headroom(selection, settings),
        HEADROOM, results, label,
        Doing("watching", lambda prepared, writer, watch: watch_cases(prepared, steps, writer, watch)),
        telling(print_headroom, chosen, everything=every),
    )  # fmt: skip
