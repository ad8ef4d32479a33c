"""Options that several verbs share, each spelled and explained once."""

import os
import shlex
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ampbench.base.recipes import OPTIMIZERS, RECIPES
from ampbench.base.units import one_of
from ampbench.cli import completing
from ampbench.cli.completing import completer
from ampbench.cli.printing import OutputFormat, print_note
from ampbench.errors import INTERRUPTED, UsageError
from ampbench.judge.budget import Budget
from ampbench.records.case import COMPILE_MODES, DEVICES, SDPA, TORCHS_CHOICE
from ampbench.records.run import Settings

A_RUN = "an id, its beginning or its last part, latest, or a path"
"""How a run is named on a command line."""
DURATION = "as in 90, 2m or 500ms"
TIMEOUT = f"{Settings().timeout_seconds:g}"


Format = Annotated[OutputFormat, typer.Option("--format", help="How to print the data.")]
Json = Annotated[bool, typer.Option("--json", help="Short for --format json.")]
Results = Annotated[Path, typer.Option("--results", metavar="DIR", help="The folder that holds runs/.")]
Keyword = Annotated[
    str,
    typer.Option(
        "-k", "--keyword", metavar="EXPRESSION", help="Only cases whose id matches, as in 'resnet and not fp16'."
    ),
]
MaxError = Annotated[
    float,
    typer.Option(
        metavar="ERROR",
        help="Largest output error (relative L2 against fp64) to allow. The default is ten times the error of "
        "rounding to bf16, near torch.testing's 1.6e-2 for bf16.",
    ),
]
MinArgmaxAgreement = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="Smallest share of a classifier's decisions that stay the same; a shortfall counts when chance cannot "
        "explain it (5%). MLPerf Inference asks for 99% of the accuracy.",
    ),
]
MaxGradientError = Annotated[
    float,
    typer.Option(
        metavar="ERROR",
        help="Largest gradient error (relative L2) to allow in training. A tenth adds 0.5% to the noise a minibatch "
        "gradient has at the critical batch size (McCandlish et al. 2018).",
    ),
]
MaxFlushedShare = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="Largest share of gradients flushed to zero to allow in training. Harm is reported at 5% (Micikevicius "
        "et al. 2018, 3.1).",
    ),
]

MaxSampleError = Annotated[
    float,
    typer.Option(
        metavar="ERROR",
        help="Largest error that 99 of 100 samples of a batch may have (relative L2 of each). A convention.",
    ),
]
MaxWorstSampleError = Annotated[
    float, typer.Option(metavar="ERROR", help="Largest error that any sample may have. A convention.")
]
MaxKl = Annotated[
    float,
    typer.Option(
        metavar="NATS",
        help="How far a classifier's probabilities may lie from fp64's (KL, mean over rows). At 0.01 no probability "
        "differs by more than 7% on average (Pinsker); a language model in six-bit weights lies at 0.005.",
    ),
]
MaxKlP99 = Annotated[
    float, typer.Option("--max-kl-p99", metavar="NATS", help="The same for 99 of 100 rows. A convention.")
]
MaxLossError = Annotated[
    float,
    typer.Option(
        metavar="ERROR", help="Largest error of the loss, relative to it, to allow in training. A convention."
    ),
]


def split_names(values: list[str] | None) -> list[str] | None:
    """Return names one by one where they were typed with commas; a comma in the name of a file that is there stays."""
    found: list[str] = []
    for value in values or []:
        parts = [part.strip() for part in value.split(",") if part.strip()]
        # no file has a name of hundreds of characters, which Path.exists refuses to look for
        whole = "," not in value or not parts or os.path.exists(value.rpartition(":")[0] or value)  # noqa: PTH110
        found += [value] if whole else parts
    return found if values is not None else None


def many_names(names: str, help: str) -> typer.models.OptionInfo:
    """Return the option for a list of names, typed one by one or with commas."""
    return typer.Option(  # type: ignore[no-any-return]
        names,
        metavar="NAME",
        help=f"{help} Repeatable, or with commas.",
        callback=split_names,
        autocompletion=completer(names),
    )


def _many(names: str, metavar: str, help: str) -> typer.models.OptionInfo:
    return typer.Option(names, metavar=metavar, help=f"{help} Repeatable.")  # type: ignore[no-any-return]


Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WORKLOAD",
        help="Workloads, families, 'all', path/to/file.py:function, or by name as timm:vit_small_*.",
        callback=split_names,
        autocompletion=completer("WORKLOAD"),
    ),
]
Workloads = Annotated[list[str] | None, many_names("--workload", "A workload, as the argument.")]
Precisions = Annotated[list[str] | None, many_names("--precision", "See ampbench list precisions. Default: all.")]
AutocastPrecisions = Annotated[
    list[str] | None,
    many_names("--precision", "See ampbench list precisions. Default: autocast to the device's default dtype."),
]
Devices = Annotated[
    list[str] | None, many_names("--device", f"{one_of(DEVICES)}. Default: the accelerator, else the CPU.")
]
Phases = Annotated[list[str] | None, many_names("--phase", "inference or training. Default: both.")]
InferencePhases = Annotated[list[str] | None, many_names("--phase", "inference or training. Default: inference.")]
Paths = Annotated[list[str] | None, many_names("--path", "eager, compiled or traced. Default: eager.")]
CompileModes = Annotated[
    list[str] | None,
    many_names("--compile-mode", f"How --path compiled compiles: {one_of(COMPILE_MODES)}. Default: default."),
]
MemoryFormats = Annotated[
    list[str] | None, many_names("--memory-format", "contiguous or channels_last. Default: contiguous.")
]
Sdpa = Annotated[
    list[str] | None,
    many_names(
        "--sdpa",
        f"The kernel of scaled_dot_product_attention: {one_of(SDPA)}; {TORCHS_CHOICE}, the default: as torch chooses.",
    ),
]
Preset = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="tiny, small or large. Default: small on a CPU, large elsewhere.",
        autocompletion=completer("--preset"),
    ),
]
Sets = Annotated[
    list[str] | None,
    _many("--set", "[NAME.]PARAM=VALUE", "Set a parameter of one workload, or of all that have it."),
]
Sweeps = Annotated[list[str] | None, _many("--sweep", "PARAM=1,2,4", "Measure every value of a parameter.")]
Rounds = Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Rounds per case; intervals need three.")]
MinRunTime = Annotated[str, typer.Option(metavar="SECONDS", help=f"Timing per round, {DURATION}.")]
MaxTime = Annotated[
    str, typer.Option(metavar="SECONDS", help=f"Begin nothing more after this and let what runs end, {DURATION}.")
]
Timeout = Annotated[str, typer.Option(metavar="SECONDS", help=f"The longest a round may take, {DURATION}.")]
MemoryLimit = Annotated[
    str,
    typer.Option(metavar="BYTES", help="The most a round may keep resident, as in 8GiB. Default: 85% of what is free."),
]
Threads = Annotated[int, typer.Option(metavar="N", min=0, max=4096, help="torch's threads; 0: as torch chooses.")]
Burst = Annotated[
    bool,
    typer.Option(
        "--burst", help="On an accelerator, time tenths of a second in place of seconds: quick, warmed up less."
    ),
]
KeepFlags = Annotated[
    bool,
    typer.Option(
        "--keep-flags",
        help="Leave torch's switches as your code sets them, but for those that define a precision; `default` has all.",
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Of weights, inputs and the order of measuring.")]
Scaler = Annotated[bool, typer.Option("--scaler/--no-scaler", help="GradScaler in fp16_autocast training.")]

Optimizers = Annotated[
    list[str] | None,
    typer.Option(
        "--optimizer",
        metavar="NAME[:SETTING=VALUE,...]",
        help=f"What trains: torch's {one_of(tuple(OPTIMIZERS))}, or a recipe, {one_of(tuple(RECIPES))}; as in "
        "adamw:lr=3e-4,weight_decay=0.1,clip=1.0. Settings alone change the workload's own. Repeatable.",
        autocompletion=completing.optimizers,
    ),
]

LONGEST_LABEL = 200


def _short(label: str) -> str:
    """Return a label; `UsageError` for one that would drown what stands beside it."""
    if len(label) > LONGEST_LABEL:
        raise UsageError(f"--label has {len(label):,} characters: give {LONGEST_LABEL} at most")
    return label


Label = Annotated[str, typer.Option(metavar="TEXT", callback=_short, help="A name for the run in lists and reports.")]
Threshold = Annotated[
    str, typer.Option(metavar="PERCENT", help="The largest change of any case's time that counts as none. Default: 2.")
]
Only = Annotated[str, typer.Option(metavar="KIND,...", help="Only these of time, memory, accuracy and rules.")]
Every = Annotated[bool, typer.Option("--all", help="List what is unchanged, too.")]
EveryRow = Annotated[bool, typer.Option("--all", help="List every row, not only the most telling ones.")]

DEFAULT_RESULTS = Path("results")
Resume = Annotated[
    str,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Go on with this run; what it was asked for is its own.",
        autocompletion=completing.runs,
    ),
]
WITH_RESUME = frozenset({"resume", "results", "every", "format", "json"})
"""What a command line may say beside --resume; all else is the run's own."""
PieceTimeout = Annotated[
    str,
    typer.Option("--timeout", metavar="SECONDS", help=f"The longest one piece of the work may take, {DURATION}."),
]


def chosen_format(format: OutputFormat, json: bool) -> OutputFormat:
    """Return the format that `--format` and `--json` ask for together; raises `UsageError` where they contradict."""
    if json and format not in (OutputFormat.TABLE, OutputFormat.JSON):
        raise UsageError(f"--json and --format {format} contradict each other: give one of them")
    return OutputFormat.JSON if json else format


def chosen_budget(
    max_error: float,
    min_argmax_agreement: float,
    max_gradient_error: float,
    max_flushed_share: float,
    max_sample_error: float,
    max_worst_sample_error: float,
    max_kl: float,
    max_kl_p99: float,
    max_loss_error: float,
) -> Budget:
    """Return the error budget that the flags give; raises `UsageError` for a limit that cannot be one."""
    return Budget(
        output_rel_l2=max_error,
        argmax_agreement=min_argmax_agreement,
        grad_rel_l2=max_gradient_error,
        grad_flushed_share=max_flushed_share,
        sample_p99_rel_l2=max_sample_error,
        sample_worst_rel_l2=max_worst_sample_error,
        kl_mean=max_kl,
        kl_p99=max_kl_p99,
        loss_rel_error=max_loss_error,
    )


def run_words(path: Path, results: Path) -> str:
    """Return what names a run on a command line: its id where `results` holds its file, else its `path`."""
    from ampbench.store import run_id

    if path.parent != results / "runs":
        return shlex.quote(str(path))
    return run_id(path) + results_words(results)


def results_words(results: Path) -> str:
    """Return what names a results folder on a command line, after a space; "" for the default."""
    return "" if results == DEFAULT_RESULTS else f" --results {shlex.quote(str(results))}"


@contextmanager
def stored_already(command: str) -> Iterator[None]:
    """End an interruption while what is stored is read and shown by saying that it is, and which `command` shows it."""
    try:
        yield
    except KeyboardInterrupt:
        print_note(f"interrupted: what was seen is stored, and {command} shows it")
        raise typer.Exit(INTERRUPTED) from None


def is_typed(context: typer.Context, name: str) -> bool:
    """Return whether the command line itself gives the parameter `name`, not a settings file or a default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_beside_resume(context: typer.Context, allowed: Collection[str]) -> None:
    """Raise `UsageError` for what a command line gives and the run has already; a settings file may give anything.

    `allowed` are the parameters that may stand beside `--resume`.
    """
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in allowed and is_typed(context, name):
            said = next((word for word in parameter.opts if word.startswith("--")), "workloads")
            raise UsageError(f"--resume takes the selection and the settings from the run: leave {said} out")
