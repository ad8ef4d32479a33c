"""Documents of sections, with sentences, tables and code; as Markdown, and as CSV and JSON for machines.

A column of a table is described once, for people and for machines. `terminal` renders documents, too; the templates of
`ampbench.report` put the blocks of their sections on its page.
"""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Generic, TypeVar

import msgspec

from ampbench.core.units import FORMATS, UNDEFINED
from ampbench.errors import written_out

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of tables with rows of type `T`: `of` returns its value of a row.

    `key` is its name for machines, `head` its heading for people; "" leaves the column out for them. `unit` is a key of
    `ampbench.core.units.FORMATS` ("": text). `said` returns the text of a cell instead of the value in its unit. A
    `rare` column is left out where all its cells are empty.
    """

    key: str
    of: Callable[[T], Any]
    head: str = ""
    unit: str = ""
    said: Callable[[T], str] | None = None
    rare: bool = False
    whole: bool = False

    def cell(self, row: T) -> str:
        """Return the text of a row's cell; "–" where there is no value."""
        if self.said is not None:
            return self.said(row)
        value = self.of(row)
        if self.unit:
            return FORMATS[self.unit](value)
        return UNDEFINED if value is None else str(value)


def picked(columns: Sequence[Column[T]], *keys: str) -> list[Column[T]]:
    """Return the columns with these keys, in this order."""
    known = {column.key: column for column in columns}
    return [known[key] for key in keys]


def records(columns: Sequence[Column[T]], rows: Sequence[T]) -> list[dict[str, Any]]:
    """Return rows as machines have them: the value of each column that has a key, None where there is none."""
    return [{column.key: column.of(row) for column in columns if column.key} for row in rows]


@dataclass(frozen=True, slots=True)
class Block:
    """A table set in text, with a title; without rows, the title is a sentence. `note` explains the title.

    Columns with headers in `numbers` are right-aligned and, like the columns in `whole`, never wrapped. A `folded`
    block opens by its title where the medium can do that.
    """

    title: str
    headers: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    note: str = ""
    numbers: Collection[str] = ()
    whole: Collection[str] = ()
    folded: bool = False


def table(
    title: str,
    columns: Sequence[Column[T]],
    rows: Sequence[T],
    note: str = "",
    *,
    most: int | None = None,
    folded: bool = False,
) -> Block:
    """Return a table of the columns with a heading; columns with a unit are numbers.

    With more than `most` rows (None: all) the note counts them.
    """
    cells = {place: [column.cell(row) for row in rows] for place, column in enumerate(columns) if column.head}
    kept = [place for place, texts in cells.items() if not columns[place].rare or set(texts) - {"", UNDEFINED}]
    block = Block(
        title,
        [columns[place].head for place in kept],
        [list(row) for row in zip(*(cells[place] for place in kept), strict=True)],
        note,
        numbers=[columns[place].head for place in kept if columns[place].unit],
        whole=tuple(columns[place].head for place in kept if columns[place].whole),
        folded=folded,
    )
    return block if most is None else cut(block, most, REST)


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks about one thing."""

    title: str
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Code:
    """Python to paste, with a title; the text ends with a newline."""

    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A result in every output format; each format is made on demand.

    People read `sections`, then the lines of `missing`, then `code`. Markdown begins and a terminal ends with `answer`,
    in green or red where it is `good` or bad. Machines read nested `data`, or flat `rows` with a value for each of
    `columns`, where there are any.
    """

    sections: Callable[[], Sequence[Section]]
    data: Callable[[], Any]
    columns: Sequence[str] = ()
    rows: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    missing: Sequence[str] = ()
    code: Sequence[Code] = ()
    answer: str = ""
    good: bool | None = None


def as_sentence(text: str, names: Container[str] = ()) -> str:
    """Return a phrase with a full stop and a capital first letter, unless it begins with a name: "fp16", "a_b", "a.b".

    `names` are others that it may begin with, before a colon or a comma.
    """
    word = text.partition(" ")[0]
    named = text.partition(":")[0].split(", ")[0] in names
    named = named or "." in word[:-1] or any(character.isdigit() or character == "_" for character in word)
    return f"{text[:1] if named else text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


REST = ", -v lists the rest"
ROWS = 40
"""The most rows of a table of one case on a page, in order of importance."""


def cut(block: Block, most: int = ROWS, hint: str = "") -> Block:
    """Return a block with its first `most` rows; its note then has how many there are, and where the `rest` is."""
    if len(block.rows) <= most:
        return block
    note = f"{most} of {len(block.rows):,}{hint}"
    return replace(block, rows=block.rows[:most], note="; ".join(filter(None, [block.note, note])))


LONGEST = 500
"""The most characters of a text: a comment on GitHub holds 65,536, and no reason needs more."""

_SPECIAL = re.compile(
    r"[\\`*|~$]"  # code, emphasis, columns, struck-out text, formulas
    r"|<(?=[A-Za-z/!?])|&(?=#?\w+;)"  # a tag or a character's name; "<0.01%" is none
    r"|](?=\()"  # the end of a link's text
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"  # emphasis; within a word an underscore is none
)
_MENTION = re.compile(r"(?<!\w)@(?=\w)")


def escaped(text: str) -> str:
    """Return `text` escaped as one line of Markdown, cut at `LONGEST` characters.

    Unprintable characters are written out, and a name behind an @ notifies nobody.
    """
    line = " ".join(text.split())
    if len(line) > LONGEST:
        line = f"{line[:LONGEST]}… ({len(line):,} characters)"
    line = _MENTION.sub("@&#8203;", _SPECIAL.sub(r"\\\g<0>", line))
    return written_out(line)


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[str] = ()) -> str:
    """Return a Markdown table, a line per row; the first column and those of `left` are left-aligned."""
    rule = [":--" if place == 0 or name in left else "--:" for place, name in enumerate(headers)]
    head, *cells = ([escaped(cell) for cell in row] for row in (headers, *rows))
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *cells))


def markdown(
    sections: Iterable[Section],
    level: int = 2,
    *,
    missing: Iterable[str] = (),
    code: Iterable[Code] = (),
    answer: str = "",
) -> str:
    """Return `answer`, `sections` with titles from `level` on, `missing` and `code` as Markdown.

    A block is its table under a heading, or behind it where it is `folded`; without rows its sentence.
    """
    parts = [f"**{escaped(answer)}**"] if answer else []
    for section in sections:
        parts.append(_heading(section.title, level))
        for block in section.blocks:
            note = escaped(f"{block.note[:1].upper()}{block.note[1:]}.") if block.note else ""
            if not block.rows:
                parts += [escaped(block.title), note]
                continue
            left = [name for name in block.headers if name not in block.numbers]
            text = "\n\n".join(filter(None, [note, markdown_table(block.headers, block.rows, left)]))
            if block.folded:
                parts.append(f"<details><summary>{escape(block.title)}</summary>\n\n{text}\n\n</details>")
            else:
                parts += [_heading(block.title, level + 1), text]
    pasted = "".join(f"\n{block.title}:\n\n```python\n{block.text}```\n" for block in code)
    return "\n\n".join(filter(None, [*parts, *map(escaped, missing)])) + "\n" + pasted


def _heading(title: str, level: int) -> str:
    return f"{'#' * level} {escaped(title)}" if title else ""


FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""The first characters of text that a spreadsheet runs."""
_NUMBER = re.compile(r"[-+]?[\d.,]+(?:e[-+]?\d+)?\s?[%\w]*", re.IGNORECASE)
"""A number that was formatted already, with its unit."""


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
    cell = finite(value)
    if isinstance(cell, str) and cell.startswith(FORMULA) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return "" if cell is None else cell


def finite(value: Any) -> Any:
    """Return nested data as JSON has it: None for null, NaN and infinities, and NumPy's scalars as plain values."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if hasattr(value, "item"):  # a NumPy scalar
        return finite(value.item())
    return None if type(value).__name__ in {"NAType", "NaTType"} else value


def record_data(record: msgspec.Struct) -> dict[str, Any]:
    """Return a stored record, and all records in it, as JSON has them."""
    data: dict[str, Any] = msgspec.to_builtins(record, enc_hook=dict)
    return data


def json_document(data: Any) -> str:
    """Return nested data as indented JSON, a list of rows with a row a line; null for undefined numbers."""
    if isinstance(data, list):
        lines = [json.dumps({name: finite(value) for name, value in row.items()}) for row in data]
        return "[\n" + ",\n".join(lines) + "\n]\n" if lines else "[]\n"
    return json.dumps(finite(data), indent=2, default=str)
