"""Pages of docs/ and the commands on them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from ampbench.cli.main import GROUPS, VERBS, build

ROOT = Path(__file__).parents[1]


def fences_of(page: str) -> list[tuple[str, str]]:
    """Return what stands between ``` on a page: the language named, and the text."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def commands_of(page: str) -> Iterator[list[str]]:
    """Yield the arguments of every call of ampbench on a page."""
    scripts = [text for kind, text in fences_of(page) if not kind]
    scripts += [" ".join(text.split()) for text in re.findall(r"`(ampbench [^`]+)`", page)]
    for script in scripts:
        for line in script.splitlines():
            command = line.removeprefix("$ ")
            if command.startswith("ampbench "):
                yield shlex.split(re.split(r" {4,}", command)[0], comments=True)[1:]


def assert_exists(words: list[str]) -> None:
    """Assert that a call names a verb and options that exist."""
    verb, *arguments = words
    assert verb in VERBS
    if verb in GROUPS:
        subverb, *arguments = arguments
        command = build(verb, subverb).commands[verb].commands[subverb]
    else:
        command = build(verb).commands[verb]
    assert command.make_context(verb, arguments).params  # raises for what cannot be parsed
