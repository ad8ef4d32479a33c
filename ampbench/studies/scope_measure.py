"""A case trained with autocast entered around more or less of its loop: casts, memory, time and numbers of each scope.

All scopes take the same steps, from the same weights, batches and random numbers; errors are against fp64.
"""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from msgspec import structs

from ampbench.core.precisions import BASELINE, FP64, PRECISIONS
from ampbench.errors import UsageError, first_line
from ampbench.records.case import Case
from ampbench.records.casts import CastTrace, bytes_moved
from ampbench.records.labels import FP32_INSTEAD
from ampbench.studies.scope import (
    FORWARD,
    FORWARD_AND_LOSS,
    SCOPES,
    UNCACHED_LOOP,
    WHOLE_LOOP,
    WITH_BACKWARD,
    ScopeAsked,
    ScopePass,
    ScopeRun,
)
from ampbench.trace.dtypes import short_dtype
from ampbench.trace.ledger import trace_casts
from ampbench.worker.distances import compare, floating_in, kept_one, kept_outputs
from ampbench.worker.machine import Accelerator, Cpu, Device, fp64_device, precision_flags
from ampbench.worker.memory import cpu_changes, is_out_of_memory, said_of
from ampbench.worker.step import SETTLING_STEPS, build_training, seed_all, switch_off_dropout
from ampbench.worker.timing import FitnessWatch, Settled, side_by_side
from ampbench.worker.worker import Work
from ampbench.workload import Workload

PLAIN = {"fp64": FP64, "fp32": PRECISIONS[BASELINE]}
"""The scopes of loops without autocast: the reference, and its substitute where it fails."""

Look = Callable[[int, Any, torch.Tensor], None]
"""Receives a step's number from 0, its output and its loss; the parameters hold the unscaled gradients."""

Region = Callable[[], AbstractContextManager[Any]]


class Loop:
    """`steps` steps of training a case with autocast around `scope`, one of `SCOPES` or, without autocast, of `PLAIN`.

    A step is forward, loss, backward, GradScaler's and the optimizer's step, and at last zero_grad.
    """

    def __init__(self, workload: Workload, case: Case, device: Device, scope: str, steps: int):
        self.step = build_training(workload, case, device, precision=PLAIN.get(scope))
        self.steps = steps
        region: Region = nullcontext
        if scope not in PLAIN:
            dtype = getattr(torch, PRECISIONS[case.precision].autocast or "")
            region = partial(torch.autocast, device.type, dtype=dtype, cache_enabled=scope != UNCACHED_LOOP)
        self._around_step: Region = region if scope == WITH_BACKWARD else nullcontext
        self._around_loop: Region = region if scope in (WHOLE_LOOP, UNCACHED_LOOP) else nullcontext
        self.step.network.autocast = region if scope == FORWARD_AND_LOSS else nullcontext
        self._around_forward: Region = region if scope == FORWARD else nullcontext
        self._skipped = False
        self.mode, self.restore = self.step.mode, self.step.restore

    def start(self, settled: Settled) -> None:
        """Give GradScaler the state it `settled` at, take a step that it does not skip, and save the state."""
        self.step.settle_at(settled)
        self.step.save()
        with closing(self.taken(steps=SETTLING_STEPS)) as steps:
            for _ in steps:
                if not self._skipped:
                    break
        self.restore()
        self.step.save()

    def changed(self) -> list[str]:
        """Return nothing: the step restores its changes before a batch comes again."""
        return []

    def taken(self, look: Look | None = None, steps: int | None = None) -> Generator[None, None, None]:
        """Yield after each of `steps` (None: all), within a region around the loop; call `look` after each backward."""
        with self._around_loop():
            for turn in range(steps or self.steps):
                self._take(turn, look)
                yield

    def run(self) -> None:
        """Take all steps."""
        for _ in self.taken():
            pass

    def _take(self, turn: int, look: Look | None) -> None:
        step = self.step

        def forward(*args: Any, **kwargs: Any) -> Any:
            with self._around_forward():
                return step.module(*args, **kwargs)

        with self._around_step():
            output, loss = step.forward_and_backward(forward)
        if look is not None:
            if step.scaler is not None:
                step.scaler.unscale_(step.optimizer)
            look(turn, output, loss.detach())
        self._skipped = not step.apply_gradients()
        step.optimizer.zero_grad(set_to_none=True)


@dataclass(slots=True)
class Numbers:
    """Outputs, loss and gradients of a loop's first step, and each parameter's total change, all in fp64."""

    outputs: list[torch.Tensor] = field(default_factory=list)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    moved: dict[str, torch.Tensor] = field(default_factory=dict)
    loss: float = math.nan
    dtypes: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def loop_numbers(
    workload: Workload, case: Case, device: Device, scope: str, steps: int, settled: Settled, notes: list[str]
) -> Numbers:
    """Return the numbers of a loop of `case` with dropout off; `scope` as in `Loop`."""
    numbers, keep = Numbers(), fp64_device(device)
    with precision_flags(PLAIN.get(scope, PRECISIONS[case.precision])):
        seed_all(0)
        loop = Loop(workload, case, device, scope, steps)
        switch_off_dropout(loop.step.module, notes)
        loop.step.settle_at(settled)
        parameters = dict(loop.step.module.named_parameters())
        before = {name: kept_one(value, keep) for name, value in parameters.items()}

        def look(turn: int, output: Any, loss: torch.Tensor) -> None:
            if turn:
                return
            gradients = {name: value.grad for name, value in parameters.items() if value.grad is not None}
            numbers.loss = float(loss)
            numbers.outputs = kept_outputs(output, keep)
            numbers.gradients = {name: kept_one(gradient, keep) for name, gradient in gradients.items()}
            kinds = {"output": floating_in(output), "loss": [loss], "gradients": gradients.values()}
            numbers.dtypes = {
                kind: ", ".join(sorted({short_dtype(tensor.dtype) for tensor in tensors}))
                for kind, tensors in kinds.items()
            }

        for _ in loop.taken(look):
            pass
        numbers.moved = {name: kept_one(value, keep) - before[name] for name, value in parameters.items()}
    scaler = loop.step.scaler
    if scaler is not None and settled is not None and scaler.get_scale() < settled["scale"]:
        numbers.notes.append("GradScaler skipped steps, and lowered its scale")
    return numbers


def settled_scaler(workload: Workload, case: Case, device: Device, notes: list[str]) -> Settled:
    """Return the state GradScaler settles at in the recommended scope; None without a scaler or where that raises."""
    step = build_training(workload, case, device)
    if step.scaler is None:
        return None
    try:
        step.settle_scaler()
    except Exception as error:  # noqa: BLE001 - the scope's own run tells
        notes.append(f"GradScaler did not settle, and begins at its initial scale: {first_line(error)}")
        return None
    return step.scaler.state_dict()


def measure_scopes(work: Work, asked: ScopeAsked) -> ScopePass:
    """Return the numbers and times of training steps of a case in each scope."""
    workload, case, device, steps = work.workload, work.case, work.device, asked.steps
    notes: list[str] = []
    with precision_flags(PRECISIONS[case.precision]):
        settled = settled_scaler(workload, case, device, notes)
    runs, reference_dtype = _numbers(workload, case, device, steps, settled, notes)
    running = [run for run in runs if not run.error]
    builds = [partial(Loop, workload, case, device, run.scope, steps) for run in running]
    with precision_flags(PRECISIONS[case.precision]):
        traced = [_traced(build(), settled, notes) for build in builds]
        device.release()
        memory = _memory(builds, settled, device, notes)
        watch = FitnessWatch(device)
        loops = side_by_side(builds, lambda loop, _: loop.start(settled), device, asked.seconds, notes)
        fitness = watch.seen()
    measured = {}
    for run, casts, (peaks, alive), samples in zip(running, traced, memory, loops, strict=True):
        of_steps = [[sample / steps for sample in build] for build in samples]
        measured[run.scope] = structs.replace(run, **casts, peak_bytes=peaks, alive_bytes=alive, samples=of_steps)
    return ScopePass(
        case_id=case.case_id,
        steps=steps,
        scopes=[measured.get(run.scope, run) for run in runs],
        reference_dtype=reference_dtype,
        fitness=fitness,
        notes=list(dict.fromkeys(notes)),
    )


def _numbers(
    workload: Workload, case: Case, device: Device, steps: int, settled: Settled, notes: list[str]
) -> tuple[list[ScopeRun], str]:
    """Return a run of each scope with its numbers or its error, and the reference's dtype.

    Raises the first scope's error where all raise.
    """
    dtype, reference = _reference(workload, case, device, steps, notes)
    runs = []
    first: Exception | None = None
    for scope in SCOPES:
        device.release()
        try:
            numbers = loop_numbers(workload, case, device, scope, steps, settled, notes)
            runs.append(_compared(scope, numbers, reference, notes))
            del numbers
        except Exception as error:  # noqa: BLE001 - any error of the user's code is the scope's result
            first = first or error
            runs.append(ScopeRun(scope=scope, error=said_of(error)))
    if first is not None and all(run.error for run in runs):
        raise first
    return runs, dtype


def _reference(
    workload: Workload, case: Case, device: Device, steps: int, notes: list[str]
) -> tuple[str, Numbers | None]:
    """Return the scope of `PLAIN` that runs, and its numbers: fp64's or, which `notes` say, fp32's; "" for neither."""
    failed: list[str] = []
    for scope, on in (("fp64", fp64_device(device)), ("fp32", device)):
        try:
            numbers = loop_numbers(workload, case, on, scope, steps, None, notes)
        except Exception as error:  # noqa: BLE001 - a network that does not run in fp64 may train well in fp32
            failed.append(said_of(error))
            if is_out_of_memory(error):
                break
            device.release()  # the error held tensors of the steps
        else:
            notes += [FP32_INSTEAD.format(*failed)] if failed else []
            return scope, numbers
    notes.append(f"no error is known, as the fp64 reference failed: {'; fp32 failed: '.join(failed)}")
    return "", None


def _compared(scope: str, numbers: Numbers, reference: Numbers | None, notes: list[str]) -> ScopeRun:
    """Return a run of a scope with its errors against the reference."""
    run = ScopeRun(scope=scope, dtypes=numbers.dtypes, notes=numbers.notes)
    if reference is None:
        return run
    difference = abs(numbers.loss - reference.loss)

    def error(values: dict[str, torch.Tensor], references: dict[str, torch.Tensor]) -> float | None:
        return compare(list(values.values()), [references[name] for name in values]).rel_l2

    try:
        outputs = compare(numbers.outputs, reference.outputs).rel_l2
    except ValueError as raised:  # other shapes: a detector found other boxes
        outputs = None
        notes.append(f"{raised}: no error of the output is defined")
    return structs.replace(
        run,
        output_rel_l2=outputs,
        loss_rel_error=difference / abs(reference.loss) if math.isfinite(difference) and reference.loss else None,
        grad_rel_l2=error(numbers.gradients, reference.gradients),
        update_rel_l2=error(numbers.moved, reference.moved),
    )


def _traced(loop: Loop, settled: Settled, notes: list[str]) -> dict[str, list[int]]:
    """Return `split_by_step` of a loop; nothing, with a reason in `notes`, where no op can be watched."""
    loop.start(settled)
    starts = [0]
    try:
        with trace_casts(loop.step.module) as ledger:
            for _ in loop.taken():
                starts.append(len(ledger.ops))
    except UsageError as refused:
        notes.append(f"casts were not counted: {refused}")
        return {}
    return split_by_step(ledger.trace, starts[:-1])


def split_by_step(trace: CastTrace, starts: Sequence[int]) -> dict[str, list[int]]:
    """Return the per-step fields of `ScopeRun` from a trace, whose steps begin at the ops `starts`."""
    steps = list(zip(starts, [*starts[1:], len(trace.ops)], strict=True))
    casts = [[cast for cast in trace.casts if start <= cast.index < end] for start, end in steps]
    copied = [use for use in trace.weights if use.cast is not None]
    stale = [
        {use.name for use in copied if start <= use.operation < end and (use.cast or 0) < start} for start, end in steps
    ]
    return {
        "casts": [len(of_step) for of_step in casts],
        "cast_bytes": [bytes_moved(of_step) for of_step in casts],
        "stale_weights": [len(names) for names in stale],
    }


def _memory(
    builds: Sequence[partial[Loop]], settled: Settled, device: Device, notes: list[str]
) -> list[tuple[list[int], list[int]]]:
    """Return for each loop the peak of each step and the bytes allocated after it, above the start of the first.

    On the CPU all loops are built before the first is run, because the allocation record is good for once in a process.
    """
    try:
        if isinstance(device, Cpu):
            return _cpu_memory(builds, settled, device)
        memory = []
        for build in builds:
            memory.append(_device_memory(build(), settled, device))
            device.release()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        notes.append("memory was not measured: there is no room for it")
        return [([], [])] * len(builds)
    return memory


def _cpu_memory(builds: Sequence[partial[Loop]], settled: Settled, device: Device) -> list[tuple[list[int], list[int]]]:
    loops = [build() for build in builds]
    calls: list[Callable[[], None]] = []
    for loop in loops:
        loop.start(settled)
        calls += [partial(next, loop.taken(), None)] * (loop.steps + 1)  # the last leaves the region
    device.release()
    changes = iter(cpu_changes(calls))
    memory = []
    for loop in loops:
        of_loop = [next(changes) for _ in range(loop.steps + 1)][:-1]
        alive = list(accumulate(change.net for change in of_loop))
        memory.append(([before + change.peak for before, change in zip([0, *alive], of_loop, strict=False)], alive))
    return memory


def _device_memory(loop: Loop, settled: Settled, device: Accelerator) -> tuple[list[int], list[int]]:
    loop.start(settled)
    device.release()
    before = device.allocated_bytes()
    peaks, alive = [], []
    device.reset_peak()
    for _ in loop.taken():
        device.synchronize()
        peaks.append(device.peak_bytes() - before)
        alive.append(device.allocated_bytes() - before)
        device.reset_peak()
    return peaks, alive
