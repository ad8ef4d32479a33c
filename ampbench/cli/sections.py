"""Sections of blocks on stdout: tables without lines on a terminal, headings and tables in Markdown."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from ampbench.blocks import Block, Section
from ampbench.cli.options import OutputFormat
from ampbench.cli.printing import make_console, print_block, print_text
from ampbench.markdown import escaped, markdown_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

INDENT, GAP = 4, 2
"""Blanks before a table and between its columns."""
MIN_WIDTH = 10
"""A column that folds gets at least so much room, if it needs it."""


def print_sections(
    sections: Sequence[Section],
    format: OutputFormat,
    *,
    numbers: Collection[str] = (),
    missing: Sequence[str] = (),
) -> None:
    """Print `sections`, then the lines of what is `missing`, as Markdown or, in other formats, for a terminal.

    Columns with headers in `numbers` stand to the right and stay on one line; the others share the room there is.
    """
    if format is OutputFormat.MARKDOWN:
        print_text(markdown(sections, numbers=numbers, missing=missing))
    else:
        _print(sections, numbers, missing)


def markdown(
    sections: Iterable[Section], level: int = 2, *, numbers: Collection[str] = (), missing: Iterable[str] = ()
) -> str:
    """Return `sections` as Markdown, with titles from `level` on, then the lines of what is `missing`."""
    parts = []
    for section in sections:
        parts.append(_heading(section.title, level))
        for block in section.blocks:
            parts.append(_heading(block.title, level + 1) if block.rows else escaped(block.title))
            parts.append(escaped(f"{block.note[:1].upper()}{block.note[1:]}.") if block.note else "")
            left = [name for name in block.headers if name not in numbers]
            parts.append(markdown_table(block.headers, block.rows, left=left) if block.rows else "")
    return "\n\n".join(filter(None, [*parts, *map(escaped, missing)])) + "\n"


def _heading(title: str, level: int) -> str:
    return f"{'#' * level} {escaped(title)}" if title else ""


def _print(sections: Sequence[Section], numbers: Collection[str], missing: Sequence[str]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console = make_console()

    def show(block: "RenderableType", *, above: int = 0, left: int = 0) -> None:
        print_block(console, Padding(block, (above, 0, 0, left)))

    for place, section in enumerate(sections):
        show(Text(section.title, style="bold"), above=1 if place else 0)
        table_before = False
        for block in section.blocks:
            note = f"({block.note})" if block.title and block.rows and block.note else block.note
            between = " " if block.title and note else ""
            said = Text.assemble((block.title, "bold" if block.rows else ""), (between + note, "dim"))
            if said.plain:
                show(said, above=1 if block.rows or table_before else 0, left=2)
            if block.rows:
                show(_table(block, console.width - INDENT, numbers), left=INDENT)
            table_before = bool(block.rows)
    for place, line in enumerate(missing):
        show(Text(line), above=1 if sections and not place else 0)


def _table(block: Block, room: int, numbers: Collection[str]) -> "Table":
    """Return a table without lines, numbers to the right; text folds where there is no room for it."""
    from rich.cells import cell_len
    from rich.table import Table

    natural = [max(map(cell_len, column)) for column in zip(block.headers, *block.rows, strict=True)]
    folding = {place: natural[place] for place, name in enumerate(block.headers) if name not in numbers}
    fixed = sum(width for place, width in enumerate(natural) if place not in folding)
    widths = _shared(folding, room - fixed - GAP * (len(natural) - 1))
    table = Table(box=None, padding=(0, GAP, 0, 0), header_style="dim", show_edge=False, pad_edge=False)
    for place, name in enumerate(block.headers):
        justify: Literal["left", "right"] = "right" if name in numbers else "left"
        width = widths.get(place, natural[place])
        table.add_column(name, justify=justify, no_wrap=place not in folding, overflow="fold", width=width)
    for row in block.rows:
        table.add_row(*(_broken(cell, widths[place]) if place in widths else cell for place, cell in enumerate(row)))
    return table


def _shared(natural: Mapping[int, int], room: int) -> dict[int, int]:
    """Return widths of columns that together fit `room`: each what it needs, the wide ones what is left in equal parts.

    None is narrower than `MIN_WIDTH` unless it needs less.
    """
    widths: dict[int, int] = {}
    for place, width in sorted(natural.items(), key=lambda item: item[1]):
        part = max(room // (len(natural) - len(widths)), MIN_WIDTH)
        widths[place] = min(width, part)
        room -= widths[place]
    return widths


def _broken(cell: str, width: int) -> str:
    """Return `cell` with its words that are wider than `width` broken after dots, as "aten.", "very_long_name"."""
    return " ".join(word if len(word) <= width else _at_dots(word, width) for word in cell.split(" "))


def _at_dots(word: str, width: int) -> str:
    """Return the parts of a dotted name on as few lines as `width` allows."""
    parts = word.split(".")
    lines = [""]
    for part in [*(f"{part}." for part in parts[:-1]), parts[-1]]:
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
