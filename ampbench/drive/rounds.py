"""The turns of a run: in which order cases are measured, how that is done, how long it will take, and its shards.

Passes of a network come before its first round; rounds are shuffled, each from a new server. Whatever happens to
workers, the next turn comes, and every result is stored at once. How long that takes is told from what stored runs took
on this machine.
"""

import hashlib
import random
import statistics
import time
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ampbench.core.units import counted
from ampbench.drive.planning import PlannedCase
from ampbench.drive.servers import ONLY, Ahead, Channel, OpenChannel, Pool
from ampbench.errors import NothingToRunError, UsageError
from ampbench.records.case import Case
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Entry, Settings, Shard
from ampbench.records.wire import DIVERGENCE, MEMORY, ROUND, Nothing, Request, RoundAsked, Task, ask
from ampbench.store import CannotBeError, StoredRun

TurnKey = tuple[str, str, int, bool]
"""What identifies a turn across sessions: its task's name, case id, round, control."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A case's turn to have a `task` done, once more for each round."""

    task: Task[Any, Any]
    planned: PlannedCase
    round: int = 0
    control: bool = False
    fresh: bool = True

    @property
    def key(self) -> TurnKey:
        """What identifies this turn across sessions."""
        return self.task.name, self.planned.case.case_id, self.round, self.control


def control_case(plan: Iterable[PlannedCase]) -> PlannedCase | None:
    """Return the cell that is measured twice: the first runnable in fp32 inference, else the first runnable."""
    runnable = [planned for planned in plan if not planned.skip]
    preferred = [p for p in runnable if p.case.precision == "fp32" and p.case.phase == "inference"]
    return next(iter(preferred or runnable), None)


def make_schedule(
    plan: list[PlannedCase], settings: Settings, done: Container[TurnKey] = (), ended: Container[str] = ()
) -> list[list[Turn]]:
    """Return the turns of `plan` that are not `done`, nor of a case that has `ended`, a list for each server.

    The first server also serves the memory and divergence passes. On a CPU those of a group of precisions come right
    before its first round, so that its table is there long before all have been looked at; on an accelerator they come
    before all rounds. Divergence passes share a worker within a group, so that one reference serves them all. Rounds
    and memory passes on a CPU each get a process of their own (torch's allocation record is exact in the first session
    of a process alone); on an accelerator one process serves a round of all cases, so that its context is paid for
    once. The order within a round is drawn from `settings.schedule_seed`: tables in random order, and the precisions of
    a table next to each other in random order, so that what disturbs the machine for some seconds disturbs all that are
    compared.
    """
    runnable = [planned for planned in plan if not planned.skip]
    control = control_case(plan)
    servers: list[list[Turn]] = []
    for number in range(settings.rounds):
        turns = _rounds(runnable, control, number, random.Random(f"{settings.schedule_seed}/{number}"))
        if number == 0:
            turns = _with_passes(turns, runnable)
        left = [turn for turn in turns if turn.key not in done and turn.planned.case.case_id not in ended]
        servers.append(with_processes(left))
    return [turns for turns in servers if turns]


def request_of(turn: Turn, settings: Settings, server: int, **asked: Any) -> Request:
    """Return the request that asks for `turn` from server number `server`, with `asked` of `RoundAsked` as given."""
    case = turn.planned.case
    place = random.Random(f"{settings.schedule_seed}/{case.case_id}/{turn.round}/{turn.control}").getrandbits(48)
    own = {
        "placement_seed": place,
        "builds": settings.builds,
        "min_run_seconds": settings.min_run_seconds,
        "round": turn.round,
        "server": server,
        "control": turn.control,
        "burst": settings.burst,
    }
    return ask(
        turn.task,
        RoundAsked(**own | asked) if turn.task == ROUND else Nothing(),
        source=turn.planned.source,
        case=case,
        fresh=turn.fresh,
        timeout_seconds=settings.timeout_seconds,
        memory_limit_bytes=settings.memory_limit_bytes,
        threads=settings.threads,
        seed=settings.seed,
    )


def passes(runnable: list[PlannedCase]) -> list[Turn]:
    """Return the memory and divergence passes of `runnable` cases, those of a group of precisions together."""
    groups: dict[tuple[str, str], list[PlannedCase]] = {}
    for planned in runnable:
        groups.setdefault((planned.case.device, planned.case.group), []).append(planned)
    turns = []
    for members in groups.values():
        ordered = sorted(members, key=lambda planned: planned.case.phase)
        turns += [Turn(task, planned) for task in (MEMORY, DIVERGENCE) for planned in ordered]
    return turns


Table = tuple[str, str, str, str]
"""What the cases have in common whose speeds are compared with each other: device, group, phase, path."""


def table_of(case: Case) -> Table:
    """Return the table that `case` is in."""
    return case.device, case.group, case.phase, case.path


def _rounds(runnable: list[PlannedCase], control: PlannedCase | None, number: int, draw: random.Random) -> list[Turn]:
    tables: dict[Table, list[Turn]] = {}
    for planned in runnable:
        table = tables.setdefault(table_of(planned.case), [])
        table.append(Turn(ROUND, planned, number))
        if planned is control:
            table.append(Turn(ROUND, planned, number, control=True))
    shuffled = list(tables.items())
    draw.shuffle(shuffled)
    shuffled.sort(key=lambda table: table[0][0])  # stable: devices apart, shuffled within
    for _, turns in shuffled:
        draw.shuffle(turns)
    return [turn for _, turns in shuffled for turn in turns]


def _with_passes(rounds: list[Turn], runnable: list[PlannedCase]) -> list[Turn]:
    """Return `rounds` with the passes of `runnable` cases: on a CPU before the first round of their group."""
    turns = passes([planned for planned in runnable if planned.case.device != "cpu"])
    groups: dict[str, list[PlannedCase]] = {}
    for planned in runnable:
        if planned.case.device == "cpu":
            groups.setdefault(planned.case.group, []).append(planned)
    for turn in rounds:
        if turn.planned.case.device == "cpu":
            turns += passes(groups.pop(turn.planned.case.group, []))
        turns.append(turn)
    return turns


def with_processes(turns: list[Turn]) -> list[Turn]:
    """Return `turns` with `fresh` set where one may not be served by the process of the turn before it."""
    before = [None, *turns]
    return [replace(turn, fresh=not _may_share(last, turn)) for last, turn in zip(before, turns, strict=False)]


def _may_share(last: Turn | None, turn: Turn) -> bool:
    if last is None or last.planned.case.device != turn.planned.case.device:
        return False
    if turn.planned.case.device == "cpu" and turn.task != DIVERGENCE:
        return False
    if turn.task == ROUND:
        return last.task == ROUND
    return last.task != ROUND and last.planned.case.group == turn.planned.case.group


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands: `turn` has just been had (`entry`) or is about to begin (None); seconds since the start."""

    turn: Turn
    done: int
    total: int
    seconds: float
    entry: Entry | None = None


Watch = Callable[[Progress], None]


def drive(
    servers: list[list[Turn]],
    settings: Settings,
    open_channel: OpenChannel,
    write: Callable[[Entry], None],
    watch: Watch,
    first_server: int = 0,
    clock: Callable[[], float] = time.monotonic,
    together: int = 1,
    begun: Iterable[Channel] = (),
) -> str:
    """Do the turns of `servers`, each list from a newly opened channel, and return how it ended.

    At most so many servers start `together`, none while anything is done (`Ahead`); those `begun` come first. `write`
    gets every entry as soon as it is known. A case that failed is not asked for again; what remains of it counts as
    done. What a killed worker leaves unanswered is asked once more, as `Pool` does. The end is "complete", or "out of
    time" once `settings.max_seconds` have passed before a turn begins. KeyboardInterrupt passes on, the channels
    closed.
    """
    started = clock()
    total, done = sum(map(len, servers)), 0
    failed: set[str] = set()
    with Ahead(open_channel, together, begun) as ahead:
        for number, turns in enumerate(servers):
            ahead.expect(len(servers) - number)
            with Pool({ONLY: ahead.open}) as pool:
                for turn in turns:
                    case_id = turn.planned.case.case_id
                    if case_id in failed:
                        done += 1
                        continue
                    elapsed = clock() - started
                    if settings.max_seconds is not None and elapsed > settings.max_seconds:
                        return "out of time"
                    watch(Progress(turn, done, total, elapsed))
                    ahead.settle()
                    reply = pool.serve(request_of(turn, settings, first_server + number))
                    entry = kept(write, turn.task.outcome(reply, turn.planned.case))
                    if isinstance(entry, Failure | Skip):
                        failed.add(case_id)
                    done += 1
                    watch(Progress(turn, done, total, clock() - started, entry))
    return "complete"


def kept(write: Callable[[Entry], None], entry: Entry) -> Entry:
    """Write `entry`, or that its case failed where a number in it cannot be, and return what was written."""
    try:
        write(entry)
    except CannotBeError as error:
        stages = [task.name for task in (MEMORY, DIVERGENCE, ROUND) if isinstance(entry, task.gives)]
        if not stages:
            raise
        entry = error.failure(getattr(entry, "case_id", ""), stages[0])
        write(entry)
    return entry


OVERHEAD_SECONDS = 0.15
"""What a round or pass costs beyond the case's own work: a fork and its builds (benchmarks/self)."""
SERVER_SECONDS = 3.0
"""What starting a server costs: importing torch and torchvision."""

WARMED = 1.5
"""A round takes so many times its timing budget, warm-up included, at most half as long again (`measure.timing`)."""
WARM_SECONDS, HALF_WINDOW_SECONDS = 2.0, 0.5
"""An accelerator is warmed for two windows of a second at least, before each further build for half a window."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds a session will take; `known` of `cases` cases were measured on this machine before."""

    seconds: float
    known: int
    cases: int


def estimate(servers: list[list[Turn]], settings: Settings, stored: Iterable[StoredRun]) -> Estimate:
    """Return how long the turns of `servers` will take.

    A round of a case takes what its rounds took in `stored` runs (of this host, newest last), with their settings; a
    case never measured here is assumed to need no more than its timing budget and its warm-up (`WARMED`). A pass is
    taken to cost as much as a round without its timing.
    """
    seen = seconds_seen(stored)
    turns = [turn for turns in servers for turn in turns]
    ids = {turn.planned.case.case_id for turn in turns}
    total = SERVER_SECONDS * len(servers) + sum(turn_seconds(turn, settings, seen) for turn in turns)
    return Estimate(seconds=total, known=len(ids & set(seen)), cases=len(ids))


def seconds_seen(stored: Iterable[StoredRun]) -> dict[str, float]:
    """Return what a round of each case took in the last of the `stored` runs that measured it."""
    seen: dict[str, float] = {}
    for run in stored:
        rounds: dict[str, list[float]] = {}
        for each in run.rounds:
            rounds.setdefault(each.case_id, []).append(each.seconds)
        seen |= {case_id: statistics.median(seconds) for case_id, seconds in rounds.items()}
    return seen


def turn_seconds(turn: Turn, settings: Settings, seen: Mapping[str, float]) -> float:
    """Return how long a turn will take, as `estimate` says."""
    unseen = WARMED * settings.min_run_seconds
    timing = settings.min_run_seconds if turn.task != ROUND else 0.0
    if turn.planned.case.device != "cpu" and not settings.burst:  # windows of a second, as `measure.timing` has them
        timed = max(1.0, settings.min_run_seconds / settings.builds) * settings.builds
        unseen = WARM_SECONDS + timed + HALF_WINDOW_SECONDS * (settings.builds - 1)
        timing = unseen if turn.task != ROUND else 0.0
    round_seconds = seen.get(turn.planned.case.case_id, unseen)
    return OVERHEAD_SECONDS + max(0.0, round_seconds - timing)


Part = tuple[int, int]
"""The number of a shard, from 1, and how many there are."""
MOST = 100_000
T = TypeVar("T", bound=Hashable)


def parse_shard(text: str) -> Part:
    """Return what `2/5` stands for; `UsageError` for anything else, and for a shard beyond the last."""
    number, slash, count = text.partition("/")
    if not (slash and number.strip().isdecimal() and count.strip().isdecimal()):
        raise UsageError(f"--shard {text!r}: expected I/N, as in --shard 2/5, the second of five")
    part = int(number), int(count)
    if not 1 <= part[0] <= part[1] <= MOST:
        raise UsageError(f"--shard {text}: the first of N shards is 1, the last is N, and N is {MOST:,} at most")
    return part


def take_shard(
    plan: Sequence[PlannedCase], settings: Settings, part: Part, stored: Iterable[StoredRun]
) -> tuple[list[PlannedCase], Shard]:
    """Return the cases of `plan` that are measured by one of several, and which these are: `--shard I/N`.

    Each shard makes the whole plan; all agree on the parts, because what they are made of is the same for all: the
    plan, and what was measured before.
    Tables stay whole, for speeds are compared within them. Each shard is meant to take as long as the others, by what
    rounds took in the `stored` runs: those of whole plans, so that what other shards measure meanwhile changes nothing.
    Tables without a case that can run are in the first. Raises `NothingToRunError` for a shard without work.
    """
    number, count = part
    seen = seconds_seen(run for run in stored if run.header.shard is None)
    seconds = {table_of(planned.case): 0.0 for planned in plan if not planned.skip}
    for turns in make_schedule(list(plan), settings):
        for turn in turns:
            seconds[table_of(turn.planned.case)] += turn_seconds(turn, settings, seen)
    parts = shared_out(seconds, count)
    parts[0] |= {table_of(planned.case) for planned in plan} - set(seconds)
    places = [place for place, planned in enumerate(plan) if table_of(planned.case) in parts[number - 1]]
    if not places:
        raise NothingToRunError(
            f"shard {number} of {count} has nothing to do: the selection has {counted(len(seconds), 'table')}, and a "
            "table is measured by one shard"
        )
    shard = Shard(number=number, count=count, plan=digest_of(plan), cases=len(plan), places=places)
    return [plan[place] for place in places], shard


def digest_of(plan: Iterable[PlannedCase]) -> str:
    """Return what tells plans apart: the digest of the ids of their cases, in order, and of what is skipped."""
    told = "\n".join(f"{planned.case.case_id} {planned.skip}" for planned in plan)
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()


def shared_out(seconds: Mapping[T, float], count: int) -> list[set[T]]:
    """Return `count` parts of items that take `seconds` each; the parts take about the same time.

    The longest comes first, and each goes to the part that is the shortest so far: the longest part is at most 4/3 of
    what it would be at best (Graham 1969, Bounds on multiprocessing timing anomalies).
    """
    parts: list[set[T]] = [set() for _ in range(count)]
    lengths = [0.0] * count
    for one in sorted(seconds, key=lambda one: -seconds[one]):  # stable: as they are planned
        shortest = lengths.index(min(lengths))
        parts[shortest].add(one)
        lengths[shortest] += seconds[one]
    return parts
