"""Whole trainings from the same weights on the same batches: losses in gradients, and final scores.

Dropout is off: two precisions draw different masks. Other random ops draw the same numbers in each step of every
training of a seed. Looks and evaluations leave no trace in a training.
"""

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from msgspec import structs

from ampbench.core.precisions import BASELINE, FP64, PRECISIONS
from ampbench.core.recipes import find_recipe
from ampbench.errors import UsageError
from ampbench.records.case import Case
from ampbench.records.measured import Score
from ampbench.studies.training import ARMS, CONTROL, REFERENCE, GradientLook, Training, scaler_arguments
from ampbench.trace.nonfinite import find_nonfinite
from ampbench.worker.data import Generator, batches_of, in_fp32, inputs_digest, weights_digest
from ampbench.worker.distances import compare, is_finite, right_decisions
from ampbench.worker.machine import Cpu, Device, fp64_device, precision_flags
from ampbench.worker.memory import is_out_of_memory, said_of
from ampbench.worker.network import follow, is_named, scheduler_of
from ampbench.worker.step import TrainingStep, build_training, seed_all, switch_off_dropout, unfused
from ampbench.worker.worker import Work
from ampbench.workload import Workload

MOST_LOSSES = 1000
"""As many mean losses as a training stores."""
SCORED = (0.0, 0.25, 0.5, 0.75, 0.8125, 0.875, 0.9375, 1.0)
"""Weights are evaluated after these shares of the steps; scores of the last quarter together are the end."""
BATCHES = 16
"""The most training batches, the first ones, on which weights are evaluated."""
LOOKS = 6
"""The number of steps, evenly spread, whose gradients are compared with fp32's."""
LOWEST_SCALE = 2.0**-14
"""A training ends below this scale: a gradient that overflows fp16 here is above 1e9 in fp32, or no scale helps."""
STRIDE = 1_000_003
"""The distance of the seeds of the first steps of two trainings: no two draw alike."""

ONE_BATCH = "there is one batch: it is trained on over and over"
UNNAMED = "no optimizer is named: plain SGD trains, as with --optimizer sgd:lr=0.01"


class Readout:
    """An fp32 network of its own, given the weights of a training: their losses, decisions and gradients in fp32.

    A network that a user's own precision prepares may hold other weights: it is evaluated unchanged.
    """

    def __init__(self, workload: Workload, case: Case, device: Device, steps: int):
        if PRECISIONS[case.precision].prepare is None:
            case = structs.replace(case, precision=BASELINE, input_dtype="fp32")
        self._row = PRECISIONS[case.precision]
        with precision_flags(self._row):
            self._step = build_training(workload, case, device)
        self._held_out = [] if workload.held_out is None else [self._step.data.placed(*workload.held_out)]
        batches = zip(self._step.data.batches, self._step.data.targets, strict=True)
        self._batches = list(batches)[: min(steps, BATCHES)]

    def scores(self, step: TrainingStep, number: int) -> tuple[list[Score], Score]:
        """Return the scores of a training's weights after `number` steps: of held-out data, if any, and of batches."""
        self._load(step)
        held_out = [self._score(number, self._held_out, training=False)] if self._held_out else []
        return held_out, self._score(number, self._batches, training=True)

    def gradients(self, step: TrainingStep, number: int, seed: int) -> dict[str, torch.Tensor]:
        """Return the gradients of a training's weights on the batch of step `number`, by name."""
        self._load(step)
        self._step.module.train()
        switch_off_dropout(self._step.module, [])
        seed_all(seed)
        self._step.take_batch(number)
        with precision_flags(self._row):
            return self._step.unscaled_gradients()[1]

    @torch.no_grad()
    def _load(self, step: TrainingStep) -> None:
        tensors = step.stored() | dict(step.module.named_buffers())
        for name, tensor in (self._step.stored() | dict(self._step.module.named_buffers())).items():
            tensor.copy_(tensors[name])

    def _score(self, number: int, batches: Sequence[tuple[Any, Any]], *, training: bool) -> Score:
        """Return the mean loss of batches and, of a classifier, its decisions; buffers are put back by `_load`."""
        network = self._step.network
        network.module.train(training)
        switch_off_dropout(network.module, [])
        seed_all(0)
        losses, decided = [], []
        with precision_flags(self._row), network.without_gradients(), unfused():
            for batch, targets in batches:
                output, loss = network.judge(batch, targets)
                assert loss is not None
                losses.append(float(loss))
                decided.append(right_decisions(output, targets))
        mean = _mean(losses)
        counts = [count for count in decided if count is not None]
        if len(counts) < len(decided):
            return Score(step=number, loss=mean)
        correct, decisions = (sum(column) for column in zip(*counts, strict=True))
        return Score(step=number, loss=mean, correct=correct, decisions=decisions)


class _Course:
    """A training at work: `training` is its record, filled step by step; `losses` are of single steps."""

    def __init__(self, workload: Workload, case: Case, device: Device, blank: Training):
        self.workload, self.case, self.device, self.losses = workload, case, device, list[float]()
        digests = {"weights_digest": weights_digest(workload), "inputs_digest": inputs_digest(workload)}
        self.training = structs.replace(blank, **digests)

    def run(self) -> None:
        """Train in the precision of the case or, as the reference, in fp64, on the CPU where the device has none."""
        workload, arm = self.workload, self.training.arm
        if len(batches_of(workload.inputs)) == 1:
            self.training.notes.append(ONE_BATCH)
        if not is_named(workload, find_recipe(self.case.recipe)):
            self.training.notes.append(UNNAMED)
        if arm == CONTROL:
            workload = one_rounding_away(workload, self.training.seed)
        fp64 = FP64 if arm == REFERENCE else None
        device = fp64_device(self.device) if fp64 else self.device
        device.release()
        seed_all(self.training.seed)
        readout = Readout(workload, self.case, self.device, self.training.steps)
        with precision_flags(fp64 or PRECISIONS[self.case.precision]):
            step = build_training(workload, self.case, device, precision=fp64)
            if arm and arm not in ARMS:
                scaler = torch.amp.GradScaler(device.type, **scaler_arguments(arm))
                step.scaler = scaler if scaler.is_enabled() else None
            switch_off_dropout(step.module, self.training.notes)
            self._train(step, readout)
            step.let_go()

    def _train(self, step: TrainingStep, readout: Readout) -> None:
        steps = self.training.steps
        scored_at = {round(share * steps) for share in SCORED}
        own_loop = PRECISIONS[self.case.precision].prepare is not None or self.workload.step is not None
        exact = own_loop or self.case.precision == BASELINE
        looks = set() if exact else {round(place * (steps - 1) / (LOOKS - 1)) for place in range(LOOKS)}
        scheduler = scheduler_of(self.workload, find_recipe(self.case.recipe), step.optimizer, steps)
        self._note_scale(step, 0)
        for number in range(steps + 1):
            if number in scored_at:
                held_out, fit = readout.scores(step, number)
                self.training.scores.extend(held_out)
                self.training.fits.append(fit)
            if number == steps:
                return
            if scheduler is not None and number:
                follow(scheduler)
            self._step(step, number, readout if number in looks else None)
            scales = self.training.scales
            if not is_finite(step.stored().values()) or (scales and scales[-1][1] < LOWEST_SCALE):
                self.training = structs.replace(self.training, ended_at=number)
                return

    def _step(self, step: TrainingStep, number: int, readout: Readout | None) -> None:
        """Take a step, and look at its gradients with a `readout`."""
        seed = self.training.seed * STRIDE + number
        exact = readout.gradients(step, number, seed) if readout is not None else None
        seed_all(seed)
        step.take_batch(number)
        gradients = step.unscaled_gradients()[1]
        assert step.loss is not None
        self.losses.append(float(step.loss.detach()))
        if exact is not None:
            self.training.looks.append(_look(number, gradients, exact))
        strange = not is_finite(gradients.values())
        for name in (name for name, gradient in gradients.items() if strange and not is_finite([gradient])):
            self.training.nonfinite[name] = self.training.nonfinite.get(name, 0) + 1
        if (strange or not math.isfinite(self.losses[-1])) and self.training.first_nonfinite is None:
            self._find_first(step, number, seed)
        step.apply_gradients()
        self._note_scale(step, number + 1)

    def _note_scale(self, step: TrainingStep, number: int) -> None:
        """Note the loss scale from a step on where it is another than before."""
        scales = self.training.scales
        if step.scaler is not None and (not scales or scales[-1][1] != step.scaler.get_scale()):
            scales.append((number, step.scaler.get_scale()))

    def _find_first(self, step: TrainingStep, number: int, seed: int) -> None:
        """Differentiate once more, from the same weights and batch, to find the op that makes the first such value."""
        if self.workload.step is not None:
            return
        gradients = [(weight, weight.grad) for weight in step.stored().values()]
        buffers = [(buffer, buffer.detach().clone()) for buffer in step.module.buffers()]
        seed_all(seed)
        step.take_batch(number)
        step.optimizer.zero_grad(set_to_none=True)
        with suppress(UsageError):  # of a program that no op of can be watched
            with find_nonfinite(step.module) as finder:
                step.forward_and_backward()
            if finder.first is not None:
                first = structs.replace(finder.first, step=number)
                self.training = structs.replace(self.training, first_nonfinite=first)
        for weight, gradient in gradients:
            weight.grad = gradient
        for buffer, saved in buffers:
            buffer.copy_(saved)


def train(workload: Workload, case: Case, device: Device, blank: Training) -> Training:
    """Return a training of `case`, whose `blank` says how, all batches in turn.

    The learning rate follows the schedule of the case's recipe, else the workload's own. A training ends early where
    its weights are not finite, or the scale falls below `LOWEST_SCALE`. An error of a step is recorded; of the fp32
    case itself and its control it is raised, as is, of all but the reference, an exhausted memory.
    """
    course = _Course(workload, case, device, blank)
    error = ""
    try:
        course.run()
    except Exception as raised:
        if blank.arm != REFERENCE and (is_out_of_memory(raised) or case.precision == BASELINE):
            raise
        error = said_of(raised)
    if error:
        device.release()  # the error held tensors of the step
    every = max(1, math.ceil(blank.steps / MOST_LOSSES))
    losses = [_mean(course.losses[at : at + every]) for at in range(0, len(course.losses), every)]
    return structs.replace(course.training, every=every, losses=losses, error=error)


def one_rounding_away(workload: Workload, seed: int) -> Workload:
    """Return a copy of `workload` in which every weight is the next fp32 number above or below, as the seed draws.

    Zeros stay zeros.
    """
    generator = Generator("control", 1, {}, seed)
    module = copy.deepcopy(workload.module)
    in_fp32(module)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.dtype is torch.float32:
                up = generator.integers(name, tuple(weight.shape), 2).bool()
                bound = torch.where(up, math.inf, -math.inf).to(weight.dtype)
                weight.copy_(torch.where(weight == 0, weight, torch.nextafter(weight, bound)))
    return dataclasses.replace(workload, module=module)


def _look(number: int, gradients: Mapping[str, torch.Tensor], reference: Mapping[str, torch.Tensor]) -> GradientLook:
    """Compare gradients, the scale divided out, with fp32 gradients."""
    pairs = [(gradients[name].to_dense(), exact.to_dense()) for name, exact in reference.items() if name in gradients]
    known = [(gradient, (exact != 0) & exact.isfinite()) for gradient, exact in pairs]
    return GradientLook(
        step=number,
        nonzero=sum(int(mask.sum()) for _, mask in known),
        flushed=sum(int((mask & (gradient == 0)).sum()) for gradient, mask in known),
        rel_l2=compare([computed for computed, _ in pairs], [exact for _, exact in pairs], Cpu()).rel_l2,
    )


def _mean(losses: Sequence[float]) -> float | None:
    return math.fsum(losses) / len(losses) if all(map(math.isfinite, losses)) else None


def do_training(work: Work, asked: Training) -> Training:
    """Do the task "training"."""
    return train(work.workload, work.case, work.device, asked)
