"""Training with one setting of GradScaler, or in fp32: what the scale does, and what of the gradients is lost."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from msgspec import structs

from ampbench.core.precisions import BASELINE, PRECISIONS, Precision
from ampbench.errors import UsageError, first_line
from ampbench.records.case import Case
from ampbench.records.labels import few
from ampbench.records.measured import Score
from ampbench.records.ranges import GRADIENT, FirstNonfinite
from ampbench.records.run import ScalerSetting
from ampbench.studies.scaler import GradientLook, ScalerRun, ScalingAsked
from ampbench.trace.nonfinite import find_nonfinite
from ampbench.trace.ranges import Counts, count_magnitudes, record_of
from ampbench.worker.data import differs, named_tensors, weights_digest
from ampbench.worker.distances import Scorer, compare, dense, is_finite
from ampbench.worker.draws import seed_all, seeded_step
from ampbench.worker.machine import Device, fp64_device, precision_flags
from ampbench.worker.memory import is_out_of_memory
from ampbench.worker.step import TrainingStep
from ampbench.worker.worker import Work
from ampbench.workload import Workload

LOOKS = 6
"""So many steps, evenly spread, have their gradients held against fp32's."""

BATCHES = 16
"""So many batches at most tell the loss of weights in fp32."""

LOWEST_SCALE = 2.0**-14
"""Below this scale nothing is left to hope for: a gradient that overflows fp16 here is above 1e9 in fp32."""

HOPELESS = 20
"""After so many skipped steps in a row of which not even the loss is finite, every batch among them, a training ends:
the weights do not move any more, and the loss does not depend on the scale."""

ENDED = "ended after {} of {} steps: {}"
WEIGHTS = "weights are not finite"
LOSS = "GradScaler skipped them all from step {} on, as the loss itself is not finite"
SCALE = "GradScaler skipped them all from step {} on and lowered its scale to {:.3g}"
UNMOVED = "{:,} of {:,} parameters with a gradient did not move in any step: {}"

_Gradients = Mapping[str, torch.Tensor]


def run_scaler(workload: Workload, case: Case, device: Device, setting: ScalerSetting | None, steps: int) -> ScalerRun:
    """Train `case` for `steps` steps, all batches in turn, with the scaler `setting` (None: in fp32, without one).

    Every setting begins with the workload's own weights; dropout is switched off, and what else is random draws the
    same in each step of every setting. At `LOOKS` steps the gradients are held against those in fp32 of the same
    weights and batch, which changes nothing. A training ends early where the weights are not finite, where the scale
    falls below `LOWEST_SCALE`, or after `HOPELESS` steps. What a step raises is recorded, unless memory ran out or it
    is the first in fp32: what that raises is raised, as no setting can then be judged.
    """
    row = PRECISIONS[BASELINE if setting is None else case.precision]
    run = _Run(steps=steps)
    error = ""
    with precision_flags(row):
        try:
            step = _built(workload, case, device, setting, row, run.notes)
            run.exact_losses.append(_exact_loss(step))
            run.train(step, setting is None, fp64_device(device))
            run.exact_losses.append(_exact_loss(step))
            if workload.held_out is not None:
                run.score = Scorer(workload, step, steps).score(len(run.losses))
        except Exception as raised:
            if is_out_of_memory(raised) or (setting is None and not run.losses):
                raise
            error = first_line(raised)
        else:
            _note_unmoved(step, workload, run)
    return ScalerRun(
        case_id=case.case_id,
        setting=setting or ScalerSetting(name=BASELINE, enabled=False),
        precision=row.name,
        steps=steps,
        losses=run.losses,
        scales=run.scales,
        skipped=run.skipped,
        nonfinite=dict(run.nonfinite),
        looks=run.looks,
        fp32_gradients=record_of("", GRADIENT, "", "", run.fp32) if run.fp32.elements else None,
        gradients=record_of("", GRADIENT, "", "", run.low) if run.low.elements else None,
        first_nonfinite=run.first,
        exact_losses=[] if error else run.exact_losses,
        score=run.score,
        error=error,
        weights_digest=weights_digest(workload),
        notes=run.notes,
    )


@dataclass(slots=True)
class _Run:
    """What a training of `steps` steps has shown so far."""

    steps: int
    losses: list[float | None] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    nonfinite: Counter[str] = field(default_factory=Counter)
    looks: list[GradientLook] = field(default_factory=list)
    fp32: Counts = field(default_factory=Counts)
    low: Counts = field(default_factory=Counts)
    first: FirstNonfinite | None = None
    exact_losses: list[float | None] = field(default_factory=list)
    score: Score | None = None
    with_gradient: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def train(self, step: TrainingStep, baseline: bool, trusted: Device) -> None:
        """Train; `baseline`: the step is in fp32 itself. Gradients are compared on `trusted`."""
        looks = {round(place * (self.steps - 1) / (LOOKS - 1)) for place in range(LOOKS)}
        for turn in range(self.steps):
            reference = _fp32_gradients(step, turn) if turn in looks and not baseline else None
            self._step(step, turn, reference, counted=baseline and turn in looks, trusted=trusted)
            reason = self._ended(step)
            if reason:
                if turn + 1 < self.steps:
                    self.notes.append(ENDED.format(turn + 1, self.steps, reason))
                break

    def _step(
        self, step: TrainingStep, turn: int, reference: _Gradients | None, *, counted: bool, trusted: Device
    ) -> None:
        scale = 1.0 if step.scaler is None else step.scaler.get_scale()
        _differentiate(step, turn)
        assert step.loss is not None
        loss = float(step.loss.detach())
        gradients = _gradients(step)
        self.with_gradient |= gradients.keys()
        strange = [name for name, gradient in gradients.items() if not is_finite([gradient])]
        if (strange or not math.isfinite(loss)) and self.first is None:
            self._find_first(step, turn)
            gradients = _gradients(step)
        self.losses.append(loss if math.isfinite(loss) else None)
        self.nonfinite.update(strange)
        if step.scaler is not None:
            self.scales.append(scale)
        if counted:
            _count(gradients, self.fp32)
        if reference is not None:
            _count(reference, self.fp32)
            _count(gradients, self.low)
        if step.scaler is not None:
            step.scaler.unscale_(step.optimizer)
        if reference is not None:
            self.looks.append(_look(turn, scale, _gradients(step), reference, trusted))
        if not step.apply_gradients():
            self.skipped.append(turn)

    def _find_first(self, step: TrainingStep, turn: int) -> None:
        """Differentiate once more, from the same weights and batch, and find what makes the first strange value."""
        try:
            with _kept_buffers(step), find_nonfinite(step.module) as found:
                _differentiate(step, turn)
            self.first = found.first and structs.replace(found.first, step=turn)
        except UsageError as refused:  # a program that no op of can be watched
            if str(refused) not in self.notes:
                self.notes.append(str(refused))
            with _kept_buffers(step):
                _differentiate(step, turn)

    def _ended(self, step: TrainingStep) -> str:
        """Return why the training is over before its last step, or nothing."""
        done = len(self.losses)
        if step.scaler is None:
            strange = self.losses[-1] is None or bool(self.nonfinite)
            return WEIGHTS if strange and not is_finite(step.module.parameters()) else ""
        last = 0
        while last < len(self.skipped) and self.skipped[-1 - last] == done - 1 - last:
            last += 1
        if last >= max(HOPELESS, len(step.data.batches)) and all(loss is None for loss in self.losses[-last:]):
            return LOSS.format(done - last + 1)
        if last and step.scaler.get_scale() < LOWEST_SCALE:
            return SCALE.format(done - last + 1, step.scaler.get_scale())
        return ""


def _built(
    workload: Workload, case: Case, device: Device, setting: ScalerSetting | None, row: Precision, notes: list[str]
) -> TrainingStep:
    """Return a step of `case` with a scaler of the `setting`."""
    step = seeded_step(workload, structs.replace(case, scaler=False), device, notes, precision=row)
    assert isinstance(step, TrainingStep)
    if setting is not None and setting.enabled:
        step.scaler = torch.amp.GradScaler(
            device.type,
            init_scale=setting.init_scale,
            growth_factor=setting.growth_factor,
            backoff_factor=setting.backoff_factor,
            growth_interval=setting.growth_interval,
        )
    return step


def _differentiate(step: TrainingStep, turn: int) -> None:
    """Leave the gradients of the step `turn` in the parameters, times the scale if there is one."""
    seed_all(turn)
    step.optimizer.zero_grad(set_to_none=True)
    step.take_batch(turn)
    step.loss = step.forward_and_backward()[1]


def _fp32_gradients(step: TrainingStep, turn: int) -> _Gradients:
    """Return the gradients of the step `turn` in fp32, and leave the step as it was."""
    network, autocast, scaler = step.network, step.network.autocast, step.scaler
    network.autocast, step.scaler = nullcontext, None
    try:
        with _kept_buffers(step), precision_flags(PRECISIONS[BASELINE]):
            _differentiate(step, turn)
    finally:
        network.autocast, step.scaler = autocast, scaler
    return _gradients(step)  # the next step makes new ones


def _exact_loss(step: TrainingStep) -> float | None:
    """Return the mean loss of the weights as they are, in fp32, over the first batches; None: not finite."""
    losses = []
    for turn in range(min(len(step.data.batches), BATCHES)):
        _fp32_gradients(step, turn)
        assert step.loss is not None
        losses.append(float(step.loss.detach()))
    mean = math.fsum(losses) / len(losses) if all(map(math.isfinite, losses)) else math.inf
    return mean if math.isfinite(mean) else None


@contextmanager
def _kept_buffers(step: TrainingStep) -> Iterator[None]:
    """Put the buffers back at the end, as batch statistics move in every forward pass."""
    before = [(buffer, buffer.detach().clone()) for buffer in step.module.buffers()]
    try:
        yield
    finally:
        for buffer, saved in before:
            buffer.copy_(saved)


def _gradients(step: TrainingStep) -> dict[str, torch.Tensor]:
    return {name: dense(p.grad) for name, p in step.module.named_parameters() if p.grad is not None}


def _count(gradients: _Gradients, counts: Counts) -> None:
    for gradient in gradients.values():
        counts.add(count_magnitudes(gradient))


def _look(turn: int, scale: float, gradients: _Gradients, reference: _Gradients, trusted: Device) -> GradientLook:
    """Hold gradients, the scale divided out, against those in fp32."""
    elements = nonzero = flushed = nonfinite = 0
    both = [(gradients[name], exact) for name, exact in reference.items() if name in gradients]
    for gradient, exact in both:
        there = (exact != 0) & exact.isfinite()
        elements += exact.numel()
        nonzero += int(there.sum())
        flushed += int((there & (gradient == 0)).sum())
        nonfinite += int((there & ~gradient.isfinite()).sum())
    found = compare([one for one, _ in both], [other for _, other in both], trusted)
    return GradientLook(
        step=turn,
        scale=scale,
        elements=elements,
        nonzero=nonzero,
        flushed=flushed,
        nonfinite=nonfinite,
        rel_l2=found.rel_l2,
    )


def _note_unmoved(step: TrainingStep, workload: Workload, run: _Run) -> None:
    """Note which parameters are as they were at the beginning although steps were taken."""
    if len(run.skipped) == len(run.losses):
        return
    before = dict(named_tensors(workload.module))
    names = [name for name, _ in step.module.named_parameters() if name in run.with_gradient]
    parameters = dict(step.module.named_parameters())
    unmoved = [name for name in names if not differs(parameters[name].cpu(), before[name])]
    if unmoved:
        run.notes.append(UNMOVED.format(len(unmoved), len(names), few(unmoved)))


def do_scaler(work: Work, asked: ScalingAsked) -> ScalerRun:
    """Do the task "scaler"."""
    return run_scaler(work.workload, work.case, work.device, asked.setting, asked.steps)
