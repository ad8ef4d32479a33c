"""The table of a run while it is measured: what is known of every case so far, in as many lines as a terminal has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.text import Text

from ampbench.base.precisions import BASELINE
from ampbench.base.units import counted, format_error, format_seconds, times
from ampbench.drive.rounds import Table, table_of
from ampbench.judge.frame import run_rows
from ampbench.judge.rows import Row, described, group_of, grouped, judged_error, number, precision_label
from ampbench.judge.table import speed_interval
from ampbench.present.terminal import padded
from ampbench.records.labels import outcome_said
from ampbench.records.measured import Failure, Round, Skip
from ampbench.records.run import Entry
from ampbench.store import StoredRun, gathered

HEADERS = ("precision", "time/step", "speed", "95%", "error", "so far", "rounds")
UNKNOWN = "–"
"""Instead of an interval, and of what follows from it, with fewer rounds than one needs."""


@dataclass(slots=True)
class _Seen:
    """What is known of a table: its cases, what was measured of them, and the rows as of then (None: to be made)."""

    run: StoredRun
    entries: list[Entry] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    rows: list[Row] | None = None


class LiveTable:
    """The rows of a run that is being measured, refined by every entry: those of `begun`, and what is `add`ed.

    The values are those that the table at the end has; what is decided may be decided otherwise by a later round. Cases
    that are skipped have no row, as there.
    """

    def __init__(self, begun: StoredRun):
        begun = begun.narrowed(begun.cases.keys() - begun.skips.keys())
        self._rounds = begun.header.settings.rounds
        self._table_of = {case_id: table_of(case) for case_id, case in begun.cases.items()}
        ids: dict[Table, list[str]] = {}
        for case_id, table in self._table_of.items():
            ids.setdefault(table, []).append(case_id)
        self._tables = {table: _Seen(begun.narrowed(members)) for table, members in ids.items()}
        for one in begun.rounds:
            if one.case_id in self._table_of:
                self._tables[self._table_of[one.case_id]].rounds.append(one)
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
        """Return the tables that have a round, in `height` lines at most: where there is no room, those of late."""
        shown: list[Table] = []
        left = height - 1  # what is left out needs a line
        for table in reversed(self._latest):
            size = len(self._rows(table)) + 3
            if shown and size > left:
                break
            shown.append(table)
            left -= size
        lines = [line for table in self._tables if table in shown for line in self._block(table, width)]
        hidden = sum(len(self._rows(table)) for table in self._latest if table not in shown)
        if len(lines) >= height:
            cut = lines[: max(height - 1, 0)]
            hidden += sum(isinstance(line, _RowText) for line in lines[len(cut) :])
            lines = cut
        if hidden:
            lines.append(Text(f"and {counted(hidden, 'case')} more", style="dim"))
        return lines

    def _rows(self, table: Table) -> list[Row]:
        seen = self._tables[table]
        if seen.rows is None:
            run = gathered(seen.run.path, seen.run.header, seen.entries, seen.run)
            seen.rows = [row for rows in grouped(run_rows(replace(run, rounds=seen.rounds))).values() for row in rows]
        return seen.rows

    def _block(self, table: Table, width: int) -> list[Text]:
        """Return a table: a blank line, its title, its headers, a line for each row."""
        rows = self._rows(table)
        group = group_of(rows[0])
        title = Text(f"{group.workload} · {described(group)}", style="dim", no_wrap=True, overflow="ellipsis")
        title.stylize("not dim bold", 0, len(group.workload))
        cells = padded([HEADERS, *(_cells(row, self._rounds) for row in rows)], left=1)
        lines = [Text(), title, Text("  ".join(cells[0]), style="dim")]
        for row, written in zip(rows, cells[1:], strict=True):
            if row["outcome"] == "ok":
                lines.append(_RowText("  ".join(written)))
            else:
                colour = "red" if row["outcome"] == "failed" else "dim"
                lines.append(_RowText(f"{written[0]}  ").append(outcome_said(row["outcome"], row["reason"]), colour))
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
            line.truncate(width, overflow="ellipsis")
        return lines


class _RowText(Text):
    """The line of a case."""


def _cells(row: Row, rounds: int) -> Sequence[str]:
    seconds, speed, error = number(row["seconds_median"]), number(row["speedup_vs_fp32"]), judged_error(row)
    return (
        precision_label(row),
        "" if seconds is None else format_seconds(seconds),
        "" if speed is None else times(speed),
        "" if row["precision"] == BASELINE else speed_interval(row) or UNKNOWN,
        "" if error is None else format_error(error),
        decided(row),
        f"{row['rounds']} of {rounds}",
    )


def decided(row: Mapping[str, object]) -> str:
    """Return what the interval of a row's speed says so far: "faster" or "slower" than fp32, certainly, or "open"."""
    if row["precision"] == BASELINE:
        return ""
    low, high = number(row["speedup_low"]), number(row["speedup_high"])
    if low is None or high is None:
        return UNKNOWN
    return "faster" if low > 1.0 else "slower" if high < 1.0 else "open"
