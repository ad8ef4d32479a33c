"""Documents as styled lines for a terminal, with tables that fit its width."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from html import escape
from io import StringIO
from itertools import zip_longest
from shutil import get_terminal_size
from textwrap import fill, indent
from typing import IO, TYPE_CHECKING, Any, Literal

from ampbench.errors import written_out
from ampbench.show.document import Block, Code, Document, Section, finite

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

WIDTH_WITHOUT_TERMINAL = 100
LAYOUT = "\n\t"
"""The control characters that are printed."""


def make_console(stderr: bool = False, file: IO[str] | None = None, **options: Any) -> "Console":
    """Return rich's console on stdout, stderr or a `file`; no colour under NO_COLOR and where there is no terminal.

    Text of networks, files and other people's runs may contain escapes that command a terminal: this console writes
    them out. Its own styles and cursor movements are separate segments.
    """
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    class Border(Console):
        """A console that writes out unprintable characters."""

        def render(self, renderable: "RenderableType", options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                text, style, control = segment
                yield segment if control else Segment(written_out(text, LAYOUT), style)

    settings = {"highlight": False, "emoji": False, "markup": False, **options}
    console = Border(stderr=stderr, file=file, **settings)
    if not console.is_terminal and "COLUMNS" not in os.environ and file is None:
        console.width = WIDTH_WITHOUT_TERMINAL
    return console


def print_lines(console: "Console", lines: Iterable["Text"]) -> None:
    """Print lines set for the console's width; only a terminal cuts or wraps longer ones."""
    for line in lines:
        console.print(line, soft_wrap=not console.is_terminal)


def filled(text: str, width: int) -> str:
    """Return prose in lines of at most `width`, all but the first indented; words, such as ids, are never broken."""
    return fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def wrapped(text: str, width: int, style: str = "") -> list["Text"]:
    """Return prose as `filled` lines of at most `width`."""
    from rich.text import Text

    return [Text(line, style=style) for line in filled(text, width).splitlines()]


GAP = 2
"""Blanks between columns."""
MIN_WIDTH = 10
"""The least width of a column that wraps, unless it needs less."""
LEAST_ROOM, LEAST_LAST = 20, 6
"""The least width in which a last column wraps, and in which it is shown: longer cells go below their row."""

STYLES = {
    "regressed": "bold red",
    "improved": "bold green",
    "inconclusive": "yellow",
    "incomparable": "magenta",
    "failed": "red",
}
"""The styles of cells by their first word."""
LONG_VALUE = 24
"""Characters up to which the text of a precision is one line of a table."""
NO_ROOM = "no room for {}: a wider terminal or --format markdown shows all"
"""The line below a table that names the columns it leaves out."""


def print_document(document: Document) -> None:
    """Print a document: its lines, then its code as it is, which no terminal folds."""
    console = make_console()
    print_lines(console, document_lines(document, console.width))
    for text in map(code_text, document.code):
        console.file.write(written_out(text, LAYOUT) if console.is_terminal else text)


def code_text(code: Code) -> str:
    """Return code below its title, behind a blank line."""
    return f"\n  {code.title}\n{indent(code.text, '    ')}"


def document_lines(document: Document, width: int) -> Iterator["Text"]:
    """Yield sections in lines of at most `width`, then a line for each missing case, and last the answer.

    Folded blocks are left out. Columns of text share the room that columns of numbers leave.
    """
    from rich.text import Text

    sections = document.sections()
    yield from section_lines(sections, width)
    if sections and document.missing:
        yield Text()
    yield from map(Text, document.missing)
    if document.answer:
        colour = {None: "", True: " green", False: " red"}[document.good]
        yield from [Text(), *wrapped(document.answer, width, f"bold{colour}")]


def section_lines(sections: Iterable[Section], width: int) -> Iterator["Text"]:
    """Yield sections in lines of at most `width`, a blank line between two of them."""
    from rich.text import Text

    for place, section in enumerate(sections):
        yield from [Text()] if place else []
        yield from wrapped(section.title, width, "bold")
        table_before, first = False, not section.title
        for block in section.blocks:
            if block.folded:
                continue
            if (block.title or block.note) and (block.rows or table_before) and not first:
                yield Text()
            first = False
            yield from block_lines(block, width, 2 if section.title else 0)
            table_before = bool(block.rows)


def block_lines(block: Block, width: int, margin: int = 2) -> list["Text"]:
    """Return a block in lines of at most `width`: its title and note, its table, and which columns have no room.

    The title is indented by `margin` blanks, a table by twice as many.
    """
    from rich.text import Text

    note = f"({block.note})" if block.title and block.rows and block.note else block.note
    lines = wrapped(" ".join(filter(None, [block.title, note])), width - margin, "bold" if block.rows else "")
    lines = [Text(" " * margin).append_text(line) for line in lines]
    if block.rows:
        block = replace(block, rows=[[_in_fields(cell) for cell in row] for row in block.rows])
        widths, gap = _widths(block, width - 2 * margin)
        table = _table_lines(block, widths, gap, width - 2 * margin)
        if hidden := [name for place, name in enumerate(block.headers) if place not in widths]:
            table += wrapped(NO_ROOM.format(", ".join(hidden)), width - 2 * margin, "dim")
        lines += [Text(" " * 2 * margin).append_text(line) for line in table]
    return lines


def _table_lines(block: Block, widths: Mapping[int, int], gap: int, room: int) -> list["Text"]:
    """Return the lines of a table of the columns in `widths`: numbers to the right, text folds.

    A last cell that needs many lines goes below its row, across the whole `room`.
    """
    from rich.text import Text

    console, lines = make_console(file=StringIO()), list[Text]()
    for number, row in enumerate((block.headers, *block.rows)):
        cells = []
        for place, size in widths.items():
            name, style = block.headers[place], STYLES.get(row[place].partition(":")[0], "") if number else "dim"
            justify: Literal["left", "right"] = "right" if name in block.numbers else "left"
            no_wrap = not _folds(block, name)
            cells.append(Text(row[place], style).wrap(console, size, justify=justify, overflow="fold", no_wrap=no_wrap))
        below = number and _last_folds(block) and len(cells[-1]) > (2 if size >= LEAST_ROOM else 1)
        if below:
            cells[-1] = type(cells[-1])()
        for parts in zip_longest(*cells):
            sized = (part or Text(" " * size) for part, size in zip(parts, widths.values(), strict=True))
            lines.append(Text(" " * gap).join(sized))
            lines[-1].rstrip()
        for text in row[place].splitlines() if below else ():
            lines += [Text("  ").append_text(line) for line in wrapped(text.strip(), room - 2, style)]
    return lines


def _in_fields(cell: str) -> str:
    """Return a cell with a line for each field of a precision's text that is long."""
    return cell.replace(",", ",\n") if len(cell) > LONG_VALUE and cell.startswith("params=") else cell


def _folds(block: Block, name: str) -> bool:
    return name not in block.numbers and name not in block.whole


def _last_folds(block: Block) -> bool:
    """Return whether the last column of several is the only one that folds."""
    return len(block.headers) > 1 and [name for name in block.headers if _folds(block, name)] == [*block.headers[-1:]]


def _widths(block: Block, room: int) -> tuple[dict[int, int], int]:
    """Return the widths of the visible columns by place, and the gap between them: columns that fold share the rest.

    Where room is short, columns of numbers are left out, the last first, all but the first. Columns in `whole` may
    exceed the room.
    """
    from rich.cells import cell_len

    columns = list(zip(block.headers, *block.rows, strict=True))
    natural = [max(cell_len(line) for cell in column for line in cell.split("\n")) for column in columns]
    unbroken = [max(map(cell_len, " ".join(column).split()), default=0) for column in columns]  # the longest word
    numbers = [place for place, name in enumerate(block.headers) if name in block.numbers]
    last = _last_folds(block)
    short = last and room - sum(natural[:-1]) - GAP * len(natural[1:]) < min(natural[-1], LEAST_ROOM)
    whole = sum(unbroken[place] if _folds(block, name) else natural[place] for place, name in enumerate(block.headers))
    short |= room - GAP * len(natural[1:]) < whole <= room - len(natural[1:])
    gap, least = GAP - short, LEAST_LAST if last else MIN_WIDTH
    hidden: set[int] = set()
    while True:
        visible = [place for place in range(len(natural)) if place not in hidden]
        folding = [place for place in visible if _folds(block, block.headers[place])]
        left = room - gap * (len(visible) - 1) - sum(natural[place] for place in visible if place not in folding)
        if sum(min(natural[place], least) for place in folding) <= left or len(hidden) + 1 >= len(numbers):
            break
        hidden.add(numbers[-1 - len(hidden)])
    widths = {place: natural[place] for place in visible}
    fits = sum(unbroken[place] for place in folding) <= left
    for rank, place in enumerate(ordered := sorted(folding, key=lambda place: natural[place])):
        kept = sum(unbroken[other] for other in ordered[rank + 1 :]) if fits else 0
        least = unbroken[place] if fits else least
        widths[place] = min(natural[place], max(min(left // (len(folding) - rank), left - kept), least))
        left -= widths[place]
    return widths, gap


class Printed:
    """Prints its document as text, also in a notebook."""

    def document(self) -> Document:
        """Return the output."""
        raise NotImplementedError

    def lines(self) -> Iterator["Text"]:
        """Yield the output in styled lines, code at the end."""
        from rich.text import Text

        document = self.document()
        yield from document_lines(document, get_terminal_size((WIDTH_WITHOUT_TERMINAL, 0)).columns)
        for code in document.code:
            yield from map(Text, code_text(code).splitlines())

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `--format json`, None for undefined numbers."""
        data: dict[str, Any] = finite(self.document().data())
        return data

    def __str__(self) -> str:
        return written_out("\n".join(line.plain.rstrip() for line in self.lines()).strip("\n"), LAYOUT)

    def _repr_html_(self) -> str:
        return f'<pre class="ampbench" style="overflow-x:auto">{escape(str(self))}</pre>'
