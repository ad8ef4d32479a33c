"""Sections as styled lines, with tables that fit the width: on a terminal, and as HTML in a notebook."""

import os
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from io import StringIO
from textwrap import fill, indent
from typing import IO, TYPE_CHECKING, Any, Literal

from ampbench.show.document import Block, Code, Document, Section, written_out

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
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
    from rich.padding import Padding
    from rich.text import Text

    note = f"({block.note})" if block.title and block.rows and block.note else block.note
    between = " " if block.title and note else ""
    title = Text.assemble((block.title, "bold" if block.rows else ""), (between + note, "dim"))
    parts: list[tuple[RenderableType, int, int]] = [(title, margin, width)] if title.plain else []
    if block.rows:
        widths = _widths(block, width - 2 * margin)
        needed = 2 * margin + sum(widths.values()) + GAP * (len(widths) - 1)
        parts.append((_table(block, widths), 2 * margin, max(width, needed)))
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


def _table(block: Block, widths: Mapping[int, int]) -> "Table":
    """Return a table without lines, of the columns in `widths`: numbers to the right, text folds."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, GAP, 0, 0), header_style="dim", show_edge=False, pad_edge=False)
    for place, width in widths.items():
        name = block.headers[place]
        justify: Literal["left", "right"] = "right" if name in block.numbers else "left"
        table.add_column(name, justify=justify, no_wrap=not _folds(block, name), overflow="fold", width=width)
    for row in block.rows:
        table.add_row(*(Text(row[place], style=STYLES.get(row[place], "")) for place in widths))
    return table


def _folds(block: Block, name: str) -> bool:
    return name not in block.numbers and name not in block.whole


def _widths(block: Block, room: int) -> dict[int, int]:
    """Return the widths of the visible columns by place: columns that wrap share the room left.

    Where room is short, columns of numbers are left out, the last first, all but the first. Columns in `whole` may
    exceed the room.
    """
    from rich.cells import cell_len

    natural = [max(map(cell_len, column)) for column in zip(block.headers, *block.rows, strict=True)]
    numbers = [place for place, name in enumerate(block.headers) if name in block.numbers]
    hidden: set[int] = set()
    while True:
        visible = [place for place in range(len(natural)) if place not in hidden]
        folding = [place for place in visible if _folds(block, block.headers[place])]
        left = room - GAP * (len(visible) - 1) - sum(natural[place] for place in visible if place not in folding)
        if sum(min(natural[place], MIN_WIDTH) for place in folding) <= left or len(hidden) + 1 >= len(numbers):
            break
        hidden.add(numbers[-1 - len(hidden)])
    widths = {place: natural[place] for place in visible}
    for rank, place in enumerate(sorted(folding, key=lambda place: natural[place])):
        widths[place] = min(natural[place], max(left // (len(folding) - rank), MIN_WIDTH))
        left -= widths[place]
    return widths


STYLE = (
    ".ampbench{font:12px/1.35 monospace;overflow-x:auto;margin:0}.ampbench .bold{font-weight:bold}"
    ".ampbench .dim{opacity:.65}.ampbench .red{color:#b3261e}"
    "@media(prefers-color-scheme:dark){.ampbench .red{color:#ff8a80}}"
    '[data-jp-theme-light="true"] .ampbench .red{color:#b3261e}'
    '[data-jp-theme-light="false"] .ampbench .red{color:#ff8a80}'
)
"""Text takes the notebook's own colour; JupyterLab's theme is asked before the system's."""


def html_of(lines: Iterable["Text"]) -> str:
    """Return the lines of a terminal as an HTML fragment that needs nothing else, readable in light and in dark."""
    console = make_console()
    parts: list[str] = []
    for line in lines:
        for raw, style, _ in line.render(console, end="\n"):
            text = written_out(raw, LAYOUT)
            words = [] if style is None else [word for word in ("bold", "dim") if getattr(style, word)]
            words += ["red"] if style is not None and style.color is not None and style.color.name == "red" else []
            parts.append(f'<span class="{" ".join(words)}">{escape(text)}</span>' if words else escape(text))
    return f'<style>{STYLE}</style><pre class="ampbench">{"".join(parts)}</pre>'


WIDTH = 100
"""The width of a program's output in columns."""


class Printed:
    """Prints itself as text, and in a notebook as HTML, from the same styled lines."""

    def lines(self) -> "Iterable[Text]":
        """Return the output in styled lines."""
        raise NotImplementedError

    def __str__(self) -> str:
        return written_out("\n".join(line.plain.rstrip() for line in self.lines()).strip("\n"), LAYOUT)

    def _repr_html_(self) -> str:
        return html_of(self.lines())
