"""A run on stdout, as people or machines read it; and its tables while it is measured."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rich.text import Text

from ampbench.cli.printing import OutputFormat, print_forms, print_sections, print_text
from ampbench.core.metrics import COLUMNS
from ampbench.core.units import counted
from ampbench.drive.rounds import Table, table_of
from ampbench.judge import frame
from ampbench.records.measured import Failure, Round, Skip
from ampbench.records.run import Entry
from ampbench.records.verdict import VERDICT_COLUMNS
from ampbench.result import Result
from ampbench.show import networks
from ampbench.show.data import csv_text, json_text
from ampbench.show.markdown import markdown
from ampbench.show.results import Screen, Set, heading, notes_of, result_lines, result_markdown
from ampbench.show.rows import Row, group_of, grouped
from ampbench.show.terminal import make_console, print_lines, wrapped
from ampbench.store import StoredRun, gathered


def print_result(
    result: Result, rows: Sequence[Row], format: OutputFormat, show: str, rest: str, *, verbose: bool = False
) -> None:
    """Print some of a result's rows on stdout; what to take is that of all.

    Of many tables a line each is printed, unless it is to be `verbose`. `show` is the command that shows the run, and
    `rest` what shows all of it.
    """
    if not verbose and len(grouped(rows)) > networks.MANY and format in (OutputFormat.TABLE, OutputFormat.MARKDOWN):
        _print_networks(result, rows, format, show)
        return
    columns = [*COLUMNS, *VERDICT_COLUMNS]
    print_forms(
        format,
        lines=lambda console: result_lines(result.screen(rows, rest), console.width, verbose=verbose),
        markdown=lambda: result_markdown(result.screen(rows)),
        json=lambda: json_text(rows),
        csv=lambda: csv_text(columns, ([row[name] for name in columns] for row in rows)),
    )


def _print_networks(result: Result, rows: Sequence[Row], format: OutputFormat, show: str) -> None:
    """Print a line for each of the tables that rows are of, the notes, and how to see the tables."""
    groups = grouped(rows)
    whole = [row for row in result.rows if group_of(row) in groups]
    sections = networks.sections(networks.networks_of(whole, result.takes, result.stored.cases), whole)
    notes = notes_of(result.screen(rows))
    notes.append(f"the tables of all {len(groups):,} networks: {show} -v; of some: {show} -k PATTERN")
    if format is OutputFormat.MARKDOWN:
        print_text(markdown(sections, missing=notes))
        return
    last, *before = sections
    print_sections(before, format)
    console = make_console()
    print_lines(console, [Text(), *(line for note in notes for line in wrapped(note, console.width))])
    print_sections([last], format)


@dataclass(slots=True)
class _Seen:
    """A table so far: its run, its measured entries and rounds, and its rows (None: to be made)."""

    run: StoredRun
    entries: list[Entry] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    rows: list[Row] | None = None


class LiveTable:
    """The rows of a run that is being measured, refined by every entry: those of `begun`, and what is `add`ed.

    The values are those that the table at the end has. Cases that are skipped have no row, as there.
    """

    def __init__(self, begun: StoredRun):
        begun = begun.narrowed(begun.cases.keys() - begun.skips.keys())
        self._header, self._rounds = begun.header, begun.header.settings.rounds
        self._table_of = {case_id: table_of(case) for case_id, case in begun.cases.items()}
        ids: dict[Table, list[str]] = {}
        for case_id, table in self._table_of.items():
            ids.setdefault(table, []).append(case_id)
        self._tables = {table: _Seen(begun.narrowed(members)) for table, members in ids.items()}
        for each in begun.rounds:
            if each.case_id in self._table_of:
                self._tables[self._table_of[each.case_id]].rounds.append(each)
        self._latest = [table for table, seen in self._tables.items() if seen.rounds]

    def add(self, entry: Entry) -> None:
        """Take in what has just been measured."""
        table = self._table_of.get(getattr(entry, "case_id", ""))
        if table is None:
            return
        seen = self._tables[table]
        if isinstance(entry, Round):
            seen.rounds.append(entry)
        else:
            seen.entries.append(entry)
        seen.rows = None
        if isinstance(entry, Round | Failure | Skip):
            self._latest = [*(each for each in self._latest if each != table), table]

    def lines(self, width: int, height: int) -> list[Text]:
        """Return the tables that have a round, in `height` lines at most: where there is no room, the latest."""
        blocks = {table: self._block(table, width) for table in self._latest}
        shown: list[Table] = []
        left = height - 1  # what is left out needs a line
        for table in reversed(self._latest):
            if shown and len(blocks[table]) > left:
                break
            shown.append(table)
            left -= len(blocks[table])
        lines = [line for table in self._tables if table in shown for line in blocks[table]]
        hidden = sum(len(self._rows(table)) for table in self._latest if table not in shown)
        if len(lines) >= height:
            hidden += len(lines) - max(height - 1, 0)
            lines = lines[: max(height - 1, 0)]
        return [*lines, *([Text(f"and {counted(hidden, 'case')} more", style="dim")] if hidden else [])]

    def _rows(self, table: Table) -> list[Row]:
        seen = self._tables[table]
        if seen.rows is None:
            run = gathered(seen.run.path, seen.run.header, seen.entries, seen.run)
            (seen.rows,) = grouped(frame.run_rows(replace(run, rounds=seen.rounds))).values()
        return seen.rows

    def _block(self, table: Table, width: int) -> list[Text]:
        """Return a table: a blank line, its title, its headers, a line for each row with the rounds so far."""
        rows = self._rows(table)
        screen = Screen(header=self._header, cases=self._tables[table].run.cases, rows=rows)
        title = " · ".join(heading(group_of(rows[0]), rows, screen))
        setting = Set(rows, width, "rounds", lambda row: f"{row['rounds']} of {self._rounds}")
        lines = [Text(), Text(title, style="dim"), *setting.lines(rows)]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return lines
