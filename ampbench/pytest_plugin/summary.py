"""What a session has seen, as a run in memory, and its table at the end: the precisions of a workload side by side.

PYTEST_DONT_REWRITE
"""

import dataclasses
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs
from rich.text import Text

import ampbench
from ampbench.cli.options import DEFAULT_RESULTS
from ampbench.convert.pytest_benchmark import read_run_json
from ampbench.drive.session import current_commit
from ampbench.errors import AmpbenchError
from ampbench.judge import frame
from ampbench.judge.compare import compare, narrowed
from ampbench.records.case import Case
from ampbench.records.changes import ChangeStatus, Comparison
from ampbench.records.measured import Divergence, Failure, MemoryPass, Round
from ampbench.records.run import SCHEMA, Footer, Header, Selection, Settings
from ampbench.result import Result
from ampbench.show.comparison import comparison_lines
from ampbench.show.results import Screen, result_lines
from ampbench.show.rows import Row
from ampbench.show.terminal import make_console, wrapped
from ampbench.store import StoredRun, find_run, read_run
from ampbench.worker.environment import read_environment

if TYPE_CHECKING:
    import pytest

TIME = "time/step"


class Seen:
    """The cells measured in this session; true once there is one.

    `compared` is what `compare` found: a comparison of memory and errors, or why there is none.
    """

    def __init__(self) -> None:
        self.compared: Comparison | str | None = None
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
        return frame.run_rows(run)[0]

    def add_failure(self, case: Case, failure: Failure) -> None:
        """Add a cell that broke."""
        self._run.cases[case.case_id] = case
        self._run.failures[case.case_id] = failure

    def compare(self, file: str) -> bool:
        """Compare memory and errors with the run in `file`; return whether nothing got worse, and something compares.

        Not times: those of one process tell a change from luck no better than pytest-benchmark does.
        """
        ended = Footer(ended="complete", finished_at=self._run.header.started_at)
        header = structs.replace(self._run.header, commit=current_commit())
        try:
            found = compare(read_baseline(file), dataclasses.replace(self._run, header=header, footers=[ended]))
        except AmpbenchError as error:
            self.compared = f"--amp-compare {file}: {error}"
            return False
        self.compared = narrowed(found, kinds=("memory", "accuracy"))
        statuses = {one.status for one in self.compared.findings} - {ChangeStatus.INCOMPARABLE}
        return bool(statuses) and ChangeStatus.REGRESSED not in statuses

    def lines(self, width: int) -> Iterator[Text]:
        """Yield the table for a terminal of `width` columns."""
        run = dataclasses.replace(self._run)  # there may be more to add
        yield from result_lines(Screen(header=run.header, cases=run.cases, rows=Result(run).rows), width)
        yield from wrapped(f"{TIME} is the fastest sample of this process", width, "dim")


def read_baseline(file: str) -> StoredRun:
    """Return the run in a file of pytest-benchmark's JSON, or the run file or stored run of that name.

    Raises an `AmpbenchError` where there is none.
    """
    return read_run_json(Path(file)) if file.endswith(".json") else read_run(find_run(file, DEFAULT_RESULTS))


def write_summary(reporter: "pytest.TerminalReporter", seen: Seen) -> None:
    """Write the table below what pytest-benchmark writes."""
    _write(reporter, "ampbench: precisions side by side", seen.lines(reporter.config.get_terminal_writer().fullwidth))


def write_comparison(reporter: "pytest.TerminalReporter", compared: Comparison | str) -> None:
    """Write what became of memory and errors, or why that cannot be said."""
    width = reporter.config.get_terminal_writer().fullwidth
    lines = [Text(compared)] if isinstance(compared, str) else comparison_lines(compared, width)
    _write(reporter, "ampbench: memory and errors compared", lines)


def _write(reporter: "pytest.TerminalReporter", title: str, lines: Iterable[Text]) -> None:
    """Write `lines` in the width and colours of pytest's terminal."""
    writer = reporter.config.get_terminal_writer()
    text = StringIO()
    console = make_console(file=text, force_terminal=writer.hasmarkup, width=writer.fullwidth)
    for line in lines:
        console.print(line, soft_wrap=True)
    reporter.write_sep("-", title)
    reporter.write(text.getvalue())
