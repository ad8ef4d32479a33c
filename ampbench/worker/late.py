"""Places in a training after some fp32 steps of its own: weights and optimizer state that updates are measured from."""

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ampbench.core.precisions import BASELINE, PRECISIONS
from ampbench.core.recipes import find_recipe
from ampbench.errors import WorkloadError
from ampbench.records.case import Case
from ampbench.records.measured import Stop
from ampbench.worker.data import named_tensors, pairs_of
from ampbench.worker.distances import is_finite
from ampbench.worker.machine import Device, precision_flags
from ampbench.worker.memory import count_flops, is_out_of_memory, said_of
from ampbench.worker.network import is_named, with_settings
from ampbench.worker.step import TrainingStep, build_training, seed_all, switch_off_dropout
from ampbench.workload import Workload

WARM_STEPS = 20
"""fp32 steps before the snapshot: at the usual 0.9 a first moment has then taken in 88% of a steady gradient."""
STATELESS_STEPS = 2
"""`WARM_STEPS` for an optimizer without state: weights that began at exactly zero, biases, have then left it."""
FEWEST_STEPS = 5
"""`WARM_STEPS` for a large network, where fewer of them already take `WARM_FLOPS`."""
WARM_FLOPS = {"cpu": 2e11}
"""The most FLOPs of a snapshot's steps: about five seconds on a CPU; `MANY_FLOPS` elsewhere. FLOPs are counted instead
of time, so that every run takes the same steps."""
MANY_FLOPS = 1e14
MOST_STEPS = 200
"""The most steps to the late place, by convention."""
PASSES = 2
"""The most passes over the batches, but `WARM_STEPS` steps at least: later, few batches are memorised."""
HALVED = 0.5
"""The share of the first loss that ends the steps: one batch is soon memorised, and its gradients are then tiny."""

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Weights and optimizer state after `steps` fp32 steps, on the CPU; updates are measured from here.

    `weights` are parameters and buffers by name, `trained` names the parameters that require a gradient. `state` is the
    optimizer's by parameter and key; its `resident` keys are on their parameter's device. `groups` are the
    hyperparameters by group. `undefined` says why there is no snapshot; not `named`: the workload names no optimizer.
    """

    steps: int = 0
    weights: Tensors = field(default_factory=dict)
    trained: frozenset[str] = frozenset()
    state: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    resident: frozenset[str] = frozenset()
    groups: Sequence[Mapping[str, Any]] = ()
    undefined: str = ""
    named: bool = True


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


def take_snapshot(workload: Workload, case: Case, device: Device) -> Snapshot:
    """Return weights and optimizer state after some fp32 steps over the workload's batches, usually `WARM_STEPS`.

    With `Workload.optimizer_state`, the weights are the workload's own, with that state and the settings of the recipe;
    a recipe with another optimizer ignores the state. An error of the network or its optimizer, or values that are not
    finite, leave the snapshot undefined.
    """
    if not is_named(workload, find_recipe(case.recipe)):
        return Snapshot(undefined="no optimizer is named", named=False)
    try:
        return _train(workload, case, device, late=False)[0]
    except Exception as error:  # noqa: BLE001 - the step of each case reports it
        return Snapshot(undefined=f"no fp32 steps to begin from: {said_of(error)}")


def late_place(workload: Workload, case: Case, device: Device) -> Place:
    """Return the late place of a training.

    There is none without an optimizer, with `Workload.optimizer_state`, which is a place of its own, and where a step
    fails. Raises `torch.OutOfMemoryError` where a step does not fit into the memory.
    """
    if not is_named(workload, find_recipe(case.recipe)):
        return Place(workload, Stop.NO_OPTIMIZER)
    try:
        snapshot, stop = _train(workload, case, device, late=True)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return Place(workload, Stop.FAILED, error=said_of(error))
    if snapshot.undefined:
        return Place(workload, Stop.FAILED, error=snapshot.undefined)
    pairs = pairs_of(workload)
    turn = snapshot.steps % len(pairs)
    if turn:
        inputs, targets = zip(*pairs[turn:], *pairs[:turn], strict=True)
        workload = replace(workload, inputs=list(inputs), targets=list(targets) if workload.targets else None)
    return Place(workload, stop, snapshot, min(snapshot.steps, len(pairs)))


def _train(workload: Workload, case: Case, device: Device, *, late: bool) -> tuple[Snapshot, Stop]:
    """Return the place after fp32 steps, dropout off, and why they ended; no steps with the workload's own state."""
    recipe = find_recipe(case.recipe)
    has_state = workload.optimizer_state is not None and not recipe.optimizer
    if has_state and late:
        return Snapshot(), Stop.OWN_STATE
    with precision_flags(PRECISIONS[BASELINE]):
        seed_all(0)
        step = build_training(workload, case, device, precision=PRECISIONS[BASELINE])
        switch_off_dropout(step.module, [])
        if has_state:
            step.optimizer.load_state_dict(copy.deepcopy(dict(workload.optimizer_state or {})))
            with_settings(step.optimizer, recipe)
            return _snapshot(step, 0), Stop.OWN_STATE
        taken = sum((count_flops(step.run) or {}).values())
        allowed = int(WARM_FLOPS.get(device.type, MANY_FLOPS) / max(taken, 1))
        state = [value for state in step.optimizer.state.values() for value in state.values() if value is not None]
        most = MOST_STEPS if late else WARM_STEPS if state else STATELESS_STEPS
        passes = {Stop.PASSES: max(WARM_STEPS, PASSES * len(step.data.given))} if late else {}
        limits = {Stop.STEPS: most, **passes, Stop.FLOPS: max(FEWEST_STEPS, allowed)}
        stop = min(limits, key=lambda reason: limits[reason])
        first = _loss(step) if late else 0.0
        for steps in range(1, limits[stop]):
            if late and _loss(step) <= HALVED * first and first > 0:
                return _snapshot(step, steps), Stop.HALVED
            step.run()
        return _snapshot(step, limits[stop]), stop


def _loss(step: TrainingStep) -> float:
    assert step.loss is not None
    loss = step.loss.detach()
    if not torch.isfinite(loss):
        raise WorkloadError("the loss is not finite after fp32 steps")
    return float(loss)


def _snapshot(step: TrainingStep, steps: int) -> Snapshot:
    """Return the weights and optimizer state of a training after `steps`; undefined where a weight is not finite."""
    if not is_finite(tensor for _, tensor in named_tensors(step.module) if tensor.is_floating_point()):
        return Snapshot(undefined=f"parameters are not finite after {steps} fp32 steps")
    parameters = dict(step.module.named_parameters())
    state, resident = {}, set()
    for name, parameter in parameters.items():
        parameter_state = step.optimizer.state.get(parameter, {})
        state[name] = {
            key: value.detach().cpu() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
            for key, value in parameter_state.items()
        }
        resident |= {
            key
            for key, value in parameter_state.items()
            if isinstance(value, torch.Tensor) and value.device.type == parameter.device.type
        }
    return Snapshot(
        steps=steps,
        weights={name: tensor.detach().cpu() for name, tensor in named_tensors(step.module)},
        trained=frozenset(name for name, parameter in parameters.items() if parameter.requires_grad),
        state=state,
        resident=frozenset(resident),
        groups=[
            {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
            for group in step.optimizer.param_groups
        ],
    )
