"""The numbers of one step, and of its references, the fp64 and the fp32 step; untimed.

Weights, inputs and random numbers are the same. The distance that chance alone makes between two such steps is
measured, too.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import torch

from ampbench.core.precisions import BASELINE, FP64, PRECISIONS, Precision
from ampbench.core.recipes import find_recipe
from ampbench.errors import WorkloadError
from ampbench.records.case import Case
from ampbench.records.measured import CHANCE, Recipe
from ampbench.worker.data import is_wrapper, named_tensors
from ampbench.worker.distances import (
    Decisions,
    Distance,
    LossTargets,
    compare,
    compare_each,
    kept_one,
    kept_outputs,
    named_outputs,
    outputs_in,
)
from ampbench.worker.machine import Cpu, Device, fp64_device, precision_flags
from ampbench.worker.memory import is_out_of_memory, said_of
from ampbench.worker.optimizer import is_named, misses, recipe_of, statistics_stall, steps_alone
from ampbench.worker.outputs import compared_outputs
from ampbench.worker.step import (
    EQUAL_DRAWS,
    EqualDraws,
    InferenceStep,
    OwnStep,
    TrainingStep,
    build_step,
    random_states,
    seed_all,
    switch_off_dropout,
)
from ampbench.worker.updates import (
    Gradients,
    Intended,
    intended_update,
    second_gradients,
    take_snapshot,
)
from ampbench.workload import Workload

NOT_DECIDED = "decisions are not counted: the logits of the loss are not an output of the network"
MATTERS = 1e-3
"""Chance below this share of an error is negligible."""
SAME = 1e-2
"""An error below this share of chance is not chance: both steps drew the same random numbers."""
_FP32 = PRECISIONS[BASELINE]

Made = TypeVar("Made")


@dataclass(slots=True)
class StepNumbers:
    """The results of one step, on the reference device: named outputs in fp64, and for training the rest.

    Gradients and updated weights keep their dtypes: fp64 copies would take most of the memory of a pass. `half` are the
    sizes of a training's outputs in dtypes narrower than fp32, `stall` the distance at which its running statistics
    stop. `apart` is the distance of the updated weights from given ones; on a CPU no weights are kept then.

    Without an update, outputs keep their dtypes, too, and no weights are updated. `native` are the gradients for an
    optimizer, if requested. `drew`: the step drew random numbers. `decided` are a reference's decisions, as recorded in
    its loss; `recipe` describes its optimizer (None: none is named).
    """

    outputs: list[torch.Tensor]
    names: list[str] = field(default_factory=list)
    half: list[int] = field(default_factory=list)
    loss: float | None = None
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    updated: dict[str, torch.Tensor] = field(default_factory=dict)
    apart: Distance | None = None
    native: Gradients | None = None
    scaler_scale: float | None = None
    skipped_steps: int | None = None
    drew: bool = False
    decided: list[Decisions] = field(default_factory=list)
    recipe: Recipe | None = None
    stall: float | None = None
    notes: list[str] = field(default_factory=list)


def run_step(
    workload: Workload,
    case: Case,
    device: Device,
    *,
    keep: Device,
    precision: Precision | None = None,
    kept: Sequence[str] = (),
    update: bool = True,
    equal: bool = False,
    native: bool = False,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> StepNumbers:
    """Run one step of `case` (in another `precision` if one is named) and return its numbers on device `keep`.

    `kept` are the modules kept in fp32, as in `build_network`. Without `update` the optimizer does not run, and outputs
    are not copied to fp64. With `native` the gradients of a second batch follow. `weights` are updated weights to
    compare with. Where the optimizer refuses fp64, that step has no updated weights. Dropout is off: the masks of two
    precisions differ, which says nothing about precision. Other random numbers come from the same seed and, in eager
    mode with `equal`, are the same in every precision.
    """
    seed_all(0)
    with precision_flags(precision or PRECISIONS[case.precision]):
        step = build_step(workload, case, device, precision=precision, kept=kept)
        notes: list[str] = []
        if isinstance(step, TrainingStep):
            switch_off_dropout(step.module, notes)
        if precision is None and step.prepare_path(case.path) is not None:
            seed_all(0)
        equal = equal and (precision is not None or case.path == "eager")
        if equal:
            notes.append(EQUAL_DRAWS)
        loss = LossTargets()
        if watched := update and precision is not None:
            step.network.watch_loss(loss)
        if not isinstance(step, TrainingStep):
            numbers, output = _of_forward(step, workload, keep, notes, equal=equal, copy=update)
            if watched:
                with step.mode(), contextlib.suppress(Exception):  # a loss of training may not take it
                    step.network.apply_loss(output)
                _note_decisions(numbers, loss)
            step.let_go()
            return numbers
        numbers, gradients = _of_backward(step, workload, case, keep, notes, equal=equal, copy=update)
        if is_named(workload, find_recipe(case.recipe)):
            numbers.recipe = misses(recipe_of(step.optimizer, step.module), step.optimizer, step.stored())
        if update:
            _note_decisions(numbers, loss)
            try:
                _update(step, numbers, keep, weights)
            except Exception as error:
                if precision is not FP64 or is_out_of_memory(error):
                    raise  # an optimizer may refuse fp64 alone
        if native:
            second: Mapping[str, torch.Tensor] = {}
            if update:
                seed_all(0)
                with _drawing(equal):
                    second = second_gradients(step, workload)
            stored = {name: weight.dtype for name, weight in step.stored().items()}
            skipped = bool(numbers.skipped_steps)
            make = step.network.make_optimizer
            numbers.native = Gradients(first=gradients, second=second, stored=stored, make=make, skipped=skipped)
        step.let_go()
        return numbers


def _of_forward(
    step: InferenceStep, workload: Workload, keep: Device, notes: list[str], *, equal: bool, copy: bool
) -> tuple[StepNumbers, Any]:
    """Return the numbers of a step of inference, and its output."""
    before = random_states(step.device)
    with step.mode(), _drawing(equal):
        output = step.run()
    taken = compared_outputs(workload, output)
    numbers = StepNumbers(kept_outputs(taken, keep, copy=copy), names=_names(taken), notes=notes)
    numbers.drew = random_states(step.device) != before
    return numbers, output


def _of_backward(
    step: TrainingStep, workload: Workload, case: Case, keep: Device, notes: list[str], *, equal: bool, copy: bool
) -> tuple[StepNumbers, dict[str, torch.Tensor]]:
    """Return the numbers of a step of training without its update, and its gradients unchanged."""
    step.settle_scaler()
    seed_all(0)
    before = random_states(step.device)
    with _drawing(equal):
        output, unscaled = step.unscaled_gradients()
    if copy and (find_recipe(case.recipe).clip or not steps_alone(step.optimizer)):  # it may change them in place
        unscaled = {name: value.clone() for name, value in unscaled.items()}
    gradients = {name: kept_one(value, keep, copy=False) for name, value in unscaled.items()}
    assert step.loss is not None
    taken = compared_outputs(workload, output)
    numbers = StepNumbers(
        outputs=kept_outputs(taken, keep, copy=copy),
        names=_names(taken),
        half=[tensor.numel() for tensor in outputs_in(taken) if tensor.itemsize < 4],
        loss=float(step.loss.detach()),
        gradients=gradients,
        drew=random_states(step.device) != before,
        notes=notes,
        stall=statistics_stall(step.module),
    )
    return numbers, unscaled


def _update(step: TrainingStep, numbers: StepNumbers, keep: Device, weights: Mapping[str, torch.Tensor] | None) -> None:
    """Take the optimizer's step, and add the weights after it, the scale and whether it was skipped to `numbers`.

    With `weights` to compare with, only the distance from these is added.
    """
    scale = step.scaler.get_scale() if step.scaler is not None else None
    applied = step.apply_gradients() if isinstance(step, OwnStep) else step.apply_in_blocks()
    if scale is not None:
        numbers.scaler_scale, numbers.skipped_steps = scale, int(not applied)
    stored = step.stored()
    updated = {
        name: kept_one(stored.get(name, tensor), keep, copy=False)
        for name, tensor in named_tensors(step.module)
        if (tensor.is_floating_point() or tensor.is_complex()) and not is_wrapper(tensor)
    }
    if weights is not None:
        expected = weights or updated
        numbers.apart = compare(list(updated.values()), [expected[name] for name in updated], keep)
        if isinstance(step.device, Cpu):  # elsewhere a second step is compared with these
            return
    several = len(step.data.batches) > 1  # a second batch begins with the weights as they were
    numbers.updated = {name: value.clone() for name, value in updated.items()} if several else updated


def _drawing(equal: bool) -> contextlib.AbstractContextManager[Any]:
    """Return the context of random draws: `EqualDraws` if they are to be `equal` in all precisions."""
    return EqualDraws() if equal else contextlib.nullcontext()


def _note_decisions(numbers: StepNumbers, loss: LossTargets) -> None:
    """Keep the decisions recorded in a loss; a note says where none matches an output."""
    numbers.decided = loss.decisions(numbers.outputs)
    if loss.seen and not numbers.decided:
        numbers.notes.append(NOT_DECIDED)


def _names(output: Any) -> list[str]:
    return [name for name, _ in named_outputs(output)]


def reference_step(
    workload: Workload,
    case: Case,
    device: Device,
    *,
    keep: Device,
    precision: Precision = FP64,
    update: bool = True,
    native: bool = False,
) -> StepNumbers:
    """Return the fp64 step of `case`, or one in another `precision`; an `equal` one where it draws random numbers."""
    run = partial(run_step, workload, case, device, keep=keep, precision=precision, update=update, native=native)
    numbers = run()
    if not numbers.drew:
        return numbers
    del numbers
    return run(equal=True)


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference of a group of cases: the fp64 step, or the fp32 step where fp64 fails.

    `dtype` is its precision ("fp64", "fp32", "" where both fail and there are no `numbers`), `where` the device it ran
    on, `error` the reason why fp64 failed. `fp32` is the fp32 step on the device, None where it fails or runs out of
    memory. `chance` is the distance of a second step in that dtype that differs only in random numbers and hidden state
    of the network (None: unknown), `chances` the same for each output. In training, `intended` is the intended change
    of the weights, and `fp32` has only outputs.
    """

    numbers: StepNumbers | None
    fp32: StepNumbers | None
    where: str
    dtype: str = "fp64"
    error: str = ""
    chance: float | None = None
    chances: Sequence[float | None] = ()
    intended: Intended | None = None

    @property
    def draws(self) -> bool:
        """Whether the step draws random numbers, so that other steps must draw `equal` ones."""
        return self.numbers is not None and self.numbers.drew


class References:
    """The shared results of the current group of cases, computed once."""

    def __init__(self) -> None:
        self._workload: Workload | None = None
        self._key: tuple[object, ...] = ()
        self._made: Any = None

    def of(self, workload: Workload, case: Case, device: Device, topic: object, make: Callable[[], Made]) -> Made:
        """Return the result of `make` for the group of `case`, computed now unless it is the last one asked for.

        Another group, or another `topic`, replaces it. Raises any error of `make`.
        """
        key = (topic, case.group, case.device, case.phase)
        if self._made is None or workload is not self._workload or key != self._key:
            self._made = None
            device.release()
            self._made, self._workload, self._key = make(), workload, key
        return cast(Made, self._made)


def passing_reference(workload: Workload, case: Case, device: Device, *, updates: bool = False) -> Reference:
    """Return outputs and gradients of the fp64 step, on the CPU; where it fails, of the fp32 step on the device.

    With `updates`, also the intended change by a named optimizer, where the fp64 step runs. Raises
    `torch.OutOfMemoryError` where the step does not fit into the memory, and any error of the fp32 step.
    """
    where = fp64_device(device)
    updates = updates and is_named(workload, find_recipe(case.recipe))
    try:
        exact = reference_step(workload, case, where, keep=Cpu(), update=False, native=updates)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = said_of(error)
    else:
        intended = None
        if exact.native is not None:
            intended = intended_update(take_snapshot(workload, case, device), exact.native, where)
            exact.native = None
        return Reference(numbers=exact, fp32=None, where=where.type, intended=intended)
    device.release()
    numbers = reference_step(workload, case, device, keep=Cpu(), precision=_FP32, update=False)
    return Reference(numbers=numbers, fp32=numbers, where=device.type, dtype="fp32", error=reason)


def trusted_reference(workload: Workload, case: Case, device: Device, *, updates: bool = False) -> Reference:
    """Return a `passing_reference`; raises `WorkloadError` where chance decides its distance from the fp32 step."""
    held = passing_reference(workload, case, device, updates=updates)
    if held.dtype == "fp64" and held.numbers is not None:
        chance = _chance(workload, case, fp64_device(device), held.numbers, Cpu())[0]
        if chance:
            fp32 = run_step(workload, case, device, keep=Cpu(), precision=_FP32, update=False, equal=held.draws)
            if is_chance(chance, compare(fp32.outputs, held.numbers.outputs, Cpu()).rel_l2):
                raise WorkloadError(CHANCE.format(chance))
    return held


def full_reference(workload: Workload, case: Case, device: Device) -> Reference:
    """Return the fp64 and the fp32 step of the group of `case`, with the intended update and chance.

    Raises `torch.OutOfMemoryError` where the reference does not fit into the memory.
    """
    where = fp64_device(device)
    exact = fp32 = intended = None
    error = ""
    training = case.phase == "training"
    try:
        exact = reference_step(workload, case, where, keep=where, native=training)
    except Exception as raised:
        if is_out_of_memory(raised):
            raise
        error = said_of(raised)
    if exact is None:
        device.release()  # frees the failed step
    try:
        if exact is None:
            fp32 = reference_step(workload, case, device, keep=where, precision=_FP32)
        else:
            fp32 = run_step(workload, case, device, keep=where, precision=_FP32, equal=exact.drew, update=not training)
            fp32.outputs, fp32.gradients = [output.double() for output in fp32.outputs], {}
    except Exception as raised:
        if is_out_of_memory(raised):
            if exact is None:
                raise
        elif exact is None:
            error = f"{error}; fp32 failed: {said_of(raised)}"
    if exact is not None:
        chance, chances = _chance(workload, case, where, exact, where)
        if exact.native is not None:
            intended = intended_update(take_snapshot(workload, case, device), exact.native, where)
            exact.native = None
        return Reference(numbers=exact, fp32=fp32, where=where.type, chance=chance, chances=chances, intended=intended)
    if fp32 is None:
        return Reference(numbers=None, fp32=None, where=device.type, dtype="", error=error)
    chance, chances = _chance(workload, case, device, fp32, where, precision=_FP32)
    return Reference(fp32, fp32, device.type, dtype="fp32", error=error, chance=chance, chances=chances)


def _chance(
    workload: Workload, case: Case, device: Device, numbers: StepNumbers, keep: Device, precision: Precision = FP64
) -> tuple[float | None, list[float | None]]:
    """Return the distance of another forward pass from `numbers`: with another seed, if those drew random numbers.

    The pass is in fp64 or another `precision`. The result is the distance of all outputs, and of each: 1 for other
    shapes; None where it is undefined or memory runs out.
    """
    seed_all(int(numbers.drew))
    try:
        with precision_flags(precision):
            step = build_step(workload, case, device, precision=precision)
            if isinstance(step, TrainingStep):
                switch_off_dropout(step.module, [])
            with step.mode(), EqualDraws() if numbers.drew else contextlib.nullcontext():
                output = step.run() if isinstance(step, OwnStep) else step.network.forward_and_loss()[0]
            outputs = kept_outputs(compared_outputs(workload, output), keep)
            step.let_go()
            del output
            every, by_output = compare_each(outputs, numbers.outputs, keep)
            return every.rel_l2, [distance.rel_l2 for distance in by_output]
    except ValueError:
        return 1.0, []
    except Exception as error:
        if is_out_of_memory(error):
            return None, []
        raise


def is_chance(apart: float | None, error: float | None) -> bool:
    """Return whether an error, fp32's where it is known, comes from two random draws with the distance `apart`.

    Where both drew the same numbers, the error is rounding, far below another draw's; where chance is far below
    rounding, it hides nothing.
    """
    return apart is not None and error is not None and apart > 0 and MATTERS * error <= apart <= error / SAME
