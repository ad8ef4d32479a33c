"""What a session has seen, as a run in memory, and its table at the end: the precisions of a workload side by side.

PYTEST_DONT_REWRITE
"""

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

import ampbench
from ampbench import frames
from ampbench.cli import tables
from ampbench.columns import legend
from ampbench.records.cases import Case
from ampbench.records.divergences import Divergence
from ampbench.records.measurements import Failure, MemoryPass, Round
from ampbench.records.runs import SCHEMA, Header, Selection, Settings
from ampbench.rows import Row, grouped
from ampbench.store import StoredRun
from ampbench.worker.environment import read_environment

if TYPE_CHECKING:
    import pytest

TIME = "time/step"


class Seen:
    """The cells measured in this session; true once there is one."""

    def __init__(self) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._run = StoredRun(
            path=Path(),
            header=Header(
                schema=SCHEMA,
                run="pytest",
                ampbench_version=ampbench.__version__,
                started_at=now,
                selection=Selection(),
                settings=Settings(),
                environment=read_environment(),
            ),
        )

    def __bool__(self) -> bool:
        return bool(self._run.cases)

    def add(self, timed: Round, case: Case, memory: MemoryPass | None, divergence: Divergence) -> Row:
        """Add a measured cell and return the row of its metrics, as far as one cell alone has them."""
        run = dataclasses.replace(
            self._run,
            cases={case.case_id: case},
            rounds=[timed],
            memory={} if memory is None else {case.case_id: memory},
            divergence={case.case_id: divergence},
            failures={},
        )
        self._run.cases[case.case_id] = case
        self._run.rounds.append(timed)
        self._run.memory.update(run.memory)
        self._run.divergence.update(run.divergence)
        return frames.plain_rows(frames.run_frame(run))[0]

    def add_failure(self, case: Case, failure: Failure) -> None:
        """Add a cell that broke."""
        self._run.cases[case.case_id] = case
        self._run.failures[case.case_id] = failure

    def lines(self, width: int) -> Iterator[Text]:
        """Yield the table for a terminal of `width` columns, and what its headers mean."""
        rows = frames.plain_rows(frames.run_frame(self._run))
        groups = grouped(rows)
        layouts = {phase: tables.lay_out(rows, phase, width) for phase in {group.phase for group in groups}}
        yield from tables.table_lines(groups, {}, layouts)
        shown = dict.fromkeys(column for layout in layouts.values() for column in layout.columns)
        meanings = legend(column for column in shown if column.header != TIME)
        hidden = dict.fromkeys(column.header for layout in layouts.values() for column in layout.hidden)
        if shown:
            yield Text()
            yield from tables.wrapped(f"{TIME}: the fastest sample of this process; {meanings}", width, "dim")
        if hidden:
            yield from tables.wrapped(f"no room for {', '.join(hidden)}: a wider terminal shows all", width, "dim")


def write_summary(reporter: "pytest.TerminalReporter", seen: Seen) -> None:
    """Write the table below what pytest-benchmark writes, in the width and colours of pytest's terminal."""
    writer = reporter.config.get_terminal_writer()
    text = StringIO()
    console = Console(
        file=text, force_terminal=writer.hasmarkup, width=writer.fullwidth, highlight=False, emoji=False, markup=False
    )
    for line in seen.lines(writer.fullwidth):
        console.print(line, soft_wrap=True)
    reporter.write_sep("-", "ampbench: precisions side by side")
    reporter.write(text.getvalue())
