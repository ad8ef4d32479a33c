"""`ampbench explain keep-fp32`: the smallest set of modules to keep in fp32 so that an error budget is met."""

from enum import StrEnum
from typing import Annotated

import typer

from ampbench.cli.instruments import begin, go_on, selected, told_as
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    TIMEOUT,
    WITH_RESUME,
    AutocastPrecisions,
    Devices,
    EveryRow,
    Format,
    InferencePhases,
    Json,
    Keyword,
    Label,
    MaxError,
    MaxGradientError,
    MemoryFormats,
    Names,
    PieceTimeout,
    Preset,
    Results,
    Resume,
    Scaler,
    Sdpa,
    Seed,
    Sets,
    Threads,
    Workloads,
    chosen_format,
    is_typed,
    refuse_beside_resume,
)
from ampbench.cli.printing import OutputFormat
from ampbench.errors import UsageError
from ampbench.instruments.keep_fp32.records import MAX_TRIALS, MEMORY, SPEED, Wanted
from ampbench.judge.budget import Budget
from ampbench.judge.objections import LEAST_KEPT
from ampbench.records.run import Settings

DEFAULTS = Settings()


_MOST_ERROR = 1e150
"""No run file has a larger one (`store.lines`): its square must be finite."""


class Objective(StrEnum):
    """What keeping modules in fp32 should cost little of."""

    SPEED = SPEED
    MEMORY = MEMORY


MaxTrials = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        max=100_000,
        help="So many sets of modules are tried at most, those that are only weighed included.",
    ),
]
WhatCounts = Annotated[
    Objective, typer.Option("--objective", help="What decides between sets of one size: step time or memory.")
]


def command(
    context: typer.Context,
    names: Names = None,
    workload: Workloads = None,
    precision: AutocastPrecisions = None,
    device: Devices = None,
    phase: InferencePhases = None,
    memory_format: MemoryFormats = None,
    sdpa: Sdpa = None,
    keyword: Keyword = "",
    preset: Preset = "",
    set_: Sets = None,
    scaler: Scaler = True,
    max_error: MaxError = Budget.output_rel_l2,
    max_gradient_error: MaxGradientError = Budget.grad_rel_l2,
    min_update_kept: Annotated[
        float,
        typer.Option(
            metavar="S", min=0.0, max=1.0, help="Least share of an update that arrives, in training in pure half."
        ),
    ] = LEAST_KEPT,
    objective: WhatCounts = Objective.SPEED,
    max_trials: MaxTrials = MAX_TRIALS,
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
    """Search the smallest set of modules to keep in fp32 so that the errors meet a budget, and measure what it costs.

    Without --phase, the step is one of inference. Each trial is a step with some modules kept, against fp64. Ends with
    the sets between none and all kept, measured in turns, and with the code to paste. Every trial is stored: an
    interrupted search goes on with --resume.

    \b
    Examples:
      ampbench explain keep-fp32 model.py:make --max-error 2e-3
      ampbench explain keep-fp32 vit_b_16 --phase training --max-gradient-error 1e-2
      ampbench explain keep-fp32 resnet18 --precision fp16_pure --objective memory --max-trials 30
      ampbench explain keep-fp32 --resume 1f9a3c        an interrupted search, by its id
    """
    chosen = chosen_format(format, json)
    from ampbench.instruments.keep_fp32.instrument import INSTRUMENT

    tell = told_as(chosen, everything=every)
    if resume:
        refuse_beside_resume(context, WITH_RESUME)
        return go_on(INSTRUMENT, resume, results, tell)
    wanted = _wanted(max_error, max_gradient_error, min_update_kept, objective, seed, max_trials)
    if is_typed(context, "max_gradient_error") and "training" not in (phase or []):
        raise UsageError("--max-gradient-error bounds the gradients of training: add --phase training, or leave it out")
    selection, settings = selected(
        names, workload, precision, device, phase, None, memory_format, sdpa, keyword, preset, set_, scaler,
        timeout, threads, seed,
    )  # fmt: skip
    return begin(INSTRUMENT, selection, settings, wanted, results, label, tell)


def _wanted(
    max_error: float,
    max_gradient_error: float,
    min_update_kept: float,
    objective: Objective,
    seed: int,
    max_trials: int,
) -> Wanted:
    """Return what the options ask to search; `UsageError` for a limit that cannot be one."""
    Budget(output_rel_l2=max_error, grad_rel_l2=max_gradient_error)  # refuses what is no limit
    for flag, limit in (("--max-error", max_error), ("--max-gradient-error", max_gradient_error)):
        if limit > _MOST_ERROR:
            raise UsageError(f"{flag} is a finite relative error, of no more than {_MOST_ERROR:g}, not {limit:g}")
    return Wanted(
        max_error=max_error,
        max_gradient_error=max_gradient_error,
        min_update_kept=min_update_kept,
        objective=objective.value,
        seed=seed,
        max_trials=max_trials,
    )
