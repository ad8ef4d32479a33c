"""Whole trainings in each precision, from the same weights on the same batches: losses, scores, and how far they drift.

Dropout is off: two precisions draw different masks. What else is random draws from the training's seed. GradScaler
starts as PyTorch makes it, so that the steps it skips at first belong to the training.
"""

import copy
import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ampbench.core.precisions import BASELINE, FP64, PRECISIONS
from ampbench.core.recipes import CONSTANT, TrainingRecipe, find_recipe
from ampbench.records.case import Case
from ampbench.records.measured import Score
from ampbench.studies.convergence import CONTROL, OWN, REFERENCE, Drift, Training, TrainingAsked
from ampbench.worker.data import Generator, batches_of, in_fp32, inputs_digest, weights_digest
from ampbench.worker.distances import Scorer, compare, is_finite
from ampbench.worker.draws import seed_all, switch_off_dropout
from ampbench.worker.machine import Cpu, Device, fp64_device, precision_flags
from ampbench.worker.memory import is_out_of_memory, said_of
from ampbench.worker.optimizer import is_named
from ampbench.worker.step import TrainingStep, build_training
from ampbench.worker.worker import Work
from ampbench.workload import Workload

MOST_LOSSES = 1000
"""As many mean losses as a training stores."""

SCORED = (0.0, 0.25, 0.5, 0.75, 0.8125, 0.875, 0.9375, 1.0)
"""After these shares of the steps a network is scored: those of the last quarter together say how it ended."""
DRIFTS = 10
"""At so many steps, the first and the last among them, the distance of its weights from others is taken."""

ROOM = 2 * 2**30
"""Bytes that the weights of the fp32 and fp64 trainings may take between requests: of large networks fewer are kept."""

MOST_SKIPPED = 50
"""After so many skipped steps in a row GradScaler's scale is 2**-34, and the training is given up."""

ONE_BATCH = "there is one batch: it is trained on over and over"
UNNAMED = "no optimizer is named: plain SGD trains, as with --optimizer sgd:lr=0.01"
ON_CPU = "the fp64 training ran on the CPU: the device has no fp64"
UNKNOWN = "distances from the {} training are not known, as it failed: {}"

Weights = list[torch.Tensor]


class Trajectories:
    """The weights of the fp32 and the fp64 training of the workload, seed and steps last asked for.

    They lie on the CPU, each as it is stored. Trainings that are not known are made when they are asked for.
    """

    def __init__(self) -> None:
        self._workload: Workload | None = None
        self._key: tuple[object, ...] = ()
        self._kept: dict[str, dict[int, Weights] | str] = {}

    def begin(self, workload: Workload, case: Case, seed: int, steps: int) -> None:
        """Forget what is not of this workload, device, seed and number of steps."""
        key = (case.group, case.device, seed, steps)
        if workload is not self._workload or key != self._key:
            self._workload, self._key, self._kept = workload, key, {}

    def keep(self, arm: str, weights: dict[int, Weights] | str) -> None:
        """Keep the weights after some steps of an arm, or why there are none."""
        self._kept[arm] = weights

    def of(self, arm: str, make: Callable[[], dict[int, Weights]]) -> dict[int, Weights] | str:
        """Return the weights of an arm after some steps, or why there are none; they are made where nothing is known.

        Raises what the fp32 training raises but that memory ran out.
        """
        if arm not in self._kept:
            try:
                self._kept[arm] = make()
            except Exception as error:
                if arm != REFERENCE and not is_out_of_memory(error):
                    raise
                self._kept[arm] = said_of(error)
        return self._kept[arm]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What a training is: of which case, in which precision, as which arm, from which seed, how many steps long.

    The `recipe` may have a schedule of the learning rate, which then comes before the workload's own.
    """

    workload: Workload
    case: Case
    device: Device
    seed: int
    steps: int
    recipe: TrainingRecipe
    arm: str = ""
    precision: str = BASELINE

    @property
    def schedule(self) -> str:
        """That of the learning rate: `CONSTANT`, the recipe's or `OWN`."""
        return self.recipe.schedule or (OWN if self.workload.schedule is not None else CONSTANT)


@dataclass(slots=True)
class _Course:
    """What became of a training so far: `weights` are those after the steps where they are kept, 0 the first.

    `rates` are the learning rate that the optimizer has and that of the last step.
    """

    losses: list[float] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    weights: dict[int, Weights] = field(default_factory=dict)
    ended_at: int | None = None
    skipped: int | None = None
    scale: float | None = None
    held_out: bool = False
    rates: list[float] = field(default_factory=list)
    error: str = ""
    notes: list[str] = field(default_factory=list)


def train(
    workload: Workload,
    case: Case,
    device: Device,
    trajectories: Trajectories,
    *,
    seed: int,
    arm: str,
    steps: int,
) -> Training:
    """Train `case` for `steps` steps, all batches in turn: as its own or, of the fp32 case, as another `arm`.

    The learning rate follows the schedule of the case's recipe, else the workload's own, if it has one.

    The control begins one rounding away from the workload's weights, the reference is in fp64, on the CPU where the
    device has none. A training that is not finite is ended early, and what a step raises is recorded. Of the fp32 case
    itself and its control that is raised, as is, of all but the reference, that memory ran out.
    """
    trajectories.begin(workload, case, seed, steps)
    plan = _Plan(
        workload=workload,
        case=case,
        device=device,
        seed=seed,
        steps=steps,
        recipe=find_recipe(case.recipe),
        arm=arm,
        precision=case.precision,
    )
    others = _compared_with(plan, trajectories)
    started, course = time.perf_counter(), _Course()
    try:
        _run(plan, course, judged=True)
    except Exception as raised:
        if arm != REFERENCE and (is_out_of_memory(raised) or plan.precision == BASELINE):
            raise
        course.error = said_of(raised)
    if course.error:
        device.release()  # what the error held of the step
    if arm == REFERENCE or (case.precision == BASELINE and not arm):
        trajectories.keep(arm or BASELINE, course.error or course.weights)
    unknown = [UNKNOWN.format(name, known) for name, known in others.items() if isinstance(known, str)]
    every = max(1, math.ceil(steps / MOST_LOSSES))
    return Training(
        case_id=case.case_id,
        seed=seed,
        arm=arm,
        steps=steps,
        every=every,
        losses=[_mean(course.losses[at : at + every]) for at in range(0, len(course.losses), every)],
        held_out=course.held_out,
        scores=course.scores,
        drift=[] if arm == REFERENCE else _drift(course.weights, others["fp32"], others["fp64"]),
        schedule=plan.schedule,
        last_rate=course.rates[-1] / course.rates[0] if course.rates and course.rates[0] > 0 else None,
        ended_at=course.ended_at,
        error=course.error,
        scaler_scale=course.scale,
        skipped_steps=course.skipped,
        weights_digest=weights_digest(workload),
        inputs_digest=inputs_digest(workload),
        seconds=time.perf_counter() - started,
        notes=[*course.notes, *unknown],
    )


def _compared_with(plan: _Plan, trajectories: Trajectories) -> dict[str, dict[int, Weights] | str]:
    """Return the weights of the fp32 and fp64 trainings, or why there are none: those that a training is not itself."""
    others: dict[str, dict[int, Weights] | str] = {"fp32": {}, "fp64": {}}
    if plan.arm != REFERENCE:
        exact = dataclasses.replace(plan, precision=BASELINE, arm=REFERENCE)
        others["fp64"] = trajectories.of(REFERENCE, lambda: _kept_weights(exact))
        if plan.arm or plan.precision != BASELINE:
            own = dataclasses.replace(plan, precision=BASELINE, arm="")
            others["fp32"] = trajectories.of(BASELINE, lambda: _kept_weights(own))
    return others


def scored_steps(steps: int) -> list[int]:
    """Return after how many of `steps` steps a network is scored: 0, most in the last quarter, the last among them."""
    return sorted({round(share * steps) for share in SCORED})


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


def _kept_weights(plan: _Plan) -> dict[int, Weights]:
    """Train without looking at anything, and return the weights."""
    course = _Course()
    _run(plan, course, judged=False)
    return course.weights


def _run(plan: _Plan, course: _Course, *, judged: bool) -> None:
    """Train in the precision of the plan or, as the reference, in fp64, and note in `course` what becomes of it."""
    workload, device, reference = plan.workload, plan.device, plan.arm == REFERENCE
    if reference and (device := fp64_device(device)) is not plan.device:
        course.notes.append(ON_CPU)
    if len(batches_of(workload.inputs)) == 1:
        course.notes.append(ONE_BATCH)
    if not is_named(workload, plan.recipe):
        course.notes.append(UNNAMED)
    if plan.arm == CONTROL:
        workload = one_rounding_away(workload, plan.seed)
    device.release()
    seed_all(plan.seed)
    row = FP64 if reference else PRECISIONS[plan.precision]
    with precision_flags(row):
        step = build_training(workload, plan.case, device, precision=None if row.name == plan.case.precision else row)
        switch_off_dropout(step.module, course.notes)
        scorer = Scorer(workload, step, plan.steps) if judged else None
        course.held_out = scorer is not None and scorer.held_out
        _train(step, plan, scorer, course)
        step.let_go()


def _train(step: TrainingStep, plan: _Plan, scorer: Scorer | None, course: _Course) -> None:
    steps, parameters = plan.steps, list(step.stored().values())
    course.weights[0] = [parameter.detach().to("cpu", copy=True) for parameter in parameters]
    move_on = _scheduled(step, plan, course)
    kept_at = {*drift_steps(steps, sum(parameter.numel() for parameter in parameters))}
    scored_at = {*scored_steps(steps)}
    if scorer:
        course.scores.append(scorer.score(0))
    course.skipped = None if step.scaler is None else 0
    in_a_row = 0
    for number in range(steps):
        before = course.scale = step.scaler.get_scale() if step.scaler else None
        move_on(number)
        step.run()
        assert step.loss is not None
        course.losses.append(float(step.loss.detach()))
        if step.scaler is not None and before is not None:
            course.scale = step.scaler.get_scale()
            in_a_row = in_a_row + 1 if course.scale < before else 0
            course.skipped = (course.skipped or 0) + (in_a_row > 0)
        lost = (
            (step.scaler is None and not math.isfinite(course.losses[-1]))
            or in_a_row >= MOST_SKIPPED
            or not is_finite(parameters)
        )
        done = number + 1
        if done in kept_at or lost:
            course.weights[done] = [parameter.detach().to("cpu", copy=True) for parameter in parameters]
        if scorer and (done in scored_at or lost):
            course.scores.append(scorer.score(done))
        if lost:
            course.ended_at = number
            return


def _scheduled(step: TrainingStep, plan: _Plan, course: _Course) -> Callable[[int], None]:
    """Return what brings the learning rate to where it belongs before a step of that number, and notes it."""
    groups = [group for group in step.optimizer.param_groups if isinstance(group.get("lr"), float | int | torch.Tensor)]
    first = [float(group["lr"]) for group in groups]
    own = plan.workload.schedule if plan.schedule == OWN else None
    scheduler = own(step.optimizer, plan.steps) if own is not None else None
    course.rates = [float(group["lr"]) for group in groups[:1]]

    def move_on(number: int) -> None:
        if scheduler is not None and number:
            with warnings.catch_warnings():
                # where GradScaler skips the first steps, torch takes the order of the calls to be wrong
                warnings.filterwarnings("ignore", message=r"Detected call of `lr_scheduler\.step\(\)`")
                scheduler.step()
        for group, rate in zip(groups, first, strict=True) if scheduler is None else ():
            set_to = rate * plan.recipe.rate_share(number, plan.steps)
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(set_to)
            else:
                group["lr"] = set_to
        if groups:
            course.rates[1:] = [float(groups[0]["lr"])]

    return move_on


def _drift(weights: dict[int, Weights], fp32: dict[int, Weights] | str, fp64: dict[int, Weights] | str) -> list[Drift]:
    """Return the distances at each step that weights are kept of; None where the other training has none."""
    return [
        Drift(
            step=step,
            from_fp32=_distance(own, fp32, step),
            from_fp64=_distance(own, fp64, step),
            **_way(weights, fp64, step),
        )
        for step, own in weights.items()
        if step
    ]


def _way(weights: dict[int, Weights], others: dict[int, Weights] | str, step: int) -> dict[str, float]:
    """Return `way`, `way_rel_l2` and `way_kept` of `Drift`; nothing where they are undefined."""
    if isinstance(others, str) or step not in others or 0 not in others:
        return {}
    trained, first, other, start = weights[step], weights[0], others[step], others[0]
    if not (is_finite(trained) and is_finite(other)):
        return {}
    squares, apart, inner = [], [], []
    for one, begun, reference, began in zip(trained, first, other, start, strict=True):
        went, meant = one.double() - begun.double(), reference.double() - began.double()
        squares.append(float(meant.square().sum()))
        apart.append(float((went - meant).square().sum()))
        inner.append(float((went * meant).sum()))
    square = math.fsum(squares)
    if not square > 0:
        return {}
    way = math.sqrt(square)
    return {
        "way": way,
        "way_rel_l2": math.sqrt(math.fsum(apart)) / way,
        "way_kept": math.fsum(inner) / square,
    }


def _distance(own: Sequence[torch.Tensor], others: dict[int, Weights] | str, step: int) -> float | None:
    other = None if isinstance(others, str) else others.get(step)
    if other is None or not is_finite(other):
        return None
    return compare(own, other, on=Cpu()).rel_l2


def _mean(losses: Sequence[float]) -> float | None:
    return math.fsum(losses) / len(losses) if all(map(math.isfinite, losses)) else None


def do_training(work: Work, asked: TrainingAsked) -> Training:
    """Do the task "convergence"; the worker keeps the trainings that those to come are compared with."""
    return train(
        work.workload,
        work.case,
        work.device,
        work.kept(Trajectories),
        seed=work.seed,
        arm=asked.arm,
        steps=asked.steps,
    )
