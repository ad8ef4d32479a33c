"""The progress of a run: a line with the time left, on a terminal above the tables so far."""

import math
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING

from ampbench.cli.printing import print_note
from ampbench.core.units import counted, format_duration
from ampbench.drive.rounds import OVERHEAD_SECONDS, WARMED, Progress, Schedule, Turn, Watch, is_accelerated, is_burst
from ampbench.records.measured import Failure
from ampbench.records.run import Entry, Settings
from ampbench.records.wire import ROUND
from ampbench.show.terminal import make_console

if TYPE_CHECKING:
    from rich.console import Console

    from ampbench.ab.blocks import Stage
    from ampbench.store import StoredRun
    from ampbench.studies.work import Piece

    Begun = Callable[[], StoredRun]

LINE_SECONDS = 10.0
"""The least seconds between lines without a terminal."""
LIVE_SECONDS = 0.1
"""The least seconds between updates on a terminal: a thousand lanes report more often."""


class Pace:
    """Estimates the time of pieces of work: the last of a kind and case, else the mean of the kind, else of all."""

    def __init__(self) -> None:
        self.took: dict[tuple[str, str], float] = {}

    def total(self, pieces: Iterable[tuple[str, str]], least: Mapping[str, float] = MappingProxyType({})) -> float:
        """Return the seconds that `pieces` take, at least `least` of their kind where no such piece was measured."""
        kinds: dict[str, list[float]] = defaultdict(list)
        for (kind, _), seconds in self.took.items():
            kinds[kind].append(seconds)
        typical = {kind: statistics.fmean(seconds) for kind, seconds in kinds.items()}
        mean = statistics.fmean(self.took.values())
        return sum(
            self.took.get((kind, case_id), typical.get(kind, max(mean, least.get(kind, 0.0))))
            for kind, case_id in pieces
        )


class TimeLeft:
    """Estimates the time left of a run, from the last turn of each kind, within its budgets (`drive.rounds.drive`)."""

    def __init__(self, schedule: Schedule, settings: Settings):
        self._legs = [list(chain.from_iterable(rounds)) for rounds in schedule]
        self._accelerated = is_accelerated(turn.planned for turns in self._legs for turn in turns)
        self._budget = settings.budget_seconds or math.inf
        self._least = {ROUND.name: OVERHEAD_SECONDS + WARMED * settings.min_run_seconds}
        self._pace, self._began = Pace(), 0.0

    def note(self, step: Progress) -> None:
        """Note when a turn began, or how long it took."""
        if step.entry is not None:
            self._pace.took[_kind(step.turn)] = step.spent - self._began
        self._began = step.spent

    def after(self, step: Progress) -> float | None:
        """Return the seconds left after a step; None as long as nothing is known."""
        if not self._pace.took:
            return None
        now, *later = self._legs[step.leg :]
        now, left = now[step.done :], max(self._budget - step.spent, 0.0)
        if self._accelerated:
            turns = [*now, *chain.from_iterable(later)]
            return max(self._seconds(turn for turn in turns if not turn.round), min(self._seconds(turns), left))
        return min(self._seconds(now), left) + sum(min(self._seconds(turns), self._budget) for turns in later)

    def line(self, step: Progress) -> str:
        """Return where a run stands: "network 1 of 2, about 12 s left: round 1: mlp fp32 inference"."""
        seconds = self.after(step)
        networks = len({turns[0].planned.case.network for turns in self._legs})
        place = f"network {step.leg % networks + 1} of {networks}" if networks > 1 else ""
        about = f"about {format_duration(seconds)} left" if seconds else ""
        before = ", ".join(filter(None, [place, about]))
        doing = f"round {step.turn.round + 1}" if step.turn.task == ROUND else step.turn.task.name
        case = step.turn.planned.case
        return f"{before and f'{before}: '}{doing}: {case.workload} {case.precision} {case.phase}"

    def _seconds(self, turns: Iterable[Turn]) -> float:
        return self._pace.total(map(_kind, turns), self._least)


def _kind(turn: Turn) -> tuple[str, str]:
    return "burst" if is_burst(turn) else turn.task.name, turn.planned.case.case_id


@contextmanager
def progress(schedule: Schedule, settings: Settings, begun: "Begun | None" = None) -> Iterator[Watch]:
    """Yield a watcher that shows progress on stderr while the block runs.

    On a terminal that can redraw, it shows a line and the table so far of the run that has `begun`. It draws only
    between two turns, never while a step is timed.
    """
    left = TimeLeft(schedule, settings)
    console = make_console(stderr=True)
    live = console.is_terminal and not console.is_dumb_terminal and not os.environ.get("CI")
    with _table(console, begun) if live else progress_line(live=False) as show:

        def watch(step: Progress) -> None:
            left.note(step)
            show(left.line(step), step.entry)

        yield watch


@contextmanager
def _table(console: "Console", begun: "Begun | None") -> Iterator[Callable[[str, Entry | None], None]]:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from ampbench.cli.results import LiveTable

    table = None if begun is None else LiveTable(begun())
    with Live(console=console, auto_refresh=False, transient=True) as screen:

        def show(text: str, entry: Entry | None) -> None:
            if isinstance(entry, Failure):
                console.print(_failed(entry))
            if table is not None and entry is not None:
                table.add(entry)
            lines = [] if table is None else table.lines(console.width, console.height - 2)
            screen.update(Group(Text(text, no_wrap=True, overflow="ellipsis"), *lines), refresh=True)

        yield show


@contextmanager
def progress_line(*, live: bool) -> Iterator[Callable[[str, Entry | None], None]]:
    """Yield a function that shows a text, and a failure: in one line of a `live` terminal, else on new lines."""
    from rich.markup import escape

    last = [0.0 if live else time.monotonic()]
    with make_console(stderr=True).status("") if live else nullcontext() as status:

        def show(text: str, entry: Entry | None = None) -> None:
            if isinstance(entry, Failure):
                print_note(_failed(entry))
            now = time.monotonic()
            if now - last[0] < (LIVE_SECONDS if live else LINE_SECONDS):
                return
            last[0] = now
            if status is None:
                print_note(text)
            else:
                status.update(escape(text))

        yield show


def _failed(failure: Failure) -> str:
    return f"failed: {failure.case_id}: {failure.said}"


@contextmanager
def piece_progress(
    doing: str, pieces: "Sequence[Piece]", further: "Callable[[Entry], str]"
) -> "Iterator[Callable[[Piece, Entry | None], None]]":
    """Yield a watcher that shows on a terminal which of `pieces` is under way, by `doing` ("tracing").

    Once some are done, it shows how long the rest will take. `further` returns how far one is by its record.
    """
    from rich.markup import escape

    left = PiecesLeft([piece.key for piece in pieces])
    with make_console(stderr=True).status("") if sys.stderr.isatty() else nullcontext() as status:

        def watch(piece: "Piece", record: "Entry | None") -> None:
            if record is None:
                left.begin(piece.key)
            if status is not None:
                text = "" if record is None else further(record)
                status.update(f"{doing} {escape(piece.named)}{left.place()}{f': {text}' if text else ' …'}")

        yield watch


class PiecesLeft:
    """How many pieces of work on cases are done, and how long the rest will take."""

    def __init__(self, case_ids: Sequence[str]):
        self._left, self._total = list(case_ids), len(case_ids)
        self._pace, self._now, self._began = Pace(), "", 0.0

    def begin(self, case_id: str) -> None:
        """Note that the piece before is done and the next one of this case begins."""
        if self._now:
            self._pace.took["", self._now] = time.monotonic() - self._began
        if case_id in self._left:  # those before it that a failure made needless go with it
            self._left = self._left[self._left.index(case_id) + 1 :]
        self._now, self._began = case_id, time.monotonic()

    def place(self) -> str:
        """Return " (3 of 12, about 40.0 s left)"; "" for a single piece."""
        if self._total < 2:
            return ""
        place = f"{self._total - len(self._left)} of {self._total}"
        if not self._pace.took:
            return f" ({place})"
        seconds = self._pace.total(("", case_id) for case_id in [self._now, *self._left])
        left = seconds - (time.monotonic() - self._began)
        return f" ({place}, about {format_duration(max(left, 1.0))} left)"


@contextmanager
def block_progress() -> "Iterator[Callable[[Stage], None]]":
    """Yield a watcher that shows on stderr how far an interleaved session is, while the block runs."""
    with progress_line(live=sys.stderr.isatty()) as show:

        def watch(stage: "Stage") -> None:
            undecided = f"{counted(stage.left, 'case')} undecided, {format_duration(stage.seconds)}"
            doing = f"{undecided} · {stage.doing} {stage.pair}".rstrip()
            show(f"{stage.blocks} of {stage.planned} blocks at most: {doing}", stage.failure)

        yield watch
