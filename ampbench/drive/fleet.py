"""A fleet's session: a lane on each machine of a cluster, a thread that measures there as `ampbench run` does here.

`drive.on_ray` opens the servers of a lane. Lanes open as machines appear, and take work until none is left.
"""

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ampbench.core.units import counted, format_duration
from ampbench.drive import session
from ampbench.drive.rounds import TurnKey, drive, make_schedule, turn_of
from ampbench.errors import AmpbenchError, NothingToRunError, StoreError
from ampbench.records.case import Case, Table, kind_of, table_of
from ampbench.records.measured import KILLED, Failure, Skip
from ampbench.records.run import EACH, Entry, Fleet, Footer, Selection, Settings
from ampbench.store import RunWriter, StoredRun, new_run_id, read_run

if TYPE_CHECKING:
    from ampbench.drive.on_ray import RayCluster

LOOK_SECONDS = 5.0
"""The interval of checks for new nodes in the cluster."""
WAIT_SECONDS = 120.0
"""The time limit for a lane to become free, once all others are done."""
ENDING_SECONDS = 5.0
"""The time that lanes have to end; those of a cluster that is gone may never."""
NODE_GONE = "its node died or left the cluster"


@dataclass(slots=True)
class Share:
    """The `cases` of all lanes of a kind, or of one lane, and their `wanted` turns without the control's.

    `left` are the tables that no lane has, as ids of their cases. `ended` are cases that need no more.
    """

    cases: Mapping[str, Case]
    wanted: Mapping[str, Sequence[TurnKey]]
    left: list[list[str]] = field(default_factory=list)
    done: set[TurnKey] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        tables: dict[Table, list[str]] = {}
        for case_id, case in self.cases.items():
            tables.setdefault(table_of(case), []).append(case_id)
        self.left = list(tables.values())

    def take(self, lanes: int) -> list[list[str]]:
        """Return the next piece of one of `lanes`: its equal part of the tables left, with one more lane to join.

        Pieces become smaller, so that lanes of different speed end together (guided self-scheduling, Polychronopoulos &
        Kuck 1987). Without lanes: all tables.
        """
        left = [table for table in self.left if any(map(self.missing, table))]
        count = math.ceil(len(left) / (lanes + 1))
        self.left = left[count:]
        return left[:count]

    def give_back(self, piece: Sequence[list[str]]) -> None:
        """Return the tables of a piece to the front of `left`."""
        self.left = [*piece, *self.left]

    def add(self, entry: Entry) -> None:
        """Record a stored entry."""
        if isinstance(entry, Skip) or (isinstance(entry, Failure) and entry.final):
            self.ended.add(entry.case_id)
        elif turn := turn_of(entry):
            self.done.add(turn)

    def missing(self, case_id: str) -> list[TurnKey]:
        """Return the turns that a case lacks, in order; [] where it has ended."""
        wanted = () if case_id in self.ended else self.wanted.get(case_id, ())
        return [turn for turn in wanted if turn not in self.done]


@dataclass(slots=True)
class Lane:
    """A lane, which waits `since` a time until it is `opened`; its share and its piece of it; `why` it was lost."""

    place: str
    name: str
    since: float
    opened: bool = False
    why: str = ""
    share: Share | None = None
    piece: Sequence[list[str]] = ()
    writer: RunWriter | None = None
    servers: int = 0

    def store(self, share: Share, *entries: Entry, of: Iterable[str] = ()) -> None:
        """Store entries in the lane's run, after the cases `of` these ids that it still lacks."""
        assert self.writer is not None
        self.writer.append(*(share.cases[case_id] for case_id in of if case_id not in self.writer.cases), *entries)


@dataclass(kw_only=True)
class FleetSession:
    """Measures a selection on the lanes of a cluster, and stores a run for each lane.

    `watch` gets a line about the progress with each measured entry, `tell` a line about each lost lane. `earlier` are
    the runs of a resumed fleet. `done` of `total` turns are measured, by the `lanes` of each place.
    """

    cluster: "RayCluster"
    selection: Selection
    settings: Settings
    fleet: Fleet
    results: Path
    label: str = ""
    command: list[str] = field(default_factory=list)
    watch: Callable[[str, Entry | None], None]
    tell: Callable[[str], None]
    earlier: Sequence[StoredRun] = ()
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    total: int = 0
    lanes: dict[str, Lane] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._began = self.clock()
        self._earlier = {run.header.fleet.lane: run for run in self.earlier if run.header.fleet is not None}
        self._threads: list[threading.Thread] = []
        self._shares: dict[str, Share] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._problem: BaseException | None = None

    @property
    def left(self) -> int:
        """The number of unfinished cases, counted once for each machine that is to measure it."""
        return sum(bool(share.missing(case_id)) for share in self._shares.values() for case_id in share.cases)

    @property
    def _alive(self) -> list[Lane]:
        return [lane for lane in self.lanes.values() if not lane.why]

    def run(self) -> str:
        """Measure until no lane has work left; return the end, as a session does.

        Raises `NothingToRunError` where no lane could be opened, `StoreError` where nothing more can be stored; stored
        entries stay. An interruption ends all lanes.
        """
        ended = ""
        try:
            with self._changed:
                while self._goes_on():
                    self._changed.wait(LOOK_SECONDS)
                if self._problem is not None:
                    raise self._problem
                self._store_lost()
            ended = "complete"
        except KeyboardInterrupt:
            ended = "interrupted"
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            self.cluster.close()  # its servers end with their lanes
            for thread in self._threads:
                thread.join(ENDING_SECONDS / len(self._threads))
            for lane in self.lanes.values():
                if lane.writer is not None:
                    with self._changed, lane.writer:
                        if ended:
                            lane.writer.append(Footer(ended=ended, finished_at=session.now()))
        return ended

    def _goes_on(self) -> bool:
        """Open lanes on new places, lose those whose place is gone; return whether a lane is at work."""
        places, at = self.cluster.places(), self.clock()
        for lane in self._alive:
            if lane.place not in places:
                self._lose(lane, NODE_GONE)
        for place, name in places.items():
            if place not in self.lanes:  # nodes of one host and name are numbered
                names = (f"{name}-{number}" if number > 1 else name for number in itertools.count(1))
                taken = {lane.name for lane in self._alive}
                lane = self.lanes[place] = Lane(place, next(name for name in names if name not in taken), since=at)
                self._threads.append(threading.Thread(target=self._serve, args=[lane], daemon=True))
                self._threads[-1].start()
        opening = [lane for lane in self._alive if not lane.opened]
        busy = any(lane.opened and (not lane.share or lane.piece or lane.share.left) for lane in self._alive)
        for lane in opening:
            if not busy and at - lane.since > WAIT_SECONDS:
                self._lose(lane, f"it did not become free within {WAIT_SECONDS:.0f} s")
        return self._problem is None and (busy or any(not lane.why for lane in opening))

    def _serve(self, lane: Lane) -> None:
        """Measure on a lane until its share has nothing left; the thread of a lane."""
        try:
            limit = self.cluster.open(lane.place)
            settings = replace(self.settings, memory_limit_bytes=self.settings.memory_limit_bytes or limit)
            lane.opened = True
            opens = partial(self.cluster.channel, lane.place)
            with session.prepare(self.selection, settings, open_server=opens) as prepared:
                session.require_work(prepared)
                with self._changed:
                    share = lane.share = self._begin(lane, prepared)
                while piece := self._next(lane, share):
                    plan = [planned for planned in prepared.plan if planned.case.case_id in piece]
                    settings, write = prepared.settings, partial(self._measured, lane, share)
                    schedule = make_schedule(plan, settings, share.done)
                    drive(schedule, settings, prepared.open_channel, write, lambda _: None, first_server=lane.servers)
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            with self._changed:
                if isinstance(error, AmpbenchError) and not isinstance(error, StoreError):
                    self._lose(lane, str(error))
                else:
                    self._problem = error
                self._changed.notify_all()

    def _begin(self, lane: Lane, prepared: session.Scheduled) -> Share:
        """Begin, or continue, the run of a lane; return its share, with the skipped cases stored."""
        kind, alone = kind_of(prepared.environment), self.fleet.on == EACH
        for lost in self.lanes.values():  # its node has come back
            if lost.why and lost.name == lane.name and lost.writer is not None:
                lost.writer.close()
                self._earlier[lane.name], lost.writer = read_run(lost.writer.path), None
        alike = {name: run for name, run in self._earlier.items() if kind_of(run.header.environment) == kind}
        if lane.name in alike:
            lane.writer, before = RunWriter.reopen(alike[lane.name].path)
            lane.servers = 1 + max((known.server for known in before.rounds), default=-1)
        else:
            where = prepared.settings, prepared.environment, prepared.plan
            header = session.new_header(self.selection, *where, self.label, self.command)
            run = f"{new_run_id(lane.name).rpartition('-')[0]}-{self.fleet.id}"
            fleet = replace(self.fleet, lane=lane.name)
            lane.writer = RunWriter.create(self.results, replace(header, run=run, fleet=fleet))
        key = lane.name if alone else kind
        if (share := self._shares.get(key)) is None:  # the plans of a kind are equal
            wanted: dict[str, list[TurnKey]] = {}
            for turn in (turn for leg in prepared.schedule for turns in leg for turn in turns if not turn.control):
                wanted.setdefault(turn.planned.case.case_id, []).append(turn.key)
            share = self._shares[key] = Share({planned.case.case_id: planned.case for planned in prepared.plan}, wanted)
            for stored in [stored for name, stored in alike.items() if name == lane.name or not alone]:
                for entry in stored.entries():
                    share.add(entry)
            skips = [skip for skip in session.planned_skips(prepared.plan) if skip.case_id not in share.ended]
            lane.store(share, *skips, of=[skip.case_id for skip in skips])
            share.ended |= {skip.case_id for skip in skips}
            self.total += sum(len(share.missing(case_id)) for case_id in share.cases)
        return share

    def _next(self, lane: Lane, share: Share) -> list[str]:
        """Return the next piece of a lane; without one, wait for tables of lost lanes; [] at the end of the fleet."""
        with self._changed:
            lane.piece = ()
            while not (self._ended or lane.why):
                lane.piece = share.take(0 if self.fleet.on == EACH else len(self._alive))
                if piece := [case_id for table in lane.piece for case_id in table if case_id not in share.ended]:
                    lane.store(share, of=piece)
                    return piece
                self._changed.notify_all()
                self._changed.wait()
        return []

    def _measured(self, lane: Lane, share: Share, entry: Entry) -> None:
        """Store an entry that a lane measured; raise `NothingToRunError` where the lane is lost, or the fleet ended."""
        with self._changed:
            if self._ended or lane.why:
                raise NothingToRunError(lane.why)
            lane.store(share, entry)
            if isinstance(entry, Failure | Skip):
                self.total -= len(share.missing(entry.case_id))
            else:
                self.done += not getattr(entry, "control", False)
            share.add(entry)
            lane.servers = max(lane.servers, 1 + getattr(entry, "server", -1))
            seconds = (self.clock() - self._began) * (self.total - self.done) / max(self.done, 1)
            left = f", about {format_duration(seconds)} left" if self.done else ""
            self.watch(f"{counted(len(self._alive), 'lane')}; {self.done:,} of {self.total:,} turns{left}", entry)

    def _lose(self, lane: Lane, why: str) -> None:
        """Mark a lane as lost; idle lanes of its share continue with its tables."""
        if lane.why or self._ended:
            return
        lane.why = why
        self.tell(f"{lane.name}: lost: {why}")
        if lane.share is not None:
            lane.share.give_back(lane.piece)
        self._changed.notify_all()

    def _store_lost(self) -> None:
        """Store a failure for each case that no lane can measure any more; `NothingToRunError` if none was opened."""
        if not self._shares:
            reasons = "; ".join(f"{lane.name}: {lane.why}" for lane in self.lanes.values())
            raise NothingToRunError(f"no machine of the cluster can measure: {reasons or 'no node has a CPU to give'}")
        for lane in self.lanes.values():
            if lane.why and (share := lane.share) is not None and lane.writer is not None:
                turns = [turns[0] for table in share.left for case_id in table if (turns := share.missing(case_id))]
                message, share.left = f"{lane.name} was lost: {lane.why}", []
                failures = [Failure(case_id=of, stage=task, cause=KILLED, message=message) for task, of, *_ in turns]
                lane.store(share, *failures, of=[failure.case_id for failure in failures])
