"""`ampbench explain origin`: in which modules the error of a low precision begins."""

from ampbench.cli.explaining import Doing, asked_for, explain_and_store, telling
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    TIMEOUT,
    AutocastPrecisions,
    Devices,
    EveryRow,
    Format,
    InferencePhases,
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
)
from ampbench.cli.printing import OutputFormat
from ampbench.records.kinds import ORIGIN
from ampbench.records.run import Settings

DEFAULTS = Settings()


def command(
    names: Names = None,
    workload: Workloads = None,
    precision: AutocastPrecisions = None,
    device: Devices = None,
    phase: InferencePhases = None,
    memory_format: MemoryFormats = None,
    keyword: Keyword = "",
    preset: Preset = "",
    set_: Sets = None,
    every: EveryRow = False,
    timeout: PieceTimeout = TIMEOUT,
    threads: Threads = DEFAULTS.threads,
    seed: Seed = DEFAULTS.seed,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    format: Format = OutputFormat.TABLE,
    json: Json = False,
) -> int:
    """Run each module on the exact inputs it has in fp32: what it errs by itself, and what it only inherits.

    Without --phase, the step is one of inference. The module where an infinity or NaN begins is named, too. The run is
    stored: ampbench show RUN prints it again, with --all every module.

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
    from ampbench.instruments.ranges.instrument import find_origins, prepare_origin

    return explain_and_store(
        prepare_origin(selection, settings),
        ORIGIN, results, label, Doing("comparing the modules of", find_origins),
        telling(chosen, everything=every),
    )  # fmt: skip
