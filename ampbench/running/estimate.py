"""How long a session will take, from what stored runs took on this machine."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from ampbench.records.runs import Settings
from ampbench.running.schedule import Task
from ampbench.store import StoredRun

OVERHEAD_SECONDS = 0.15
"""What a round or pass costs beyond the case's own work: a fork and its builds (benchmarks/self)."""
SERVER_SECONDS = 3.0
"""What starting a server costs: importing torch and torchvision."""

WARMED = 1.5
"""A round takes so many times its timing budget, warm-up included, at most half as long again (`worker.timing`)."""


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
