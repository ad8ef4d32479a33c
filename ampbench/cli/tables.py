"""Results as text: pure functions from rows and advice to terminal lines, Markdown, CSV and JSON.

The terminal table is composed line by line rather than by rich.Table: a failed row's reason runs across the columns,
and the columns of all groups of a run stand under each other.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from ampbench.advice import Advice, Group, Row, number, precision_label, times
from ampbench.units import format_bytes, format_count, format_error, format_seconds, format_share

GAPS = ((2, 2), (2, 1), (1, 1))
"""The blanks before a column that begins a cluster and before one that continues it, from roomy to tight."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the result table: its `parts` make one cell and are each aligned to the right.

    `legend` explains the header. `first` columns begin a cluster. On a narrow terminal columns with the highest
    `expendable` go first; 0 stays.
    """

    header: str
    parts: tuple[Callable[[Row], str], ...]
    legend: str = ""
    first: bool = False
    expendable: int = 0


def _cell(column: str, write: Callable[[float], str]) -> Callable[[Row], str]:
    """Return a function from a row to the text of one value, empty where it is undefined."""

    def text(row: Row) -> str:
        value = number(row[column])
        return "" if value is None else write(value)

    return text


def _interval(row: Row) -> str:
    """Return the half width of the 95 % interval, which is symmetric in the logarithm, as a percentage.

    An interval of twice the value and more says only that nothing is known.
    """
    low, high = number(row["seconds_low"]), number(row["seconds_high"])
    if low is None or high is None or low <= 0:
        return ""
    half = 100 * (math.sqrt(high / low) - 1)
    if half < 9.95:
        return f"±{half:.1f}%"
    return f"±{half:.0f}%" if half < 99.5 else "±>99%"


def _factor(value: float) -> str:
    """Return how many times the rounding floor an error is."""
    if value < 9.95:
        return f"{value:.1f}"
    return f"{value:.0f}" if value < 9999.5 else format_error(value)


COLUMNS = (
    Column("precision", (precision_label,)),
    Column(
        "time/step",
        (_cell("seconds_median", format_seconds), _interval),
        legend="median over rounds, ± its 95 % interval",
        first=True,
    ),
    Column("items/s", (_cell("items_per_second", format_count),), expendable=6),
    Column("speed", (_cell("speedup_vs_fp32", times),), legend="times that of fp32 (tf32 off)"),
    Column("vs tf32", (_cell("speedup_vs_tf32", times),), legend="speed, times that of tf32", expendable=1),
    Column(
        "memory",
        (_cell("peak_memory_bytes", format_bytes), _cell("memory_ratio_vs_fp32", times)),
        legend="peak of one step, times that of fp32",
        first=True,
        expendable=3,
    ),
    Column(
        "error", (_cell("output_rel_l2", format_error),), legend="relative L2 of the output against fp64", first=True
    ),
    Column(
        "×floor",
        (_cell("output_floor_ratio", _factor),),
        legend="error, times that of rounding the fp64 output to the dtype",
        expendable=5,
    ),
    Column("argmax", (_cell("argmax_agreement", format_share),), legend="decisions that are fp64's", expendable=1),
    Column(
        "grad", (_cell("grad_rel_l2", format_error),), legend="relative L2 of the gradients", first=True, expendable=1
    ),
    Column("flushed", (_cell("grad_flushed_share", format_share),), legend="gradients that became zero", expendable=2),
)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the tables of a phase are set: `widths` of the parts of each column, what did not fit, the width of the page.

    `gaps` are the blanks before a column that begins a cluster and before one that continues it.
    """

    columns: tuple[Column, ...]
    widths: Mapping[str, tuple[int, ...]]
    gaps: tuple[int, int]
    hidden: tuple[Column, ...]
    page: int

    def width(self, column: Column) -> int:
        """Return the width of a column's cells and header."""
        widths = self.widths[column.header]
        return max(sum(widths) + len(widths) - 1, cell_len(column.header))

    def gap(self, column: Column) -> int:
        """Return the blanks before a column, none before the first."""
        return 0 if column is COLUMNS[0] else self.gaps[0 if column.first else 1]

    @property
    def total(self) -> int:
        """The width of a line."""
        return sum(self.gap(column) + self.width(column) for column in self.columns)


def lay_out(rows: Sequence[Row], phase: str, width: int) -> Layout:
    """Return the layout in which the tables of one phase fit `width`: tighter if need be, then with fewer columns.

    `rows` are those of all phases: what they share is equally wide in all.
    """
    measured = [row for row in rows if row["outcome"] == "ok"]
    columns = [column for column in COLUMNS if any(_says(column, row) for row in measured if row["phase"] == phase)]
    widths = {
        column.header: tuple(max((cell_len(part(row)) for row in measured), default=0) for part in column.parts)
        for column in COLUMNS[1:]
    }
    widths[COLUMNS[0].header] = (max((cell_len(precision_label(row)) for row in rows), default=0),)
    hidden: list[Column] = []
    while True:
        for gaps in GAPS:
            layout = Layout(tuple(columns), widths, gaps, tuple(hidden), width)
            if layout.total <= width:
                return layout
        last = max(columns, key=lambda column: column.expendable)
        if not last.expendable:
            return layout
        columns.remove(last)
        hidden.append(last)


def result_lines(
    groups: Mapping[Group, Sequence[Row]], advice: Mapping[Group, Advice], layouts: Mapping[str, Layout]
) -> list[Text]:
    """Return the lines of the result table, each group with its title above and its advice below.

    `layouts` are by phase.
    """
    lines: list[Text] = []
    for group, rows in groups.items():
        layout = layouts[group.phase]
        if lines:
            lines.append(Text())
        lines.append(Text.assemble((group.workload, "bold"), (f" · {described(group)}", "dim")))
        if any(row["outcome"] == "ok" for row in rows):
            lines.append(_line([column.header for column in layout.columns], layout, "dim"))
        chosen = advice[group].precision if group in advice else None
        lines.extend(_row_line(row, layout, "bold" if row["precision"] == chosen else "") for row in rows)
        if group in advice:
            lines += wrapped(f"→ {advice[group].sentence}", layout.page)
    return lines


def wrapped(text: str, width: int, style: str = "") -> list[Text]:
    """Return prose as lines of at most `width`, all but the first indented; words, such as ids, are never broken."""
    said = fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return [Text(line, style=style) for line in said.splitlines()]


def markdown(groups: Mapping[Group, Sequence[Row]], advice: Mapping[Group, Advice]) -> str:
    """Return the result table as Markdown: a heading, a table and a line of advice for each group."""
    blocks = []
    for group, rows in groups.items():
        measured = [row for row in rows if row["outcome"] == "ok"]
        columns = [column for column in COLUMNS if column is COLUMNS[0] or any(_says(column, row) for row in measured)]
        headers = [column.header for column in columns]
        cells = [[" ".join(part(row) for part in column.parts).strip() for column in columns] for row in measured]
        missing = [row for row in rows if row["outcome"] != "ok"]
        block = [f"### {group.workload}", described(group)]
        if measured:
            block.append(markdown_table(headers, cells))
        block += [f"{precision_label(row)} {row['outcome']}: {row['reason']}" for row in missing]
        if group in advice:
            block.append(f"→ {advice[group].sentence}")
        blocks.append("\n\n".join(block))
    return "\n\n".join(blocks)


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[str] = ()) -> str:
    """Return a Markdown table; the first column and those named in `left` stand left, the others right."""
    rule = [":--" if place == 0 or name in left else "--:" for place, name in enumerate(headers)]
    escaped = [[cell.replace("|", r"\|").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [list(headers), rule, *escaped])


def csv_text(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV with a header line; None and NaN are empty cells."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(headers)
    writer.writerows([["" if plain(value) is None else plain(value) for value in row] for row in rows])
    return stream.getvalue()


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


def legend(columns: Iterable[Column]) -> str:
    """Return one line that explains the headers of `columns`."""
    return "; ".join(f"{column.header}: {column.legend}" for column in columns if column.legend)


def described(group: Group) -> str:
    """Return what a group is beside its workload: `batch 8 · inference · cpu · eager · classes=1000 image=224`."""
    parts = [] if group.batch_size is None else [f"batch {group.batch_size}"]
    parts += [group.phase, group.device, group.path]
    if group.memory_format != "contiguous":
        parts.append(group.memory_format)
    if group.parameters:
        parts.append(group.parameters.replace(",", " "))
    return " · ".join(parts)


def _says(column: Column, row: Row) -> bool:
    return any(part(row) for part in column.parts)


def _row_line(row: Row, layout: Layout, style: str) -> Text:
    """Return the line of one row; a failure's or skip's reason takes the place of the numbers."""
    if row["outcome"] != "ok":
        name = precision_label(row).ljust(layout.width(COLUMNS[0]) + 2)
        colour = "red" if row["outcome"] == "failed" else "dim"
        return Text.assemble(name, (f"{row['outcome']}: {row['reason']}", colour), no_wrap=True, overflow="ellipsis")
    cells = []
    for column in layout.columns:
        parts = zip(column.parts, layout.widths[column.header], strict=True)
        cells.append(" ".join(part(row).rjust(width) for part, width in parts))
    cells[0] = cells[0].strip()
    return _line(cells, layout, style)


def _line(cells: Sequence[str], layout: Layout, style: str) -> Text:
    """Join the cells of a line: the first to the left, the others to the right."""
    line = ""
    for column, cell in zip(layout.columns, cells, strict=True):
        width = layout.width(column)
        line += " " * layout.gap(column) + (cell.ljust(width) if column is COLUMNS[0] else cell.rjust(width))
    return Text(line.rstrip(), style=style, no_wrap=True, overflow="ellipsis")


def json_document(document: Any) -> str:
    """Return nested data as indented JSON."""
    return json.dumps(document, ensure_ascii=False, indent=2, default=str)
