"""What a session has seen, as a run in memory, and its table at the end: the precisions of a workload side by side.

PYTEST_DONT_REWRITE
"""

import dataclasses
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
from ampbench.judge.compare import compare, narrowed
from ampbench.records.case import Case
from ampbench.records.changes import ChangeStatus, Comparison
from ampbench.records.measured import Divergence, Failure, MemoryPass, Round
from ampbench.records.run import SCHEMA, Footer, Header, Selection, Settings
from ampbench.result import Result
from ampbench.show.comparison import comparison_lines
from ampbench.show.results import Screen, result_lines
from ampbench.show.terminal import make_console, print_lines
from ampbench.store import StoredRun, find_run, read_run
from ampbench.worker.environment import read_environment

if TYPE_CHECKING:
    import pytest


class Seen:
    """The cases measured in this session; true once there is one.

    `compared` is what `compare` found: a comparison of memory and errors, or why there is none.
    """

    def __init__(self) -> None:
        self.compared: Comparison | str | None = None
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        header = Header(
            schema=SCHEMA,
            run="pytest",
            ampbench_version=ampbench.__version__,
            started_at=now,
            selection=Selection(),
            settings=Settings(isolation=False, rounds=1),
            environment=read_environment(),
        )
        self._run = StoredRun(path=Path(), header=header, footers=[Footer(ended="complete", finished_at=now)])

    def __bool__(self) -> bool:
        return bool(self._run.cases)

    def add(self, case: Case, timed: Round, memory: MemoryPass | None, divergence: Divergence) -> Result:
        """Add a measured case and return what is known of it alone."""
        run = dataclasses.replace(
            self._run,
            cases={case.case_id: case},
            rounds=[timed],
            memory={case.case_id: memory} if memory else {},
            divergence={case.case_id: divergence},
            failures={},
        )
        self._run.cases.update(run.cases)
        self._run.rounds.extend(run.rounds)
        self._run.memory.update(run.memory)
        self._run.divergence.update(run.divergence)
        return Result(run)

    def add_failure(self, case: Case, failure: Failure) -> None:
        """Add a cell that broke."""
        self._run.cases[case.case_id] = case
        self._run.failures[case.case_id] = failure

    def compare(self, file: str) -> bool:
        """Compare memory and errors with the run in `file`; return whether nothing got worse, and something compares.

        Not times: those of one process tell a change from luck no better than pytest-benchmark does.
        """
        header = structs.replace(self._run.header, commit=current_commit())
        try:
            found = compare(read_baseline(file), dataclasses.replace(self._run, header=header))
        except AmpbenchError as error:
            self.compared = f"--amp-compare {file}: {error}"
            return False
        self.compared = narrowed(found, kinds=("memory", "accuracy"))
        statuses = {one.status for one in self.compared.findings} - {ChangeStatus.INCOMPARABLE}
        return bool(statuses) and ChangeStatus.REGRESSED not in statuses

    def lines(self, width: int) -> list[Text]:
        """Return the table for a terminal of `width` columns."""
        run = dataclasses.replace(self._run)  # there may be more to add
        screen = Screen(header=run.header, cases=run.cases, rows=Result(run).rows)
        return result_lines(screen, width)


def read_baseline(file: str) -> StoredRun:
    """Return the run in a file of pytest-benchmark's JSON, or the run file or stored run of that name.

    Raises an `AmpbenchError` where there is none.
    """
    return read_run_json(Path(file)) if file.endswith(".json") else read_run(find_run(file, DEFAULT_RESULTS))


def write_summary(reporter: "pytest.TerminalReporter", seen: Seen, *, quiet: bool) -> None:
    """Write the table, unless `quiet`, and what became of memory and errors, below what pytest-benchmark writes."""
    writer = reporter.config.get_terminal_writer()
    parts: dict[str, list[Text]] = {}
    if not quiet:
        parts["ampbench: precisions side by side"] = seen.lines(writer.fullwidth)
    if (compared := seen.compared) is not None:
        lines = [Text(compared)] if isinstance(compared, str) else comparison_lines(compared, writer.fullwidth)
        parts["ampbench: memory and errors compared"] = lines
    for title, lines in parts.items():
        text = StringIO()
        print_lines(make_console(file=text, force_terminal=writer.hasmarkup, width=writer.fullwidth), lines)
        reporter.write_sep("-", title)
        reporter.write(text.getvalue())
