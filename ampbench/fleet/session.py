"""A fleet's session: lanes are opened as machines appear, get pieces of work, and their entries are stored at once.

A `Cluster` reaches the lanes (`fleet.on_ray`). One thread waits for the next events, stores their entries and hands out
the next pieces.
"""

import math
import resource
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from ampbench.drive.rounds import TurnKey, kept
from ampbench.drive.session import now
from ampbench.errors import NothingToRunError
from ampbench.fleet.node import Order, Work, done_in
from ampbench.records.case import Case, Table, kind_of, table_of
from ampbench.records.measured import KILLED, Divergence, Failure, MemoryPass, Round, Skip
from ampbench.records.run import EACH, Entry, Fleet, Footer, Header
from ampbench.records.wire import DIVERGENCE, MEMORY, ROUND
from ampbench.store import RunWriter, StoredRun, lines, new_run_id

LOOK_SECONDS = 5.0
"""The interval of checks for new nodes in the cluster."""
WAIT_SECONDS = 120.0
"""The time limit for a lane to become free, once all others are done."""
EVENT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    """A possible place of a lane: a node of the cluster; `name` is for people."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Event:
    """A `line` of a lane, or the reason why the lane is `lost`."""

    place: str
    line: bytes = b""
    lost: str = ""


class Cluster(Protocol):
    """Machines that lanes can be opened on. Only `events` waits, for some seconds."""

    def places(self) -> list[Place]:
        """Return the possible places of lanes, free or not."""

    def open(self, place: Place, order: bytes) -> None:
        """Open a lane as soon as its place is free, and give it an order."""

    def ask(self, place: str, work: bytes) -> None:
        """Give a lane a piece of work."""

    def events(self, seconds: float) -> list[Event]:
        """Return the lines of lanes, as soon as there is one, or none after `seconds`."""

    def close(self) -> None:
        """End all lanes."""


@dataclass(slots=True)
class Share:
    """The `cases` of all lanes of a kind (`spread`), or of one lane, and the finished turns of each.

    `left` are the tables that no lane has, `dealt` the tables of each lane. `ended` are cases that need no more.
    """

    cases: Mapping[str, Case]
    rounds: int
    spread: bool
    tables: dict[Table, list[str]] = field(default_factory=dict)
    left: list[Table] = field(default_factory=list)
    dealt: dict[str, list[Table]] = field(default_factory=dict)
    done: dict[str, set[TurnKey]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)

    def begin(self) -> list[str]:
        """Make the tables of the cases that lack a turn, and return their ids."""
        wanted = [case_id for case_id in self.cases if self.missing(case_id)]
        for case_id in wanted:
            self.tables.setdefault(table_of(self.cases[case_id]), []).append(case_id)
        self.left = list(self.tables)
        return wanted

    def take(self, lane: str, lanes: int) -> list[str]:
        """Return the ids of the cases of the next piece of one of `lanes`: half of its equal part of the tables left.

        Pieces become smaller, so that lanes of different speed end together (guided self-scheduling, Polychronopoulos &
        Kuck 1987).
        """
        count = math.ceil(len(self.left) / (2 * lanes)) if self.spread else len(self.left)
        self.dealt[lane], self.left = self.left[:count], self.left[count:]
        return [case_id for table in self.dealt[lane] for case_id in self.tables[table] if case_id not in self.ended]

    def give_back(self, lane: str) -> None:
        """Return the unfinished tables of a lost lane to the front of `left`."""
        begun = self.dealt.pop(lane, [])
        self.left = [table for table in begun if any(map(self.missing, self.tables[table]))] + self.left

    def add(self, entry: Entry) -> None:
        """Record a stored entry."""
        tasks = {MemoryPass: MEMORY.name, Divergence: DIVERGENCE.name, Round: ROUND.name}
        if isinstance(entry, Skip) or (isinstance(entry, Failure) and entry.final):
            self.ended.add(entry.case_id)
        elif isinstance(entry, MemoryPass | Divergence | Round) and not getattr(entry, "confirmation", False):
            key = tasks[type(entry)], entry.case_id, getattr(entry, "round", 0), getattr(entry, "control", False)
            self.done.setdefault(entry.case_id, set()).add(key)

    def missing(self, case_id: str) -> str:
        """Return the task of the first turn that a case lacks; "" where it is complete, or has ended."""
        if case_id in self.ended:
            return ""
        wanted = [(MEMORY.name, 0), (DIVERGENCE.name, 0), *((ROUND.name, number) for number in range(self.rounds))]
        done = self.done.get(case_id, set())
        return next((task for task, number in wanted if (task, case_id, number, False) not in done), "")

    def turns_left(self, case_id: str) -> int:
        """Return the number of a case's unfinished turns, without the control's."""
        return 2 + self.rounds - sum(not control for *_, control in self.done.get(case_id, ()))


OPENING, IDLE, BUSY, LOST = "opening", "idle", "busy", "lost"


@dataclass(slots=True)
class Lane:
    """A lane: its place, its state, the time of opening, the reason for a loss; its plan, its share and its run."""

    place: Place
    state: str = OPENING
    since: float = 0.0
    why: str = ""
    header: Header | None = None
    cases: dict[str, Case] = field(default_factory=dict)
    skips: list[Skip] = field(default_factory=list)
    share: Share | None = None
    writer: RunWriter | None = None
    listed: set[str] = field(default_factory=set)
    servers: int = 0

    def store(self, *entries: Entry, of: Iterable[str] = ()) -> None:
        """Store entries in the lane's run, after the cases `of` these ids that it still lacks."""
        assert self.writer is not None
        assert self.share is not None
        new = [case_id for case_id in of if case_id not in self.listed]
        self.writer.append(*(self.share.cases[case_id] for case_id in new), *entries)
        self.listed.update(new)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a fleet: the number of lanes in each state, the turns done, their total, and the seconds.

    `lane` has the latest event, `entry` is its latest measurement.
    """

    lane: Lane
    states: Mapping[str, int]
    done: int
    total: int
    seconds: float
    entry: Entry | None = None

    @property
    def left(self) -> float | None:
        """The seconds left at the pace so far; None while unknown."""
        return None if not self.done else self.seconds * (self.total - self.done) / self.done


class FleetSession:
    """Measures the cases of an order on the lanes of a cluster, and stores a run for each lane.

    `earlier` are the runs of a resumed fleet.
    """

    def __init__(
        self,
        cluster: Cluster,
        order: Order,
        fleet: Fleet,
        results: Path,
        watch: Callable[[Progress], None],
        earlier: Sequence[StoredRun] = (),
        clock: Callable[[], float] = time.monotonic,
    ):
        self._cluster, self._order, self._fleet, self._results = cluster, order, fleet, results
        self._watch, self._clock, self._began = watch, clock, clock()
        self._earlier = {run.header.fleet.lane: run for run in earlier if run.header.fleet is not None}
        self._looked = -math.inf
        self._lanes: dict[str, Lane] = {}
        self._states: Counter[str] = Counter()
        self._shares: dict[str, Share] = {}
        self._cases: dict[str, Case] = {}
        self._done = self._total = 0

    @property
    def lanes(self) -> Collection[Lane]:
        """All lanes so far, in the order in which they appeared."""
        return self._lanes.values()

    @property
    def left(self) -> int:
        """The number of unfinished cases, counted once for each machine that is to measure it."""
        return sum(bool(share.missing(case_id)) for share in self._shares.values() for case_id in share.cases)

    def run(self) -> str:
        """Measure until no lane has work left; return the end, as a session does.

        Raises `NothingToRunError` where no lane could be opened, `StoreError` where nothing more can be stored; stored
        entries stay. An interruption ends all lanes.
        """
        try:
            while self._goes_on():
                for event in self._cluster.events(EVENT_SECONDS):
                    self._handle(self._lanes[event.place], event)
            self._finish()
            ended = "complete"
        except KeyboardInterrupt:
            ended = "interrupted"
        except BaseException:
            self._end()
            raise
        self._end(Footer(ended=ended, finished_at=now()))
        return ended

    def _end(self, *footer: Footer) -> None:
        """End the lanes, and their runs with a footer, if there is one."""
        self._cluster.close()
        with ExitStack() as files:
            for writer in [files.enter_context(lane.writer) for lane in self.lanes if lane.writer is not None]:
                if footer:
                    writer.append(*footer)

    def _goes_on(self) -> bool:
        """Open lanes on new places, lose those whose place is gone; return whether a lane is at work."""
        at = self._clock()
        if at - self._looked >= LOOK_SECONDS:
            self._looked = at
            places = {place.id: place for place in self._cluster.places()}
            for lane in self.lanes:
                if lane.place.id not in places and lane.state != LOST:
                    self._lose(lane, "its node left the cluster")
            for place in places.values():
                if place.id not in self._lanes:
                    self._lanes[place.id] = Lane(place, since=at)
                    self._states[OPENING] += 1
                    self._cluster.open(place, msgspec.json.encode(self._order))
        if not self._states[BUSY]:
            for lane in self.lanes:
                if lane.state == OPENING and at - lane.since > WAIT_SECONDS:
                    self._lose(lane, f"it did not become free within {WAIT_SECONDS:.0f} s")
        return bool(self._states[BUSY] or self._states[OPENING])

    def _handle(self, lane: Lane, event: Event) -> None:
        """Process an event of a lane."""
        if lane.state == LOST:
            return
        done = None if event.lost else done_in(event.line)
        if event.lost or (done is not None and done.problem):
            self._lose(lane, event.lost or (done.problem if done else ""))
            return
        if done is None:
            entry = lines.decode(event.line)[1]
            if lane.state == BUSY:
                self._measured(lane, entry)
            elif isinstance(entry, Header):
                lane.header = entry
            elif isinstance(entry, Case):
                case = self._cases.setdefault(entry.case_id, entry)
                lane.cases[case.case_id] = case
            elif isinstance(entry, Skip):
                lane.skips.append(entry)
            return
        if lane.share is None:
            self._opened(lane)
        else:
            lane.share.dealt.pop(lane.place.id, None)
        self._hand_out(lane)
        self._tell(lane)

    def _opened(self, lane: Lane) -> None:
        """Begin, or continue, the run of a lane that has sent its plan."""
        assert lane.header is not None
        kind, name = kind_of(lane.header.environment), lane.place.name
        before = self._earlier.get(name)
        same = (known for known in self.lanes if known.state == LOST and known.place.name == name and known.writer)
        if (lost := next(same, None)) is not None:  # it has come back
            lane.writer, lane.listed, lane.servers, lost.writer = lost.writer, lost.listed, lost.servers, None
        elif before is not None and kind_of(before.header.environment) == kind:
            lane.writer, before = RunWriter.reopen(before.path)
            lane.listed = set(before.cases)
            lane.servers = 1 + max((known.server for known in before.rounds), default=-1)
        else:
            run = f"{new_run_id(name).rpartition('-')[0]}-{self._fleet.id}"
            header = replace(lane.header, run=run, fleet=replace(self._fleet, lane=name))
            lane.writer = RunWriter.create(self._results, header)
        alone = self._fleet.on == EACH
        key = name if alone else kind
        lane.share = self._shares.get(key)
        if lane.share is None:
            lane.share = self._shares[key] = self._new_share(lane, kind, alone=alone)
        lane.cases = lane.share.cases  # type: ignore[assignment]  # the plans of a kind are equal

    def _new_share(self, lane: Lane, kind: str, *, alone: bool) -> Share:
        """Return the share of a lane, or of all of its kind; store the skipped cases."""
        share = lane.share = Share(lane.cases, self._order.settings.rounds, spread=not alone)
        for name, run in self._earlier.items():
            if kind_of(run.header.environment) == kind and (name == lane.place.name or not alone):
                by_case = (run.memory, run.divergence, run.failures, run.skips)
                for entry in chain(run.rounds, *(known.values() for known in by_case)):
                    share.add(entry)
        skips = [skip for skip in lane.skips if skip.case_id not in share.ended]
        lane.store(*skips, of=[skip.case_id for skip in skips])
        share.ended |= {skip.case_id for skip in skips}
        self._total += sum(map(share.turns_left, share.begin()))
        return share

    def _hand_out(self, lane: Lane) -> None:
        """Give a lane its next piece, if there is one; else it is idle."""
        share = lane.share
        assert share is not None
        piece: list[str] = []
        while share.left and not piece:  # a table may have ended meanwhile
            piece = share.take(lane.place.id, self._states.total() - self._states[LOST])
        self._enter(lane, BUSY if piece else IDLE)
        if piece:
            lane.store(of=piece)
            done = [turn for case_id in piece for turn in share.done.get(case_id, ())]
            work = Work(cases=piece, done=done, first_server=lane.servers)
            self._cluster.ask(lane.place.id, msgspec.json.encode(work))

    def _enter(self, lane: Lane, state: str) -> None:
        self._states[lane.state] -= 1
        self._states[state] += 1
        lane.state = state

    def _measured(self, lane: Lane, entry: Entry) -> None:
        """Store an entry that a lane measured."""
        assert lane.writer is not None
        assert lane.share is not None
        entry = kept(lane.writer.append, entry)
        if isinstance(entry, Failure | Skip):
            self._total -= lane.share.turns_left(entry.case_id)
        else:
            self._done += not getattr(entry, "control", False)
        lane.share.add(entry)
        if isinstance(entry, Round):
            lane.servers = max(lane.servers, entry.server + 1)
        self._tell(lane, entry)

    def _lose(self, lane: Lane, why: str) -> None:
        """Mark a lane as lost; idle lanes of its share continue with its tables."""
        self._enter(lane, LOST)
        lane.why = why
        if (share := lane.share) is not None:
            share.give_back(lane.place.id)
            for idle in self.lanes:
                if idle.share is share and idle.state == IDLE:
                    self._hand_out(idle)
        self._tell(lane)

    def _finish(self) -> None:
        """Store a failure for each case that no lane can measure any more."""
        opened = [lane for lane in self.lanes if lane.share is not None]
        if not opened:
            reasons = "; ".join(f"{lane.place.name}: {lane.why}" for lane in self.lanes)
            raise NothingToRunError(f"no machine of the cluster can measure: {reasons or 'there is none'}")
        for lane in opened:
            share = lane.share
            if share is None or lane.state != LOST or lane.writer is None:
                continue
            ids = [case_id for table in share.left for case_id in share.tables[table] if share.missing(case_id)]
            message, share.left = f"{lane.place.name} was lost: {lane.why}", []
            failures = [
                Failure(case_id=case_id, stage=share.missing(case_id), cause=KILLED, message=message) for case_id in ids
            ]
            lane.store(*failures, of=ids)

    def _tell(self, lane: Lane, entry: Entry | None = None) -> None:
        self._watch(Progress(lane, self._states, self._done, self._total, self._clock() - self._began, entry))


def open_files() -> None:
    """Raise this process's limit of open files to the maximum: each lane needs one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
