"""What verbs print: to a terminal, as data, to a file.

Data on stdout for machines: CSV and JSON.

Writing to stdout and stderr: styled lines for people, plain text for machines.

Sections of blocks on stdout: tables without lines on a terminal, headings and tables in Markdown.

Flat rows of names and facts, as `list` and `doctor` print them.

Writing files that a user asked for: all of them or none, and never half of one.
"""

import contextlib
import csv
import errno
import io
import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from glob import escape
from pathlib import Path
from textwrap import fill
from typing import IO, TYPE_CHECKING, Any, Literal

from ampbench.errors import StoreError
from ampbench.present.document import Block, Section, escaped, markdown_table, written_out

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text


FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How text begins that spreadsheets run."""
_NUMBER = re.compile(r"[-+]?[\d.,]+(?:e[-+]?\d+)?\s?[%\w]*", re.IGNORECASE)
"""A number that was formatted already, with its unit."""


class OutputFormat(StrEnum):
    """How a verb prints its data on stdout."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


def csv_text(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV with a header line; None and NaN are empty cells.

    Text that a spreadsheet would take for a formula has an apostrophe before it
    (owasp.org/www-community/attacks/CSV_Injection).
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(_cell, headers))
    writer.writerows([[_cell(value) for value in row] for row in rows])
    return stream.getvalue()


def _cell(value: Any) -> Any:
    found = plain(value)
    if isinstance(found, str) and found.startswith(FORMULA) and not _NUMBER.fullmatch(found):
        return f"'{found}"
    return "" if found is None else found


def json_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as a JSON list of flat objects, one a line; null where a value is undefined or not finite."""
    lines = [json.dumps({name: plain(value) for name, value in row.items()}, ensure_ascii=False) for row in rows]
    return "[\n" + ",\n".join(lines) + "\n]\n" if lines else "[]\n"


def plain(value: Any) -> Any:
    """Return a cell of a frame as a plain Python value: None for null, NaN and infinities, int for whole integers."""
    if value is None or isinstance(value, str | bool | int | list | dict):
        return value
    if hasattr(value, "item"):  # a NumPy scalar
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return None  # pandas' NA and NaT


def json_document(document: Any) -> str:
    """Return nested data as indented JSON."""
    return json.dumps(document, ensure_ascii=False, indent=2, default=str)


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


INDENT = 4
"""Blanks before a table."""
GAPS = (2, 1)
"""Blanks between its columns, from roomy to tight."""
MIN_WIDTH = 10
"""A column that folds gets at least so much room, if it needs it."""
SHORT_WORD = 16
"""A word of no more characters than this is not broken."""

NO_ROOM = "no room for {}: a wider terminal or --format markdown shows all"
"""What is said of columns that are left out."""


def print_sections(
    sections: Sequence[Section],
    format: OutputFormat,
    *,
    missing: Sequence[str] = (),
) -> None:
    """Print `sections`, then the lines of what is `missing`, as Markdown or, in other formats, for a terminal.

    Columns of text share the room that those of numbers leave. What a terminal has no room for is named below its
    table.
    """
    if format is OutputFormat.MARKDOWN:
        print_text(markdown(sections, missing=missing))
    else:
        _print(sections, missing)


def markdown(sections: Iterable[Section], level: int = 2, *, missing: Iterable[str] = ()) -> str:
    """Return `sections` as Markdown, with titles from `level` on, then the lines of what is `missing`."""
    parts = []
    for section in sections:
        parts.append(_heading(section.title, level))
        for block in section.blocks:
            parts.append(_heading(block.title, level + 1) if block.rows else escaped(block.title))
            parts.append(escaped(f"{block.note[:1].upper()}{block.note[1:]}.") if block.note else "")
            left = [name for name in block.headers if name not in block.numbers]
            parts.append(markdown_table(block.headers, block.rows, left=left) if block.rows else "")
    return "\n\n".join(filter(None, [*parts, *map(escaped, missing)])) + "\n"


def _heading(title: str, level: int) -> str:
    return f"{'#' * level} {escaped(title)}" if title else ""


def _print(sections: Sequence[Section], missing: Sequence[str]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console = make_console()
    page = console.width

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
                gap, widths = _layout(block, page - INDENT)
                console.width = max(page, INDENT + sum(widths.values()) + gap * (len(widths) - 1))
                show(_table(block, gap, widths), left=INDENT)
                console.width = page
                hidden = [name for place, name in enumerate(block.headers) if place not in widths]
                if hidden:
                    show(Text(NO_ROOM.format(", ".join(hidden)), style="dim"), left=INDENT)
            table_before = bool(block.rows)
    if sections and missing:
        console.print()
    print_lines(console, map(Text, missing))


def _table(block: Block, gap: int, widths: Mapping[int, int]) -> "Table":
    """Return a table without lines, of the columns in `widths`: numbers to the right, text folds."""
    from rich.table import Table

    table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim", show_edge=False, pad_edge=False)
    folding = set()
    for place, width in widths.items():
        name = block.headers[place]
        number = name in block.numbers
        justify: Literal["left", "right"] = "right" if number else "left"
        table.add_column(name, justify=justify, no_wrap=number, overflow="fold", width=width)
        folding |= set() if number else {place}
    for row in block.rows:
        cells = {
            place: _broken(row[place], width) if place in folding else row[place] for place, width in widths.items()
        }
        table.add_row(*cells.values())
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
        folding = [place for place in shown if place not in counted]
        fixed = sum(natural[place] for place in shown if place in counted)
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


def print_listing(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], format: OutputFormat, empty: str) -> None:
    """Print flat rows: `columns` of them in a table or in Markdown, all for machines; `empty` if there are none."""
    if format is OutputFormat.JSON:
        print_text(json_text(rows))
    elif format is OutputFormat.CSV:
        headers = list(rows[0]) if rows else list(columns)
        print_text(csv_text(headers, ([written(row[name]) for name in headers] for row in rows)))
    elif format is OutputFormat.MARKDOWN:
        print_text(markdown_table(columns, [[written(row[name]) for name in columns] for row in rows], left=columns))
    elif rows:
        print_block(make_console(), listing_table(rows, columns))
    else:
        print_note(empty)


def listing_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> "Table":
    """Return a table without lines; the last column takes the room that is left."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False, pad_edge=False)
    for name in columns:
        table.add_column(name, no_wrap=name != columns[-1], overflow="fold")
    for row in rows:
        table.add_row(*(written(row[name]) for name in columns))
    return table


def written(value: Any) -> str:
    """Return a value as a person writes it: "yes" and "no", nothing for None, `name value` pairs for a mapping."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(written, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {written(item)}" for name, item in value.items())
    return str(value)


def check_writable(path: Path) -> None:
    """Raise `StoreError` where a file at `path` could not be written, before the work that is to fill it."""
    folder = path.resolve().parent
    if path.is_dir():
        problem = os.strerror(errno.EISDIR)
    elif not folder.is_dir():
        problem = os.strerror(errno.ENOENT)
    elif not os.access(path if path.exists() and not path.is_file() else folder, os.W_OK):
        problem = os.strerror(errno.EACCES)
    else:
        return
    raise StoreError(f"cannot write {path}: {problem}; choose another -o")


ABANDONED_SECONDS = 60.0
"""A file under way that is older than this, of a process that is gone, was left behind: no writing takes as long."""


def write_files(
    files: Mapping[Path, str | bytes], hint: str = "nothing was written, choose another -o", *, links: bool = True
) -> None:
    """Write all files or none: each under another name first, then renamed.

    What writers that were killed left beside a file is removed. A file that is a link is written where it leads, but
    without `links`, which is for names that nobody typed, refused. Raises `StoreError` where that cannot be done;
    `hint` ends its message.
    """
    written: list[tuple[Path, Path]] = []
    path = Path()
    try:
        for path, content in files.items():
            data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if path.exists() and not path.is_file():
                path.write_bytes(data)  # a pipe or a device, which renaming would replace
                continue
            if path.is_symlink() and not links:
                leads = os.readlink(path)  # noqa: PTH115 - as it is written, not resolved
                raise StoreError(f"cannot write {path}: it is a link to {leads}; remove it, or {hint}")
            target = path.resolve()  # renaming onto a link would replace the link
            _remove_abandoned(target)
            temporary = target.with_name(f".{target.name}.{os.getpid()}")
            written.append((temporary, target))
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for temporary, target in written:
            temporary.replace(target)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; {hint}") from None
    finally:
        for temporary, _ in written:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def _remove_abandoned(target: Path) -> None:
    """Remove what writers of `target` that were killed have left beside it."""
    for beside in target.parent.glob(f".{escape(target.name)}.*"):
        writer = beside.name.rpartition(".")[2]
        with contextlib.suppress(OSError):
            old = time.time() - beside.stat().st_mtime > ABANDONED_SECONDS
            if writer.isdecimal() and old and not Path("/proc", writer).exists():
                beside.unlink()
