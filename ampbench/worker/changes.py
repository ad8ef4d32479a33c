"""Changes that save casts without editing the network, timed in turns with the unchanged step.

The changed and the unchanged step are rebuilt repeatedly at random places in memory, because the place of a build
matters more than most casts. The findings of casts judge the samples of the pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from msgspec import structs
from torch.utils import _pytree as pytree

from ampbench.core.precisions import PRECISIONS
from ampbench.errors import in_one_line
from ampbench.records.case import Case
from ampbench.records.casts import (
    INPUT,
    KEEP,
    NO_GRAD,
    PRE_CAST_INPUTS,
    PRE_CAST_WEIGHTS,
    STORE,
    WEIGHT,
    CastTrace,
    CheckedSaving,
    savings,
)
from ampbench.trace.dtypes import short_dtype
from ampbench.trace.ledger import trace_casts
from ampbench.worker.data import tensors_of
from ampbench.worker.distances import floating_in, identical
from ampbench.worker.machine import Device
from ampbench.worker.memory import one_batch
from ampbench.worker.step import Step, TrainingStep, build_step, seed_all
from ampbench.worker.timing import Settled, settled_peaks, side_by_side, warm_up
from ampbench.workload import Workload


@dataclass(frozen=True, slots=True)
class Change:
    """A change: its `name` (a constant of `records.casts`), its `tensors`, and the dtype they are stored in."""

    name: str
    tensors: tuple[str, ...]
    dtype: torch.dtype

    def build(self, workload: Workload, case: Case, device: Device) -> Step:
        """Return the changed step, built."""
        if self.name == PRE_CAST_INPUTS:
            return build_step(workload, structs.replace(case, input_dtype=short_dtype(self.dtype)), device)
        step = build_step(workload, case, device, no_grad=self.name == NO_GRAD)
        if self.name == PRE_CAST_WEIGHTS:
            step.network.store_weights(self.tensors, self.dtype)
        return step


def try_changes(
    workload: Workload, case: Case, device: Device, settled: Settled, before: CastTrace, notes: list[str]
) -> list[tuple[Change, CastTrace]]:
    """Return the changes that save casts of the eager step of `case`, whose trace is `before`, and their own traces.

    `notes` get the reasons for the others: the changed step fails, or makes no fewer casts. `settled` is GradScaler's
    settled state.
    """
    tried = []
    for change in changes_of(before, case):
        try:
            step = change.build(workload, case, device)
            warm_up(step, settled)
            with step.mode(), trace_casts(step.module) as ledger:
                step.run()
        except Exception as error:  # noqa: BLE001 - any error of a network that the change breaks
            notes.append(f"{change.name}: not measured, the changed step fails: {in_one_line(error)}")
            continue
        if len(ledger.casts) >= len(before.casts):
            many = f"{len(ledger.casts)} casts, unchanged {len(before.casts)}"
            notes.append(f"{change.name}: not measured, it saves no cast: changed, the step makes {many}")
            continue
        inputs = len(list(floating_in(pytree.tree_leaves(step.data.batches[0]))))
        if change.name == PRE_CAST_INPUTS and inputs > len(change.tensors):
            always = ", ".join(change.tensors)
            low = short_dtype(change.dtype)
            notes.append(f"{change.name}: all {inputs} floating inputs were given in {low}, not only {always}")
        tried.append((change, ledger.trace))
    return tried


def changes_of(trace: CastTrace, case: Case) -> list[Change]:
    """Return the changes that the savings in `trace`, an eager step of `case`, suggest and that can be tested."""
    autocast = PRECISIONS[case.precision].autocast
    if autocast is None:
        return []
    inference = case.phase == "inference"
    rows = savings(trace)

    def named(kind: str, tensor_kind: str) -> tuple[str, ...]:
        matching = [row for row in rows if (row.kind, row.what) == (kind, tensor_kind)]
        return tuple(dict.fromkeys(name for row in matching for name in row.names if name))

    wanted = {PRE_CAST_INPUTS: named(STORE, INPUT)}
    if inference:
        wanted |= {PRE_CAST_WEIGHTS: named(STORE, WEIGHT), NO_GRAD: named(KEEP, WEIGHT)}
    return [Change(name, tensors, getattr(torch, autocast)) for name, tensors in wanted.items() if tensors]


def peaks_with(
    changes: Sequence[Change], workload: Workload, case: Case, device: Device, settled: Settled, notes: list[str]
) -> list[int | None]:
    """Return the peak of a step of `case` unchanged, then with each change, as `settled_peaks` does."""
    alone = one_batch(workload, case)
    makers = [partial(build_step, alone), *(partial(change.build, alone) for change in changes)]
    builds = [partial(make, case, device) for make in makers]
    return settled_peaks(builds, [settled] * len(builds), device, notes)


def measure_change(
    change: Change,
    after: CastTrace,
    workload: Workload,
    case: Case,
    device: Device,
    settled: Settled,
    before: CastTrace,
    seconds: float,
    notes: list[str],
) -> CheckedSaving:
    """Return the saving of a change in the eager step of `case`, whose trace is `before`, then `after`, without peaks.

    It takes about `seconds`, more where an interval needs more, at most `timing.PATIENCE` times as many.
    """
    builds = partial(build_step, workload, case, device), partial(change.build, workload, case, device)
    step = builds[0]()
    warm_up(step, settled)
    first, again = _results(step), _results(step)
    step = builds[1]()
    warm_up(step, settled)
    changed = _results(step)
    del step
    timing_notes: list[str] = []
    taken = side_by_side(builds, lambda built, _: warm_up(built, settled), device, seconds, timing_notes)
    notes += [f"{change.name}: {note}" for note in timing_notes]
    if not identical(first, again):
        notes.append(f"{change.name}: the unchanged step itself does not give the same bits twice")
    moved = [sum(cast.bytes_moved for cast in trace.casts) for trace in (before, after)]
    return CheckedSaving(
        change=change.name,
        names=list(change.tensors),
        casts=len(before.casts) - len(after.casts),
        bytes_moved=moved[0] - moved[1],
        before=taken[0],
        after=taken[1],
        identical=identical(first, changed),
    )


def _results(step: Step) -> list[torch.Tensor]:
    """Return the results of a seeded step: outputs and, in training, loss and gradients."""
    seed_all(0)
    step.rewind()
    step.restore()
    if isinstance(step, TrainingStep):
        output, gradients = step.unscaled_gradients()
        assert step.loss is not None
        more = [step.loss, *gradients.values()]
    else:
        with step.mode():
            output, more = step.run(), []
    leaves = tensors_of(output)
    results = [tensor.detach().clone() for tensor in [*(leaves or floating_in(output)), *more]]
    if isinstance(step, TrainingStep):
        step.apply_gradients()  # GradScaler unscales once a step
        step.restore()
    return results
