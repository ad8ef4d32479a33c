"""The progress of a run: a line with the time left."""

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
from ampbench.core.units import format_duration
from ampbench.drive.rounds import Progress, Schedule, Turn, Watch, is_accelerated, is_burst, turn_seconds
from ampbench.records.measured import Failure
from ampbench.records.run import Entry, Settings
from ampbench.records.wire import ROUND
from ampbench.show.terminal import make_console

if TYPE_CHECKING:
    from ampbench.studies.work import Piece

LINE_SECONDS = 10.0
"""The least seconds between lines without a terminal."""
LIVE_SECONDS = 0.1
"""The least seconds between updates on a terminal: a thousand lanes report more often."""


class TimeLeft:
    """Estimates the time left of a run within its budgets (`drive.rounds.drive`).

    A turn takes as long as the last one of its case and kind, else the mean of its kind, else `turn_seconds`.
    """

    def __init__(self, schedule: Schedule, settings: Settings):
        self._legs = [list(chain.from_iterable(rounds)) for rounds in schedule]
        self._accelerated = is_accelerated(turn.planned for turns in self._legs for turn in turns)
        self._settings, self._budget = settings, settings.budget_seconds or math.inf
        self._took: dict[str, dict[str, float]] = defaultdict(dict)
        self._began = 0.0

    def note(self, step: Progress) -> None:
        """Note when a turn began, or how long it took."""
        if step.entry is not None:
            self._took[_kind(step.turn)][step.turn.planned.case.case_id] = step.spent - self._began
        self._began = step.spent

    def after(self, step: Progress) -> float:
        """Return the seconds left after a step."""
        now, *later = self._legs[step.leg :]
        now, left = now[step.done :], max(self._budget - step.spent, 0.0)
        if self._accelerated:
            turns = [*now, *chain.from_iterable(later)]
            return max(self._seconds(turn for turn in turns if not turn.round), min(self._seconds(turns), left))
        return min(self._seconds(now), left) + sum(min(self._seconds(turns), self._budget) for turns in later)

    def line(self, step: Progress) -> str:
        """Return where a run stands: "network 1 of 2, about 12 s left: round 1: mlp fp32 inference"."""
        networks = len({turns[0].planned.case.network for turns in self._legs})
        place = f"network {step.leg % networks + 1} of {networks}" if networks > 1 else ""
        left = f"about {format_duration(seconds)} left" if (seconds := self.after(step)) else "budget spent"
        doing = f"round {step.turn.round + 1}" if step.turn.task == ROUND else step.turn.task.name
        case = step.turn.planned.case
        return f"{', '.join(filter(None, [place, left]))}: {doing}: {case.workload} {case.precision} {case.phase}"

    def _seconds(self, turns: Iterable[Turn]) -> float:
        means = {kind: statistics.fmean(seconds.values()) for kind, seconds in self._took.items()}
        total = 0.0
        for turn in turns:
            kind, case_id = _kind(turn), turn.planned.case.case_id
            known = self._took.get(kind, {}).get(case_id)
            total += known or means.get(kind) or turn_seconds(turn, self._settings)
        return total


def _kind(turn: Turn) -> str:
    return "burst" if is_burst(turn) else turn.task.name


@contextmanager
def progress(schedule: Schedule, settings: Settings) -> Iterator[Watch]:
    """Yield a watcher that shows the turn that begins, and each failure, on stderr while the block runs."""
    left = TimeLeft(schedule, settings)
    console = make_console(stderr=True)
    live = console.is_terminal and not console.is_dumb_terminal and not os.environ.get("CI")
    with progress_line(live=live) as show:

        def watch(step: Progress) -> None:
            left.note(step)
            show("" if step.entry else left.line(step), step.entry)

        yield watch


@contextmanager
def progress_line(*, live: bool) -> Iterator[Callable[[str, Entry | None], None]]:
    """Yield a function that shows a text, and a failure: in one line of a `live` terminal, else on new lines.

    It draws only when it is called, never while a step is timed.
    """
    from rich.live import Live
    from rich.text import Text

    last = [0.0 if live else time.monotonic()]
    console = make_console(stderr=True)
    with Live(console=console, auto_refresh=False, transient=True) if live else nullcontext() as screen:

        def show(text: str, entry: Entry | None = None) -> None:
            if isinstance(entry, Failure):
                print_note(f"failed: {entry.case_id}: {entry.said}")
            now = time.monotonic()
            if not text or now - last[0] < (LIVE_SECONDS if live else LINE_SECONDS):
                return
            last[0] = now
            if screen is None:
                print_note(text)
            else:
                screen.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

        yield show


@contextmanager
def piece_progress(
    doing: str, pieces: "Sequence[Piece]", further: "Callable[[Entry], str]"
) -> "Iterator[Callable[[Piece, Entry | None], None]]":
    """Yield a watcher that shows which of `pieces` is under way, by `doing` ("tracing").

    `further` returns how far a piece is by its record.
    """
    with progress_line(live=sys.stderr.isatty()) as show:

        def watch(piece: "Piece", record: "Entry | None") -> None:
            text = "" if record is None else further(record)
            place = f"{pieces.index(piece) + 1} of {len(pieces)}"
            show(f"{place}: {doing} {piece.named}{f': {text}' if text else ''}", None)

        yield watch
