"""The entry point: verbs, settings, and the one place where errors become a line on stderr and an exit code.

A verb is the function `command` of a module of this package, or one of `ELSEWHERE`, which returns its exit code (None:
0); those of `GROUPS` are made of studies. Only the verb asked for is imported, and no verb's module imports
anything slow (torch, pandas, scipy, rich) at its top.
"""

import contextlib
import errno
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import typer
from typer.main import get_command

from ampbench import __version__, settings
from ampbench.cli.printing import print_note
from ampbench.errors import (
    INTERNAL_ERROR,
    INTERRUPTED,
    AmpbenchError,
    UnknownNameError,
    UsageError,
    did_you_mean,
    is_interruption,
    nearest,
)
from ampbench.records.kinds import KINDS, named

PLAIN_WORDS = (
    (r"Input should be a valid integer\b.*|'[^']*' is not a valid int.*", "give a whole number"),
    (r"Input should be a valid number\b.*|'[^']*' is not a valid float.*", "give a number"),
    (r"Input should be greater than or equal to (\S+)", r"give at least \1"),
    (r"Input should be less than or equal to (\S+)", r"give at most \1"),
)
"""What typer's complaints of a value are in plain words."""


def said_plainly(error: Any, file: Path | None) -> str:
    """Return typer's message as one line of ours, with where the value came from and where help is."""
    context = error.ctx
    parameter = getattr(error, "param", None)
    message = _said(error)
    if context is None:
        return message
    if file is not None and parameter is not None:
        source = context.get_parameter_source(parameter.name)
        if source is not None and source.name == "DEFAULT_MAP":
            message += f" (set in {file})"
    return message if message.endswith("?") else f"{message}; see {context.command_path.split(' {')[0]} --help"


def _said(error: Any) -> str:
    """Return typer's message in our words: what is nearest to an unknown option or choice, what a value has to be."""
    option = getattr(error, "option_name", "")
    if option and hasattr(error, "possibilities"):
        known = [name for each in error.ctx.command.params for name in each.opts] if error.ctx else []
        words = [name.removeprefix("--") for name in known if name.startswith("--")]  # dashes make no two options alike
        near = [f"--{name}" for name in nearest(option.lstrip("-"), words)]
        return f"unknown option {option}" + (f": {did_you_mean(near)}" if near else "")
    message = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    if choice := re.search(r"'(--[\w-]+)'.*: '(.*)' is not one of (.*)", message):
        return str(UnknownNameError(choice[1], choice[2], re.findall(r"'([^']*)'", choice[3])))
    for typed, plain in PLAIN_WORDS:
        message = re.sub(typed, plain, message)
    return message[:1].lower() + message[1:]


VERBS = {
    "run": "Measure; ends with the table and the advice.",
    "merge": "Runs of ampbench run --shard, put together.",
    "list": "What there is: workloads, precisions, devices, runs.",
    "show": "A stored run again: table and advice.",
    "compare": "Two stored runs: what became slower, bigger or less accurate.",
    "ab": "Two environments, commits or settings, measured in turns.",
    "gate": "Two stored runs under a policy, with an exit code.",
    "trend": "Many runs over torch versions, commits or dates: where they changed, and what else did.",
    "report": "Stored runs as one HTML page to send around, or as a site of them.",
    "explain": "Why: casts, headroom, where errors begin, what to keep in fp32, autocast's rules.",
    "study": "Train: precisions, loss scaling, autocast's scope, inputs in half; and the machine's ceilings.",
    "check": "Known defects of mixed precision: which this torch has here, and what to do.",
    "convert": "Stored runs in other programs' formats: JUnit, Bencher, Parquet and others.",
    "doctor": "What this machine and installation can do, and what spoils measurements.",
}
"""The verbs in the order of a user's day; each is a kind of run or the module of the same name, but for these."""
ELSEWHERE = {
    "gate": "ampbench.cli.compare:gate",
    "trend": "ampbench.cli.compare:trend",
    "merge": "ampbench.cli.convert:merge",
}

GROUPS = {
    "explain": """Say why a precision costs and errs what it does.

\b
Examples:
  ampbench explain casts model.py:make
  ampbench explain headroom model.py:make
  ampbench explain origin model.py:make --precision fp16_autocast
  ampbench explain keep-fp32 model.py:make --precision fp16_autocast --max-error 1e-2
  ampbench explain rules
  ampbench explain rules --help
""",
    "study": """Study what training in mixed precision comes to, and what this machine can do at best.

\b
Examples:
  ampbench study training digits
  ampbench study training model.py:make --setting all
  ampbench study scope model.py:make --precision bf16_autocast
  ampbench study input-storage mlp transformer_encoder
  ampbench study ceilings
""",
}
"""Verbs with verbs of their own, the kinds of runs that `KINDS` has of each; and their help."""

BROKEN_PIPE = 141
"""128 + SIGPIPE: what a shell reports for a program whose reader went away."""

FIRST_STEPS = """\
ampbench measures which precision a PyTorch model should run in, on this machine.

  ampbench doctor                   what this machine offers, and what would spoil a measurement
  ampbench run                      measure the default suite: table and advice in a few minutes
  ampbench run model.py:make        measure your own network (docs/workloads.md)
  ampbench show latest              the last run again
  ampbench report                   the last run as one HTML page to send around
  ampbench explain casts model.py:make
                                    every cast of a step: of what, for which op, what could be saved
  ampbench explain keep-fp32 model.py:make
                                    which modules to keep in fp32, and the code that does
  ampbench explain rules            what autocast does to each op, and where documents err
  ampbench check                    which known defects of mixed precision this torch has
  ampbench ab --baseline git:main --candidate here model.py:make
                                    what your changes cost: measured in turns with the commit

All verbs and options: ampbench --help, ampbench VERB --help
"""

EXIT_CODES = """\b
Exit codes:
  0    done
  1    ampbench gate: a regression (docs/gate.md)
  2    a name, an option or a file that cannot be meant, read or written; output that finds no room
  3    a case failed, or a stored file is damaged
  4    two runs have nothing in common that can be compared, or a gate decided too little
  5    there is nothing to do: nothing is stored, or can run here in the time given
  70   an error of ampbench itself
  130  interrupted
  141  the reader of the output went away; closed streams are none
"""
"""All of them; docs/gate.md says which of a gate's comes first where several hold."""

_USAGE_ERROR = cast("type[Exception]", typer.BadParameter.__mro__[1])  # in click or, newer, private to typer
_LONGEST_NAME = 60
"""As many characters of a file's name are shown where it is too long to be one."""
_GIVEN_ANYWHERE = ("--debug", "--version")
_COMPLETES = "_AMPBENCH_COMPLETE"
"""The variable in which a shell's completion script asks for words; what was typed is in one of the next two."""
_TYPED = ("_TYPER_COMPLETE_ARGS", "COMP_WORDS")


_ENVIRONMENT = frozenset(
    {
        errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENOSPC, errno.EDQUOT, errno.EIO,
        errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EFBIG, errno.EBADF,
    }
)  # fmt: skip
"""Errors of the system that are no fault of ampbench's, whichever file they are of."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: the process' own) and return the exit code; never raises for what can go wrong."""
    given, flags = _take_out(sys.argv[1:] if arguments is None else arguments)
    _open_streams()
    try:
        with _ended_by_signals():
            code = _dispatch(given, version="--version" in flags)
            sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        code = _interrupted()
    except SystemExit as error:
        if isinstance(error.__context__, OSError):  # typer turns some into exit 1, which here means a regression
            code = _failed(error.__context__, debug="--debug" in flags)
        else:
            code = error.code if isinstance(error.code, int) else INTERNAL_ERROR
    except Exception as error:  # noqa: BLE001 - the last line of defence
        code = _interrupted() if is_interruption(error) else _failed(error, debug="--debug" in flags)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _give_up(stream)
    return code


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let a cancelled job (SIGTERM) and a closed terminal (SIGHUP) end the program as Ctrl-C does, leaving nothing.

    Where one is ignored, as under nohup, it stays so.
    """
    ours = threading.current_thread() is threading.main_thread()
    ending = [one for one in (signal.SIGTERM, signal.SIGHUP) if ours and signal.getsignal(one) is signal.SIG_DFL]
    for one in ending:
        signal.signal(one, signal.default_int_handler)
    try:
        yield
    finally:
        for one in ending:
            signal.signal(one, signal.SIG_DFL)


def _open_streams() -> None:
    """Put the null device in place of standard streams that are closed, and let the others say whatever they can.

    A file opened later would take a closed stream's place otherwise, and have what is printed written into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # of the lowest number that is free, this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a µ or × must not end a run on an ASCII terminal


def build(verb: str | None = None, subverb: str | None = None) -> Any:
    """Return the click command of the whole program; only `verb` is imported, the others are known by their help."""
    app = _typer(completion=True)
    app.callback(
        help="Which precision should this PyTorch model run in, on this machine? Measures, explains, advises.",
        epilog=EXIT_CODES,
    )(_global_options)
    for name, summary in VERBS.items():
        if name == verb and name in GROUPS:
            app.add_typer(_group(name, subverb), name=name, short_help=summary)
        else:
            _add(app, name, summary, _verb if name == verb else None)
    command = get_command(app)
    read_lightly(command)
    return command


def _typer(completion: bool = False) -> typer.Typer:
    return typer.Typer(
        add_completion=completion,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # rich's help takes 0.1 s more
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


def _group(verb: str, subverb: str | None) -> typer.Typer:
    """Return the command of a verb that has verbs of its own; only `subverb` is imported."""
    group = _typer()
    group.callback(help=GROUPS[verb])(_not_imported)
    for name, summary in _subverbs(verb).items():
        _add(group, name, summary, _kind_verb if name == subverb else None)
    return group


def _add(app: typer.Typer, name: str, summary: str, verb: Callable[[str], Callable[..., int | None]] | None) -> None:
    """Add a verb to `app`: what `verb` returns of its name, or known by its help alone."""
    if verb is None:
        app.command(name, short_help=summary, help=summary)(_not_imported)
        return
    from ampbench.cli.options import Sectioned

    app.command(name, cls=Sectioned, short_help=summary)(verb(name))


def _dispatch(given: list[str], version: bool) -> int:
    """Find the verb, put the settings file's values in as defaults, run it."""
    if version:
        print(f"ampbench {__version__}")
        return 0
    if _COMPLETES in os.environ:
        return _complete()
    if not given:
        print(FIRST_STEPS, end="")
        return 0
    verb, subverb = _asked(given)
    file, default_map = _set(verb, subverb)
    try:
        result = build(verb, subverb).main(given, prog_name="ampbench", standalone_mode=False, default_map=default_map)
    except _USAGE_ERROR as error:
        raise UsageError(said_plainly(error, None if file is None else file.path)) from error
    return result if isinstance(result, int) else 0


def _set(verb: str | None, subverb: str | None) -> tuple[settings.SettingsFile | None, dict[str, Any]]:
    """Return the settings file, None where there is none, and what it sets for a verb, as click takes defaults."""
    file = None if verb is None else settings.find(_current_folder())
    if file is None or verb is None:
        return file, {}
    name = f"{verb} {subverb}" if subverb else "" if verb in GROUPS else verb
    values = settings.defaults(file, name, _verbs(), options_of)
    return file, {verb: {subverb: values} if subverb else values}


def _complete() -> int:
    """Answer a shell that asks how to go on with what was typed: verbs, options of the one that is there, their values.

    Mistakes, of a settings file too, are for the command itself to tell: here they would be printed into the prompt.
    """
    typed = next((os.environ[name] for name in _TYPED if name in os.environ), "").split()[1:]
    try:
        verb, subverb = _asked(typed)
    except UsageError:  # half a word as yet
        verb, subverb = next(((word, None) for word in typed[:1] if word in GROUPS), (None, None))
    default_map: dict[str, Any] = {}
    with contextlib.suppress(AmpbenchError):
        _, default_map = _set(verb, subverb)
    with _without_rich():
        build(verb, subverb).main([], prog_name="ampbench", standalone_mode=False, default_map=default_map)
    return 0


@contextlib.contextmanager
def _without_rich() -> Iterator[None]:
    """Keep typer from passing what it says of words through rich, which folds it into lines: more words, to a shell."""
    known = sys.modules.get("rich")
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if known is None:
            del sys.modules["rich"]
        else:
            sys.modules["rich"] = known


def _current_folder() -> Path:
    """Return the current folder; `UsageError` where it is gone."""
    try:
        return Path.cwd()
    except OSError as error:
        raise UsageError(f"the current folder cannot be used ({error.strerror}): change to one that is there") from None


def _asked(given: list[str]) -> tuple[str | None, str | None]:
    """Return the verb and, of a group, its own verb; raises `UnknownNameError`, or `UsageError` for a bare group."""
    words = [word for word in given if not word.startswith("-")]
    if not words:
        return None, None
    verb = words[0]
    if verb not in VERBS:
        raise UnknownNameError("verb", verb, VERBS)
    if verb not in GROUPS:
        return verb, None
    known = _subverbs(verb)
    if len(words) > 1 and words[1] not in known:
        raise UnknownNameError(f"{verb} verb", words[1], known)
    if len(given) == 1:
        raise UsageError(f"{verb} what? known: {', '.join(known)}; see ampbench {verb} --help")
    return verb, words[1] if len(words) > 1 else None


def _verbs() -> list[str]:
    """Return the names of all verbs that have options, of a group's both words: "explain rules"."""
    return [verb for verb in VERBS if verb not in GROUPS] + [
        f"{verb} {name}" for verb in VERBS if verb in GROUPS for name in _subverbs(verb)
    ]


def _global_options(
    version: bool = typer.Option(False, "--version", help="Print ampbench's version."),
    debug: bool = typer.Option(False, "--debug", help="Show the whole traceback of an error; may stand anywhere."),
) -> None:
    """Stand in `--help` for what `_take_out` has taken out before typer sees it."""


def _not_imported() -> None:
    """Stand for a verb that was not asked for, and for a group, which does nothing by itself."""


def _verb(name: str) -> Callable[..., int | None]:
    """Return the function of a verb that is in no group."""
    if name in KINDS:
        return _kind_verb(name)
    from ampbench.cli.options import as_typer_takes

    return as_typer_takes(named(ELSEWHERE.get(name, f"ampbench.cli.{name}:command")))


def _kind_verb(name: str) -> Callable[..., int | None]:
    """Return the verb that makes runs of the kind with its name."""
    from ampbench.cli import studies

    return studies.command(name)


def _subverbs(verb: str) -> Mapping[str, str]:
    return {kind.name: kind.summary for kind in KINDS.values() if kind.group == verb}


def options_of(name: str) -> settings.Options:
    """Return what a settings file may set for a verb ("run", "explain rules"), by the key it has there."""
    found: dict[str, settings.Option] = {}
    verb, _, subverb = name.partition(" ")
    command = build(verb, subverb or None).commands[verb]
    for parameter in (command.commands[subverb] if subverb else command).params:
        if parameter.param_type_name == "option" and parameter.name != "help":
            long = [name.removeprefix("--") for name in parameter.opts if name.startswith("--")]
            option = settings.Option(parameter.name, parameter.multiple)
            found |= {name.replace("-", "_"): option for name in long or [parameter.name]}
    return found


def _take_out(arguments: Sequence[str]) -> tuple[list[str], set[str]]:
    """Split the arguments into typer's and the flags that may stand anywhere before `--`."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    flags = {word for word in words[:end] if word in _GIVEN_ANYWHERE}
    return [word for place, word in enumerate(words) if place >= end or word not in flags], flags


def _interrupted() -> int:
    """Say that the program was interrupted, and return the exit code of that."""
    print_note("ampbench: interrupted")
    return INTERRUPTED


def _failed(error: Exception, debug: bool) -> int:
    """Print an error as one line, under `debug` after its traceback, and return its exit code.

    A reader of the output that went away is none; what the system refuses is no fault of ampbench's.
    """
    if isinstance(error, BrokenPipeError):
        _give_up(sys.stdout)
        return BROKEN_PIPE
    if debug:
        import traceback

        with contextlib.suppress(OSError):
            traceback.print_exception(error)
    if isinstance(error, OSError) and error.errno in _ENVIRONMENT:
        # what fails without a name is a write, and whoever writes a file says itself which
        what = "write the output" if error.filename is None else f"use {_short(os.fsdecode(error.filename))}"
        error = UsageError(f"cannot {what}: {error.strerror}")
    if isinstance(error, AmpbenchError):
        print_note(f"ampbench: error: {error}")
        return error.exit_code
    said = " ".join(f"{type(error).__name__}: {error}".split())
    hint = "" if debug else "; run again with --debug for the traceback"
    print_note(f"ampbench: error: internal error: {said}{hint}")
    return INTERNAL_ERROR


def _short(name: str) -> str:
    """Return a file's name that fits into a line."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}… ({len(name)} characters)"


def _give_up(stream: Any) -> None:
    """Keep the interpreter from complaining of `stream` when it flushes it at exit, and from a code of its own."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a file descriptor, as in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def read_lightly(command: Any, parent: Any = None) -> None:
    """Have the parameters of a command, and of those below it, read without pydantic, as far as typer lets them.

    Importing pydantic takes longer than everything else of a verb's `--help`. Defaults, text, paths and choices are
    read here; numbers that are typed, and mistakes, are left to typer. Versions of typer that read values without
    pydantic are left alone. `parent` is the context of the command that it is below.
    """
    context = typer.Context(command, parent=parent, **command.context_settings)
    for parameter in command.get_params(context):  # --help among them
        if hasattr(parameter, "get_runtime_param"):
            light = _Light(parameter.get_runtime_param)
            parameter.get_runtime_param = lambda light=light: light
    for below in getattr(command, "commands", {}).values():
        read_lightly(below, context)


class _Light:
    """Reads plain values of one parameter, in place of what typer would make of them."""

    def __init__(self, typers: Any) -> None:
        self._typers = typers

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value that was typed or set, or raise `typer.BadParameter`, as typer's own does."""
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        type_, info = param.type_descriptor.annotation, param.type_descriptor.parameter_info
        if type_ is str and isinstance(value, str):
            return value
        if type_ == list[str] and isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
            return list(value)
        if type_ in (int, float) and type(value) is type_:
            if (info.min is None or value >= info.min) and (info.max is None or value <= info.max):
                return value
        elif (
            type_ is Path and isinstance(value, str | Path) and (os.access(value, os.R_OK) or not Path(value).exists())
        ):
            return Path(value)
        elif isinstance(type_, type) and issubclass(type_, StrEnum) and value in list(type_):
            return type_(value)
        return self._typers().coerce(value, param=param, ctx=ctx)
