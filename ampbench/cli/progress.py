"""How far a run is: a line with the time left, drawn anew on a terminal above the tables so far."""

import math
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING

from ampbench.cli.printing import print_note
from ampbench.core.units import counted, format_duration
from ampbench.drive.rounds import OVERHEAD_SECONDS, WARMED, Progress, Schedule, Turn, Watch
from ampbench.records.measured import Failure
from ampbench.records.run import Entry, Settings
from ampbench.records.wire import ROUND
from ampbench.show.terminal import make_console

if TYPE_CHECKING:
    from rich.console import Console

    from ampbench.ab.blocks import Stage
    from ampbench.fleet.session import Progress as FleetStep
    from ampbench.store import StoredRun
    from ampbench.studies.work import Piece

    Begun = Callable[[], StoredRun]

LINE_SECONDS = 10.0
"""Without a terminal, a line at most this often."""
LIVE_SECONDS = 0.1
"""The line on a terminal is set anew this often at most: a thousand lanes say more."""


class TimeLeft:
    """Estimates the time left from what the tasks done so far took last, each kind and case by itself.

    A case not timed yet is taken to need what `settings` give it. A network takes no more than its budget.
    """

    def __init__(self, schedule: Schedule, settings: Settings):
        self._networks = [list(chain.from_iterable(rounds)) for rounds in schedule]
        self._budget = settings.budget_seconds or math.inf
        self._least = {ROUND.name: OVERHEAD_SECONDS + WARMED * settings.min_run_seconds}
        self._took: dict[tuple[str, str], float] = {}
        self._kinds: dict[str, list[float]] = defaultdict(list)
        self._began = 0.0

    def note(self, step: Progress) -> None:
        """Note when a turn began, or what it took."""
        if step.entry is not None:
            took = step.spent - self._began
            self._took[step.turn.task.name, step.turn.planned.case.case_id] = took
            self._kinds[step.turn.task.name].append(took)
        self._began = step.spent

    def after(self, step: Progress) -> float | None:
        """Return the seconds left after a step; None as long as nothing is known."""
        if not self._took:
            return None
        now, *later = self._networks[step.network :]
        left = min(self._seconds(now[step.done :]), max(self._budget - step.spent, 0.0))
        return left + sum(min(self._seconds(turns), self._budget) for turns in later)

    def said(self, step: Progress) -> str:
        """Return where a run stands: "network 1 of 2, about 12 s left: round 1: mlp fp32 inference"."""
        seconds = self.after(step)
        place = f"network {step.network + 1} of {len(self._networks)}" if len(self._networks) > 1 else ""
        about = f"about {format_duration(seconds)} left" if seconds else ""
        before = ", ".join(filter(None, [place, about]))
        what = f"round {step.turn.round + 1}" if step.turn.task == ROUND else step.turn.task.name
        case = step.turn.planned.case
        return f"{before and f'{before}: '}{what}: {case.workload} {case.precision} {case.phase}"

    def _seconds(self, turns: Iterable[Turn]) -> float:
        everything = statistics.fmean(seconds for kind in self._kinds.values() for seconds in kind)
        typical = {kind: statistics.fmean(seconds) for kind, seconds in self._kinds.items()}
        return sum(
            self._took.get(
                (turn.task.name, turn.planned.case.case_id),
                typical.get(turn.task.name, max(everything, self._least.get(turn.task.name, 0.0))),
            )
            for turn in turns
        )


@contextmanager
def progress(schedule: Schedule, settings: Settings, begun: "Begun | None" = None) -> Iterator[Watch]:
    """Yield a watcher that shows progress on stderr while the block runs.

    On a terminal that can be drawn on anew, that is a line and the table of the run that has `begun`, as far as it is
    known; it is asked for there alone. Nothing is drawn but between two turns: while a step is timed, nothing else
    is done.
    """
    left = TimeLeft(schedule, settings)
    console = make_console(stderr=True)
    live = console.is_terminal and not console.is_dumb_terminal and not os.environ.get("CI")
    with _live(left, console, begun) if live else _plain(left) as show:

        def watch(step: Progress) -> None:
            left.note(step)
            show(step)

        yield watch


@contextmanager
def _live(left: TimeLeft, console: "Console", begun: "Begun | None") -> Iterator[Callable[[Progress], None]]:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from ampbench.cli.results import LiveTable

    table = None if begun is None else LiveTable(begun())
    with Live(console=console, auto_refresh=False, transient=True) as screen:

        def show(step: Progress) -> None:
            if isinstance(step.entry, Failure):
                console.print(_failed(step.entry))
            if table is not None and step.entry is not None:
                table.add(step.entry)
            line = Text(left.said(step), no_wrap=True, overflow="ellipsis")
            lines = [] if table is None else table.lines(console.width, console.height - 2)
            screen.update(Group(line, *lines), refresh=True)

        yield show


@contextmanager
def _plain(left: TimeLeft) -> Iterator[Callable[[Progress], None]]:
    last = [time.monotonic()]

    def show(step: Progress) -> None:
        if isinstance(step.entry, Failure):
            print_note(_failed(step.entry))
        if time.monotonic() - last[0] >= LINE_SECONDS:
            last[0] = time.monotonic()
            print_note(left.said(step))

    yield show


def _failed(failure: Failure) -> str:
    return f"failed: {failure.case_id}: {failure.said}"


@contextmanager
def piece_progress(
    doing: str, pieces: "Sequence[Piece]", further: "Callable[[Entry], str]"
) -> "Iterator[Callable[[Piece, Entry | None], None]]":
    """Yield a watcher that tells on a terminal which of `pieces` is being worked on, by `doing` ("tracing").

    Once some are done, it says how long the rest will take: as long as those of the same case, else as those so far.
    `further` says how far one is by what it saw.
    """
    from rich.markup import escape

    console = make_console(stderr=True)
    left = PiecesLeft([piece.key for piece in pieces])
    with console.status("") if sys.stderr.isatty() else nullcontext() as status:

        def watch(piece: "Piece", found: "Entry | None") -> None:
            if found is None:
                left.begin(piece.key)
            if status is not None:
                place, said = left.said(), "" if found is None else further(found)
                status.update(f"{doing} {escape(piece.named)}{place}{f': {said}' if said else ' …'}")

        yield watch


class PiecesLeft:
    """How many pieces of work on cases are done, and how long the rest will take."""

    def __init__(self, case_ids: Sequence[str]):
        self._left = list(case_ids)
        self._total = len(self._left)
        self._took: dict[str, list[float]] = defaultdict(list)
        self._now: tuple[str, float] | None = None

    def begin(self, case_id: str) -> None:
        """Note that the piece before is done and the next one of this case begins."""
        now = time.monotonic()
        if self._now is not None:
            self._took[self._now[0]].append(now - self._now[1])
        if case_id in self._left:  # those before it that a failure made needless go with it
            self._left = self._left[self._left.index(case_id) + 1 :]
        self._now = case_id, now

    def said(self) -> str:
        """Return " (3 of 12, about 40.0 s left)"; "" for a single piece."""
        if self._total < 2 or self._now is None:
            return ""
        place = f"{self._total - len(self._left)} of {self._total}"
        if not self._took:
            return f" ({place})"
        everything = statistics.fmean(seconds for took in self._took.values() for seconds in took)
        typical = {case_id: statistics.fmean(took) for case_id, took in self._took.items()}
        seconds = sum(typical.get(case_id, everything) for case_id in [self._now[0], *self._left])
        left = seconds - (time.monotonic() - self._now[1])
        return f" ({place}, about {format_duration(max(left, 1.0))} left)"


@contextmanager
def _line() -> Iterator[Callable[[str], None]]:
    """Yield what shows how far something is: in a line of a terminal, else in a line every `LINE_SECONDS`."""
    from rich.markup import escape

    live = sys.stderr.isatty()
    last = [0.0 if live else time.monotonic()]
    with make_console(stderr=True).status("") if live else nullcontext() as status:

        def show(text: str) -> None:
            now = time.monotonic()
            if now - last[0] < (LIVE_SECONDS if live else LINE_SECONDS):
                return
            last[0] = now
            if status is None:
                print_note(text)
            else:
                status.update(escape(text))

        yield show


@contextmanager
def block_progress() -> "Iterator[Callable[[Stage], None]]":
    """Yield a watcher that shows on stderr how far an interleaved session is, while the block runs."""
    with _line() as show:

        def watch(stage: "Stage") -> None:
            if stage.failure is not None:
                print_note(_failed(stage.failure))
            undecided = f"{counted(stage.left, 'case')} undecided, {format_duration(stage.seconds)}"
            what = f"{undecided} · {stage.doing} {stage.pair}".rstrip()
            show(f"{stage.blocks} of {stage.planned} blocks at most: {what}")

        yield watch


@contextmanager
def fleet_progress() -> "Iterator[Callable[[FleetStep], None]]":
    """Yield a watcher that says on stderr what the lanes do and how long that will take."""
    from ampbench.fleet.session import IDLE, LOST

    told: set[tuple[str, str]] = set()
    with _line() as show:

        def watch(step: "FleetStep") -> None:
            if isinstance(step.entry, Failure):
                print_note(_failed(step.entry))
            lane = step.lane
            if lane.state in (LOST, IDLE) and (lane.place.id, lane.state) not in told:
                told.add((lane.place.id, lane.state))
                print_note(f"{lane.place.name}: {'lost: ' + lane.why if lane.why else 'opened'}")
            show(said_of(step))

        yield watch


def said_of(step: "FleetStep") -> str:
    """Return where a fleet stands, in a line: "3 lanes, 1 opening; 120 of 400 turns, about 3 min left"."""
    from ampbench.fleet.session import LOST, OPENING

    states = step.states
    parts = [counted(sum(states.values()) - states[LOST], "lane")]
    parts += [f"{states[state]} {state}" for state in (OPENING, LOST) if states[state]]
    left = f", about {format_duration(step.left)} left" if step.left is not None else ""
    return f"{', '.join(parts)}; {step.done:,} of {step.total:,} turns{left}"
