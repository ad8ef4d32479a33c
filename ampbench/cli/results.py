"""A run as `run` and `show` print it: table, advice and notes, or data for machines."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from ampbench import frames, notes
from ampbench.advice import Budget, across_tables, advise_run
from ampbench.cli import tables
from ampbench.cli.data import csv_text, json_text
from ampbench.cli.options import OutputFormat
from ampbench.cli.printing import make_console, print_lines, print_text
from ampbench.columns import legend
from ampbench.markdown import escaped
from ampbench.metrics import COLUMNS
from ampbench.records.runs import CONVERGENCE
from ampbench.rows import Row, grouped
from ampbench.store import runs_beside

if TYPE_CHECKING:
    from ampbench.store import StoredRun


def run_rows(stored: "StoredRun") -> list[Row]:
    """Return one row per case of a run, as `ampbench.load` gives them, in the order of the tables."""
    groups = grouped(frames.plain_rows(frames.run_frame(stored)))
    return [row for rows in groups.values() for row in rows]


def print_result(
    stored: "StoredRun", every: Sequence[Row], shown: Sequence[Row], format: OutputFormat, budget: Budget
) -> None:
    """Print the rows `shown` of a run on stdout: as table with advice and notes, or in a machine's format.

    The advice is that of `every` row of the run, whichever are shown.
    """
    if format is OutputFormat.JSON:
        print_text(json_text(shown))
    elif format is OutputFormat.CSV:
        print_text(csv_text(list(COLUMNS), ([row[name] for name in COLUMNS] for row in shown)))
    elif format is OutputFormat.MARKDOWN:
        print_text(markdown_text(stored, every, shown, budget))
    else:
        console = make_console()
        print_lines(console, result_lines(stored, every, shown, budget, console.width))


def markdown_text(stored: "StoredRun", every: Sequence[Row], rows: Sequence[Row], budget: Budget) -> str:
    """Return `rows` of a run as Markdown: the tables, the advice on `every` row, the notes."""
    groups, skipped = notes.without_common_skips(grouped(rows))
    advice = advise_run(stored, every, budget, runs_beside(stored, CONVERGENCE))
    swept = notes.sweep_remarks(advice, stored.header.selection.sweeps)
    said = [*_remarks(stored, rows, [*across_tables(stored, every, advice), *swept]), *skipped]
    return "\n\n".join([tables.markdown(groups, advice), *map(escaped, said)])


def result_lines(
    stored: "StoredRun", every: Sequence[Row], rows: Sequence[Row], budget: Budget, width: int
) -> list[Text]:
    """Return what a terminal of `width` columns shows of a run: the table of `rows`, the advice on `every`, notes."""
    groups, skipped = notes.without_common_skips(grouped(rows))
    shown = [row for members in groups.values() for row in members]
    layouts = {phase: tables.lay_out(shown, phase, width) for phase in dict.fromkeys(group.phase for group in groups)}
    advice = advise_run(stored, every, budget, runs_beside(stored, CONVERGENCE))
    lines = tables.table_lines(groups, advice, layouts)
    swept = notes.sweep_remarks(advice, stored.header.selection.sweeps)
    across = across_tables(stored, every, advice)
    remarks = dict.fromkeys((*_remarks(stored, rows, [*across, *swept]), *skipped), "")
    remarks |= dict.fromkeys(_legend(layouts), "dim")
    if lines:
        lines.append(Text())
    for remark, style in remarks.items():
        lines += tables.wrapped(remark, width, style)
    return lines


def _remarks(stored: "StoredRun", rows: Sequence[Row], swept: Sequence[str]) -> list[str]:
    """Return what is said below the table, but for skips: of several tables and sweeps (`swept`), of the machine."""
    return [*swept, *(note.text for note in notes.statements(stored, rows))]


def _legend(layouts: Mapping[str, tables.Layout]) -> list[str]:
    """Return the meaning of the headers, and which columns found no room."""
    shown = dict.fromkeys(column for layout in layouts.values() for column in layout.columns)
    hidden = dict.fromkeys(column.header for layout in layouts.values() for column in layout.hidden)
    lines = [legend(shown)] if any(column.legend for column in shown) else []
    if hidden:
        lines.append(f"no room for {', '.join(hidden)}: a wider terminal or --format csv shows all")
    return lines
