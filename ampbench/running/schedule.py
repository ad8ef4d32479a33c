"""In which order things are measured: passes first, then rounds, shuffled, each round from a new server."""

import random
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

from ampbench.planning import PlannedCase
from ampbench.records.requests import Request
from ampbench.records.runs import Settings

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
