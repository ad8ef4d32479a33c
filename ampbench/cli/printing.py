"""Writing to stdout and stderr: styled lines for people, plain text for machines."""

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

WIDTH_WITHOUT_TERMINAL = 100


def make_console(stderr: bool = False) -> "Console":
    """Return a console on stdout or stderr; it leaves colour out under NO_COLOR and where there is no terminal."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_WITHOUT_TERMINAL
    return console


def print_lines(console: "Console", lines: Iterable["Text"]) -> None:
    """Print lines that were set for the console's width; what is longer is cut or wrapped by a terminal only."""
    for line in lines:
        console.print(line, soft_wrap=not console.is_terminal)


def print_block(console: "Console", block: "RenderableType") -> None:
    """Print a table or another block of lines, in a pipe without the blanks that fill it up to the width."""
    if console.is_terminal:
        console.print(block)
        return
    with console.capture() as capture:
        console.print(block)
    console.file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def print_text(text: str) -> None:
    """Print machine output on stdout as it is, ended by one newline."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def print_note(text: str) -> None:
    """Print what is not the data on stderr."""
    print(text, file=sys.stderr)
