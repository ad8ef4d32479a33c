"""A fleet's session: lanes are opened as machines appear, get pieces of work, and their entries are stored at once.

A `Cluster` reaches the lanes (`drive.on_ray`). One thread waits for the next lines, stores their entries and hands out
the next pieces.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from ampbench.core.units import counted, format_duration
from ampbench.drive.fleet_node import Order, Work, done_in
from ampbench.drive.rounds import TurnKey
from ampbench.drive.session import now
from ampbench.errors import NothingToRunError
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
_TASKS: Mapping[type[Entry], str] = {MemoryPass: MEMORY.name, Divergence: DIVERGENCE.name, Round: ROUND.name}


class Cluster(Protocol):
    """Machines that lanes can be opened on, by the ids of their places. Only `events` waits, for some seconds."""

    def places(self) -> Mapping[str, str]:
        """Return the ids of the possible places of lanes, free or not, with their names for people."""

    def open(self, place: str, order: bytes) -> None:
        """Open a lane as soon as its place is free, and give it an order."""

    def ask(self, place: str, work: bytes) -> None:
        """Give a lane a piece of work."""

    def events(self, seconds: float) -> Sequence[tuple[str, bytes]]:
        """Return lines with their lanes' places, as soon as there is one, or none after `seconds`.

        A lane that ended sends a `Done` with the problem.
        """

    def close(self) -> None:
        """End all lanes."""


@dataclass(slots=True)
class Share:
    """The `cases` of all lanes of a kind (`spread`), or of one lane, and the finished turns of each.

    `left` are the tables that no lane has, as ids of their cases, `dealt` the tables of each lane. `ended` are cases
    that need no more.
    """

    cases: Mapping[str, Case]
    rounds: int
    spread: bool
    left: list[list[str]] = field(default_factory=list)
    dealt: dict[str, list[list[str]]] = field(default_factory=dict)
    done: dict[str, set[TurnKey]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)

    def begin(self) -> list[str]:
        """Make the tables of the cases that lack a turn, and return their ids."""
        tables: dict[Table, list[str]] = {}
        wanted = [case_id for case_id in self.cases if self.missing(case_id)]
        for case_id in wanted:
            tables.setdefault(table_of(self.cases[case_id]), []).append(case_id)
        self.left = list(tables.values())
        return wanted

    def take(self, lane: str, lanes: int) -> list[str]:
        """Return the ids of the cases of the next piece of one of `lanes`: half of its equal part of the tables left.

        Pieces become smaller, so that lanes of different speed end together (guided self-scheduling, Polychronopoulos &
        Kuck 1987).
        """
        count = math.ceil(len(self.left) / (2 * lanes)) if self.spread else len(self.left)
        self.dealt[lane], self.left = self.left[:count], self.left[count:]
        return [case_id for table in self.dealt[lane] for case_id in table if case_id not in self.ended]

    def give_back(self, lane: str) -> None:
        """Return the unfinished tables of a lost lane to the front of `left`."""
        self.left = [table for table in self.dealt.pop(lane, []) if any(map(self.missing, table))] + self.left

    def add(self, entry: Entry) -> None:
        """Record a stored entry."""
        if isinstance(entry, Skip) or (isinstance(entry, Failure) and entry.final):
            self.ended.add(entry.case_id)
        elif isinstance(entry, MemoryPass | Divergence | Round):
            key = _TASKS[type(entry)], entry.case_id, getattr(entry, "round", 0), getattr(entry, "control", False)
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

    place: str
    name: str
    state: str = OPENING
    since: float = 0.0
    why: str = ""
    plan: list[Entry] = field(default_factory=list)
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


class FleetSession:
    """Measures the cases of an order on the lanes of a cluster, and stores a run for each lane.

    `watch` gets a line about the progress with each measured entry, `tell` a line about each lost lane. `earlier` are
    the runs of a resumed fleet. `done` of `total` turns are measured.
    """

    def __init__(
        self,
        cluster: Cluster,
        order: Order,
        fleet: Fleet,
        results: Path,
        watch: Callable[[str, Entry | None], None],
        tell: Callable[[str], None],
        earlier: Sequence[StoredRun] = (),
        clock: Callable[[], float] = time.monotonic,
    ):
        self._cluster, self._order, self._fleet, self._results = cluster, order, fleet, results
        self._watch, self._tell_user, self._clock, self._began = watch, tell, clock, clock()
        self._earlier = {run.header.fleet.lane: run for run in earlier if run.header.fleet is not None}
        self._looked = -math.inf
        self._lanes: dict[str, Lane] = {}
        self._states: Counter[str] = Counter()
        self._shares: dict[str, Share] = {}
        self.done = self.total = 0

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
        ended = ""
        try:
            while self._goes_on():
                for place, line in self._cluster.events(EVENT_SECONDS):
                    self._handle(self._lanes[place], line)
            self._store_lost()
            ended = "complete"
        except KeyboardInterrupt:
            ended = "interrupted"
        finally:
            self._cluster.close()
            for writer in [lane.writer for lane in self.lanes if lane.writer is not None]:
                with writer:
                    if ended:
                        writer.append(Footer(ended=ended, finished_at=now()))
        return ended

    def _goes_on(self) -> bool:
        """Open lanes on new places, lose those whose place is gone; return whether a lane is at work."""
        at = self._clock()
        if at - self._looked >= LOOK_SECONDS:
            self._looked = at
            places = self._cluster.places()
            for lane in self.lanes:
                if lane.place not in places and lane.state != LOST:
                    self._lose(lane, "its node left the cluster")
            for place, name in places.items():
                if place not in self._lanes:
                    self._lanes[place] = Lane(place, name, since=at)
                    self._states[OPENING] += 1
                    self._cluster.open(place, msgspec.json.encode(self._order))
        if not self._states[BUSY]:
            for lane in self.lanes:
                if lane.state == OPENING and at - lane.since > WAIT_SECONDS:
                    self._lose(lane, f"it did not become free within {WAIT_SECONDS:.0f} s")
        return bool(self._states[BUSY] or self._states[OPENING])

    def _handle(self, lane: Lane, line: bytes) -> None:
        """Process a line of a lane: an entry of its plan, a measured entry, or the end of a part."""
        if lane.state == LOST:
            return
        if (done := done_in(line)) is None:
            entry = lines.decode(line)[1]
            if lane.share is None:
                lane.plan.append(entry)
            else:
                self._measured(lane, lane.share, entry)
        elif done.problem:
            self._lose(lane, done.problem)
        else:
            if lane.share is None:
                self._begin(lane)
            else:
                lane.share.dealt.pop(lane.place, None)
            self._hand_out(lane)
            self._tell()

    def _begin(self, lane: Lane) -> None:
        """Begin, or continue, the run of a lane that has sent its plan."""
        header, *entries = lane.plan
        lane.plan = []
        assert isinstance(header, Header)
        kind, alone = kind_of(header.environment), self._fleet.on == EACH
        before = self._earlier.get(lane.name)
        same = (known for known in self.lanes if known.state == LOST and known.name == lane.name and known.writer)
        if (lost := next(same, None)) is not None:  # it has come back
            lane.writer, lane.listed, lane.servers, lost.writer = lost.writer, lost.listed, lost.servers, None
        elif before is not None and kind_of(before.header.environment) == kind:
            lane.writer, before = RunWriter.reopen(before.path)
            lane.listed = set(before.cases)
            lane.servers = 1 + max((known.server for known in before.rounds), default=-1)
        else:
            run = f"{new_run_id(lane.name).rpartition('-')[0]}-{self._fleet.id}"
            fleet = replace(self._fleet, lane=lane.name)
            lane.writer = RunWriter.create(self._results, replace(header, run=run, fleet=fleet))
        key = lane.name if alone else kind
        if (share := self._shares.get(key)) is None:  # the plans of a kind are equal
            cases = {entry.case_id: entry for entry in entries if isinstance(entry, Case)}
            share = self._shares[key] = Share(cases, self._order.settings.rounds, spread=not alone)
            for name, stored in self._earlier.items():
                if kind_of(stored.header.environment) == kind and (name == lane.name or not alone):
                    for entry in stored.entries():
                        share.add(entry)
            skips = [entry for entry in entries if isinstance(entry, Skip) and entry.case_id not in share.ended]
            lane.share = share
            lane.store(*skips, of=[skip.case_id for skip in skips])
            share.ended |= {skip.case_id for skip in skips}
            self.total += sum(map(share.turns_left, share.begin()))
        lane.share = share

    def _hand_out(self, lane: Lane) -> None:
        """Give a lane its next piece, if there is one; else it is idle."""
        share = lane.share
        assert share is not None
        piece: list[str] = []
        while share.left and not piece:  # a table may have ended meanwhile
            piece = share.take(lane.place, self._states.total() - self._states[LOST])
        self._enter(lane, BUSY if piece else IDLE)
        if piece:
            lane.store(of=piece)
            done = [turn for case_id in piece for turn in share.done.get(case_id, ())]
            self._cluster.ask(lane.place, msgspec.json.encode(Work(cases=piece, done=done, first_server=lane.servers)))

    def _enter(self, lane: Lane, state: str) -> None:
        self._states[lane.state] -= 1
        self._states[state] += 1
        lane.state = state

    def _measured(self, lane: Lane, share: Share, entry: Entry) -> None:
        """Store an entry that a lane measured."""
        lane.store(entry)
        if isinstance(entry, Failure | Skip):
            self.total -= share.turns_left(entry.case_id)
        else:
            self.done += not getattr(entry, "control", False)
        share.add(entry)
        if isinstance(entry, Round):
            lane.servers = max(lane.servers, entry.server + 1)
        self._tell(entry)

    def _lose(self, lane: Lane, why: str) -> None:
        """Mark a lane as lost; idle lanes of its share continue with its tables."""
        self._enter(lane, LOST)
        lane.why = why
        self._tell_user(f"{lane.name}: lost: {why}")
        if (share := lane.share) is not None:
            share.give_back(lane.place)
            for idle in self.lanes:
                if idle.share is share and idle.state == IDLE:
                    self._hand_out(idle)

    def _store_lost(self) -> None:
        """Store a failure for each case that no lane can measure any more; `NothingToRunError` if none was opened."""
        if not self._shares:
            reasons = "; ".join(f"{lane.name}: {lane.why}" for lane in self.lanes)
            raise NothingToRunError(f"no machine of the cluster can measure: {reasons or 'there is none'}")
        for lane in self.lanes:
            share = lane.share
            if share is None or lane.state != LOST or lane.writer is None:
                continue
            missing = {case_id: task for table in share.left for case_id in table if (task := share.missing(case_id))}
            message, share.left = f"{lane.name} was lost: {lane.why}", []
            failures = [
                Failure(case_id=case_id, stage=task, cause=KILLED, message=message) for case_id, task in missing.items()
            ]
            lane.store(*failures, of=missing)

    def _tell(self, entry: Entry | None = None) -> None:
        """Give the watcher the numbers of lanes and turns, the time left at the pace so far, and the entry."""
        states, left = self._states, ""
        if self.done:
            seconds = (self._clock() - self._began) * (self.total - self.done) / self.done
            left = f", about {format_duration(seconds)} left"
        lanes = [counted(states.total() - states[LOST], "lane")]
        lanes += [f"{states[state]} {state}" for state in (OPENING, LOST) if states[state]]
        self._watch(f"{', '.join(lanes)}; {self.done:,} of {self.total:,} turns{left}", entry)
