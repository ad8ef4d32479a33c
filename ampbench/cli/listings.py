"""Flat rows of names and facts, as `list` and `doctor` print them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ampbench.cli.data import csv_text, json_text
from ampbench.cli.options import OutputFormat
from ampbench.cli.printing import make_console, print_block, print_note, print_text
from ampbench.markdown import markdown_table

if TYPE_CHECKING:
    from rich.table import Table


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
