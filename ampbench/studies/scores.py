"""How a network does on held-out data while it is trained; nothing of the training changes by looking."""

import math
from contextlib import nullcontext
from typing import Any

import torch

from ampbench.records.studies import Score
from ampbench.worker.distances import class_dimension, floating_in
from ampbench.worker.seeded import unfused
from ampbench.worker.step import Step
from ampbench.workload import Workload


class Scorer:
    """Scores the network of a training step as it stands, in evaluation mode and the step's own precision.

    It judges by the workload's held-out batch, on the device, or where there is none (`held_out` is False) by as many
    of the training batches as `steps` steps see.
    """

    def __init__(self, workload: Workload, step: Step, steps: int):
        self.held_out = workload.held_out is not None
        self._step = step
        if workload.held_out is not None:
            self._batches = [step.placed(*workload.held_out)]
        else:
            self._batches = list(zip(step.batches, step.targets, strict=True))[:steps]

    def score(self, number: int) -> Score:
        """Return the score after `number` steps: the mean loss of the batches and, of a classifier, its decisions."""
        modes = [(module, module.training) for module in self._step.module.modules()]
        accelerators = [] if self._step.device.type == "cpu" else [torch.accelerator.current_device_index()]
        kind = self._step.device.type if accelerators else "cuda"
        self._step.module.eval()
        try:
            region = nullcontext() if self._step.by_inputs else torch.no_grad()
            with torch.random.fork_rng(accelerators, device_type=kind), region, unfused():
                seen = [self._seen(batch, targets) for batch, targets in self._batches]
        finally:
            for module, training in modes:
                module.training = training
        loss = math.fsum(one[0] for one in seen) / len(seen) if all(math.isfinite(one[0]) for one in seen) else None
        counts = [counted for _, counted in seen if counted is not None]
        if len(counts) < len(seen):
            return Score(step=number, loss=loss)
        correct, decisions = (sum(column) for column in zip(*counts, strict=True))
        return Score(step=number, loss=loss, correct=correct, decisions=decisions)

    def _seen(self, batch: Any, targets: Any) -> tuple[float, tuple[int, int] | None]:
        """Return the loss of a batch and, of a classifier, how many of how many decisions are the targets'."""
        output, loss = self._step.judge(batch, targets)
        assert loss is not None
        return float(loss), right_decisions(output, targets)


def right_decisions(output: Any, targets: Any) -> tuple[int, int] | None:
    """Return how many of how many decisions of a classifier's output are the targets', None for anything else.

    Targets below zero stand for examples to ignore, as in `cross_entropy`. NaN decides nothing.
    """
    first = next(floating_in(output), None)
    dimension = None if first is None else class_dimension(first, targets)
    if first is None or dimension is None:
        return None
    right = (first.argmax(dimension) == targets) & ~first.isnan().any(dimension)
    return int(right.sum()), int((targets >= 0).sum())
