"""Cells: single cases opened in the current process, for harnesses that repeat and time steps themselves (asv, pytest).

They measure what `ampbench run` measures, the same step of the same network, but isolation, order and repetition are
the harness' own. torch's switches are the process' own too, so only one cell is open at a time.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

from ampbench.core.precisions import PRECISIONS, is_emulated
from ampbench.drive.planning import NO_TIME, PlannedCase, make_plan
from ampbench.drive.rounds import Turn, request_of
from ampbench.errors import AmpbenchError, UsageError
from ampbench.records.case import Case
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Task
from ampbench.worker.data import weights_digest
from ampbench.worker.environment import read_environment
from ampbench.worker.machine import Device, open_device, precision_flags, sdpa_fixed
from ampbench.worker.memory import keep_freed_memory
from ampbench.worker.sources import build_workload, describe_workload, items_per_step
from ampbench.worker.step import Step, TrainingStep, build_step
from ampbench.worker.timing import Placement
from ampbench.worker.worker import Worker, cannot_run

R = TypeVar("R")


def plan_cells(selection: Selection) -> list[PlannedCase]:
    """Return the cases of `selection` on this machine, each runnable or skipped with a reason, planned in this process.

    Raises `UsageError` for whatever cannot be meant, `WorkloadError` where a user's workload cannot be built.
    """
    seed = Settings().seed
    return make_plan(
        selection,
        read_environment(),
        lambda source, parameters, preset="": describe_workload(source, parameters, seed, preset),
    )


class Cell:
    """A case built once, at a random place in memory, ready to run step after step; `opened` makes it.

    `step()` is one step, after which the device has done its work; `restore()` puts back training state and what steps
    change in place, so that the next step is the same as the first. Steps that do (`apart`) need it before each one.
    `items_per_step` is what throughput counts.
    """

    def __init__(self, case: Case, step: Step, device: Device, items: float, weights: str):
        self.case = case
        self.items_per_step = items
        self.weights_digest = weights
        self._step = step
        self._device = device
        self._on_cpu = device.type == "cpu"

    @cached_property
    def apart(self) -> bool:
        """Whether each step needs what it finds put back before it; asked for the first time, that may take a step."""
        if isinstance(self._step, TrainingStep):
            return True
        self._step.run()
        return bool(self._step.changed())

    def step(self) -> None:
        """Run one step and wait for the device."""
        self._step.run()
        if not self._on_cpu:
            self._device.synchronize()

    def restore(self) -> None:
        """Put back what steps change; nothing in inference, but for networks that write into what they are given."""
        if self.apart:
            self._step.restore()
            self._device.synchronize()


@contextmanager
def opened(planned: PlannedCase, seed: int = Settings().seed) -> Iterator[Cell]:
    """Open the case of `planned`: torch's switches and inference mode are held until it is closed.

    Raises `UsageError` with the reason where the case is one to skip, and what the workload raises in its first step.
    """
    case = planned.case
    device = open_device(case.device) if not planned.skip else None
    reason = planned.skip or cannot_run(case) or (is_emulated(case.precision) and NO_TIME.format(case.precision))
    if reason or device is None:
        raise UsageError(f"{case.case_id} cannot run here: {reason}")
    keep_freed_memory()
    parameters = dict(case.parameters) | ({} if case.batch_size is None else {"batch_size": case.batch_size})
    workload = build_workload(planned.source, parameters, seed)
    placement = Placement(random.Random())
    placement.move()
    if device.type != "cpu":
        _WORKER.keeps.clear()  # what divergence passes keep must not take the device's memory from what is timed
    try:
        with precision_flags(PRECISIONS[case.precision]), sdpa_fixed(case):
            step = build_step(workload, case, device)
            step.prepare_path(case.path)
            if isinstance(step, TrainingStep):
                step.start(None)
            with step.mode():
                yield Cell(case, step, device, items_per_step(workload), weights_digest(workload))
            del step
    finally:
        device.release()


def measured(planned: PlannedCase, task: Task[Any, R], settings: Settings | None = None) -> R:
    """Return the memory pass, the divergence pass or a round of a case in this process.

    On a CPU a memory pass is exact only in a process that has made none before.
    """
    if planned.skip:
        raise UsageError(f"{planned.case.case_id} cannot run here: {planned.skip}")
    # processes that measure one case alone must not all put it at the same place
    place = random.getrandbits(48)
    request = request_of(Turn(task, planned), settings or Settings(), server=0, placement_seed=place)
    found = task.outcome(_WORKER.serve(request), planned.case)
    if isinstance(found, Failure):
        raise AmpbenchError(f"{planned.case.case_id}: {found.cause} ({found.stage}): {found.message}")
    if isinstance(found, Skip):
        raise UsageError(f"{planned.case.case_id} cannot run here: {found.reason}")
    return found


_WORKER = Worker()
