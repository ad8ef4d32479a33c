"""`ampbench study scaler`: what GradScaler does to fp16 training, and what training comes to without it."""

from typing import TYPE_CHECKING, Annotated

import typer

from ampbench.cli.explaining import Study, asked_for, begin, studying_go_on
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    TIMEOUT,
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
    Preset,
    Results,
    Resume,
    Seed,
    Sets,
    Threads,
    Workloads,
    chosen_format,
    is_typed,
    many_names,
    refuse_beside_resume,
)
from ampbench.cli.printing import OutputFormat
from ampbench.errors import UsageError
from ampbench.records.kinds import SCALER
from ampbench.records.run import Asked, ScalerSetting, Settings

if TYPE_CHECKING:
    from collections.abc import Collection

    from ampbench.store import StoredRun

DEFAULTS = Settings()
STEPS = 100
GRAD_SCALER = ScalerSetting(name="yours")


def command(
    context: typer.Context,
    names: Names = None,
    workload: Workloads = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(
            "--precision", metavar="NAME", help="Only fp16_autocast, the default: GradScaler is for no other."
        ),
    ] = None,
    device: Devices = None,
    memory_format: MemoryFormats = None,
    keyword: Keyword = "",
    preset: Preset = "",
    set_: Sets = None,
    steps: Annotated[int, typer.Option(metavar="N", min=1, max=1_000_000, help="Steps of each training.")] = STEPS,
    setting: Annotated[
        list[str] | None,
        many_names(
            "--setting",
            "Only this one beside fp32: 'no scaling', default, 'low start', 'high start' or 'fast growth'.",
        ),
    ] = None,
    scaler: Annotated[
        bool,
        typer.Option(
            "--scaler/--no-scaler",
            help="--no-scaler: train only in fp32 and without scaling (for devices without fp64, which GradScaler "
            "needs).",
        ),
    ] = True,
    init_scale: Annotated[float, typer.Option(metavar="SCALE", help="Of a setting of yours.")] = GRAD_SCALER.init_scale,
    growth_factor: Annotated[
        float, typer.Option(metavar="FACTOR", help="Of a setting of yours.")
    ] = GRAD_SCALER.growth_factor,
    backoff_factor: Annotated[
        float, typer.Option(metavar="FACTOR", help="Of a setting of yours.")
    ] = GRAD_SCALER.backoff_factor,
    growth_interval: Annotated[
        int, typer.Option(metavar="STEPS", help="Of a setting of yours.")
    ] = GRAD_SCALER.growth_interval,
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
    """Train in fp32, in fp16 without loss scaling and with GradScaler in several settings, from the same weights.

    Tells what share of the gradients flushes to zero and how far they err, the scale in every step, skipped steps and
    the parameters whose gradients overflow, and whether the loss falls as in fp32.

    \b
    Examples:
      ampbench study scaler model.py:make
      ampbench study scaler unet --preset tiny --steps 200
      ampbench study scaler mlp --setting default --init-scale 1024 --growth-interval 100
      ampbench study scaler --resume 1f9a3c              an interrupted study, by its id
    """
    chosen = chosen_format(format, json)
    if resume:
        refuse_beside_resume(context, WITH_RESUME)
        return studying_go_on(_study(), resume, results, chosen, everything=every)
    own = _own_setting(context, init_scale, growth_factor, backoff_factor, growth_interval)
    from ampbench.instruments.scaler.instrument import chosen_settings

    asked = Asked(steps=steps, settings=chosen_settings(setting or [], own, scaler=scaler))
    selection, settings = asked_for(
        names, workload, precision, device, None, None, memory_format, keyword, preset, set_, scaler,
        timeout, threads, seed,
    )  # fmt: skip
    return begin(_study(), selection, settings, asked, results, label, chosen, everything=every)


def _own_setting(
    context: typer.Context, init_scale: float, growth_factor: float, backoff_factor: float, growth_interval: int
) -> ScalerSetting | None:
    """Return the setting that the options give, if one is given; `UsageError` for what GradScaler does not take."""
    if not any(is_typed(context, name) for name in ScalerSetting.__slots__):
        return None
    for option, holds, wanted in (
        (f"--init-scale {init_scale:g}", 0 < init_scale < 2.0**128, "a finite number above 0, as fp32 holds it"),
        (f"--growth-factor {growth_factor:g}", 1 < growth_factor < float("inf"), "a number above 1"),
        (f"--backoff-factor {backoff_factor:g}", 0 < backoff_factor < 1, "between 0 and 1"),
        (f"--growth-interval {growth_interval}", growth_interval >= 1, "at least 1"),
    ):
        if not holds:
            raise UsageError(f"{option}: must be {wanted}")
    return ScalerSetting(
        name=GRAD_SCALER.name,
        init_scale=init_scale,
        growth_factor=growth_factor,
        backoff_factor=backoff_factor,
        growth_interval=growth_interval,
    )


def _study() -> Study:
    from ampbench.drive.pieces import asked_of
    from ampbench.instruments.scaler.instrument import pieces, prepare_scaling, scale_cases, unfinished

    def left(begun: "StoredRun") -> "Collection[object]":
        asked_of(begun, "steps")  # of a run that does not say it, nothing is known to be left
        return unfinished(begun)

    return Study(
        kind=SCALER,
        said="training",
        prepare=prepare_scaling,
        work=scale_cases,
        pieces=lambda *given: [planned for planned, _ in pieces(*given)],
        left=left,
        needed=("steps",),
    )
