"""Whole trainings from the same weights on the same batches: what is lost of gradients, and where they end.

Dropout is off: two precisions draw different masks. What else is random draws the same numbers in each step of every
training of a seed. GradScaler starts as PyTorch makes it, or as a setting says, so that the steps it skips at first
belong to the training. What is looked at and evaluated leaves no trace in a training.
"""

import copy
import dataclasses
import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from msgspec import structs

from ampbench.core.precisions import BASELINE, FP64, PRECISIONS
from ampbench.core.recipes import CONSTANT, find_recipe
from ampbench.errors import UsageError
from ampbench.records.case import Case
from ampbench.records.measured import Score
from ampbench.records.ranges import FirstNonfinite
from ampbench.studies.training import ArmAsked, Drift, GradientLook, Training
from ampbench.studies.training_verdict import CONTROL, OWN, REFERENCE
from ampbench.trace.nonfinite import find_nonfinite
from ampbench.worker.data import Generator, batches_of, in_fp32, inputs_digest, weights_digest
from ampbench.worker.distances import compare, is_finite, right_decisions
from ampbench.worker.machine import Cpu, Device, fp64_device, precision_flags
from ampbench.worker.memory import is_out_of_memory, said_of
from ampbench.worker.optimizer import is_named
from ampbench.worker.step import TrainingStep, build_training, seed_all, switch_off_dropout, unfused
from ampbench.worker.worker import Work
from ampbench.workload import Workload

MOST_LOSSES = 1000
"""As many mean losses as a training stores."""
SCORED = (0.0, 0.25, 0.5, 0.75, 0.8125, 0.875, 0.9375, 1.0)
"""After these shares of the steps weights are evaluated; those of the last quarter together say how they end."""
BATCHES = 16
"""The most training batches, the first ones, on which weights are evaluated."""
LOOKS = 6
"""The number of steps, evenly spread, whose gradients are compared with fp32's."""
DRIFTS = 10
"""The number of steps, first and last included, at which distances between weights are measured."""
ROOM = 2 * 2**30
"""Bytes that the weights of the fp32 and fp64 trainings may take between requests: of large networks fewer are kept."""
LOWEST_SCALE = 2.0**-14
"""Below this scale nothing is left to hope for: a gradient that overflows fp16 here is above 1e9 in fp32."""
HOPELESS = 20
"""A training ends after this number of consecutive skipped steps without a finite loss, on every batch:
the weights do not move any more, and the loss does not depend on the scale."""
STRIDE = 1_000_003
"""So far apart are the seeds of the first steps of two trainings: no two draw alike."""

ONE_BATCH = "there is one batch: it is trained on over and over"
UNNAMED = "no optimizer is named: plain SGD trains, as with --optimizer sgd:lr=0.01"
ON_CPU = "the fp64 training ran on the CPU: the device has no fp64"
UNKNOWN = "distances from the {} training are not known, as it failed: {}"

Weights = list[torch.Tensor]
Tensors = Mapping[str, torch.Tensor]


class Trajectories:
    """The weights after some steps of the fp32 and the fp64 training of a seed, by arm, or why there are none.

    Those of the group, device, seed and steps (`of`) that were trained last are kept, on the CPU, each as it is stored.
    """

    def __init__(self) -> None:
        self._of: tuple[object, ...] = ()
        self._kept: dict[str, dict[int, Weights] | str] = {}

    def at(self, *of: object) -> dict[str, dict[int, Weights] | str]:
        """Return those that are kept, by arm; none where they are of something else."""
        if of != self._of:
            self._of, self._kept = of, {}
        return self._kept


class Readout:
    """An fp32 network of its own, given the weights of a training: their losses, decisions and gradients in fp32.

    A network that a user's own precision prepares may hold other weights: it is evaluated as it is.
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
        self.spacing = 0.0

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
        given = step.stored() | dict(step.module.named_buffers())
        for name, tensor in (self._step.stored() | dict(self._step.module.named_buffers())).items():
            tensor.copy_(given[name])

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
                self.spacing = torch.finfo(loss.dtype).eps
                losses.append(float(loss))
                decided.append(right_decisions(output, targets))
        mean = math.fsum(losses) / len(losses) if all(map(math.isfinite, losses)) else None
        counts = [count for count in decided if count is not None]
        if len(counts) < len(decided):
            return Score(step=number, loss=mean)
        correct, decisions = (sum(column) for column in zip(*counts, strict=True))
        return Score(step=number, loss=mean, correct=correct, decisions=decisions)


@dataclass(slots=True)
class _Course:
    """A training of `asked` steps, and what became of it so far.

    `weights` are those after the steps where they are kept, 0 the first; `rates` the learning rate that the optimizer
    has and that of the last step.
    """

    workload: Workload
    case: Case
    device: Device
    seed: int
    asked: ArmAsked
    losses: list[float] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    fits: list[Score] = field(default_factory=list)
    spacing: float = 0.0
    weights: dict[int, Weights] = field(default_factory=dict)
    scales: list[tuple[int, float]] = field(default_factory=list)
    skipped: int = 0
    nonfinite: Counter[str] = field(default_factory=Counter)
    looks: list[GradientLook] = field(default_factory=list)
    first: FirstNonfinite | None = None
    ended_at: int | None = None
    rates: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def schedule(self) -> str:
        """That of the learning rate: `CONSTANT`, the recipe's or `OWN`."""
        own = OWN if self.workload.schedule is not None else CONSTANT
        return find_recipe(self.case.recipe).schedule or own

    def run(self) -> None:
        """Train in the precision of the case or, as the reference, in fp64."""
        workload, device, reference = self.workload, self.device, self.asked.arm == REFERENCE
        if reference and (device := fp64_device(device)) is not self.device:
            self.notes.append(ON_CPU)
        if len(batches_of(workload.inputs)) == 1:
            self.notes.append(ONE_BATCH)
        if not is_named(workload, find_recipe(self.case.recipe)):
            self.notes.append(UNNAMED)
        if self.asked.arm == CONTROL:
            workload = one_rounding_away(workload, self.seed)
        device.release()
        seed_all(self.seed)
        readout = Readout(workload, self.case, self.device, self.asked.steps)
        row = FP64 if reference else PRECISIONS[self.case.precision]
        with precision_flags(row):
            step = self._built(workload, device, None if row.name == self.case.precision else row)
            self._train(step, readout)
            step.let_go()
        self.spacing = readout.spacing

    def _built(self, workload: Workload, device: Device, precision: Any) -> TrainingStep:
        setting, case = self.asked.setting, self.case
        step = build_training(workload, case, device, precision=precision)
        if setting is not None:
            arguments = {name: getattr(setting, name) for name in structs.asdict(setting) if name not in _NOT_TORCHS}
            step.scaler = torch.amp.GradScaler(device.type, **arguments) if setting.enabled else None
        switch_off_dropout(step.module, self.notes)
        return step

    def _train(self, step: TrainingStep, readout: Readout) -> None:
        steps, parameters = self.asked.steps, list(step.stored().values())
        kept_at = {0, *drift_steps(steps, sum(parameter.numel() for parameter in parameters))}
        scored_at = {round(share * steps) for share in SCORED}
        own = PRECISIONS[self.case.precision].prepare is not None or self.workload.step is not None
        exact = own or self.asked.arm or self.case.precision == BASELINE
        looks = set() if exact else {round(place * (steps - 1) / (LOOKS - 1)) for place in range(LOOKS)}
        move_on = self._scheduled(step)
        for number in range(steps + 1):
            if number in kept_at:
                self.weights[number] = [parameter.detach().to("cpu", copy=True) for parameter in parameters]
            if number in scored_at:
                held_out, fit = readout.scores(step, number)
                self.scores += held_out
                self.fits.append(fit)
            if number == steps:
                return
            move_on(number)
            self._step(step, number, readout if number in looks else None)
            if self._hopeless(step, number):
                self.ended_at = number
                return

    def _step(self, step: TrainingStep, number: int, readout: Readout | None) -> None:
        """Take a step, and look at its gradients with a `readout`."""
        seed = self.seed * STRIDE + number
        exact = readout.gradients(step, number, seed) if readout is not None else None
        scale = self._note_scale(step, number)
        seed_all(seed)
        step.take_batch(number)
        gradients = step.unscaled_gradients()[1]
        assert step.loss is not None
        self.losses.append(float(step.loss.detach()))
        if exact is not None:
            self.looks.append(_look(number, gradients, exact))
        strange = not is_finite(gradients.values())
        if strange:
            self.nonfinite.update(name for name, gradient in gradients.items() if not is_finite([gradient]))
        if (strange or not math.isfinite(self.losses[-1])) and self.first is None:
            self._find_first(step, number, seed)
        step.apply_gradients()
        self.skipped = self.skipped + 1 if self._note_scale(step, number + 1) < scale else 0

    def _note_scale(self, step: TrainingStep, number: int) -> float:
        """Note the loss scale from a step on where it is another than before, and return it; 1: there is none."""
        if step.scaler is None:
            return 1.0
        scale = step.scaler.get_scale()
        if not self.scales or self.scales[-1][1] != scale:
            self.scales.append((number, scale))
        return scale

    def _find_first(self, step: TrainingStep, number: int, seed: int) -> None:
        """Differentiate once more, from the same weights and batch, and find what makes the first strange value."""
        if self.workload.step is not None:
            return
        gradients = [(weight, weight.grad) for weight in step.stored().values()]
        buffers = [(buffer, buffer.detach().clone()) for buffer in step.module.buffers()]
        seed_all(seed)
        step.take_batch(number)
        step.optimizer.zero_grad(set_to_none=True)
        try:
            with find_nonfinite(step.module) as found:
                step.forward_and_backward()
            self.first = found.first and structs.replace(found.first, step=number)
        except UsageError as refused:  # a program that no op of can be watched
            if str(refused) not in self.notes:
                self.notes.append(str(refused))
        for weight, gradient in gradients:
            weight.grad = gradient
        for buffer, saved in buffers:
            buffer.copy_(saved)

    def _hopeless(self, step: TrainingStep, number: int) -> bool:
        """Return whether the training is over before its last step."""
        if not is_finite(step.stored().values()):
            return True
        if not self.skipped:
            return False
        strange = not any(math.isfinite(loss) for loss in self.losses[-self.skipped :])
        least = max(HOPELESS, len(step.data.batches))
        return (strange and self.skipped >= least) or self._note_scale(step, number + 1) < LOWEST_SCALE

    def _scheduled(self, step: TrainingStep) -> Callable[[int], None]:
        """Return what brings the learning rate to where it belongs before a step of that number, and notes it."""
        groups = [
            group for group in step.optimizer.param_groups if isinstance(group.get("lr"), float | int | torch.Tensor)
        ]
        first, steps, recipe = [float(group["lr"]) for group in groups], self.asked.steps, find_recipe(self.case.recipe)
        own = self.workload.schedule if self.schedule == OWN else None
        scheduler = own(step.optimizer, steps) if own is not None else None
        self.rates = [float(group["lr"]) for group in groups[:1]]

        def move_on(number: int) -> None:
            if scheduler is not None and number:
                with warnings.catch_warnings():
                    # where GradScaler skips the first steps, torch takes the order of the calls to be wrong
                    warnings.filterwarnings("ignore", message=r"Detected call of `lr_scheduler\.step\(\)`")
                    scheduler.step()
            for group, rate in zip(groups, first, strict=True) if scheduler is None else ():
                set_to = rate * recipe.rate_share(number, steps)
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].fill_(set_to)
                else:
                    group["lr"] = set_to
            if groups:
                self.rates[1:] = [float(groups[0]["lr"])]

        return move_on


_NOT_TORCHS = ("name", "enabled")


def train(
    workload: Workload, case: Case, device: Device, trajectories: Trajectories, *, seed: int, asked: ArmAsked
) -> Training:
    """Train `case` as `asked`, all batches in turn, and compare it with the fp32 and fp64 trainings that are kept.

    The learning rate follows the schedule of the case's recipe, else the workload's own, if it has one.

    The control begins one rounding away from the workload's weights, the reference is in fp64, on the CPU where the
    device has none. A training ends early where its weights are not finite, or the scale falls below `LOWEST_SCALE`, or
    after `HOPELESS` steps. What a step raises is recorded; of the fp32 case itself and its control it is raised, as is,
    of all but the reference, that memory ran out.
    """
    known = trajectories.at(case.group, case.device, seed, asked.steps)
    course = _Course(workload=workload, case=case, device=device, seed=seed, asked=asked)
    error = ""
    try:
        course.run()
    except Exception as raised:
        if asked.arm != REFERENCE and (is_out_of_memory(raised) or case.precision == BASELINE):
            raise
        error = said_of(raised)
    if error:
        device.release()  # what the error held of the step
    its_own = case.precision == BASELINE and asked.arm != CONTROL
    others = {arm: known.get(arm, {}) for arm in ("", REFERENCE) if not (its_own and arm in ("", asked.arm))}
    if its_own:
        known[asked.arm] = error or course.weights
    every = max(1, math.ceil(asked.steps / MOST_LOSSES))
    failed = [(arm, why) for arm, why in others.items() if isinstance(why, str)]
    return Training(
        case_id=case.case_id,
        seed=seed,
        arm=asked.arm,
        setting=asked.setting,
        steps=asked.steps,
        every=every,
        losses=[_mean(course.losses[at : at + every]) for at in range(0, len(course.losses), every)],
        scores=course.scores,
        fits=course.fits,
        spacing=course.spacing,
        drift=[] if asked.arm == REFERENCE else _drift(course.weights, others),
        scales=course.scales,
        nonfinite=dict(course.nonfinite),
        looks=course.looks,
        first_nonfinite=course.first,
        ended_at=course.ended_at,
        error=error,
        schedule=course.schedule,
        last_rate=course.rates[-1] / course.rates[0] if course.rates and course.rates[0] > 0 else None,
        weights_digest=weights_digest(workload),
        inputs_digest=inputs_digest(workload),
        notes=[*course.notes, *(UNKNOWN.format(FP64.name if arm else BASELINE, why) for arm, why in failed)],
    )


def drift_steps(steps: int, parameters: int) -> list[int]:
    """Return after how many of `steps` steps weights are kept and compared: by powers, the last among them.

    They are fewer for a network whose number of `parameters` leaves room for fewer.
    """
    count = max(1, min(DRIFTS, ROOM // (12 * max(parameters, 1))))
    return sorted({round(steps ** (place / (count - 1))) for place in range(count)} if count > 1 else {steps})


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


def _look(number: int, gradients: Tensors, reference: Tensors) -> GradientLook:
    """Hold gradients, the scale divided out, against those in fp32."""
    pairs = [(gradients[name].to_dense(), exact.to_dense()) for name, exact in reference.items() if name in gradients]
    counts = Counter(elements=0, nonzero=0, flushed=0, nonfinite=0)
    for gradient, exact in pairs:
        there = (exact != 0) & exact.isfinite()
        counts["elements"] += exact.numel()
        counts["nonzero"] += int(there.sum())
        counts["flushed"] += int((there & (gradient == 0)).sum())
        counts["nonfinite"] += int((there & ~gradient.isfinite()).sum())
    rel_l2 = compare([own for own, _ in pairs], [exact for _, exact in pairs], Cpu()).rel_l2
    return GradientLook(step=number, rel_l2=rel_l2, **counts)


def _drift(weights: dict[int, Weights], others: Mapping[str, dict[int, Weights] | str]) -> list[Drift]:
    """Return the distances at each step that weights are kept of; None where the other training has none."""
    trained = {arm: {} if isinstance(known, str) else known for arm, known in others.items()}
    fp32, fp64 = trained.get("", {}), trained.get(REFERENCE, {})
    return [
        Drift(
            step=step,
            from_fp32=_distance(own, fp32.get(step)),
            from_fp64=_distance(own, fp64.get(step)),
            **_way(weights, fp64, step),
        )
        for step, own in weights.items()
        if step
    ]


def _way(weights: dict[int, Weights], others: dict[int, Weights], step: int) -> dict[str, float]:
    """Return `way`, `way_rel_l2` and `way_kept` of `Drift`; nothing where they are undefined."""
    if step not in others or not (is_finite(weights[step]) and is_finite(others[step])):
        return {}
    went = [one.double() - begun.double() for one, begun in zip(weights[step], weights[0], strict=True)]
    meant = [one.double() - begun.double() for one, begun in zip(others[step], others[0], strict=True)]
    pairs = list(zip(went, meant, strict=True))
    square = math.fsum(float(exact.square().sum()) for exact in meant)
    if not square > 0:
        return {}
    apart = math.fsum(float((own - exact).square().sum()) for own, exact in pairs)
    inner = math.fsum(float((own * exact).sum()) for own, exact in pairs)
    return {
        "way": math.sqrt(square),
        "way_rel_l2": math.sqrt(apart) / math.sqrt(square),
        "way_kept": inner / square,
    }


def _distance(own: Weights, other: Weights | None) -> float | None:
    return None if other is None or not is_finite(other) else compare(own, other, on=Cpu()).rel_l2


def _mean(losses: Sequence[float]) -> float | None:
    return math.fsum(losses) / len(losses) if all(map(math.isfinite, losses)) else None


def do_training(work: Work, asked: ArmAsked) -> Training:
    """Do the task "training"; the worker keeps the trainings that those to come are compared with."""
    return train(work.workload, work.case, work.device, work.kept(Trajectories), seed=work.seed, asked=asked)
