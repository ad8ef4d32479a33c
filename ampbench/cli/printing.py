"""Writing to stdout and stderr: styled lines for people, plain text for machines."""

import os
import re
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from textwrap import fill
from typing import IO, TYPE_CHECKING, Any

from ampbench.markdown import written_out

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

WIDTH_WITHOUT_TERMINAL = 100
_FILLING = re.compile(r" +(?=(?: |\x1b\[[\d;]*m)*$)", re.MULTILINE)
"""Blanks at the end of a line, before or between what ends a style."""


_LAYOUT = "\n\t"
"""The control characters of our own that are printed."""


def make_console(stderr: bool = False, file: IO[str] | None = None, **options: Any) -> "Console":
    """Return rich's console on stdout, stderr or a `file`; no colour under NO_COLOR and where there is no terminal.

    What networks, files and other people's runs say may hold escapes that command a terminal: whatever this console
    renders has them written out. Its own styles and cursor movements are segments of their own.
    """
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    class Border(Console):
        """A console that writes out what has no shape."""

        def render(self, renderable: "RenderableType", options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                text, style, control = segment
                yield segment if control else Segment(written_out(text, _LAYOUT), style)

    settings = {"highlight": False, "emoji": False, "markup": False, **options}
    console = Border(stderr=stderr, file=file, **settings)
    if not console.is_terminal and "COLUMNS" not in os.environ and file is None:
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
    """Print machine output on stdout, ended by one newline: as it is, but on a terminal without what commands one."""
    shown = written_out(text, _LAYOUT) if sys.stdout.isatty() else text
    sys.stdout.write(shown if shown.endswith("\n") else f"{shown}\n")


def print_note(text: str) -> None:
    """Print what is not the data on stderr, if anyone reads that; a terminal has it wrapped between words."""
    shown = written_out(text, _LAYOUT)
    with suppress(OSError):
        wrapped = filled(shown, shutil.get_terminal_size().columns) if sys.stderr.isatty() else shown
        print(wrapped, file=sys.stderr, flush=True)
