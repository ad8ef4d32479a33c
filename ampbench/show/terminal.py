"""Sections on a terminal: styled lines, and tables without rules that fit the width."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from textwrap import fill, indent
from typing import IO, TYPE_CHECKING, Any, Literal

from ampbench.show.document import Block, Code, Document, Section, written_out

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

WIDTH_WITHOUT_TERMINAL = 100
_FILLING = re.compile(r" +(?=(?: |\x1b\[[\d;]*m)*$)", re.MULTILINE)
"""Blanks at the end of a line, before or between what ends a style."""


LAYOUT = "\n\t"
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
                yield segment if control else Segment(written_out(text, LAYOUT), style)

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


def wrapped(text: str, width: int, style: str = "") -> list["Text"]:
    """Return prose as `filled` lines of at most `width`."""
    from rich.text import Text

    return [Text(line, style=style) for line in filled(text, width).splitlines()]


def padded(rows: Sequence[Sequence[str]], left: int) -> list[list[str]]:
    """Return rows whose cells fill the width of their column: those of the first `left` columns stand to the left."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]

    def fill(place: int, cell: str) -> str:
        blank = " " * (widths[place] - cell_len(cell))
        return cell + blank if place < left else blank + cell

    return [[fill(place, cell) for place, cell in enumerate(row)] for row in rows]


GAPS = (2, 1)
"""Blanks between its columns, from roomy to tight."""
MIN_WIDTH = 10
"""A column that folds gets at least so much room, if it needs it."""
SHORT_WORD = 16
"""A word of no more characters than this is not broken."""

STYLES = {"regressed": "bold red", "improved": "bold green", "inconclusive": "yellow", "incomparable": "magenta"}
"""How the statuses of changes are shown."""
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
    """Yield sections in lines of at most `width`, then a line for each case that is missing, and last the answer.

    What is folded away elsewhere is left out. Columns of text share the room that columns of numbers leave.
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

    The title stands behind `margin` blanks, a table behind twice as many.
    """
    from rich.padding import Padding
    from rich.text import Text

    note = f"({block.note})" if block.title and block.rows and block.note else block.note
    between = " " if block.title and note else ""
    title = Text.assemble((block.title, "bold" if block.rows else ""), (between + note, "dim"))
    parts: list[tuple[RenderableType, int, int]] = [(title, margin, width)] if title.plain else []
    if block.rows:
        gap, widths = _layout(block, width - 2 * margin)
        needed = 2 * margin + sum(widths.values()) + gap * (len(widths) - 1)
        parts.append((_table(block, gap, widths), 2 * margin, max(width, needed)))
        if hidden := [name for place, name in enumerate(block.headers) if place not in widths]:
            parts.append((Text(NO_ROOM.format(", ".join(hidden)), style="dim"), 2 * margin, width))
    console = make_console(file=StringIO())
    lines = []
    for part, left, room in parts:
        options = console.options.update(width=room)
        for segments in console.render_lines(Padding(part, (0, 0, 0, left)), options, pad=False):
            line = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
            line.rstrip()
            lines.append(line)
    return lines


def _table(block: Block, gap: int, widths: Mapping[int, int]) -> "Table":
    """Return a table without lines, of the columns in `widths`: numbers to the right, text folds."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim", show_edge=False, pad_edge=False)
    folding = set()
    for place, width in widths.items():
        name = block.headers[place]
        number = name in block.numbers
        justify: Literal["left", "right"] = "right" if number else "left"
        folds = not number and name not in block.whole
        table.add_column(name, justify=justify, no_wrap=not folds, overflow="fold", width=width)
        folding |= {place} if folds else set()
    for row in block.rows:
        cells = [_broken(row[place], width) if place in folding else row[place] for place, width in widths.items()]
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in cells))
    return table


def _layout(block: Block, room: int) -> tuple[int, dict[int, int]]:
    """Return the blanks between columns and the widths of those shown, by their places.

    Where all is too wide for `room`, the gaps are tighter, then columns of numbers are left out, the last ones first,
    but for the first of all; what is too wide even then is wider than `room`.
    """
    from rich.cells import cell_len

    columns = list(zip(block.headers, *block.rows, strict=True))
    natural = {place: max(map(cell_len, column)) for place, column in enumerate(columns)}
    least = {place: min(natural[place], _least(column)) for place, column in enumerate(columns)}
    counted = [place for place, name in enumerate(block.headers) if name in block.numbers]
    shown = list(natural)
    while True:
        folding = [place for place in shown if place not in counted and block.headers[place] not in block.whole]
        fixed = sum(natural[place] for place in shown if place not in folding)
        for gap in GAPS:
            left = room - fixed - gap * (len(shown) - 1)
            if sum(least[place] for place in folding) <= left:
                break
        else:
            last = next((place for place in reversed(counted[1:]) if place in shown), None)
            if last is not None:
                shown.remove(last)
                continue
        widths = _shared({place: natural[place] for place in folding}, left, least)
        return gap, {place: widths.get(place, natural[place]) for place in shown}


def _least(column: Sequence[str]) -> int:
    """Return the least width of a column that folds: that of its longest word, if that is a short one."""
    from rich.cells import cell_len

    longest = max((cell_len(word) for cell in column for word in cell.split()), default=0)
    return max(MIN_WIDTH, longest if longest <= SHORT_WORD else 0)


def _shared(natural: Mapping[int, int], room: int, least: Mapping[int, int] | None = None) -> dict[int, int]:
    """Return widths of columns that together fit `room`: each what it needs, the wide ones what is left in equal parts.

    None is narrower than `least`, or than `MIN_WIDTH`, unless it needs less.
    """
    widths: dict[int, int] = {}
    wanted = least or {}
    for place, width in sorted(natural.items(), key=lambda item: item[1]):
        part = max(room // (len(natural) - len(widths)), wanted.get(place, MIN_WIDTH))
        widths[place] = min(width, part)
        room -= widths[place]
    return widths


def _broken(cell: str, width: int) -> str:
    """Return `cell` with its words that are wider than `width` broken after dots, as "aten.", "very_long_name"."""
    return " ".join(word if len(word) <= width else _at_dots(word, width) for word in cell.split(" "))


def _at_dots(word: str, width: int) -> str:
    """Return the parts of a dotted name on as few lines as `width` allows; one with long parts breaks anywhere."""
    parts = word.split(".")
    parts = [*(f"{part}." for part in parts[:-1]), parts[-1]]
    if max(map(len, parts)) > width:
        return "\n".join(word[start : start + width] for start in range(0, len(word), width))
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
