"""The entry point: verbs, and errors as a line on stderr with an exit code.

A verb is the function `command` of a module of this package, or a function of `ELSEWHERE`, and returns its exit code
(None: 0); studies make the verbs of `GROUPS`. Only the verb in use is imported, and no verb's module imports torch,
pandas, scipy or rich at its top.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ampbench import __version__
from ampbench.cli.printing import print_note
from ampbench.errors import (
    INTERNAL_ERROR,
    INTERRUPTED,
    AmpbenchError,
    UnknownNameError,
    UsageError,
    bounded,
    is_interruption,
)
from ampbench.records.kinds import KINDS, named, verb_of

if TYPE_CHECKING:
    from ampbench.cli.options import Verb

VERBS = {
    "run": "Measure; ends with the table and the advice.",
    "merge": "Runs of ampbench run --shard, put together.",
    "list": "What there is: workloads, precisions, recipes, checks, runs.",
    "show": "A stored run again: table and advice.",
    "compare": "Two stored runs: what became slower, bigger or less accurate.",
    "ab": "Two environments, commits or settings, measured in turns.",
    "gate": "Two stored runs under a policy, with an exit code.",
    "trend": "Many runs over torch versions, commits or dates.",
    "report": "Stored runs as one HTML page to send around, or as a site of them.",
    "explain": "Why: casts, rules, headroom, origin of the error, modules to keep in fp32.",
    "study": "Longer: trainings, autocast's scope, inputs in half, ceilings.",
    "check": "Known defects of mixed precision that this torch has here.",
    "convert": "Stored runs in other formats: JUnit, Bencher, Parquet and others.",
    "doctor": "What this machine can do, and what spoils measurements.",
}
"""The verbs in the order of a user's day; each is a kind of run, a module of that name, or in `ELSEWHERE`."""
ELSEWHERE = {
    "ab": "ampbench.cli.compare:ab",
    "report": "ampbench.cli.show:report",
    "gate": "ampbench.cli.compare:gate",
    "trend": "ampbench.cli.compare:trend",
    "merge": "ampbench.cli.convert:merge",
}

GROUPS = {
    "explain": """Explain the cost and the error of a precision.

\b
Examples:
  ampbench explain casts model.py:make
  ampbench explain headroom model.py:make
  ampbench explain origin model.py:make --precision fp16_autocast
  ampbench explain keep-fp32 model.py:make --max-error 1e-2
  ampbench explain rules
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
"""The help of verbs that group the kinds of runs (`KINDS`)."""

BROKEN_PIPE = 141
"""128 + SIGPIPE: a shell's exit code for a broken pipe."""

EPILOG = f"""\b
First steps:
  ampbench doctor               this machine, and causes of bad measurements
  ampbench run model.py:make    measure your own network (workloads.md)

\b
Documentation (README.md leads to its pages):
  {max((folder / "docs" for folder in Path(__file__).parents[1:3]), key=Path.is_dir)}

\b
Exit codes:
  0    done
  1    ampbench gate: a regression (gate.md)
  2    bad name, option or file, or disk full
  3    a case failed, or a stored file is damaged
  4    two runs have no case in common, or a gate decided too little
  5    nothing to do: no run stored, no case selected, or none can run in time
  70   an error of ampbench itself
  130  interrupted
  141  broken pipe
"""
"""The end of the first help. An installed package holds the documentation; in a clone it stands next to the package."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: the process' own) and return the exit code; errors never escape."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    flags = {word for word in words[:end] if word in ("--debug", "--version")}  # they may stand anywhere before --
    words = [word for place, word in enumerate(words) if place >= end or word not in flags]
    _open_streams()
    try:
        with _ended_by_signals():
            code = _dispatch(words, version="--version" in flags)
            sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        code = _interrupted()
    except SystemExit as error:
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
    """Make SIGTERM (a cancelled job) and SIGHUP (a closed terminal) end the program like Ctrl-C.

    An ignored signal, as under nohup, stays ignored.
    """
    ours = threading.current_thread() is threading.main_thread()
    ending = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if ours and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in ending:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)


def _open_streams() -> None:
    """Replace closed standard streams by the null device, and unprintable characters by "?".

    Otherwise a file opened later could take a closed stream's number and receive the output.
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


class Verbs(click.Group):
    """Verbs with their `summaries`; `make` returns a verb when it is used."""

    def __init__(self, name: str, summaries: Mapping[str, str], make: Callable[[str], click.Command], **options: Any):
        super().__init__(name, no_args_is_help=False, **options)
        self._summaries, self._make = summaries, make

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of the verbs, in the order of the help."""
        return [*self._summaries]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the verb of this name, None for an option; raise `UnknownNameError` for an unknown one."""
        if cmd_name in self._summaries:
            return self._make(cmd_name)
        if cmd_name.startswith("-"):
            return None
        raise UnknownNameError(f"{ctx.command_path} verb".removeprefix("ampbench "), cmd_name, self._summaries)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write each verb and its summary."""
        with formatter.section("Verbs"):
            formatter.write_dl([*self._summaries.items()])


def build() -> Verbs:
    """Return the command of the whole program."""
    flags = {"--version": "Print ampbench's version.", "--debug": "Show the traceback of an error; may stand anywhere."}
    return Verbs(
        "ampbench",
        VERBS,
        member,
        help="Which precision should this PyTorch model run in? Measures, explains, advises.",
        epilog=EPILOG,
        params=[click.Option([flag], is_flag=True, help=text) for flag, text in flags.items()],
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


def member(name: str) -> click.Command:
    """Return a verb, or a group, by its whole name."""
    if name not in GROUPS:
        return verb(name)
    return Verbs(name, _subverbs(name), lambda subverb: verb(f"{name} {subverb}"), help=GROUPS[name])


def verb(name: str) -> "Verb":
    """Return the verb of a whole name: "run", "explain casts"."""
    from ampbench.cli.options import Verb

    for kind in KINDS:
        if verb_of(kind) == name:
            from ampbench.cli import studies

            return Verb(name, studies.command(kind))
    return Verb(name, named(ELSEWHERE.get(name, f"ampbench.cli.{name}:command")))


def verbs() -> list[str]:
    """Return the whole names of all verbs that have options."""
    return [verb for verb in VERBS if verb not in GROUPS] + [
        f"{verb} {name}" for verb in VERBS if verb in GROUPS for name in _subverbs(verb)
    ]


def _subverbs(verb: str) -> Mapping[str, str]:
    return {kind.name: kind.summary for kind in KINDS.values() if kind.group == verb}


def _dispatch(words: list[str], version: bool) -> int:
    """Run the verb of a command line and return its exit code."""
    program = build()
    if version:
        print(f"ampbench {__version__}")
        return 0
    try:
        with program.make_context("ampbench", words or ["--help"]) as context:
            code = program.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        message = " ".join(error.format_message().split()).rstrip(".")
        hint = "" if error.ctx is None else f"; see {error.ctx.command_path} --help"
        raise UsageError(f"{message[:1].lower()}{message[1:]}{hint}") from error
    return code if isinstance(code, int) else 0


def _interrupted() -> int:
    """Print that the program was interrupted, and return its exit code."""
    print_note("ampbench: interrupted")
    return INTERRUPTED


def _failed(error: Exception, debug: bool) -> int:
    """Print an error as one line, under `debug` after its traceback, and return its exit code.

    A broken pipe prints nothing; a refusal by the system counts as a usage error.
    """
    if isinstance(error, BrokenPipeError):
        _give_up(sys.stdout)
        return BROKEN_PIPE
    if debug:
        import traceback

        with contextlib.suppress(OSError):
            traceback.print_exception(error)
    if isinstance(error, OSError) and error.errno is not None:
        # an error without a name is a failed write of the output
        name = "" if error.filename is None else bounded(os.fsdecode(error.filename), 60)
        error = UsageError(f"cannot {f'use {name}' if name else 'write the output'}: {error.strerror}")
    if isinstance(error, AmpbenchError):
        print_note(f"ampbench: error: {' '.join(str(error).splitlines())}")
        return error.exit_code
    text = " ".join(f"{type(error).__name__}: {error}".split())
    hint = "" if debug else "; run again with --debug for the traceback"
    print_note(f"ampbench: error: internal error: {text}{hint}")
    return INTERNAL_ERROR


def _give_up(stream: Any) -> None:
    """Keep the interpreter from failing when it flushes `stream` at exit."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a file descriptor, as in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
