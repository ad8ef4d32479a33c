"""A fleet's session: lanes are opened as they appear, told what to measure, and what they say is stored at once.

How lanes are reached is a `Cluster`'s matter (`fleet.on_ray`); what they are told is decided here. One thread does it
all: it waits for the next events, stores what they say, and hands out what is to be measured next.
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
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from ampbench.drive.rounds import SERVER_SECONDS, TurnKey, kept
from ampbench.drive.session import now
from ampbench.errors import NothingToRunError
from ampbench.fleet.node import Order, Work, done_in
from ampbench.records.case import Case, Table, kind_of, table_of
from ampbench.records.measured import KILLED, Divergence, Failure, MemoryPass, Round, Skip
from ampbench.records.run import EACH, Entry, Fleet, Footer, Header
from ampbench.records.wire import DIVERGENCE, MEMORY, ROUND
from ampbench.store import RunWriter, StoredRun, lines, new_run_id

LOOK_SECONDS = 5.0
"""How often the cluster is asked which nodes there are."""
WAIT_SECONDS = 120.0
"""How long a lane is waited for that is not free, once all others are done."""
EVENT_SECONDS = 1.0


OVERHEAD_SHARE = 0.05
"""A piece is meant to be so long that starting its servers takes no more of it."""


@dataclass(slots=True)
class Deal:
    """The tables that lanes of one kind share, or a lane has to itself: what is left, who does what, how fast.

    Pieces become smaller as less is left, as in guided self-scheduling (Polychronopoulos & Kuck 1987): half of what
    would be a lane's equal part, so that lanes of different speed end together, but no less than what starting its
    servers is worth, unless that would leave another lane without. A table that a lost lane had begun comes first.
    """

    rounds: int
    shared: bool = True
    tables: dict[Table, list[str]] = field(default_factory=dict)
    left: list[Table] = field(default_factory=list)
    dealt: dict[str, list[Table]] = field(default_factory=dict)
    seconds: float = 0.0
    done: int = 0

    @classmethod
    def of(cls, cases: Iterable[Case], rounds: int, *, shared: bool) -> "Deal":
        """Return the work items of all `cases`, each measured in `rounds`; a case that is not `shared` is one item."""
        deal = cls(rounds, shared)
        for case in cases:
            deal.tables.setdefault(table_of(case), []).append(case.case_id)
        deal.left = list(deal.tables)
        return deal

    def take(self, lane: str, lanes: int) -> list[str]:
        """Return the ids of the cases of the next work item, for one of `lanes` lanes; none when all are done."""
        if not self.left:
            return []
        equal = math.ceil(len(self.left) / max(lanes, 1))
        guided = math.ceil(len(self.left) / (2 * max(lanes, 1)))
        count = min(max(guided, self._least()), equal) if self.shared else len(self.left)
        self.dealt[lane], self.left = self.left[:count], self.left[count:]
        return [case_id for table in self.dealt[lane] for case_id in self.tables[table]]

    def finish(self, lane: str, seconds: float) -> None:
        """Record that `lane` finished its work item in `seconds`."""
        self.done += len(self.dealt.pop(lane, ()))
        self.seconds += seconds

    def give_back(self, lane: str, is_finished: Callable[[str], bool]) -> None:
        """Put what a lost lane had begun before what is left, but for tables of which every case is finished."""
        begun = self.dealt.pop(lane, [])
        again = [table for table in begun if not all(map(is_finished, self.tables[table]))]
        self.done += len(begun) - len(again)
        self.left = again + self.left

    @property
    def cases_left(self) -> list[str]:
        """The ids of the cases that nobody has."""
        return [case_id for table in self.left for case_id in self.tables[table]]

    def _least(self) -> int:
        """Return how many tables are worth starting servers for, by how long those done took."""
        if not self.done:
            return 1
        worth = self.rounds * SERVER_SECONDS / OVERHEAD_SHARE
        return math.ceil(worth * self.done / max(self.seconds, 1e-3))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a lane can be: a node of the cluster; `name` is what people call it."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a lane says, a line, or `lost`: why it is no more."""

    place: str
    line: bytes = b""
    lost: str = ""


class Cluster(Protocol):
    """Machines that lanes can be opened on. No call waits for them, but `events` for as long as it is told."""

    def places(self) -> list[Place]:
        """Return where lanes can be now, whether they are free or not."""

    def open(self, place: Place, order: bytes) -> None:
        """Have a lane opened as soon as its place is free, and give it an order."""

    def ask(self, place: str, work: bytes) -> None:
        """Give a lane a piece of work."""

    def events(self, seconds: float) -> list[Event]:
        """Return what lanes say, as soon as one does, or nothing after so many seconds."""

    def close(self) -> None:
        """End all lanes."""


OPENING, IDLE, BUSY, LOST = "opening", "idle", "busy", "lost"


@dataclass(slots=True)
class Lane:
    """A lane: where it is, what it does since when, and why it was lost; what its run is of once it is opened."""

    place: Place
    state: str = OPENING
    since: float = 0.0
    why: str = ""
    header: Header | None = None
    offer: str = ""
    share: "Share | None" = None
    writer: RunWriter | None = None
    listed: set[str] = field(default_factory=set)
    servers: int = 0


@dataclass(slots=True)
class Plan:
    """The cases that lanes with this plan measure, by their ids, and which of them not; the lane `teller` tells it."""

    cases: dict[str, Case] = field(default_factory=dict)
    skips: list[Skip] = field(default_factory=list)
    teller: str = ""
    told: bool = False


@dataclass(slots=True)
class Share:
    """What so many `lanes` of a kind share, or one has to itself: who does what, and what is known of each case."""

    plan: Plan
    deal: Deal
    rounds: int
    lanes: int = 0
    done: dict[str, set[TurnKey]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)

    def add(self, entry: Entry) -> None:
        """Note an entry that is stored."""
        if isinstance(entry, Round) and not entry.confirmation:
            self._did(ROUND.name, entry.case_id, entry.round, entry.control)
        elif isinstance(entry, MemoryPass):
            self._did(MEMORY.name, entry.case_id)
        elif isinstance(entry, Divergence):
            self._did(DIVERGENCE.name, entry.case_id)
        elif isinstance(entry, Skip) or (isinstance(entry, Failure) and entry.final):
            self.ended.add(entry.case_id)

    def missing(self, case_id: str) -> str:
        """Return the task of the first turn that a case lacks; "" where it lacks none, or nothing comes of it."""
        if case_id in self.ended:
            return ""
        wanted = [(MEMORY.name, 0), (DIVERGENCE.name, 0), *((ROUND.name, number) for number in range(self.rounds))]
        done = self.done.get(case_id, set())
        return next((task for task, number in wanted if (task, case_id, number, False) not in done), "")

    def turns_left(self, case_id: str) -> int:
        """Return how many turns of a case are not done, the control's apart."""
        return 2 + self.rounds - sum(not control for *_, control in self.done.get(case_id, ()))

    def _did(self, task: str, case_id: str, number: int = 0, control: bool = False) -> None:
        self.done.setdefault(case_id, set()).add((task, case_id, number, control))


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a fleet stands: how many lanes are in each state, and how many turns are done of how many, since when.

    `lane` is the one that said something last, `entry` what it measured.
    """

    lane: Lane
    states: Mapping[str, int]
    done: int
    total: int
    seconds: float
    entry: Entry | None = None

    @property
    def left(self) -> float | None:
        """The seconds left at the pace so far; None as long as that is not known."""
        return None if not self.done else self.seconds * (self.total - self.done) / self.done


class FleetSession:
    """Measures the cases of an order on the lanes of a cluster, and stores a run for each of them.

    `earlier` are the runs of the fleet that is resumed.
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
        self._rounds = order.settings.rounds
        self._looked = -LOOK_SECONDS
        self._lanes: dict[str, Lane] = {}
        self._states: Counter[str] = Counter()
        self._free: dict[str, Lane] = {}
        self._plans: dict[str, Plan] = {}
        self._shares: dict[str, Share] = {}
        self._done = self._total = 0

    @property
    def lanes(self) -> Collection[Lane]:
        """The lanes that there were, in the order in which they appeared."""
        return self._lanes.values()

    @property
    def left(self) -> int:
        """How many cases are not measured that could be, a case for each machine that is to measure it."""
        shares = self._shares.values()
        return sum(bool(share.missing(case_id)) for share in shares for case_id in share.plan.cases)

    def run(self) -> str:
        """Measure until nothing is left that a lane could do; return how it ended, as a session does.

        Raises `NothingToRunError` where no lane could be opened, `StoreError` where nothing more can be stored: what
        came before is. An interruption ends all lanes.
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
        """Look for lanes, hand out work; return whether anything is being done or waited for."""
        now_ = self._clock()
        if now_ - self._began - self._looked >= LOOK_SECONDS:
            self._looked = now_ - self._began
            self._look()
        while self._free:
            self._hand_out(self._free.pop(next(iter(self._free))))
        if not self._states[BUSY]:
            for lane in self.lanes:
                if lane.state == OPENING and now_ - lane.since > WAIT_SECONDS:
                    self._lose(lane, f"it did not become free within {WAIT_SECONDS:.0f} s")
        return bool(self._states[BUSY] or self._states[OPENING] or self._free)

    def _look(self) -> None:
        """Open lanes where there are new places, and lose those whose place is gone."""
        places = {place.id: place for place in self._cluster.places()}
        for lane in self.lanes:
            if lane.place.id not in places and lane.state != LOST:
                self._lose(lane, "its node left the cluster")
        for place in places.values():
            if place.id not in self._lanes:
                self._lanes[place.id] = Lane(place, since=self._clock())
                self._states[OPENING] += 1
                self._cluster.open(place, msgspec.json.encode(self._order))

    def _handle(self, lane: Lane, event: Event) -> None:
        """Take in what a lane says."""
        if lane.state == LOST:
            return
        if event.lost:
            self._lose(lane, event.lost)
            return
        done = done_in(event.line)
        if done is None:
            entry = lines.decode(event.line)[1]
            if lane.state == BUSY:
                self._measured(lane, entry)
            else:
                self._offered(lane, entry)
        elif done.problem:
            self._lose(lane, done.problem)
        elif lane.state == BUSY:
            assert lane.share is not None
            lane.share.deal.finish(lane.place.id, self._clock() - lane.since)
            self._enter(lane, IDLE)
        elif done.plan:
            lane.offer = done.plan
            self._open_offering(lane.offer)
        else:
            self._plans[lane.offer].told = True
            self._open_offering(lane.offer)
        self._tell(lane)

    def _open_offering(self, offer: str) -> None:
        """Open the lanes that offer to measure a plan, once one of them has told it."""
        plan = self._plans.setdefault(offer, Plan())
        for lane in self.lanes:
            if lane.state == OPENING and lane.offer == offer:
                if plan.told:
                    self._opened(lane, plan)
                elif not plan.teller:
                    plan.teller = lane.place.id
                    self._cluster.ask(lane.place.id, msgspec.json.encode(Work(plan=True)))

    def _offered(self, lane: Lane, entry: Any) -> None:
        """Keep what a lane says of itself before it measures."""
        if isinstance(entry, Header):
            lane.header = entry
        elif isinstance(entry, Case):
            self._plans[lane.offer].cases[entry.case_id] = entry
        elif isinstance(entry, Skip):
            self._plans[lane.offer].skips.append(entry)

    def _opened(self, lane: Lane, plan: Plan) -> None:
        """Begin, or go on with, the run of a lane that has said what it is."""
        assert lane.header is not None
        kind = kind_of(lane.header.environment)
        before = self._earlier.get(lane.place.name)
        same = (one for one in self.lanes if one.state == LOST and one.place.name == lane.place.name and one.writer)
        if (lost := next(same, None)) is not None:  # it has come back
            lane.writer, lane.listed, lane.servers, lost.writer = lost.writer, lost.listed, lost.servers, None
        elif before is not None and kind_of(before.header.environment) == kind:
            lane.writer, before = RunWriter.reopen(before.path)
            lane.listed = set(before.cases)
            lane.servers = 1 + max((each.server for each in before.rounds), default=-1)
        else:
            started = new_run_id(lane.place.name).rpartition("-")[0]
            fleet = replace(self._fleet, lane=lane.place.name)
            lane.writer = RunWriter.create(
                self._results, replace(lane.header, run=f"{started}-{self._fleet.id}", fleet=fleet)
            )
        own = self._fleet.on == EACH
        key = lane.place.name if own else kind
        if key not in self._shares:
            self._shares[key] = self._share(lane, plan, kind, own=own)
        lane.share = self._shares[key]
        lane.share.lanes += 1
        self._enter(lane, IDLE)

    def _enter(self, lane: Lane, state: str) -> None:
        """Have a lane in another state; one that is idle is given work, if there is any."""
        self._states[lane.state] -= 1
        self._states[state] += 1
        lane.state = state
        if state == IDLE:
            self._free[lane.place.id] = lane
        else:
            self._free.pop(lane.place.id, None)

    def _share(self, lane: Lane, plan: Plan, kind: str, *, own: bool) -> Share:
        """Return what is to be measured of a plan, by a lane of its `own` or by all of a `kind`; store what is not."""
        assert lane.writer is not None
        share = Share(plan, Deal(self._rounds), self._rounds)
        for name, run in self._earlier.items():
            if kind_of(run.header.environment) == kind and (name == lane.place.name or not own):
                for entry in chain(run.rounds, *(found.values() for found in by_case(run))):
                    share.add(entry)
        skips = [skip for skip in plan.skips if skip.case_id not in share.ended]
        self._list(lane, plan, [skip.case_id for skip in skips])
        lane.writer.append(*skips)
        share.ended |= {skip.case_id for skip in skips}
        left = [case for case in plan.cases.values() if share.missing(case.case_id)]
        share.deal = Deal.of(left, self._rounds, shared=not own)
        self._total += sum(share.turns_left(case.case_id) for case in left)
        return share

    def _hand_out(self, lane: Lane) -> None:
        """Give a lane that is free its next piece, if anything is left."""
        share = lane.share
        assert share is not None
        if not share.deal.left:
            return
        piece = [one for one in share.deal.take(lane.place.id, share.lanes) if one not in share.ended]
        self._list(lane, share.plan, piece)
        done = [turn for case_id in piece for turn in share.done.get(case_id, ())]
        work = Work(cases=piece, done=done, first_server=lane.servers)
        lane.since = self._clock()
        self._enter(lane, BUSY)
        self._cluster.ask(lane.place.id, msgspec.json.encode(work))

    def _measured(self, lane: Lane, entry: Any) -> None:
        """Store what a lane measured."""
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
        """Take note that a lane is no more; what it had begun, others of its share go on with."""
        self._enter(lane, LOST)
        lane.why = why
        if lane.share is not None:
            share = lane.share
            share.lanes -= 1
            self._free |= {one.place.id: one for one in self.lanes if one.share is share and one.state == IDLE}
            share.deal.give_back(lane.place.id, lambda case_id: not share.missing(case_id))
        elif lane.offer and self._plans[lane.offer].teller == lane.place.id and not self._plans[lane.offer].told:
            self._plans[lane.offer] = Plan()
            self._open_offering(lane.offer)
        self._tell(lane)

    def _finish(self) -> None:
        """Say of each case that nobody can measure any more why."""
        opened = [lane for lane in self.lanes if lane.share is not None]
        if not opened:
            reasons = "; ".join(f"{lane.place.name}: {lane.why}" for lane in self.lanes)
            raise NothingToRunError(f"no machine of the cluster can measure: {reasons or 'there is none'}")
        for share in self._shares.values():
            lost = next((one for one in opened if one.share is share and one.state == LOST and one.writer), None)
            cases = {case_id: stage for case_id in share.deal.cases_left if (stage := share.missing(case_id))}
            if lost is not None and lost.writer is not None and cases:
                self._list(lost, share.plan, cases)
                message = f"{lost.place.name} was lost: {lost.why}"
                lost.writer.append(
                    *(
                        Failure(case_id=case_id, stage=stage, cause=KILLED, message=message)
                        for case_id, stage in cases.items()
                    )
                )

    def _list(self, lane: Lane, plan: Plan, case_ids: Iterable[str]) -> None:
        """Make sure that the run of a lane lists these cases."""
        assert lane.writer is not None
        new = [case_id for case_id in case_ids if case_id not in lane.listed]
        lane.writer.append(*(plan.cases[case_id] for case_id in new))
        lane.listed.update(new)

    def _tell(self, lane: Lane, entry: Entry | None = None) -> None:
        self._watch(Progress(lane, self._states, self._done, self._total, self._clock() - self._began, entry))


def open_files() -> None:
    """Let this process have as many files open as it may: a lane has one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def by_case(run: StoredRun) -> list[Mapping[str, Entry]]:
    """Return what a run holds of its cases beside rounds."""
    return [run.memory, run.divergence, run.failures, run.skips]
