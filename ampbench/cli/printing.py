"""Writing to stdout and stderr: styled lines for people, plain text for machines."""

import os
import re
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from textwrap import fill
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

WIDTH_WITHOUT_TERMINAL = 100
_FILLING = re.compile(r" +(?=(?: |\x1b\[[\d;]*m)*$)", re.MULTILINE)
"""Blanks at the end of a line, before or between what ends a style."""


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
    """Print a table or another block of lines, without the blanks that fill it up to the width."""
    with console.capture() as capture:
        console.print(block)
    console.file.write(_FILLING.sub("", capture.get()))


def filled(text: str, width: int) -> str:
    """Return prose in lines of at most `width`, all but the first indented; words, such as ids, are never broken."""
    return fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def print_text(text: str) -> None:
    """Print machine output on stdout as it is, ended by one newline."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def print_note(text: str) -> None:
    """Print what is not the data on stderr, if anyone reads that; a terminal has it wrapped between words."""
    with suppress(OSError):
        print(filled(text, shutil.get_terminal_size().columns) if sys.stderr.isatty() else text, file=sys.stderr)
