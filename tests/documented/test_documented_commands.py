"""Every command of the documentation is executed, in seconds (`quickening`), in a folder made for it (`sandbox`)."""

import re
from collections.abc import Callable
from typing import Any

import click
import pytest

from ampbench.cli.main import main
from tests.documented.pages import PAGES, Command, commands
from tests.documented.quickening import STAND_INS, context_of
from tests.documented.sandbox import files_of
from tests.documented.unexecuted import UNEXECUTED

SLOW = (
    r"ampbench (run|ab|explain|study|doctor|check)\b|ampbench report --site\b|ampbench list workloads timm:"
    r"|.*\bEXPLAINS_CASTS\b|pytest\b"
)
"""What starts workers, runs checks, draws many pages, or imports timm; all else is in the fast set."""

EXITS: dict[str, tuple[set[int], str]] = {
    r"ampbench (gate|ab .*--gate)\b.*": ({0, 1, 4}, "a verdict on times is luck here"),
    r"ampbench gate results/rules/.*": ({1}, "its page says that rules have changed"),
    r"ampbench doctor\b.*": ({0, 3}, "the machine that runs the tests may be unfit"),
}
"""By the whole text of a command: the exit codes expected, where it is not 0 alone; the last that matches counts."""


def expected(command: Command) -> set[int]:
    return [{0}, *(codes for pattern, (codes, _) in EXITS.items() if re.fullmatch(pattern, command.text))][-1]


def is_incomplete(command: Command) -> bool:
    """Whether a call of ampbench within a sentence leaves out an argument that the verb needs."""
    if not command.inline or not command.verb:
        return False
    try:
        context_of(command)
    except click.MissingParameter:
        return True
    except click.UsageError:
        return False
    return False


def _once() -> tuple[list[Command], list[Command]]:
    """Return the commands to execute, each once however many pages have it with the same files, and the mentions."""
    executed: dict[Any, Command] = {}
    mentions: dict[str, Command] = {}
    for page in PAGES:
        for command in commands(page):
            if command.is_mention or is_incomplete(command):
                mentions.setdefault(command.text, command)
            else:
                there = {**files_of("README.md"), **files_of(page, command.text)}
                used = [text for name, text in there.items() if name in command.text]
                executed.setdefault((command.text, *used), command)
    return list(executed.values()), list(mentions.values())


EXECUTED, MENTIONED = _once()
CHECKED = [one for one in EXECUTED if any(re.fullmatch(pattern, one.text) for pattern in UNEXECUTED)]


def named(command: Command) -> str:
    return f"{command.page}: {command.text}"


def cases() -> list[Any]:
    return [
        pytest.param(one, id=named(one), marks=[pytest.mark.slow] if re.match(SLOW, one.text) else [])
        for one in EXECUTED
        if one not in CHECKED
    ]


@pytest.mark.parametrize("command", cases())
def test_a_command_runs_as_it_stands(command: Command, execute: Callable[[Command], Any]) -> None:
    assert command.program in ("ampbench", "pytest"), f"{command.page}:{command.line}: add it to {UNEXECUTED=}"
    done = execute(command)
    assert "Traceback" not in done.written
    assert done.code in expected(command), f"{command.page}:{command.line}: {done.text}\n{done.written[-2000:]}"


@pytest.mark.parametrize("command", CHECKED, ids=named)
def test_a_command_that_cannot_be_run_here_is_one_that_could(command: Command) -> None:
    for pattern, (reason, check) in UNEXECUTED.items():
        if re.fullmatch(pattern, command.text):
            assert reason
            check(command)


@pytest.mark.parametrize("command", [one for one in MENTIONED if one.program == "ampbench"], ids=named)
def test_what_a_sentence_mentions_exists(command: Command) -> None:
    flags = re.findall(r"(?<![\w-])--?[a-z][\w-]*", command.text)
    if not command.verb:
        assert set(flags) <= {"--help", "--version", "--debug"}
        return
    parameters = context_of(Command(page="", line=0, text=f"ampbench {command.verb}"), lenient=True).command.params
    known = {name for one in parameters for name in (*one.opts, *one.secondary_opts)}
    assert set(flags) <= known | {"--help"}


@pytest.mark.parametrize("network", STAND_INS)
def test_a_network_that_another_stands_for_exists(network: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "workloads", network]) == 0
    assert network.rstrip("*") in capfd.readouterr().out
