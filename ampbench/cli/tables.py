"""Results as text: pure functions from rows and advice to terminal lines, Markdown, CSV and JSON.

The terminal table is composed line by line rather than by rich.Table: a failed row's reason runs across the columns,
and the columns of all groups of a run stand under each other, up to one that is `rare`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.text import Text

from ampbench.judge.advice import Advice
from ampbench.judge.columns import COLUMNS, Column, says, shown
from ampbench.judge.rows import Group, Row, described, precision_label
from ampbench.present.markdown import escaped, markdown_table
from ampbench.present.terminal import filled
from ampbench.records.labels import outcome_said

GAPS = ((2, 2), (2, 1), (1, 1))
"""The blanks before a column that begins a cluster and before one that continues it, from roomy to tight."""


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

    def of_table(self, rows: Sequence[Row]) -> "Layout":
        """Return the layout of one table, without the rare columns that say nothing of its rows."""
        told = [column for column in self.columns if not column.rare or any(says(column, row) for row in rows)]
        return replace(self, columns=tuple(told))

    @property
    def total(self) -> int:
        """The width of a line."""
        return sum(self.gap(column) + self.width(column) for column in self.columns)


def lay_out(rows: Sequence[Row], phase: str, width: int) -> Layout:
    """Return the layout in which the tables of one phase fit `width`: tighter if need be, then with fewer columns.

    `rows` are those of all phases: what they share is equally wide in all.
    """
    measured = [row for row in rows if row["outcome"] == "ok"]
    every = shown(measured)
    columns = [column for column in every if any(says(column, row) for row in measured if row["phase"] == phase)]
    widths = {
        column.header: tuple(max((cell_len(part(row)) for row in measured), default=0) for part in column.parts)
        for column in every[1:]
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


def table_lines(
    groups: Mapping[Group, Sequence[Row]], advice: Mapping[Group, Advice], layouts: Mapping[str, Layout]
) -> list[Text]:
    """Return the lines of the result table, each group with its title above and its advice below.

    `layouts` are by phase.
    """
    lines: list[Text] = []
    for group, rows in groups.items():
        layout = layouts[group.phase].of_table([row for row in rows if row["outcome"] == "ok"])
        if lines:
            lines.append(Text())
        title = wrapped(f"{group.workload} · {described(group)}", layout.page, "dim")
        title[0].stylize("not dim bold", 0, len(group.workload))
        lines += title
        if any(row["outcome"] == "ok" for row in rows):
            lines.append(_line([column.header for column in layout.columns], layout, "dim"))
        chosen = advice[group].precision if group in advice else None
        lines.extend(_row_line(row, layout, "bold" if row["precision"] == chosen else "") for row in rows)
        if group in advice:
            lines += wrapped(f"→ {advice[group].sentence}", layout.page)
            lines += wrapped(advice[group].remark, layout.page) if advice[group].remark else []
    return lines


def wrapped(text: str, width: int, style: str = "") -> list[Text]:
    """Return prose as `filled` lines of at most `width`."""
    return [Text(line, style=style) for line in filled(text, width).splitlines()]


def markdown(groups: Mapping[Group, Sequence[Row]], advice: Mapping[Group, Advice]) -> str:
    """Return the result table as Markdown: a heading, a table and a line of advice for each group."""
    blocks = []
    for group, rows in groups.items():
        measured = [row for row in rows if row["outcome"] == "ok"]
        columns = shown(measured)
        headers = [column.header for column in columns]
        cells = [[" ".join(part(row) for part in column.parts).strip() for column in columns] for row in measured]
        missing = [row for row in rows if row["outcome"] != "ok"]
        block = [f"### {escaped(group.workload)}", escaped(described(group))]
        if measured:
            block.append(markdown_table(headers, cells))
        block += [escaped(f"{precision_label(row)} {outcome_said(row['outcome'], row['reason'])}") for row in missing]
        if group in advice:
            block.append(f"→ {escaped(advice[group].sentence)}")
            block += [escaped(advice[group].remark)] if advice[group].remark else []
        blocks.append("\n\n".join(block))
    return "\n\n".join(blocks)


def _row_line(row: Row, layout: Layout, style: str) -> Text:
    """Return the line of one row; a failure's or skip's reason takes the place of the numbers."""
    if row["outcome"] != "ok":
        name = precision_label(row).ljust(layout.width(COLUMNS[0]) + 2)
        colour = "red" if row["outcome"] == "failed" else "dim"
        said = outcome_said(row["outcome"], row["reason"])
        return Text.assemble(name, (said, colour), no_wrap=True, overflow="ellipsis")
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
