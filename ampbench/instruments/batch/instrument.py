"""The study of batches: cases in every precision are searched one after another, then timed again in turns."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from ampbench.base.units import format_bytes, parse_bytes
from ampbench.drive.pieces import Piece, Seen, ask_case, asked_of
from ampbench.drive.planning import WITHOUT_LOSS, PlannedCase, make_plan
from ampbench.drive.servers import Channel
from ampbench.drive.session import describer
from ampbench.errors import UsageError
from ampbench.instruments.batch.findings import limit_of, too_large_said
from ampbench.instruments.batch.records import FAILED, FITS, TOO_LARGE, BatchAsked, BatchPoint, PointAsked
from ampbench.instruments.batch.search import next_batch, next_in_round
from ampbench.instruments.instrument import (
    ALL_PRECISIONS_HELP,
    SCALER_HELP,
    Given,
    Instrument,
    Option,
    Selects,
    Session,
)
from ampbench.records.case import PHASES, Environment
from ampbench.records.kinds import BATCH
from ampbench.records.measured import KILLED, OUT_OF_MEMORY, Failure, Skip
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Task
from ampbench.store import StoredRun

HELP = """\
Find the largest batch that fits into the memory, and the batch of best throughput, in each precision.

Doubles the batch until one does not fit, then halves the gap, each batch in a process of its own; the fastest are
timed again in turns. On a CPU a batch fits where its steps take no more than --memory-limit.

\b
Examples:
  ampbench study batch model.py:make --memory-limit 4GiB
  ampbench study batch resnet18 --phase training --precision fp32 --precision bf16_autocast
  ampbench study batch mlp --memory-limit 2GiB --max-batch 4096 --resolution 0.01 --all
  ampbench study batch --resume 1f9a3c               an interrupted study, by its id
"""
TASK = Task(BATCH, PointAsked, BatchPoint, "ampbench.instruments.batch.measure:do_point")
NO_BATCH = "it has no parameter batch_size that could be changed"
_NO_ROOM = (OUT_OF_MEMORY, "memory limit", KILLED)
"""The causes of a failure by which a batch does not fit: the kernel kills where memory runs out."""


def _made(given: Given) -> BatchAsked:
    values, typed = given.values, given.values["memory_limit"]
    try:
        limit = parse_bytes(typed) if typed else None
    except UsageError as error:
        raise UsageError(f"--memory-limit {error}") from None
    if limit is not None and limit < 1:
        raise UsageError(f"--memory-limit {typed}: must be above 0")
    return BatchAsked(
        max_batch=values["max_batch"],
        resolution=values["resolution"],
        rounds=values["rounds"],
        seconds=values["seconds"],
        limit_bytes=limit,
    )


def _refined(selection: Selection, _: BatchAsked) -> Selection:
    """Raise `UsageError` where a batch size is set, which is what is searched for."""
    for name, value in selection.overrides.items():
        if name.rpartition(".")[2] == "batch_size":
            raise UsageError(f"--set {name}={value}: the batch is what is searched for; --max-batch bounds it")
    return selection


def _plan(
    selection: Selection, _: BatchAsked, environment: Environment, channel: Channel, settings: Settings
) -> list[PlannedCase]:
    """Return the cases in both phases where none is named, without those that have no loss to train by."""
    asked = dataclasses.replace(selection, phases=selection.phases or list(PHASES))
    found = make_plan(asked, environment, describer(channel, settings))
    if not selection.phases:
        found = [planned for planned in found if planned.skip not in WITHOUT_LOSS] or found
    return [
        planned if planned.skip or planned.case.batch_size is not None else dataclasses.replace(planned, skip=NO_BATCH)
        for planned in found
    ]


def _lacks(points: Sequence[BatchPoint], asked: BatchAsked) -> list[int]:
    """Return the rounds that a case lacks; 0 is the search, after which all follow."""
    if next_batch(points, asked) is not None:
        return list(range(asked.rounds))
    return [number for number in range(1, asked.rounds) if next_in_round(points, number)]


def pieces(session: Session[BatchAsked]) -> list[Piece]:
    """Return the searches that are planned and not made yet, then the rounds, the cases taking turns in each."""
    points = session.begun.several_of(BatchPoint) if session.begun is not None else {}
    lacking = {
        planned.case.case_id: (planned, _lacks(points.get(planned.case.case_id, ()), session.asked))
        for planned in session.prepared.plan
        if not planned.skip
    }
    return [
        Piece(planned, number)
        for number in range(session.asked.rounds)
        for planned, rounds in lacking.values()
        if number in rounds
    ]


def _left(stored: StoredRun) -> list[str]:
    """Return the ids of the cases that lack something, each as often as pieces of it are left."""
    asked, points, over = asked_of(stored), stored.several_of(BatchPoint), stored.given_up
    return [case_id for case_id in stored.cases if case_id not in over for _ in _lacks(points.get(case_id, ()), asked)]


class _Searcher:
    """Searches case by case, and times again what may be fastest; `points` are those of each case so far."""

    def __init__(self, session: Session[BatchAsked]) -> None:
        self.session = session
        self.points: dict[str, list[BatchPoint]] = defaultdict(list)
        self.failures: dict[str, Failure] = {}
        if session.begun is not None:
            for case_id, found in session.begun.several_of(BatchPoint).items():
                self.points[case_id] += found

    def work(self, channel: Channel, piece: Piece) -> Seen:
        """Do a search, or a round; every point but the last is stored at once, the last is returned."""
        return self._searched(channel, piece) if piece.part == 0 else self._round(channel, piece)

    def _searched(self, channel: Channel, piece: Piece) -> Seen:
        """Search; a `Skip` where not even the smallest batch fits, a `Failure` where none runs.

        Raises `UsageError` where nothing fits of anything that was to be searched: the limit cannot be meant.
        """
        points, asked = self.points[piece.key], self.session.asked
        batch = next_batch(points, asked)
        while batch is not None:
            seen = self._point(channel, piece.planned, batch, 0)
            if not isinstance(seen, BatchPoint):
                return seen
            points.append(seen)
            batch = next_batch(points, asked)
            if batch is None and any(point.outcome == FITS for point in points):
                return seen
            self.session.keep(piece, seen)
        last = points[-1]
        if last.outcome == FAILED:
            return self.failures[piece.key]
        skip = Skip(case_id=piece.key, reason=too_large_said(last, self._limit(piece)))
        if asked.limit_bytes is not None and self._nothing_fits():
            self.session.keep(piece, skip)
            raise UsageError(f"--memory-limit {format_bytes(asked.limit_bytes)}: {skip.reason}")
        return skip

    def _round(self, channel: Channel, piece: Piece) -> Seen:
        points = self.points[piece.key]
        *before, last = next_in_round(points, piece.part)
        for batch in before:
            seen = self._point(channel, piece.planned, batch, piece.part)
            if not isinstance(seen, BatchPoint):
                return seen
            points.append(seen)
            self.session.keep(piece, seen)
        seen = self._point(channel, piece.planned, last, piece.part)
        points += [seen] if isinstance(seen, BatchPoint) else []
        return seen

    def _point(self, channel: Channel, planned: PlannedCase, batch: int, number: int) -> BatchPoint | Skip:
        """Return what became of a batch, by what it took or how its process ended."""
        case, settings, limit = planned.case, self.session.prepared.settings, self._limit(Piece(planned))
        on_cpu = case.device == "cpu"
        asked = PointAsked(batch=batch, round=number, seconds=self.session.asked.seconds)
        # an accelerator's context is paid for once
        found = ask_case(channel, planned, settings, TASK, asked, fresh=on_cpu)
        if isinstance(found, Failure):
            self.failures[case.case_id] = found
            outcome = TOO_LARGE if found.cause in _NO_ROOM else FAILED
            return BatchPoint(case_id=case.case_id, batch=batch, round=number, outcome=outcome, reason=found.said)
        if isinstance(found, BatchPoint) and limit and (found.peak_bytes or 0) > limit:
            why = f"takes {format_bytes(found.peak_bytes)}"
            return dataclasses.replace(found, outcome=TOO_LARGE, reason=why)
        return found

    def _limit(self, piece: Piece) -> int | None:
        prepared = self.session.prepared
        return limit_of(piece.planned.case, self.session.asked, prepared.settings, prepared.environment)

    def _nothing_fits(self) -> bool:
        """Return whether every case that can run was searched, and nothing fits of any."""
        planned = [one.case.case_id for one in self.session.prepared.plan if not one.skip]
        fitting = any(point.outcome != TOO_LARGE for found in self.points.values() for point in found)
        return not fitting and all(self.points[case_id] for case_id in planned)


INSTRUMENT: Instrument[BatchAsked] = Instrument(
    kind=BATCH,
    help=HELP,
    doing="searching",
    options=(
        Option(
            name="memory_limit",
            default="",
            metavar="SIZE",
            default_said="80% of what is free; an accelerator's own memory",
            help="What steps may take, beside Python and torch: on a CPU what they allocate, on an accelerator what "
            "its allocator reserves. As 512MB or 4GiB.",
        ),
        Option(
            name="max_batch", default=16_384, metavar="N", least=1, most=1_048_576, help="No larger batch is tried."
        ),
        Option(
            name="resolution",
            default=0.05,
            metavar="SHARE",
            least=0.0,
            most=1.0,
            help="The search ends where the smallest batch that does not fit is at most so much larger than one that "
            "does; 0: to the last example.",
        ),
        Option(
            name="rounds",
            default=4,
            metavar="N",
            least=1,
            most=1000,
            help="Time the fastest batches in so many processes, one after another; an interval needs 3.",
        ),
        Option(name="seconds", default="500ms", seconds=True, help="Timing of each batch"),
    ),
    selects=Selects(
        question="search the batch",
        precision=ALL_PRECISIONS_HELP,
        phase="inference or training. Default: both, if there is a loss.",
        path="eager, compiled or traced. Default: eager.",
        scaler=SCALER_HELP,
        recipes=True,
        eager=False,
    ),
    made=_made,
    refined=_refined,
    plan=_plan,
    pieces=pieces,
    left=_left,
    work=lambda session: _Searcher(session).work,
    progress=lambda: lambda seen: f"batch {seen.batch:,} {seen.outcome}" if isinstance(seen, BatchPoint) else "",
)
