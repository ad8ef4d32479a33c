"""Runs a schedule: one task after another, whatever happens to the workers, every result stored at once."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from ampbench.records.divergences import Divergence
from ampbench.records.measurements import Failure, MemoryPass, Round, Skip
from ampbench.records.requests import Reply, Request
from ampbench.records.runs import Entry, Settings
from ampbench.running.channel import OpenChannel, Renewing
from ampbench.running.schedule import Task, request_of
from ampbench.store import CannotBeError


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
