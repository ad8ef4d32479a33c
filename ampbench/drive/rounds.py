"""Which task is measured when, one after another, and how long it takes.

In which order things are measured: passes first, then rounds, shuffled, each round from a new server.

Runs a schedule: one task after another, whatever happens to the workers, every result stored at once.

How long a session will take, from what stored runs took on this machine.
"""

import random
import statistics
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace

from ampbench.drive.planning import PlannedCase
from ampbench.drive.servers import OpenChannel, Renewing
from ampbench.records.measured import Divergence, Failure, MemoryPass, Round, Skip
from ampbench.records.run import Entry, Settings
from ampbench.records.wire import Reply, Request
from ampbench.store import CannotBeError, StoredRun

TaskKey = tuple[str, str, int, bool]
"""What identifies a piece of work across sessions: kind, case id, round, control."""


@dataclass(frozen=True, slots=True)
class Task:
    """One request to come, and the case it is for."""

    kind: str
    planned: PlannedCase
    round: int = 0
    control: bool = False
    fresh: bool = True

    @property
    def key(self) -> TaskKey:
        """What identifies this piece of work across sessions."""
        return self.kind, self.planned.case.case_id, self.round, self.control


def control_case(plan: Iterable[PlannedCase]) -> PlannedCase | None:
    """Return the cell that is measured twice: the first runnable in fp32 inference, else the first runnable."""
    runnable = [planned for planned in plan if not planned.skip]
    preferred = [p for p in runnable if p.case.precision == "fp32" and p.case.phase == "inference"]
    return next(iter(preferred or runnable), None)


def make_schedule(
    plan: list[PlannedCase], settings: Settings, done: Container[TaskKey] = (), ended: Container[str] = ()
) -> list[list[Task]]:
    """Return the tasks of `plan` that are not `done`, nor of a case that has `ended`, a list for each server.

    The first server also serves the memory and divergence passes. Divergence passes share a worker within a group of
    precisions, so that one reference serves them all. Rounds and memory passes on a CPU each get a process of their
    own (torch's allocation record is exact in the first session of a process alone); on an accelerator one process
    serves a round of all cases, so that its context is paid for once. The order within a round is drawn from
    `settings.schedule_seed`: tables in random order, and the precisions of a table next to each other in random order,
    so that what disturbs the machine for some seconds disturbs all that are compared.
    """
    runnable = [planned for planned in plan if not planned.skip]
    control = control_case(plan)
    servers: list[list[Task]] = []
    for number in range(settings.rounds):
        tasks = passes(runnable) if number == 0 else []
        tasks += _rounds(runnable, control, number, random.Random(f"{settings.schedule_seed}/{number}"))
        left = [task for task in tasks if task.key not in done and task.planned.case.case_id not in ended]
        servers.append(with_processes(left))
    return [tasks for tasks in servers if tasks]


def request_of(task: Task, settings: Settings, server: int) -> Request:
    """Return the request that asks for `task` from server number `server`."""
    case = task.planned.case
    place = random.Random(f"{settings.schedule_seed}/{case.case_id}/{task.round}/{task.control}").getrandbits(48)
    return Request(
        kind=task.kind,
        source=task.planned.source,
        case=case,
        fresh=task.fresh,
        timeout_seconds=settings.timeout_seconds,
        memory_limit_bytes=settings.memory_limit_bytes,
        threads=settings.threads,
        seed=settings.seed,
        heap=settings.heap,
        keep_flags=settings.keep_flags,
        placement_seed=place,
        builds=settings.builds,
        min_run_seconds=settings.min_run_seconds,
        round=task.round,
        server=server,
        control=task.control,
    )


def passes(runnable: list[PlannedCase]) -> list[Task]:
    """Return the memory and divergence passes of `runnable` cases, those of a group of precisions together."""
    groups: dict[tuple[str, str], list[PlannedCase]] = {}
    for planned in runnable:
        groups.setdefault((planned.case.device, planned.case.group), []).append(planned)
    tasks = []
    for members in groups.values():
        ordered = sorted(members, key=lambda planned: planned.case.phase)
        tasks += [Task(kind, planned) for kind in ("memory", "divergence") for planned in ordered]
    return tasks


def _rounds(runnable: list[PlannedCase], control: PlannedCase | None, number: int, draw: random.Random) -> list[Task]:
    tables: dict[tuple[str, str, str, str], list[Task]] = {}
    for planned in runnable:
        case = planned.case
        table = tables.setdefault((case.device, case.group, case.phase, case.path), [])
        table.append(Task("round", planned, number))
        if planned is control:
            table.append(Task("round", planned, number, control=True))
    shuffled = list(tables.items())
    draw.shuffle(shuffled)
    shuffled.sort(key=lambda table: table[0][0])  # stable: devices apart, shuffled within
    for _, tasks in shuffled:
        draw.shuffle(tasks)
    return [task for _, tasks in shuffled for task in tasks]


def with_processes(tasks: list[Task]) -> list[Task]:
    """Return `tasks` with `fresh` set where one may not be served by the process of the task before it."""
    before = [None, *tasks]
    return [replace(task, fresh=not _may_share(last, task)) for last, task in zip(before, tasks, strict=False)]


def _may_share(last: Task | None, task: Task) -> bool:
    if last is None or last.planned.case.device != task.planned.case.device:
        return False
    if task.planned.case.device == "cpu" and task.kind != "divergence":
        return False
    if task.kind == "round":
        return last.kind == "round"
    return last.kind != "round" and last.planned.case.group == task.planned.case.group


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands: `task` has just been done (`reply`) or is about to begin (None); seconds since the start."""

    task: Task
    done: int
    total: int
    seconds: float
    reply: Reply | None = None


Watch = Callable[[Progress], None]


def drive(
    servers: list[list[Task]],
    settings: Settings,
    open_channel: OpenChannel,
    write: Callable[[Entry], None],
    watch: Watch,
    first_server: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Do the tasks of `servers`, each list from a newly opened channel, and return how it ended.

    `write` gets every entry as soon as it is known. A case that failed is not asked for again; what remains of it
    counts as done. What a killed worker leaves unanswered is asked once more, as `Renewing` does. The end is
    "complete", or "out of time" once `settings.max_seconds` have passed before a task begins. KeyboardInterrupt
    passes on, the channel closed.
    """
    started = clock()
    total, done = sum(map(len, servers)), 0
    failed: set[str] = set()
    for number, tasks in enumerate(servers, start=first_server):
        channel = Renewing(open_channel)
        try:
            for task in tasks:
                elapsed = clock() - started
                case_id = task.planned.case.case_id
                if case_id in failed:
                    done += 1
                    continue
                if settings.max_seconds is not None and elapsed > settings.max_seconds:
                    return "out of time"
                watch(Progress(task, done, total, elapsed))
                request = request_of(task, settings, number)
                reply = channel.serve(request)
                entry = kept(write, entry_of(reply, request))
                if isinstance(entry, Failure | Skip):
                    failed.add(case_id)
                done += 1
                watch(Progress(task, done, total, clock() - started, reply))
        finally:
            channel.close()
    return "complete"


def kept(write: Callable[[Entry], None], entry: Entry) -> Entry:
    """Write `entry`, or that its case failed where a number in it cannot be, and return what was written."""
    try:
        write(entry)
    except CannotBeError as error:
        stage = {MemoryPass: "memory", Divergence: "divergence", Round: "round"}.get(type(entry))
        if stage is None:
            raise
        message = f"what came out cannot be: {error.why}"
        entry = Failure(case_id=getattr(entry, "case_id", ""), stage=stage, cause="exception", message=message)
        write(entry)
    return entry


def entry_of(reply: Reply, request: Request) -> Entry:
    """Return the entry in `reply`; a reply without one broke the protocol and is stored as a failure."""
    entry = reply.round or reply.memory or reply.divergence or reply.skip or reply.failure
    if entry is not None:
        return entry
    assert request.case is not None
    return Failure(
        case_id=request.case.case_id,
        stage=request.kind,
        cause="exception",
        message=reply.problem or "the worker gave no result",
    )


OVERHEAD_SECONDS = 0.15
"""What a round or pass costs beyond the case's own work: a fork and its builds (benchmarks/self)."""
SERVER_SECONDS = 3.0
"""What starting a server costs: importing torch and torchvision."""

WARMED = 1.5
"""A round takes so many times its timing budget, warm-up included, at most half as long again (`measure.timing`)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds a session will take; `known` of `cases` cases were measured on this machine before."""

    seconds: float
    known: int
    cases: int


def estimate(servers: list[list[Task]], settings: Settings, stored: Iterable[StoredRun]) -> Estimate:
    """Return how long the tasks of `servers` will take.

    A round of a case takes what its rounds took in `stored` runs (of this host, newest last), with their settings; a
    case never measured here is assumed to need no more than its timing budget, warm-up as long again. A pass is taken
    to cost as much as a round without its timing.
    """
    seen: dict[str, float] = {}
    for run in stored:
        rounds: dict[str, list[float]] = {}
        for each in run.rounds:
            rounds.setdefault(each.case_id, []).append(each.seconds)
        seen |= {case_id: statistics.median(seconds) for case_id, seconds in rounds.items()}
    tasks = [task for tasks in servers for task in tasks]
    ids = {task.planned.case.case_id for task in tasks}
    unknown = WARMED * settings.min_run_seconds
    total = SERVER_SECONDS * len(servers)
    for task in tasks:
        round_seconds = seen.get(task.planned.case.case_id, unknown)
        timing = settings.min_run_seconds if task.kind != "round" else 0.0
        total += OVERHEAD_SECONDS + max(0.0, round_seconds - timing)
    return Estimate(seconds=total, known=len(ids & set(seen)), cases=len(ids))
