"""The numbers of one step, and those that others are held against: its fp64 twin's and its fp32 twin's; untimed.

Weights, inputs and random numbers are the same; how far chance alone puts two such steps apart is measured, too.
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

NOT_DECIDED = "decisions are not counted: what the loss gives to cross_entropy is no output of the network, reshaped"
MATTERS = 1e-3
"""Chance that is a smaller share of an error than this hides none of it."""
SAME = 1e-2
"""An error below this share of what chance makes is not chance: both steps saw the same random numbers."""
_FP32 = PRECISIONS[BASELINE]

Made = TypeVar("Made")


@dataclass(slots=True)
class StepNumbers:
    """What one step gave, on the reference device: outputs in fp64 with their names, and for training the rest.

    Gradients and updated weights are in the dtypes they came in: a copy in fp64 of each would take most of the memory
    of a pass. `half` are how many elements those outputs of training have that came in a narrower dtype than fp32,
    `stall` is how far its running statistics stop from those of batches. `apart` is the distance of the updated weights
    from others that were given; on a CPU no weights are kept then.

    Of a step that was not to `update`, outputs are in the dtypes they came in, too, and no weights are updated.
    `native` are its gradients for an optimizer, where they were asked for. `drew` tells whether it drew random numbers;
    `decided` are a reference's decisions, as its loss was seen to make them; `recipe` is what trains it (None: no
    optimizer is named).
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
    are not copied into fp64. With `native` the gradients of a second batch follow. `weights` are updated ones to
    compare with. Where the optimizer refuses fp64, that step has no updated weights.
    Dropout is switched off: two precisions draw different masks, whose distance says nothing about precision. What else
    is random draws from the same seed and, in eager mode with `equal`, the same numbers in every precision.
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
    """Return the numbers of a step of training but for its update, and its gradients as they came."""
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
        half=[one.numel() for one in outputs_in(taken) if one.itemsize < 4],
        loss=float(step.loss.detach()),
        gradients=gradients,
        drew=random_states(step.device) != before,
        notes=notes,
        stall=statistics_stall(step.module),
    )
    return numbers, unscaled


def _update(step: TrainingStep, numbers: StepNumbers, keep: Device, weights: Mapping[str, torch.Tensor] | None) -> None:
    """Take the optimizer's step, and put the weights after it, the scale and whether it was skipped to `numbers`.

    Of the weights, only their distance where there are `weights` to compare with.
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
        if isinstance(step.device, Cpu):  # elsewhere a second step is held against these
            return
    several = len(step.data.batches) > 1  # a second batch begins with the weights as they were
    numbers.updated = {name: value.clone() for name, value in updated.items()} if several else updated


def _drawing(equal: bool) -> contextlib.AbstractContextManager[Any]:
    """Return what random numbers are drawn within: where they are to be `equal` in all precisions, `EqualDraws`."""
    return EqualDraws() if equal else contextlib.nullcontext()


def _note_decisions(numbers: StepNumbers, loss: LossTargets) -> None:
    """Keep which decisions a loss was seen to make; the notes say if in no output."""
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
    """Return the fp64 step of `case`, or that in another `precision`; where it drew random numbers, an `equal` one."""
    run = partial(run_step, workload, case, device, keep=keep, precision=precision, update=update, native=native)
    found = run()
    if not found.drew:
        return found
    del found
    return run(equal=True)


@dataclass(frozen=True, slots=True)
class Reference:
    """What a group of cases is held against: the fp64 step, or that in fp32 where the fp64 step fails.

    `dtype` says which ("fp64", "fp32", "" where fp32 fails, too, and there are no `numbers`), `where` the device it
    ran on, `error` why the fp64 step failed. `fp32` is the fp32 step on the device, None where that fails or does not
    fit into its memory. `chance` is how far another step in that dtype lies from it that differs in nothing but random
    numbers and what the network keeps to itself (None: not known), `chances` the same of each output. In
    training, `intended` is what a step should change of the weights, and `fp32` has outputs alone.
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
        """Whether the step draws random numbers, so that others must be `equal` to it."""
        return self.numbers is not None and self.numbers.drew


class References:
    """What the cases of a group share, made once for all of them: that of the group last asked for."""

    def __init__(self) -> None:
        self._workload: Workload | None = None
        self._key: tuple[object, ...] = ()
        self._made: Any = None

    def of(self, workload: Workload, case: Case, device: Device, what: object, make: Callable[[], Made]) -> Made:
        """Return what `make` has made of the group of `case`; it makes it now where another group was asked for, or
        something else than `what`, which then is no more. Raises what it raises.
        """
        key = (what, case.group, case.device, case.phase)
        if self._made is None or workload is not self._workload or key != self._key:
            self._made = None
            device.release()
            self._made, self._workload, self._key = make(), workload, key
        return cast(Made, self._made)


def passing_reference(workload: Workload, case: Case, device: Device, *, updates: bool = False) -> Reference:
    """Return outputs and gradients of the fp64 step, on the CPU; where it fails, of the fp32 step on the device.

    With `updates`, what a named optimizer's step should change, too, where the fp64 step runs.
    Raises `torch.OutOfMemoryError` where the step does not fit into the memory, and what the fp32 step raises.
    """
    where = fp64_device(device)
    updates = updates and is_named(workload, find_recipe(case.recipe))
    try:
        exact = reference_step(workload, case, where, keep=Cpu(), update=False, native=updates)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        said = said_of(error)
    else:
        intended = None
        if exact.native is not None:
            intended = intended_update(take_snapshot(workload, case, device), exact.native, where)
            exact.native = None
        return Reference(numbers=exact, fp32=None, where=where.type, intended=intended)
    device.release()
    numbers = reference_step(workload, case, device, keep=Cpu(), precision=_FP32, update=False)
    return Reference(numbers=numbers, fp32=numbers, where=device.type, dtype="fp32", error=said)


def trusted_reference(workload: Workload, case: Case, device: Device, *, updates: bool = False) -> Reference:
    """Return a `passing_reference`; raises `WorkloadError` where chance decides how far the fp32 step lies from it."""
    held = passing_reference(workload, case, device, updates=updates)
    if held.dtype == "fp64" and held.numbers is not None:
        chance = _chance(workload, case, fp64_device(device), held.numbers, Cpu())[0]
        if chance:
            fp32 = run_step(workload, case, device, keep=Cpu(), precision=_FP32, update=False, equal=held.draws)
            if is_chance(chance, compare(fp32.outputs, held.numbers.outputs, Cpu()).rel_l2):
                raise WorkloadError(CHANCE.format(chance))
    return held


def full_reference(workload: Workload, case: Case, device: Device) -> Reference:
    """Return the fp64 and the fp32 step of the group of `case`, with what an update should be and what chance makes.

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
        device.release()  # what the error held of the step
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
    workload: Workload, case: Case, device: Device, found: StepNumbers, keep: Device, precision: Precision = FP64
) -> tuple[float | None, list[float | None]]:
    """Return how far another fp64 forward pass lies from `found`: from another seed, where that one drew numbers.

    In another `precision`, if one is named. That is the distance of all outputs, and of each: 1 where its outputs have
    other shapes; None where that is undefined or there is no room.
    """
    seed_all(int(found.drew))
    try:
        with precision_flags(precision):
            step = build_step(workload, case, device, precision=precision)
            if isinstance(step, TrainingStep):
                switch_off_dropout(step.module, [])
            with step.mode(), EqualDraws() if found.drew else contextlib.nullcontext():
                output = step.run() if isinstance(step, OwnStep) else step.network.forward_and_loss()[0]
            outputs = kept_outputs(compared_outputs(workload, output), keep)
            step.let_go()
            del output
            every, each = compare_each(outputs, found.outputs, keep)
            return every.rel_l2, [one.rel_l2 for one in each]
    except ValueError:
        return 1.0, []
    except Exception as error:
        if is_out_of_memory(error):
            return None, []
        raise


def is_chance(apart: float | None, error: float | None) -> bool:
    """Return whether an error, that of fp32 where it is known, is that of two random draws that lie so far `apart`.

    Where both saw the same draws, the error is that of rounding, far below what another draw makes; where chance is far
    below rounding, it hides nothing.
    """
    return apart is not None and error is not None and apart > 0 and MATTERS * error <= apart <= error / SAME
