"""Options of verbs: those that several share, each spelled and explained once, and what is made of them.

A parameter of a verb may be `Made` by a function: the function's options then stand in its place on the command line,
and the verb is handed what the function returns. A shell is offered values that are known without torch, and the
runs of `--results`.
"""

import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer
from typer.core import TyperCommand

from ampbench import settings
from ampbench.cli.printing import OutputFormat, print_note
from ampbench.core.budget import LIMITS, Budget
from ampbench.core.precisions import PRECISIONS
from ampbench.core.recipes import OPTIMIZERS, RECIPES, parse_optimizer
from ampbench.core.units import one_of, parse_bytes, parse_seconds, parse_value
from ampbench.errors import INTERRUPTED, AmpbenchError, UsageError
from ampbench.records.case import DEVICES, OF_CASES, PATHS, PHASES, ParameterValue
from ampbench.records.run import LATEST, Header, Selection, Settings
from ampbench.workloads.index import is_users

Value = TypeVar("Value")
A_RUN = "an id, its beginning or its last part, latest, or a path"
"""How a run is named on a command line."""
DURATION = "as in 90, 2m or 500ms"
DEFAULTS = Settings()
CASES_OWN = "; ".join(f"{name}: {one_of([str(value).lower() for value in known])}" for name, known in OF_CASES.items())
"""What --set and --sweep decide of all cases, with its values."""
TIMEOUT = f"{DEFAULTS.timeout_seconds:g}"


@dataclass(frozen=True, slots=True)
class Made:
    """Marks a parameter of a verb: `by` makes it, of options that are that function's own parameters."""

    by: Callable[..., Any]


def as_typer_takes(verb: Callable[..., int | None]) -> Callable[..., int | None]:
    """Return a verb with the options of what makes its parameters in place of these."""
    options: list[Parameter] = []
    made: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for parameter in parameters_of(verb).values():
        mark = next((each for each in get_args(parameter.annotation) if isinstance(each, Made)), None)
        own = [parameter] if mark is None else list(parameters_of(mark.by).values())
        options += own
        if mark is not None:
            made[parameter.name] = mark.by, [option.name for option in own]

    def command(**values: Any) -> int | None:
        for name, (by, names) in made.items():
            values[name] = by(**{option: values.pop(option) for option in names})
        return verb(**values)

    return with_parameters(command, options, verb.__doc__)


def with_parameters(
    function: Callable[..., Value], parameters: Collection[Parameter], help: str | None = None
) -> Callable[..., Value]:
    """Return a function of keywords, given `parameters` by name and `help`, where typer looks for them."""
    function.__signature__ = Signature(list(parameters))  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in parameters}
    function.__doc__ = help
    return function


SECTIONS = {
    "What": "precision device phase path preset set_ sweep optimizer threads seed no_isolation shard ray on",
    "How long": "rounds min_run_time max_time budget burst steps seeds seconds max_trials dry_run yes",
    "Limits": "timeout memory_limit max_error max_gradient_error min_update_kept",
    "Output": "results label resume format json every verbose help",
}
"""The sections of a verb's help, each with the names of its parameters; others come under "Options"."""


class Sectioned(TyperCommand):
    """A verb whose help has its options in `SECTIONS`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options of no section, then each section."""
        section_of = {name: title for title, names in SECTIONS.items() for name in names.split()}
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], **{title: [] for title in SECTIONS}}
        for parameter in self.get_params(ctx):
            title = (
                "Arguments" if parameter.param_type_name == "argument" else section_of.get(parameter.name, "Options")
            )
            row = parameter.get_help_record(ctx)
            rows[title] += [row] if row else []
        for title, listed in rows.items():
            if listed:
                with formatter.section(title):
                    formatter.write_dl(listed)


def option(name: str, annotation: Any, default: Any = Parameter.empty) -> Parameter:
    """Return the parameter of a verb that an option, or whatever else typer takes, gives."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def parameters_of(function: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the parameters of a function by name, as ones that are named in a call."""
    found = signature(function, eval_str=True).parameters
    return {name: each.replace(kind=Parameter.KEYWORD_ONLY) for name, each in found.items()}


Offers = list[tuple[str, str]]


def stored_runs(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the ids of the runs in the results folder, and their last parts where none begins with what is typed."""
    from ampbench.store import list_runs, run_id

    found: list[str] = []
    with suppress(AmpbenchError, OSError):  # no folder, or none that can be read
        found = [run_id(path) for path in list_runs(context.params.get("results") or Path("results"))]
    offered = [*found, LATEST] if found else []
    if any(run.startswith(incomplete) for run in offered):
        return offered
    return [run.rpartition("-")[2] for run in found]


def listings() -> list[str]:
    """Offer what `ampbench list` lists."""
    from ampbench.cli.list import LISTINGS

    return [*LISTINGS]


def formats() -> list[str]:
    """Offer what `ampbench convert` writes and reads."""
    from ampbench.cli.convert import NATIVE, PARQUET
    from ampbench.convert import FORMATS

    return [*FORMATS, PARQUET, NATIVE]


def optimizers() -> Offers:
    """Offer the recipes and torch's optimizers."""
    torchs = [(name, f"torch.optim.{row.kind}") for name, row in OPTIMIZERS.items()]
    return [*((name, row.summary) for name, row in RECIPES.items()), *torchs]


def completer(names: str) -> Callable[[str], Offers] | None:
    """Return the completer of values of an option or argument, also after a comma; None where none are known."""
    known = _KNOWN.get(names)
    if known is None:
        return None

    def complete(incomplete: str) -> Offers:
        before = incomplete[: incomplete.rfind(",") + 1]
        offered = known()
        said = offered if isinstance(offered, Mapping) else dict.fromkeys(offered, "")
        return [(before + name, said[name]) for name in said]

    return complete


def _workloads() -> Mapping[str, str]:
    from ampbench.workloads.index import FAMILIES, WORKLOADS

    families = {name: f"all of the family {name}" for name in FAMILIES}
    return families | {name: row.summary for name, row in WORKLOADS.items()} | {"all": "every built-in workload"}


def _presets() -> Iterable[str]:
    from ampbench.workloads.index import PRESETS

    return PRESETS


_KNOWN: Mapping[str, Callable[[], Mapping[str, str] | Iterable[str]]] = {
    "WORKLOAD": _workloads,
    "--precision": lambda: {name: row.summary for name, row in PRECISIONS.items()} | {"all": "every precision"},
    "--device": lambda: DEVICES,
    "--phase": lambda: PHASES,
    "--path": lambda: PATHS,
    "--preset": _presets,
}


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


def run_option(flag: str, help: str) -> typer.models.OptionInfo:
    """Return the option for a stored run."""
    return typer.Option(flag, metavar="RUN", help=help, autocompletion=stored_runs)  # type: ignore[no-any-return]


def run_argument(metavar: str, help: str) -> typer.models.ArgumentInfo:
    """Return the argument for a stored run, or for several."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=stored_runs)  # type: ignore[no-any-return]


def _many(names: str, metavar: str, help: str) -> typer.models.OptionInfo:
    return typer.Option(names, metavar=metavar, help=f"{help} Repeatable.")  # type: ignore[no-any-return]


LONGEST_LABEL = 200


def _short(label: str) -> str:
    """Return a label; `UsageError` for one that would drown what stands beside it."""
    if len(label) > LONGEST_LABEL:
        raise UsageError(f"--label has {len(label):,} characters: give {LONGEST_LABEL} at most")
    return label


Label = Annotated[str, typer.Option(metavar="TEXT", callback=_short, help="A name for the run in lists and reports.")]
Threshold = Annotated[
    str, typer.Option(metavar="SHARE", help="The largest change of any case's time that counts as none. Default: 2%.")
]
Only = Annotated[str, typer.Option(metavar="KIND,...", help="Only these of time, memory, accuracy and rules.")]
Every = Annotated[bool, typer.Option("--verbose", "-v", "--all", help="List unchanged findings, too.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", "--all", help="Every metric, note and row.")]

DEFAULT_RESULTS = Path("results")
Resume = Annotated[str, run_option("--resume", "Continue this run with the options it began with.")]
WITH_RESUME = frozenset({"resume", "results", "every", "format", "json"})
"""What a command line may say beside --resume; all else is the run's own."""
PieceTimeout = Annotated[
    str,
    typer.Option("--timeout", metavar="SECONDS", help=f"The longest one piece of the work may take, {DURATION}."),
]


Results = Annotated[Path, typer.Option("--results", metavar="DIR", help="The folder that holds runs/.")]
Keyword = Annotated[
    str,
    typer.Option(
        "-k", "--keyword", metavar="EXPRESSION", help="Only cases whose id matches, as in 'resnet and not fp16'."
    ),
]
Threads = Annotated[int, typer.Option(metavar="N", min=0, max=4096, help="torch's threads; 0: as torch chooses.")]


def chosen_format(
    format: Annotated[OutputFormat, typer.Option("--format", help="How to print the data.")] = OutputFormat.TABLE,
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
) -> OutputFormat:
    """Return the format that `--format` and `--json` ask for together; raises `UsageError` where they contradict."""
    if json and format not in (OutputFormat.TABLE, OutputFormat.JSON):
        raise UsageError(f"--json and --format {format} contradict each other: give one of them")
    return OutputFormat.JSON if json else format


Format = Annotated[OutputFormat, Made(chosen_format)]


def chosen_budget() -> Budget:
    """Return the error budget that the settings file asks for; raises `UsageError` for a limit that cannot be one."""
    file = settings.find(Path.cwd())
    if file is None:
        return Budget()
    limits = settings.limits(file, LIMITS)
    try:
        return Budget(**limits)
    except UsageError as error:
        raise UsageError(f"{file.path}: {error}") from None


Limits = Annotated[Budget, Made(chosen_budget)]


def make_selection(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORKLOAD",
            help="Workloads, families, 'all', path/to/file.py:function, or by name as timm:vit_small_*.",
            callback=split_names,
            autocompletion=completer("WORKLOAD"),
        ),
    ] = None,
    precision: Annotated[
        list[str] | None,
        many_names("--precision", "See ampbench list precisions, or all. Default: those not emulated."),
    ] = None,
    device: Annotated[
        list[str] | None, many_names("--device", f"{one_of(DEVICES)}. Default: the accelerator, else the CPU.")
    ] = None,
    phase: Annotated[list[str] | None, many_names("--phase", "inference or training. Default: both.")] = None,
    path: Annotated[list[str] | None, many_names("--path", f"{one_of(PATHS)}. Default: eager.")] = None,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="tiny, small or large. Default: small on a CPU, large elsewhere.",
            autocompletion=completer("--preset"),
        ),
    ] = "",
    set_: Annotated[
        list[str] | None,
        _many("--set", "[NAME.]PARAM=VALUE", f"Set a parameter of one workload, of all that have it, or {CASES_OWN}."),
    ] = None,
    sweep: Annotated[list[str] | None, _many("--sweep", "PARAM=1,2,4", "Set each of several values in turn.")] = None,
    optimizer: Annotated[
        list[str] | None,
        typer.Option(
            "--optimizer",
            metavar="NAME[:SETTING=VALUE,...]",
            help=f"What trains: torch's {one_of(tuple(OPTIMIZERS))}, a class as file.py:Lion, or a recipe, "
            f"{one_of(tuple(RECIPES))}; as in adamw:lr=3e-4,betas=0.9/0.95,clip=1.0. Settings alone change the "
            "workload's own. Repeatable.",
            autocompletion=optimizers,
        ),
    ] = None,
) -> Selection:
    """Return the selection that the options of these names give; raises `UsageError` for a malformed one."""
    return Selection(
        workloads=names or [],
        precisions=precision or [],
        devices=device or [],
        phases=phase or [],
        paths=path or [],
        preset=preset,
        overrides=dict(parse_setting("--set", text) for text in set_ or []),
        sweeps=parse_sweeps(sweep or []),
        recipes=chosen_recipes(optimizer),
    )


Selected = Annotated[Selection, Made(make_selection)]


def make_settings(
    timeout: Annotated[
        str, typer.Option(metavar="SECONDS", help=f"The longest a round may take, {DURATION}.")
    ] = TIMEOUT,
    memory_limit: Annotated[
        str,
        typer.Option(
            metavar="BYTES", help="The most a round may keep resident, as in 8GiB. Default: 85% of free memory."
        ),
    ] = "",
    threads: Threads = DEFAULTS.threads,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of weights, inputs and the order of measuring.")
    ] = DEFAULTS.seed,
) -> Settings:
    """Return the settings that the options of these names give; raises `UsageError` for what cannot be meant."""
    if seed >= 2**63:
        raise UsageError(f"--seed {seed}: give a whole number below 2**63")
    return Settings(
        timeout_seconds=typed_seconds("--timeout", timeout),
        memory_limit_bytes=round(_positive("--memory-limit", parse_bytes, memory_limit)) if memory_limit else None,
        threads=threads,
        seed=seed,
        schedule_seed=seed,
    )


Limited = Annotated[Settings, Made(make_settings)]


def chosen_recipes(optimizers: list[str] | None) -> list[str]:
    """Return the recipes that the values of `--optimizer` give, as ids spell them; `UsageError` for a wrong one."""
    return list(dict.fromkeys(parse_optimizer(text).spelling for text in optimizers or []))


def parse_setting(option: str, text: str) -> tuple[str, ParameterValue]:
    """Return (name, value) of NAME=VALUE; the value is a number or a bool where it reads as one, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise UsageError(f"{option} {text!r}: expected NAME=VALUE, as in {option} batch_size=8")
    return name.strip(), parse_value(value.strip())


def parse_sweep(text: str) -> tuple[str, list[ParameterValue]]:
    """Return (name, values) of NAME=VALUE,VALUE,..."""
    name, equals, values = text.partition("=")
    parts = [part.strip() for part in values.split(",")]
    if not equals or not name.strip() or not all(parts):
        raise UsageError(f"--sweep {text!r}: expected NAME=VALUE,VALUE, as in --sweep batch_size=1,2,4")
    return name.strip(), [parse_value(part) for part in parts]


def parse_sweeps(texts: list[str]) -> dict[str, list[ParameterValue]]:
    """Return the values of each parameter swept."""
    sweeps: dict[str, list[ParameterValue]] = {}
    for text in texts:
        name, values = parse_sweep(text)
        if name in sweeps:
            raise UsageError(f"--sweep {name} is given twice: list all its values in one, as in --sweep {name}=1,2,4")
        sweeps[name] = values
    return sweeps


def typed_seconds(option: str, text: str) -> float:
    """Return the seconds, above 0, that `text` given by `option` stands for; `UsageError` for anything else."""
    return _positive(option, parse_seconds, text)


def typed(option: str, parse: Callable[[str], Value], text: str) -> Value:
    """Return what `parse` reads in `text`, given by `option`, which its `UsageError` then names."""
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"{option} {error}") from None


def _positive(option: str, parse: Callable[[str], float], text: str) -> float:
    value = typed(option, parse, text)
    if value <= 0:
        raise UsageError(f"{option} must be above 0")
    return value


def resumed_imports(header: Header) -> str:
    """Say which code going on with a run imports, since its file names it and not the command line; "" for none."""
    own = dict.fromkeys(f"{one.module}:{one.function}" for one in header.sources if is_users(one))
    return f"going on with run {header.run} imports what it names: {', '.join(own)}" if own else ""


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
    for said in typed_beside(context, allowed):
        raise UsageError(f"--resume takes the selection and the settings from the run: leave {said} out")


def typed_beside(context: typer.Context, allowed: Collection[str]) -> Iterator[str]:
    """Yield what the command line itself gives but parameters that are `allowed`, as a person writes it."""
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in allowed and is_typed(context, name):
            yield next((word for word in parameter.opts if word.startswith("--")), "workloads")
