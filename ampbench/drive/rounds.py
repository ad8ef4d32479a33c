"""The turns of a run: their order, how they are done, their estimated time, and the shards of a run.

Networks are measured one after the other, each within its budget: passes, then rounds in random order, each by another
server. A failing worker does not stop the run, and every result is stored at once.
"""

import hashlib
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from msgspec import structs

from ampbench.core.precisions import PRECISIONS
from ampbench.core.units import counted
from ampbench.drive.planning import PlannedCase
from ampbench.drive.servers import Ahead, Channel, OpenChannel, Pool
from ampbench.errors import NothingToRunError, UsageError
from ampbench.records.case import Table, table_of
from ampbench.records.measured import (
    NO_ROOM_OR_TIME,
    Divergence,
    Failure,
    GradientDivergence,
    Late,
    OutputDivergence,
    ReferenceStep,
    Skip,
    Stop,
)
from ampbench.records.run import Entry, Settings, Shard
from ampbench.records.wire import DIVERGENCE, LATE, MEMORY, REST, ROUND, Nothing, Reply, Request, RoundAsked, Task, ask
from ampbench.store import CannotBeError

TurnKey = tuple[str, str, int, bool]
"""The identity of a turn across sessions: its task's name, case id, round, control."""
_TASKS: Mapping[type[Entry], str] = {task.gives: task.name for task in (MEMORY, DIVERGENCE, LATE, ROUND)}


def turn_of(entry: Any) -> TurnKey | None:
    """Return the turn that an entry records; None for any other line of a run."""
    if (task := _TASKS.get(type(entry))) is None:
        return None
    return task, entry.case_id, getattr(entry, "round", 0), getattr(entry, "control", False)


@dataclass(frozen=True, slots=True)
class Turn:
    """A case's turn for a `task`, again in each round."""

    task: Task[Any, Any]
    planned: PlannedCase
    round: int = 0
    control: bool = False
    fresh: bool = True

    @property
    def key(self) -> TurnKey:
        """The identity of this turn across sessions."""
        return self.task.name, self.planned.case.case_id, self.round, self.control


def control_case(plan: Iterable[PlannedCase]) -> PlannedCase | None:
    """Return the cell that is measured twice: the first timed one in fp32 inference, else the first timed one."""
    runnable = timed(plan)
    preferred = [p for p in runnable if p.case.precision == "fp32" and p.case.phase == "inference"]
    return next(iter(preferred or runnable), None)


def timed(plan: Iterable[PlannedCase]) -> list[PlannedCase]:
    """Return the runnable cases that are timed: those whose precision is not emulated."""
    return [planned for planned in plan if not planned.skip and not PRECISIONS[planned.case.precision].emulated]


Schedule = list[list[list[Turn]]]
"""The turns of each round of each leg: a network or, on an accelerator, a part of its rounds."""
FIRST_SUSTAINED = 3
"""Sustained rounds of a network before the next network's: with fewer, a speedup has no interval."""


def make_schedule(
    plan: list[PlannedCase], settings: Settings, done: Collection[TurnKey] = (), ended: Container[str] = ()
) -> Schedule:
    """Return the turns of `plan` that are not `done`, nor of a case that has `ended`, a list for each round.

    Networks come one after the other. Memory and divergence passes precede a network's first round; divergence passes
    share a worker, so that one reference serves them all. Rounds and memory passes on a CPU each get a process of
    their own (torch's allocation record is exact in the first session of a process alone); on an accelerator one
    process serves all rounds of a server, because a new one would pay for a new device context. Cases that are compared
    with each other (device, phase, group, path) are measured next to each other in every round, in random order; the
    control (`control_case`) is measured twice in every round. Where an accelerator is measured, every network has its
    first round, a burst, before any has another.
    """
    control = control_case(plan)
    networks = []
    for cases in networks_of(plan):
        rounds = []
        most = settings.rounds
        if settings.budget_seconds is not None:
            ids = {planned.case.case_id for planned in cases}
            begun = [number for task, case_id, number, _ in done if task == ROUND.name and case_id in ids]
            shortest = settings.min_run_seconds if cases[0].case.device == "cpu" else WINDOW_SECONDS
            fitting = min(most, 1 + int(settings.budget_seconds / (shortest * len(cases))))
            most = 1 + max(begun) if begun and not is_accelerated(cases) else fitting
        for number in range(most):
            draw = random.Random(f"{settings.schedule_seed}/{cases[0].case.network}/{number}")
            turns = [*(passes(cases) if number == 0 else ()), *_round(cases, control, number, draw)]
            left = [turn for turn in turns if turn.key not in done and turn.planned.case.case_id not in ended]
            rounds.append(with_processes(left))
        networks.append(rounds)
    if is_accelerated(plan):
        most = max(map(len, networks), default=0)
        spans = [(0, 1), (1, 1 + FIRST_SUSTAINED), *((first, first + 1) for first in range(1 + FIRST_SUSTAINED, most))]
        networks = [rounds[first:last] for first, last in spans for rounds in networks]
    legs = [[turns for turns in rounds if turns] for rounds in networks]
    return [rounds for rounds in legs if rounds]


def is_accelerated(plan: Iterable[PlannedCase]) -> bool:
    """Return whether a runnable case of `plan` is measured on an accelerator."""
    return any(planned.case.device != "cpu" and not planned.skip for planned in plan)


def networks_of(plan: Iterable[PlannedCase]) -> list[list[PlannedCase]]:
    """Return the runnable cases of each network on each device, with every recipe, in the order of the plan."""
    networks: dict[tuple[str, str], list[PlannedCase]] = {}
    for planned in plan:
        if not planned.skip:
            networks.setdefault((planned.case.device, planned.case.network), []).append(planned)
    return list(networks.values())


def budgeted(settings: Settings, plan: Iterable[PlannedCase]) -> Settings:
    """Return `settings` with the device's default budget in place of 0 seconds."""
    seconds = ACCELERATOR_SECONDS if is_accelerated(plan) else CPU_SECONDS
    return settings if settings.budget_seconds != 0 else structs.replace(settings, budget_seconds=seconds)


def is_burst(turn: Turn) -> bool:
    """Return whether a turn is a first round on an accelerator, which is timed for tenths of a second."""
    return turn.task == ROUND and turn.round == 0 and turn.planned.case.device != "cpu"


def request_of(turn: Turn, settings: Settings, server: int, **asked: Any) -> Request:
    """Return the request for `turn` to server number `server`; `asked` overrides fields of `RoundAsked`."""
    case = turn.planned.case
    place = random.Random(f"{settings.schedule_seed}/{case.case_id}/{turn.round}/{turn.control}").getrandbits(48)
    fields = {
        "placement_seed": place,
        "builds": settings.builds if case.device == "cpu" else 1,  # a device's allocator places a build
        "min_run_seconds": settings.min_run_seconds,
        "round": turn.round,
        "server": server,
        "control": turn.control,
    }
    return ask(
        turn.task,
        RoundAsked(**fields | asked) if turn.task == ROUND else Nothing(),
        source=turn.planned.source,
        case=case,
        fresh=turn.fresh,
        timeout_seconds=settings.timeout_seconds,
        memory_limit_bytes=settings.memory_limit_bytes,
        threads=settings.threads,
        seed=settings.seed,
    )


def passes(cases: Iterable[PlannedCase]) -> list[Turn]:
    """Return the memory and divergence passes of a network's `cases`; a group's late ones follow its first ones."""

    def place(turn: Turn) -> tuple[bool, str, str]:
        return turn.task != MEMORY, turn.planned.case.phase, turn.planned.case.group

    every = list(cases)
    trained = [planned for planned in every if planned.case.phase == "training" and planned.optimizer]
    tasks = ((MEMORY, timed(every)), (DIVERGENCE, every), (LATE, trained))
    return sorted((Turn(task, planned) for task, members in tasks for planned in members), key=place)


def _round(cases: Iterable[PlannedCase], control: PlannedCase | None, number: int, draw: random.Random) -> list[Turn]:
    tables: dict[Table, list[Turn]] = {}
    for planned in timed(cases):
        table = tables.setdefault(table_of(planned.case), [])
        table.append(Turn(ROUND, planned, number))
        if planned is control:
            table.append(Turn(ROUND, planned, number, control=True))
    shuffled = list(tables.values())
    draw.shuffle(shuffled)
    for turns in shuffled:
        draw.shuffle(turns)
    return [turn for turns in shuffled for turn in turns]


def with_processes(turns: list[Turn]) -> list[Turn]:
    """Return `turns` with `fresh` set where the process of the turn before may not be shared."""

    def shares(last: Turn | None, turn: Turn) -> bool:
        if last is None or last.planned.case.device != turn.planned.case.device:
            return False
        if turn.planned.case.device == "cpu" and turn.task not in (DIVERGENCE, LATE):
            return False
        same_group = turn.task == ROUND or last.planned.case.group == turn.planned.case.group
        return same_group and (turn.task == ROUND) == (last.task == ROUND)

    return [replace(turn, fresh=not shares(last, turn)) for last, turn in zip([None, *turns], turns, strict=False)]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run: `turn` has just ended with `entry`, or is about to begin (None).

    `leg` is the number of its leg in the schedule, `done` the number of the leg's finished turns, and `spent` the
    seconds since the leg or, on an accelerator, the run began.
    """

    turn: Turn
    leg: int
    done: int
    spent: float
    entry: Entry | None = None


Watch = Callable[[Progress], None]
OpenCases = Callable[[], Container[str]]
"""Returns the ids of the cases of the tables in which a speedup is still undecided."""


def drive(
    schedule: Schedule,
    settings: Settings,
    open_channel: OpenChannel,
    write: Callable[[Entry], None],
    watch: Watch,
    first_server: int = 0,
    clock: Callable[[], float] = time.monotonic,
    together: int = 1,
    begun: Iterable[Channel] = (),
    undecided: OpenCases | None = None,
) -> None:
    """Do the turns of `schedule`, leg by leg, each round of a leg by another server.

    The first `SHARED` servers serve a round of every leg; further ones end with their round. A leg ends when another
    round as long as its longest would exceed `settings.budget_seconds`, but has at least one. On an accelerator all
    legs share the budget; a first round of every network is always measured, and the later ones only of cases that are
    `undecided`, if the budget ends them.

    At most `together` servers start at once, and nothing else runs meanwhile (`Ahead`); those `begun` come first.
    `write` gets every entry at once. A case that failed is not measured again; its remaining turns count as done.
    `Pool` repeats the request of a killed worker. KeyboardInterrupt passes on, the channels closed.
    """
    shared = SHARED if settings.isolation else 0
    accelerated = is_accelerated(turn.planned for rounds in schedule for turns in rounds for turn in turns)
    budget, began = settings.budget_seconds or math.inf, clock()
    further = itertools.count(shared)
    lanes = map(str, range(shared + sum(map(len, schedule))))
    failed: set[str] = set()
    opened: set[int] = set()
    with Ahead(open_channel, together, begun) as ahead, Pool(dict.fromkeys(lanes, ahead.open)) as pool:
        for leg, rounds in enumerate(schedule):
            began = began if accelerated else clock()
            done, longest = 0, 0.0
            for place, turns in enumerate(rounds):
                number, open_turns = turns[0].round if accelerated else place, turns
                if number and accelerated and undecided is not None and settings.budget_seconds:
                    wanted = undecided()
                    open_turns = with_processes([turn for turn in turns if turn.planned.case.case_id in wanted])
                    longest = sum(turn_seconds(turn, settings) for turn in open_turns)
                if not open_turns or (number and clock() - began + longest > budget):
                    break
                server = number if number < shared else next(further)
                if server not in opened:
                    opened.add(server)
                    ahead.expect(len(rounds) - place)
                timing = clock()
                for turn in open_turns:
                    if turn.planned.case.case_id not in failed:
                        watch(Progress(turn, leg, done, clock() - began))
                        ahead.settle()
                        request = request_of(turn, settings, first_server + server, burst=is_burst(turn))
                        entry = kept(write, outcome_of(turn, pool.serve(request, str(server))))
                        if isinstance(entry, Failure | Skip):
                            failed.add(turn.planned.case.case_id)
                        watch(Progress(turn, leg, done + 1, clock() - began, entry))
                    done += 1
                    if turn.task != ROUND:
                        timing = clock()
                longest = max(longest, clock() - timing)
                if server >= shared or leg == len(schedule) - 1:
                    pool.close(str(server))
                else:  # free its last worker's memory for the next network
                    pool.serve(ask(REST, Nothing()), str(server))


def outcome_of(turn: Turn, reply: Reply) -> Entry:
    """Return the record of a turn; a divergence pass without room or time has undefined errors, with the reason.

    Such a case continues with its rounds, as does one whose late pass failed.
    """
    case = turn.planned.case
    outcome: Entry = turn.task.outcome(reply, case)
    if turn.task == LATE and isinstance(outcome, Failure) and outcome.final:
        return Late(case_id=case.case_id, stop=Stop.FAILED, undefined=outcome.said)
    if turn.task != DIVERGENCE or not isinstance(outcome, Failure) or outcome.cause not in NO_ROOM_OR_TIME:
        return outcome
    undefined = f"no reference: {outcome.said}"
    return Divergence(
        case_id=case.case_id,
        weights_digest="",
        inputs_digest="",
        reference=ReferenceStep(device=case.device, dtype="", error=outcome.said),
        output=OutputDivergence(undefined=undefined),
        gradient=GradientDivergence(undefined=undefined if case.phase == "training" else ""),
        notes=[undefined],
    )


def kept(write: Callable[[Entry], None], entry: Entry) -> Entry:
    """Write `entry`, or a failure of its case if a number in it cannot be stored, and return the entry written."""
    try:
        write(entry)
    except CannotBeError as error:
        if (turn := turn_of(entry)) is None:
            raise
        task, case_id, *_ = turn
        entry = error.failure(case_id, task)
        write(entry)
    return entry


OVERHEAD_SECONDS = 0.15
"""The cost of a round or pass on a CPU beyond the case's own work: a fork and its builds (benchmarks/self)."""
SERVER_SECONDS = 3.0
"""The cost of starting a server: importing torch and torchvision."""
WARMED = 1.5
"""The most time of a round, including warm-up, as a multiple of its timing budget (`worker.timing`)."""
WARM_SECONDS, WINDOW_SECONDS = 2.0, 1.0
"""The least warm-up of an accelerator, two windows of a second, and its least timing, one (`worker.timing`)."""
FRESH_SECONDS = 2.0
"""The cost of a new worker on an accelerator, estimated, not run on hardware: its context 0.5 s and, at the mean 87M
parameters of the suite's large networks, 0.6 s to draw them, 0.4 s to hash them and 0.5 s for a reference."""
HANDLED_SECONDS = 0.2
"""The cost of a round or pass on an accelerator beyond timing, estimated likewise: 0.1 s to copy weights to the device
(0.35 GB at 5 GB/s) and to copy and restore state there, and 0.1 s for each kernel's first launch."""
CPU_SECONDS, ACCELERATOR_SECONDS = 30.0, 300.0
"""The default budget: for each network on a CPU, for all together on an accelerator."""
MOST_ROUNDS = 1000
"""The most rounds of a network with a budget."""
SHARED = 8
"""The servers that stay open for the next legs; each takes the memory of torch's import."""


def estimate(schedule: Schedule, settings: Settings) -> tuple[float, float]:
    """Return the least seconds until every network had its first round, and until the end of `schedule`.

    A round is assumed to take its timing budget and its warm-up (`WARMED`). On a CPU a network ends with its budget,
    after at least one round, and both numbers are equal.
    """
    budget = settings.budget_seconds or math.inf
    legs = [[sum(turn_seconds(turn, settings) for turn in turns) for turns in rounds] for rounds in schedule]
    if is_accelerated(turn.planned for rounds in schedule for turns in rounds for turn in turns):
        first = sum(seconds[0] for seconds, rounds in zip(legs, schedule, strict=True) if not rounds[0][0].round)
        first += SERVER_SECONDS
        return first, max(first, min(sum(map(sum, legs)) + SERVER_SECONDS * max(map(len, schedule)), budget))
    total = SERVER_SECONDS * (1 if settings.budget_seconds else max(map(len, schedule), default=0))
    total += sum(max(first, min(first + sum(others), budget)) for first, *others in legs)
    return total, total


def turn_seconds(turn: Turn, settings: Settings) -> float:
    """Return the least seconds of a turn; a pass is assumed to cost a round without its timing."""
    short = (WARMED if turn.task == ROUND else WARMED - 1) * settings.min_run_seconds
    if turn.planned.case.device == "cpu":
        return OVERHEAD_SECONDS + short
    handled = HANDLED_SECONDS + FRESH_SECONDS * turn.fresh
    if turn.task != ROUND or is_burst(turn):
        return handled + short
    return handled + WARM_SECONDS + max(WINDOW_SECONDS, settings.min_run_seconds)


Part = tuple[int, int]
"""The number of a shard, from 1, and the number of shards."""
MOST = 100_000
T = TypeVar("T", bound=Hashable)


def parse_shard(text: str) -> Part:
    """Return the part of `2/5`; `UsageError` for any other text, and for a shard beyond the last."""
    number, slash, count = text.partition("/")
    if not (slash and number.strip().isdecimal() and count.strip().isdecimal()):
        raise UsageError(f"--shard {text!r}: expected I/N, as in --shard 2/5, the second of five")
    part = int(number), int(count)
    if not 1 <= part[0] <= part[1] <= MOST:
        raise UsageError(f"--shard {text}: the first of N shards is 1, the last is N, and N is {MOST:,} at most")
    return part


def take_shard(plan: Sequence[PlannedCase], part: Part) -> tuple[list[PlannedCase], Shard]:
    """Return the cases of `plan` in one of several shards, and the shard's record: `--shard I/N`.

    Each shard makes the whole plan, and all derive the same parts from it. Tables stay whole, because speeds are
    compared within them; shards have about as many cases. Tables without a runnable case are in the first. Raises
    `NothingToRunError` for a shard without work.
    """
    number, count = part
    cases = Counter(table_of(planned.case) for planned in plan if not planned.skip)
    parts = shared_out(cases, count)
    parts[0] |= {table_of(planned.case) for planned in plan} - set(cases)
    places = [place for place, planned in enumerate(plan) if table_of(planned.case) in parts[number - 1]]
    if not places:
        raise NothingToRunError(
            f"shard {number} of {count} has nothing to do: the selection has {counted(len(cases), 'table')}, and a "
            "table is measured by one shard"
        )
    shard = Shard(number=number, count=count, plan=digest_of(plan), cases=len(plan), places=places)
    return [plan[place] for place in places], shard


def digest_of(plan: Iterable[PlannedCase]) -> str:
    """Return the digest of a plan: the ids of its cases in order, and whether each is skipped."""
    text = "\n".join(f"{planned.case.case_id} {bool(planned.skip)}" for planned in plan)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def shared_out(sizes: Mapping[T, int], count: int) -> list[set[T]]:
    """Return `count` parts of items with `sizes`; the parts have about the same size.

    Items go to the smallest part so far, the largest first: the largest part is at most 4/3 of the optimum (Graham
    1969, Bounds on multiprocessing timing anomalies).
    """
    parts: list[set[T]] = [set() for _ in range(count)]
    totals = [0] * count
    for item in sorted(sizes, key=lambda item: -sizes[item]):  # stable: in the order of the plan
        smallest = totals.index(min(totals))
        parts[smallest].add(item)
        totals[smallest] += sizes[item]
    return parts
