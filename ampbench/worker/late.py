"""The late place of a training: its weights and optimizer state after some fp32 steps of its own."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from ampbench.core.precisions import BASELINE, PRECISIONS
from ampbench.core.recipes import find_recipe
from ampbench.errors import WorkloadError
from ampbench.records.case import Case
from ampbench.records.measured import Stop
from ampbench.worker.data import named_tensors, pairs_of
from ampbench.worker.machine import Device, precision_flags
from ampbench.worker.memory import count_flops, is_out_of_memory, said_of
from ampbench.worker.network import is_named
from ampbench.worker.step import TrainingStep, build_training, seed_all, switch_off_dropout
from ampbench.worker.updates import FEWEST_STEPS, MANY_FLOPS, WARM_FLOPS, WARM_STEPS, Snapshot, snapshot_of
from ampbench.workload import Workload

MOST_STEPS = 200
"""The most steps to the late place, by convention."""
PASSES = 2
"""The most passes over the batches, but `WARM_STEPS` steps at least: later, few batches are memorised."""
HALVED = 0.5
"""The share of the first loss that ends the steps: one batch is soon memorised, and its gradients are then tiny."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in training: `snapshot` after steps over `batches`, and `workload` with the next batch first.

    `stop` is the reason for no more steps, or for none; `error` what failed. The workload's module is the caller's.
    """

    workload: Workload
    stop: Stop
    snapshot: Snapshot = field(default_factory=Snapshot)
    batches: int = 0
    error: str = ""

    @contextlib.contextmanager
    def weights(self) -> Iterator[None]:
        """Give the workload's module the weights of this place until the end of the context."""
        tensors = dict(named_tensors(self.workload.module))
        before = {name: tensor.data for name, tensor in tensors.items()}
        try:
            for name, tensor in tensors.items():
                tensor.data = self.snapshot.weights[name].to(tensor.dtype)
            yield
        finally:
            for name, tensor in tensors.items():
                tensor.data = before[name]


def late_place(workload: Workload, case: Case, device: Device) -> Place:
    """Return the late place of a training: after fp32 steps of its optimizer, dropout off.

    There is none without an optimizer, with `Workload.optimizer_state`, which is a place of its own, and where a step
    fails. Raises `torch.OutOfMemoryError` where a step does not fit into the memory.
    """
    recipe = find_recipe(case.recipe)
    if not is_named(workload, recipe):
        return Place(workload, Stop.NO_OPTIMIZER)
    if workload.optimizer_state is not None and not recipe.optimizer:
        return Place(workload, Stop.OWN_STATE)
    pairs = pairs_of(workload)
    try:
        with precision_flags(PRECISIONS[BASELINE]):
            seed_all(0)
            step = build_training(workload, case, device, precision=PRECISIONS[BASELINE])
            switch_off_dropout(step.module, [])
            steps, stop = _train(step, WARM_FLOPS.get(device.type, MANY_FLOPS), len(pairs))
            snapshot = snapshot_of(step, steps)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return Place(workload, Stop.FAILED, error=said_of(error))
    if snapshot.undefined:
        return Place(workload, Stop.FAILED, error=snapshot.undefined)
    turn = steps % len(pairs)
    if turn:
        inputs, targets = zip(*pairs[turn:], *pairs[:turn], strict=True)
        workload = replace(workload, inputs=list(inputs), targets=list(targets) if workload.targets else None)
    return Place(workload, stop, snapshot, min(steps, len(pairs)))


def _train(step: TrainingStep, flops: float, batches: int) -> tuple[int, Stop]:
    """Take the steps to the late place; return their number and why they ended."""
    taken = sum((count_flops(step.run) or {}).values())
    limits = {
        Stop.STEPS: MOST_STEPS,
        Stop.PASSES: max(WARM_STEPS, PASSES * batches),
        Stop.FLOPS: max(FEWEST_STEPS, int(flops / max(taken, 1))),
    }
    stop = min(limits, key=lambda reason: limits[reason])
    first = _loss(step)
    for steps in range(1, limits[stop]):
        if _loss(step) <= HALVED * first and first > 0:
            return steps, Stop.HALVED
        step.run()
    return limits[stop], stop


def _loss(step: TrainingStep) -> float:
    """Return the loss of the last step; `WorkloadError` if it is not finite."""
    assert step.loss is not None
    loss = step.loss.detach()
    if not torch.isfinite(loss):
        raise WorkloadError("the loss is not finite after fp32 steps")
    return float(loss)
