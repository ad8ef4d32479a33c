"""`ampbench study ceilings`: what this machine's devices attain at best."""

from typing import Annotated

import typer

from ampbench.cli.explaining import Study, begin, studying_go_on
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    DURATION,
    TIMEOUT,
    WITH_RESUME,
    Devices,
    EveryRow,
    Format,
    Json,
    Label,
    PieceTimeout,
    Results,
    Resume,
    Threads,
    chosen_format,
    many_names,
    refuse_beside_resume,
)
from ampbench.cli.printing import OutputFormat
from ampbench.cli.selecting import make_settings, typed_seconds
from ampbench.records.kinds import CEILINGS
from ampbench.records.run import Asked, Selection, Settings

DEFAULTS = Settings()
DEFAULT_SECONDS = "2"


def command(
    context: typer.Context,
    device: Devices = None,
    operation: Annotated[
        list[str] | None,
        many_names("--operation", "matmul, conv or copy. Default: all."),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        many_names("--dtype", "fp32, tf32, bf16, fp16 or fp64. Default: all the device has, but fp64."),
    ] = None,
    seconds: Annotated[
        str, typer.Option(metavar="SECONDS", help=f"Timing of each operation in each dtype, {DURATION}.")
    ] = DEFAULT_SECONDS,
    every: EveryRow = False,
    timeout: PieceTimeout = TIMEOUT,
    threads: Threads = DEFAULTS.threads,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    resume: Resume = "",
    format: Format = OutputFormat.TABLE,
    json: Json = False,
) -> int:
    """Measure what a device attains at best: FLOP/s of matrix products and convolutions, copy bandwidth.

    In each dtype, over sizes from small to large, on random values. Says what half precision brings at most on this
    machine and, where the device's datasheet is known, what share of its peaks is reached. The run is stored: ampbench
    show RUN prints it again, with --all every size.

    \b
    Examples:
      ampbench study ceilings
      ampbench study ceilings --device cpu --threads 1 --dtype fp32 --dtype bf16
      ampbench study ceilings --operation copy --seconds 500ms --all
    """
    chosen = chosen_format(format, json)
    if resume:
        refuse_beside_resume(context, WITH_RESUME)
        return studying_go_on(_study(), resume, results, chosen, everything=every)
    from ampbench.instruments.ceilings.instrument import chosen_ceiling_dtypes, chosen_operations

    settings = make_settings(1, 1, "", "", timeout, "", threads, DEFAULTS.seed)
    asked = Asked(
        seconds=typed_seconds("--seconds", seconds),
        operations=chosen_operations(operation or []),
        dtypes=chosen_ceiling_dtypes(dtype or []),
    )
    selection = Selection(devices=device or [])
    return begin(_study(), selection, settings, asked, results, label, chosen, everything=every)


def _study() -> Study:
    from ampbench.instruments.ceilings.instrument import measure_ceilings, pieces, prepare_ceilings, unfinished

    return Study(
        kind=CEILINGS,
        said="measuring",
        prepare=prepare_ceilings,
        work=measure_ceilings,
        pieces=pieces,
        left=unfinished,
        needed=("seconds",),
    )
