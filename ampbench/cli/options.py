"""Options of the verbs, and the values made from them.

A verb is a function whose parameters are marked as an `Option`, an `Argument` or as `Made` by a function of options.
"""

import os
import shlex
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args

import click

from ampbench.cli.printing import OutputFormat, print_note
from ampbench.core.budget import Budget, find_limits
from ampbench.core.recipes import OPTIMIZERS, RECIPES, parse_optimizer
from ampbench.core.units import one_of, parse_bytes, parse_seconds, parse_value
from ampbench.errors import INTERRUPTED, UnknownNameError, UsageError
from ampbench.records.case import DEVICES, OF_CASES, PATHS, ParameterValue
from ampbench.records.run import Header, Selection, Settings
from ampbench.store import run_id
from ampbench.workloads.index import is_users

Value = TypeVar("Value")
A_RUN = "an id, its beginning or its last part, latest, or a path"
"""How a run is named on a command line."""
DURATION = "as in 90, 2m or 500ms"
DEFAULTS = Settings()
CASES_OWN = "; ".join(f"{name}: {one_of([str(value).lower() for value in known])}" for name, known in OF_CASES.items())
"""The settings of --set and --sweep that all cases have, with their values."""
TIMEOUT = f"{DEFAULTS.timeout_seconds:g}"


@dataclass(frozen=True, slots=True)
class Made:
    """Marks a parameter of a verb that the function `by` makes from options, its own parameters."""

    by: Callable[..., Any]


class Option:
    """Marks a parameter of a verb: an option with `flags` (default: --NAME); a list may be repeated.

    `min` and `max` bound a number, `read` parses the text.
    """

    def __init__(
        self,
        *flags: str,
        help: str,
        metavar: str | None = None,
        min: float | None = None,
        max: float | None = None,
        read: Callable[[Any], Any] | None = None,
    ):
        self.flags, self.help, self.metavar, self.min, self.max, self.read = flags, help, metavar, min, max, read


class Argument(Option):
    """Marks a positional parameter of a verb."""


def _click_parameter(parameter: Parameter) -> click.Parameter:
    """Return a marked parameter as click's parameter."""
    annotation, mark = get_args(parameter.annotation)
    several = list[str] in (annotation, *get_args(annotation))
    kind: Any = str if several else next(part for part in (*get_args(annotation), annotation) if part is not NoneType)
    choices: list[str] = [str(choice) for choice in kind] if issubclass(kind, StrEnum) else []

    def read(_: click.Context, itself: click.Parameter, value: Any) -> Any:
        value = (list(value) or None) if several else value
        if choices and value not in choices:
            raise UnknownNameError(itself.opts[-1], value, choices)
        value = kind(value) if (choices or kind is Path) and value is not None else value
        return mark.read(value) if mark.read else value

    args: dict[str, Any] = {"callback": read, "metavar": mark.metavar}
    bounded = {int: click.IntRange, float: click.FloatRange}.get(kind, lambda *_: str)
    args["type"] = kind if kind is float and mark.min is mark.max is None else bounded(mark.min, mark.max)
    if isinstance(args["type"], click.ParamType):
        args["type"].name = "whole number" if kind is int else "number"
    if parameter.default is not Parameter.empty:
        args["default"] = str(parameter.default) if choices else parameter.default  # click shows an enum by its name
    if isinstance(mark, Argument):
        return click.Argument([parameter.name], **args, nargs=-1 if several else 1, required="default" not in args)
    args |= {"type": bool, "is_flag": True} if kind is bool else {"multiple": several}
    if choices:
        args["metavar"] = f"[{'|'.join(choices)}]"
    flags = [*(mark.flags or [f"--{parameter.name.replace('_', '-')}"]), parameter.name]
    show_default = isinstance(parameter.default, str) and bool(parameter.default)
    return click.Option(flags, **args, help=mark.help, required="default" not in args, show_default=show_default)


SECTIONS = {
    "What": "precision device phase path preset set_ sweep optimizer threads seed no_isolation shard ray on",
    "How long": "rounds blocks min_run_time budget steps seeds seconds max_trials dry_run yes",
    "Limits": "timeout memory_limit max_error max_gradient_error min_update_kept",
    "Output": "results label resume format json verbose",
}
"""The sections of a verb's help with the names of their parameters; others come under "Options"."""


class Verb(click.Command):
    """The command of a `verb` by its full name ("explain casts"), from a function whose parameters are marked.

    Its help groups its options by `SECTIONS`.
    """

    def __init__(self, verb: str, function: Callable[..., int | None]):
        makers: dict[str, tuple[Callable[..., Any], Collection[str]]] = {}
        contexts, parameters = list[str](), list[Parameter]()
        for parameter in parameters_of(function).values():
            mark = get_args(parameter.annotation)[-1:]
            if parameter.annotation is click.Context:
                contexts.append(parameter.name)
            elif mark and isinstance(mark[0], Made):
                makers[parameter.name] = mark[0].by, parameters_of(mark[0].by)
                parameters += parameters_of(mark[0].by).values()
            else:
                parameters.append(parameter)

        def command(**values: Any) -> int | None:
            for name, (by, names) in makers.items():
                values[name] = by(**{option: values.pop(option) for option in names})
            return function(**values, **dict.fromkeys(contexts, click.get_current_context()))

        options = [_click_parameter(parameter) for parameter in parameters]
        self._about = {parameter.name: get_args(parameter.annotation)[-1].help for parameter in parameters}
        super().__init__(verb.rpartition(" ")[2], callback=command, params=options, help=function.__doc__)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write arguments, options without a section, then each section."""
        section_of = {name: title for title, names in SECTIONS.items() for name in names.split()}
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], **{title: [] for title in SECTIONS}}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Argument):
                rows["Arguments"].append((str(parameter.metavar), self._about[str(parameter.name)]))
            elif row := parameter.get_help_record(ctx):
                title = "Output" if parameter.is_eager else section_of.get(str(parameter.name), "Options")
                rows[title].append(row)  # --help is eager
        for title, listed in rows.items():
            if listed:
                with formatter.section(title):
                    formatter.write_dl(listed)


def option(name: str, annotation: Any, default: Any = Parameter.empty) -> Parameter:
    """Return a parameter of a verb."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def parameters_of(function: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the parameters of a function by name, as keyword-only parameters."""
    every = signature(function, eval_str=True).parameters
    return {name: parameter.replace(kind=Parameter.KEYWORD_ONLY) for name, parameter in every.items()}


def split_names(values: list[str] | None) -> list[str] | None:
    """Return names split at commas; a comma in the name of an existing file stays."""
    names: list[str] = []
    for value in values or []:
        parts = [part.strip() for part in value.split(",") if part.strip()]
        # no file has a name of hundreds of characters, which Path.exists refuses to look for
        whole = "," not in value or not parts or os.path.exists(value.rpartition(":")[0] or value)  # noqa: PTH110
        names += [value] if whole else parts
    return names if values is not None else None


def split_precisions(values: list[str] | None) -> list[str] | None:
    """Return names split at commas; a text with "=", such as "params=bf16,master=fp32", is one precision."""
    if values is None:
        return None
    return [name for value in values for name in ([value] if "=" in value else split_names([value]) or [])]


def many_names(flag: str, help: str) -> Option:
    """Return the option for a list of names, repeated or separated by commas."""
    read = split_precisions if flag == "--precision" else split_names
    return Option(flag, metavar="NAME", help=f"{help} Repeatable, or with commas.", read=read)


Label = Annotated[str, Option(metavar="TEXT", help="A note on the run in lists and reports.")]
Verbose = Annotated[
    bool, Option("--verbose", "-v", "--all", help="Every metric, note and row, unchanged findings, too.")
]

DEFAULT_RESULTS = Path("results")
Resume = Annotated[str, Option(metavar="RUN", help="Continue this run with the options it began with.")]
WITH_RESUME = frozenset({"resume", "results", "verbose", "format", "json"})
"""The parameters that a command line may give with --resume; the run has all others."""
PieceTimeout = Annotated[
    str,
    Option("--timeout", metavar="SECONDS", help=f"The longest one piece of the work may take, {DURATION}."),
]


Results = Annotated[Path, Option("--results", metavar="DIR", help="The folder that holds runs/.")]
Keyword = Annotated[
    str,
    Option("-k", "--keyword", metavar="EXPRESSION", help="Only cases whose id matches, as in 'resnet and not fp16'."),
]
Threads = Annotated[int, Option(metavar="N", min=0, max=4096, help="torch's threads; 0: as torch chooses.")]


def chosen_format(
    format: Annotated[OutputFormat, Option("--format", help="How to print the data.")] = OutputFormat.TABLE,
    json: Annotated[bool, Option("--json", help="Short for --format json.")] = False,
) -> OutputFormat:
    """Return the format of `--format` and `--json`; raise `UsageError` where they contradict each other."""
    if json and format not in (OutputFormat.TABLE, OutputFormat.JSON):
        raise UsageError(f"--json and --format {format} contradict each other: give one of them")
    return OutputFormat.JSON if json else format


Format = Annotated[OutputFormat, Made(chosen_format)]


def chosen_budget() -> Budget:
    """Return the error budget of the project's settings file; raise `UsageError` for an invalid limit."""
    try:
        here = Path.cwd()
    except OSError as error:
        raise UsageError(f"the current folder cannot be used ({error.strerror}): change to one that exists") from None
    file, limits = find_limits(here) or (None, {})
    try:
        return Budget(**limits)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None


Limits = Annotated[Budget, Made(chosen_budget)]


def make_selection(
    names: Annotated[
        list[str] | None,
        Argument(
            metavar="[WORKLOAD]...",
            help="Workloads, families, 'all', path/to/file.py:function, or by name as timm:vit_small_*.",
            read=split_names,
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
        Option(
            metavar="NAME",
            help="tiny, small or large. Default: small on a CPU, large elsewhere.",
        ),
    ] = "",
    set_: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="[NAME.]PARAM=VALUE",
            help=f"Set a parameter of one workload, of all that have it, or {CASES_OWN}. Repeatable.",
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None, Option(metavar="PARAM=1,2,4", help="Set each of several values in turn. Repeatable.")
    ] = None,
    optimizer: Annotated[
        list[str] | None,
        Option(
            "--optimizer",
            metavar="NAME[:SETTING=VALUE,...]",
            help=f"What trains: torch's {one_of(tuple(OPTIMIZERS))}, a class as file.py:Lion, or a recipe, "
            f"{one_of(tuple(RECIPES))}; as in adamw:lr=3e-4,betas=0.9/0.95,clip=1.0. Settings alone change the "
            "workload's own. Repeatable.",
        ),
    ] = None,
) -> Selection:
    """Return the selection from its options; raise `UsageError` for a malformed one."""
    return Selection(
        workloads=names or [],
        precisions=precision or [],
        devices=device or [],
        phases=phase or [],
        paths=path or [],
        preset=preset,
        overrides=dict(parse_setting("--set", text) for text in set_ or []),
        sweeps=parse_sweeps(sweep or []),
        recipes=list(dict.fromkeys(parse_optimizer(text).spelling for text in optimizer or [])),
    )


Selected = Annotated[Selection, Made(make_selection)]


def make_settings(
    timeout: Annotated[str, Option(metavar="SECONDS", help=f"The longest a round may take, {DURATION}.")] = TIMEOUT,
    memory_limit: Annotated[
        str,
        Option(metavar="BYTES", help="The most a round may keep resident, as in 8GiB. Default: 85% of free memory."),
    ] = "",
    threads: Threads = DEFAULTS.threads,
    seed: Annotated[
        int, Option(metavar="N", min=0, help="Of weights, inputs and the order of measuring.")
    ] = DEFAULTS.seed,
) -> Settings:
    """Return the settings from their options; raise `UsageError` for an invalid one."""
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


def parse_setting(option: str, text: str) -> tuple[str, ParameterValue]:
    """Return (name, value) of NAME=VALUE; the value is a number or a bool where it reads as one, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise UsageError(f"{option} {text!r}: expected NAME=VALUE, as in {option} batch_size=8")
    return name.strip(), parse_value(value.strip())


def parse_sweeps(texts: list[str]) -> dict[str, list[ParameterValue]]:
    """Return the values of each swept parameter, typed as NAME=VALUE,VALUE."""
    sweeps: dict[str, list[ParameterValue]] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        parts = [part.strip() for part in values.split(",")]
        if not equals or not name or not all(parts):
            raise UsageError(f"--sweep {text!r}: expected NAME=VALUE,VALUE, as in --sweep batch_size=1,2,4")
        if name in sweeps:
            raise UsageError(f"--sweep {name} is given twice: list all its values in one, as in --sweep {name}=1,2,4")
        sweeps[name] = [parse_value(part) for part in parts]
    return sweeps


def typed_seconds(option: str, text: str) -> float:
    """Return the positive seconds in the `text` of `option`; raise `UsageError` for anything else."""
    return _positive(option, parse_seconds, text)


def typed(option: str, parse: Callable[[str], Value], text: str) -> Value:
    """Return the value that `parse` reads in `text`; its `UsageError` names the `option`."""
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
    """Return a line that names the user's code which resuming a run imports; "" for none."""
    modules = dict.fromkeys(f"{source.module}:{source.function}" for source in header.sources if is_users(source))
    return f"resuming run {header.run} imports {', '.join(modules)}" if modules else ""


def run_words(path: Path, results: Path) -> str:
    """Return a run as a command line names it: its id where `results` holds its file, else its `path`."""
    if path.parent != results / "runs":
        return shlex.quote(str(path))
    return run_id(path) + results_words(results)


def results_words(results: Path) -> str:
    """Return the option for a results folder, after a space; "" for the default."""
    return "" if results == DEFAULT_RESULTS else f" --results {shlex.quote(str(results))}"


@contextmanager
def stored_already(command: str) -> Iterator[None]:
    """Handle an interruption while a stored result is shown: name the `command` that shows it, and exit."""
    try:
        yield
    except KeyboardInterrupt:
        print_note(f"interrupted: the result is stored, and {command} shows it")
        raise SystemExit(INTERRUPTED) from None


def refuse_beside_resume(context: click.Context, allowed: Collection[str]) -> None:
    """Raise `UsageError` for a typed option that is not `allowed` with `--resume`."""
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if parameter.name not in allowed and source is not None and source.name == "COMMANDLINE":
            typed = next((flag for flag in parameter.opts if flag.startswith("--")), "workloads")
            raise UsageError(f"--resume takes the selection and the settings from the run: leave {typed} out")
