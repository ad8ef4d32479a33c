"""In which order things are measured: passes first, then rounds, shuffled, each round from a new server."""

import random
from collections.abc import Container, Iterable
from dataclasses import dataclass

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

    The first server also serves the memory and divergence passes, whose workers are shared within a group of
    precisions, so that one reference serves them all. Rounds on a CPU each get a process of their own; on an
    accelerator one process serves a round of all cases, so that its context is paid for once. Case order within a
    round is drawn from `settings.schedule_seed`.
    """
    runnable = [planned for planned in plan if not planned.skip]
    control = control_case(plan)
    servers: list[list[Task]] = []
    for number in range(settings.rounds):
        tasks = _passes(runnable) if number == 0 else []
        entries = [(planned, False) for planned in runnable]
        if control is not None:
            entries.append((control, True))
        random.Random(f"{settings.schedule_seed}/{number}").shuffle(entries)
        entries.sort(key=lambda entry: entry[0].case.device)  # stable: devices apart, shuffled within
        before = ""
        for planned, is_control in entries:
            device = planned.case.device
            tasks.append(Task("round", planned, number, is_control, fresh=device == "cpu" or device != before))
            before = device
        servers.append([task for task in tasks if task.key not in done and task.planned.case.case_id not in ended])
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
        placement_seed=place,
        builds=settings.builds,
        min_run_seconds=settings.min_run_seconds,
        round=task.round,
        server=server,
        control=task.control,
    )


def _passes(runnable: list[PlannedCase]) -> list[Task]:
    groups: dict[tuple[str, str], list[PlannedCase]] = {}
    for planned in runnable:
        groups.setdefault((planned.case.device, planned.case.group), []).append(planned)
    tasks = []
    for members in groups.values():
        ordered = sorted(members, key=lambda planned: planned.case.phase)
        kinds = [(kind, planned) for kind in ("memory", "divergence") for planned in ordered]
        tasks += [Task(kind, planned, fresh=place == 0) for place, (kind, planned) in enumerate(kinds)]
    return tasks
