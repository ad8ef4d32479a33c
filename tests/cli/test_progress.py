"""The line that a run or a study draws on a terminal while it measures, and how long it is said to take still."""

import os
import pty
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass
from typing import TextIO

import pytest

from ampbench.cli import progress
from ampbench.cli.progress import TimeLeft
from ampbench.drive.planning import PlannedCase
from ampbench.drive.rounds import Progress, Turn, turn_seconds
from ampbench.records.case import WorkloadSource
from ampbench.records.measured import Failure
from ampbench.records.run import Entry, Settings
from ampbench.records.wire import MEMORY, ROUND
from ampbench.studies.work import Piece
from tests.stored_runs import make_case, make_memory, make_round
from tests.studies.ceiling_records import CEILINGS

MARK = "\x05"
CASES = [make_case(), make_case("bf16_autocast")]
SOURCE = WorkloadSource(name="linear_chain", family="linear", module="m", function="f", builtin=True)


@dataclass
class Terminal:
    """A terminal to write to, and the descriptor that reads what is drawn on it."""

    stream: TextIO
    drawn: int

    def read(self) -> str:
        """Return what was drawn since it was last asked: up to a mark, for what is written arrives in parts."""
        self.stream.write(MARK)
        self.stream.flush()
        found = b""
        while not found.endswith(MARK.encode()):
            found += os.read(self.drawn, 1 << 16)
        return found.decode().removesuffix(MARK)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Yield a terminal of 100 columns and 24 lines."""
    ours, theirs = pty.openpty()
    tty = os.fdopen(theirs, "w")
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    for name in ("CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(progress, "LIVE_SECONDS", 0.0)
    with tty, os.fdopen(ours, "rb", buffering=0) as drawn:
        yield Terminal(tty, drawn.fileno())


def measured(terminal: Terminal) -> list[str]:
    """Return what is drawn, turn by turn, of a session of two cases, and in the end."""
    turns = [Turn(task, PlannedCase(case=case, source=SOURCE)) for task in (MEMORY, ROUND) for case in CASES]
    entries: list[Entry] = [make_memory(case, 1 << 20) for case in CASES] + [make_round(CASES[0], 2e-3)]
    entries.append(Failure(case_id=CASES[1].case_id, stage="round", cause="exception", message="no such kernel"))
    drawn = []
    with redirect_stderr(terminal.stream):
        with progress.progress([[turns]], Settings()) as watch:
            for done, (turn, entry) in enumerate(zip(turns, entries, strict=True)):
                watch(Progress(turn, 0, done, float(done)))
                watch(Progress(turn, 0, done + 1, done + 0.5, entry))
                drawn.append(terminal.read())
        drawn.append(terminal.read())
    return drawn


def test_a_terminal_has_one_line_of_the_turn_under_way_and_each_failure(terminal: Terminal) -> None:
    drawn = measured(terminal)
    assert "memory: linear_chain bf16_autocast inference" in drawn[1]
    assert "left" in drawn[2]
    assert "round 1: linear_chain fp32 inference" in drawn[2]
    assert "failed: " in drawn[3]
    assert "no such kernel" in drawn[3]


def test_a_study_shows_what_is_measured_and_how_much_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "LIVE_SECONDS", 0.0)
    monkeypatch.setattr("rich.live.Live.update", lambda _, text, refresh: told.append(text.plain))
    pieces = [Piece(f"matmul {dtype} cpu") for dtype in ("fp32", "bf16")]
    with progress.piece_progress("measuring", pieces, lambda found: "") as watch:
        for piece in pieces:
            watch(piece, None)
            watch(piece, CEILINGS[0])
    assert told[::2] == ["1 of 2: measuring matmul fp32 cpu", "2 of 2: measuring matmul bf16 cpu"]


NET = WorkloadSource(name="net", family="user", module="net", function="make", builtin=False)
CASE = PlannedCase(case=make_case(), source=NET)
ROUNDS = [[Turn(ROUND, CASE, number)] for number in range(4)]


def after_a_round(settings: Settings, seconds: float) -> float:
    """Return what is left of two networks of four rounds, of which the first round of the first took so long."""
    left, (turn,) = TimeLeft([ROUNDS, ROUNDS], settings), ROUNDS[0]
    begins = Progress(turn, 0, 0, 1.0)
    left.note(begins)
    assert left.after(begins) == pytest.approx(sum(turn_seconds(turn, settings) for (turn,) in 2 * ROUNDS))
    ends = Progress(turn, 0, 1, 1.0 + seconds, make_round(CASE.case))
    left.note(ends)
    return left.after(ends)


def test_the_rounds_to_come_take_as_long_as_the_last_one_within_the_budget() -> None:
    assert after_a_round(Settings(), 2.0) == pytest.approx(3 * 2.0 + 4 * 2.0)
    assert after_a_round(Settings(budget_seconds=5.0), 2.0) == pytest.approx((5.0 - 3.0) + 5.0)
    over = TimeLeft([ROUNDS], Settings(budget_seconds=5.0)).line(Progress(ROUNDS[0][0], 0, 0, 6.0))
    assert over.startswith("budget spent: round 1: ")
    assert after_a_round(Settings(budget_seconds=5.0), 9.0) == pytest.approx(5.0)
