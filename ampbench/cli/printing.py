"""The output of verbs: text for people and machines on stdout, notes on stderr, and files, each whole."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from ampbench.errors import StoreError, written_out
from ampbench.show import terminal
from ampbench.show.document import (
    Block,
    Document,
    Section,
    csv_text,
    json_document,
    markdown,
)
from ampbench.show.terminal import LAYOUT, filled


class OutputFormat(StrEnum):
    """How a verb prints its data on stdout."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


def print_text(text: str) -> None:
    """Print machine output on stdout, ended by one newline; on a terminal, control characters are written out."""
    visible = written_out(text, LAYOUT) if sys.stdout.isatty() else text
    sys.stdout.write(visible if visible.endswith("\n") else f"{visible}\n")


def print_note(text: str) -> None:
    """Print a note on stderr, wrapped between words on a terminal."""
    visible = written_out(text, LAYOUT)
    with suppress(OSError):
        wrapped = filled(visible, shutil.get_terminal_size().columns) if sys.stderr.isatty() else visible
        print(wrapped, file=sys.stderr, flush=True)


def print_document(document: Document, format: OutputFormat) -> None:
    """Print a document as a terminal or a Markdown page has it, or its data as CSV or JSON."""
    if format is OutputFormat.JSON:
        print_text(json_document(document.data()))
    elif format is OutputFormat.CSV:
        names, rows = document.columns, document.rows()
        print_text(csv_text(names, ([row[name] for name in names] for row in rows)))
    elif format is OutputFormat.MARKDOWN:
        print_text(markdown(document.sections(), missing=document.missing, code=document.code, answer=document.answer))
    else:
        terminal.print_document(document)


def print_listing(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], format: OutputFormat, empty: str) -> None:
    """Print flat rows: `columns` of them in a table or in Markdown, all for machines; `empty` if there are none."""
    if format is OutputFormat.TABLE and not rows:
        print_note(empty)
        return
    texts = [{name: written(value) for name, value in row.items()} for row in rows]
    block = Block("", columns, [[row[name] for name in columns] for row in texts], whole=columns[:-1])
    document = Document(
        sections=lambda: [Section("", [block])],
        data=lambda: rows,
        columns=list(rows[0]) if rows else columns,
        rows=lambda: texts,
    )
    print_document(document, format)


def written(value: Any) -> str:
    """Return a value in plain text: "yes" and "no", nothing for None, `name value` pairs for a mapping."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(written, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {written(item)}" for name, item in value.items())
    return str(value)


def write_file(
    path: Path, content: str | bytes, hint: str = "nothing was written, choose another -o", *, links: bool = True
) -> None:
    """Write a whole file or none: under another name first, then renamed.

    Without `links` a link is refused, for file names that nobody typed; else its target is written.
    Raises `StoreError` where the file cannot be written; `hint` ends its message.
    """
    target = path.resolve()  # renaming onto a link would replace the link
    temporary = target.with_name(f".{target.name}.part")
    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # a pipe or a device, which renaming would replace
            return
        if path.is_symlink() and not links:
            leads = os.readlink(path)  # noqa: PTH115 - as it is written, not resolved
            raise StoreError(f"cannot write {path}: it is a link to {leads}; remove it, or {hint}")
        temporary.unlink(missing_ok=True)  # of a writer that was killed
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; {hint}") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
