"""`ampbench explain origin`: in which modules the error of a low precision begins."""

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
from ampbench.records.runs import ORIGIN, Settings

DEFAULTS = Settings()


def command(
    names: Names = None,
    workload: Workloads = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(
            "--precision",
            metavar="NAME",
            help="A low precision. Repeatable. Default: autocast to the device's default dtype.",
        ),
    ] = None,
    device: Devices = None,
    phase: Annotated[
        list[str] | None,
        typer.Option("--phase", metavar="NAME", help="inference or training. Repeatable. Default: inference."),
    ] = None,
    memory_format: MemoryFormats = None,
    keyword: Keyword = "",
    preset: Preset = "",
    set_: Sets = None,
    every: Annotated[
        bool, typer.Option("--all", help="List every module in the order of running, not only the worst.")
    ] = False,
    timeout: Timeout = f"{DEFAULTS.timeout_seconds:g}",
    threads: Threads = DEFAULTS.threads,
    seed: Seed = DEFAULTS.seed,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    format: Format = OutputFormat.TABLE,
    json: Json = False,
) -> int:
    """Run each module on the exact inputs it has in fp32: what it errs by itself, and what it only inherits.

    The module where an infinity or NaN begins is named, too. The run is stored: ampbench show RUN prints it again, with
    --details every module.

    \b
    Examples:
      ampbench explain origin model.py:make
      ampbench explain origin resnet50 --precision fp16_pure --precision bf16_pure
      ampbench explain origin decoder_lm --all
    """
    chosen = chosen_format(format, json)
    selection, settings = asked_for(
        names, workload, precision, device, phase, None, memory_format, keyword, preset, set_, True,
        timeout, threads, seed,
    )  # fmt: skip
    from ampbench.cli.explain.origin_printing import print_origins
    from ampbench.cli.pass_printing import telling
    from ampbench.running.ranges import find_origins, prepare_origin

    return explain_and_store(
        prepare_origin(selection, settings),
        ORIGIN, results, label, Doing("comparing the modules of", find_origins),
        telling(print_origins, chosen, everything=every),
    )  # fmt: skip
