"""Prints a run on stdout for people or machines, and its tables during the measurement."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rich.text import Text

from ampbench.cli.printing import OutputFormat, print_text
from ampbench.core.metrics import COLUMNS
from ampbench.core.units import counted
from ampbench.judge import frame
from ampbench.records.case import Table, table_of
from ampbench.records.changes import VERDICT_COLUMNS
from ampbench.records.measured import Failure, Round, Skip
from ampbench.records.run import Entry
from ampbench.result import Result
from ampbench.show import networks
from ampbench.show.document import Section, csv_text, json_text, markdown
from ampbench.show.results import Layout, Screen, heading, notes_of, result_lines, result_markdown
from ampbench.show.rows import Row, group_of, grouped
from ampbench.show.terminal import make_console, print_lines, section_lines, wrapped
from ampbench.store import StoredRun, gathered


def print_result(
    result: Result, rows: Sequence[Row], format: OutputFormat, show: str, rest: str, *, verbose: bool = False
) -> None:
    """Print some of a result's rows on stdout, with the advice of all.

    Many tables have a line each, unless `verbose`. `show` is the command that shows the run, `rest` the one that shows
    all of it.
    """
    if format is OutputFormat.JSON:
        print_text(json_text(rows))
    elif format is OutputFormat.CSV:
        columns = [*COLUMNS, *VERDICT_COLUMNS]
        print_text(csv_text(columns, ([row[name] for name in columns] for row in rows)))
    else:
        _print_read(result, rows, format is OutputFormat.MARKDOWN, show, rest, verbose=verbose)


def _print_read(result: Result, rows: Sequence[Row], in_markdown: bool, show: str, rest: str, *, verbose: bool) -> None:
    """Print tables and notes, then a line for each of several networks; for many tables only these lines."""
    groups = grouped(rows)
    whole = [row for row in result.rows if group_of(row) in groups]
    measured = networks.networks_of(whole, result.takes, result.stored.cases)
    brief = len(groups) > networks.TABLES and not verbose
    several = brief or len({network.rows[0]["workload"] for network in measured}) > 1
    columns = [column for column in networks.columns() if column.key != "error"]
    summary = [Section("", networks.tables(measured, columns))] if several and measured else []
    screen = result.screen(rows, rest)
    failed = networks.missing(row for row in whole if row["outcome"] == "failed")
    lost = [Section("", [failed])] if brief and failed.rows else []
    notes = [*notes_of(screen), f"all {len(groups):,} tables: {show} -v, or -k NAME for one network"]
    if in_markdown:
        first = markdown(lost, missing=notes) if brief else result_markdown(screen)
        print_text("\n\n".join(part for part in (first, markdown(summary)) if part.strip()))
        return
    console = make_console()
    width = console.width
    lines = [*section_lines(lost, width), *(line for note in notes for line in wrapped(note, width))]
    print_lines(console, lines if brief else result_lines(screen, width, verbose=verbose))
    print_lines(console, [*([Text()] if summary else []), *section_lines(summary, width)])


@dataclass(slots=True)
class _Seen:
    """A table so far: its run, its entries and rounds, and its rows (None: out of date)."""

    run: StoredRun
    entries: list[Entry] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    rows: list[Row] | None = None


class LiveTable:
    """The tables of a run during its measurement, from the entries of `begun` and the ones that `add` adds.

    Values are as in the final table; skipped cases have no row.
    """

    def __init__(self, begun: StoredRun):
        begun = begun.narrowed(begun.cases.keys() - begun.skips.keys())
        settings = begun.header.settings
        self._header = begun.header
        self._of_rounds = f" of {settings.rounds}" if settings.budget_seconds is None else ""
        self._table_of = {case_id: table_of(case) for case_id, case in begun.cases.items()}
        ids: dict[Table, list[str]] = {}
        for case_id, table in self._table_of.items():
            ids.setdefault(table, []).append(case_id)
        self._tables = {table: _Seen(begun.narrowed(members)) for table, members in ids.items()}
        for timing in begun.rounds:
            if timing.case_id in self._table_of:
                self._tables[self._table_of[timing.case_id]].rounds.append(timing)
        self._latest = [table for table, content in self._tables.items() if content.rounds]

    def add(self, entry: Entry) -> None:
        """Add an entry that was just measured."""
        table = self._table_of.get(getattr(entry, "case_id", ""))
        if table is None:
            return
        content = self._tables[table]
        if isinstance(entry, Round):
            content.rounds.append(entry)
        else:
            content.entries.append(entry)
        content.rows = None
        if isinstance(entry, Round | Failure | Skip):
            self._latest = [*(other_table for other_table in self._latest if other_table != table), table]

    def lines(self, width: int, height: int) -> list[Text]:
        """Return the tables that have a round, in at most `height` lines: where room is short, the latest."""
        blocks = {table: self._block(table, width) for table in self._latest}
        visible: list[Table] = []
        left = height - 1  # what is left out needs a line
        for table in reversed(self._latest):
            if visible and len(blocks[table]) > left:
                break
            visible.append(table)
            left -= len(blocks[table])
        lines = [line for table in self._tables if table in visible for line in blocks[table]]
        hidden = sum(len(self._rows(table)) for table in self._latest if table not in visible)
        if len(lines) >= height:
            hidden += len(lines) - max(height - 1, 0)
            lines = lines[: max(height - 1, 0)]
        return [*lines, *([Text(f"and {counted(hidden, 'case')} more", style="dim")] if hidden else [])]

    def _rows(self, table: Table) -> list[Row]:
        content = self._tables[table]
        if content.rows is None:
            run = gathered(content.run.path, content.run.header, content.entries, content.run)
            (content.rows,) = grouped(frame.run_rows(replace(run, rounds=content.rounds))).values()
        return content.rows

    def _block(self, table: Table, width: int) -> list[Text]:
        """Return a table: a blank line, its title, its headers, a line for each row with the rounds so far."""
        rows = self._rows(table)
        screen = Screen(header=self._header, cases=self._tables[table].run.cases, rows=rows)
        title = " · ".join(heading(group_of(rows[0]), rows, screen))
        layout = Layout(rows, width, "rounds", lambda row: f"{row['rounds']}{self._of_rounds}")
        lines = [Text(), Text(title, style="dim"), *layout.lines(rows)]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return lines
