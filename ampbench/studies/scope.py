"""A case trained with autocast entered around more or less of its loop: casts, memory, time and numbers of each scope.

All scopes take the same steps: the same weights, batches and random numbers, and what `loops` says. Numbers are held
against the same steps in fp64, without autocast.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from ampbench.errors import UsageError
from ampbench.explain.ledger import trace_casts
from ampbench.precisions import PRECISIONS
from ampbench.records.cases import Case
from ampbench.records.casts import CastTrace
from ampbench.records.studies import FEWEST_STEPS, SCOPES, ScopePass, ScopeRun
from ampbench.soundness import FP32_INSTEAD
from ampbench.studies.loops import PLAIN, Loop, Numbers, loop_numbers, settled_scaler
from ampbench.worker.devices import Cpu, Device, fp64_device
from ampbench.worker.distances import compare
from ampbench.worker.fitness import FitnessWatch
from ampbench.worker.flags import precision_flags
from ampbench.worker.memory import cpu_changes, is_out_of_memory, memory_source, said_of
from ampbench.worker.turns import Settled, side_by_side
from ampbench.workload import Workload


def measure_scopes(workload: Workload, case: Case, device: Device, steps: int, seconds: float) -> ScopePass:
    """Return what `steps` steps of training `case` come to in each scope of autocast, timed for about `seconds`.

    What a network raises in a scope becomes that run's error; what it raises in all of them is raised, and so is
    `UsageError` for a precision without autocast, a case that does not train, and fewer steps than two.
    """
    if PRECISIONS[case.precision].autocast is None or case.phase != "training":
        raise UsageError(f"{case.case_id} has no training steps with autocast, whose scope could be studied")
    if steps < FEWEST_STEPS:
        raise UsageError(f"what a step leaves to the next needs {FEWEST_STEPS} steps at least, not {steps}")
    notes: list[str] = []
    with precision_flags(PRECISIONS[case.precision]):
        settled = settled_scaler(workload, case, device, notes)
    runs, reference = _numbers(workload, case, device, steps, settled, notes)
    running = [run.scope for run in runs if not run.error]
    builds = [partial(Loop, workload, case, device, scope, steps) for scope in running]
    with precision_flags(PRECISIONS[case.precision]):
        traced = [_traced(build(), settled, notes) for build in builds]
        device.release()
        memory = _memory(builds, settled, device, notes)
        watch = FitnessWatch(device)
        samples = side_by_side(builds, lambda loop, _: loop.start(settled), device, seconds, notes)
        fitness = watch.seen()
    measured = dict(zip(running, zip(traced, memory, samples, strict=True), strict=True))
    return ScopePass(
        case_id=case.case_id,
        steps=steps,
        scopes=[_with_costs(run, steps, *measured[run.scope]) if run.scope in measured else run for run in runs],
        reference_losses=reference.losses,
        reference_dtype=reference.dtype,
        memory_source=memory_source(device) if any(peaks for peaks, _ in memory) else None,
        fitness=fitness,
        notes=list(dict.fromkeys(notes)),
    )


def _with_costs(
    run: ScopeRun,
    steps: int,
    traced: tuple[list[int], list[int], list[int]],
    memory: tuple[list[int], list[int]],
    samples: list[list[float]],
) -> ScopeRun:
    """Return a run with its casts, memory and time; `samples` are seconds of whole loops."""
    casts, cast_bytes, stale = traced
    return dataclasses.replace(
        run,
        casts=casts,
        cast_bytes=cast_bytes,
        stale_weights=stale,
        peak_bytes=memory[0],
        alive_bytes=memory[1],
        samples=[[seconds / steps for seconds in build] for build in samples],
    )


def _numbers(
    workload: Workload, case: Case, device: Device, steps: int, settled: Settled, notes: list[str]
) -> tuple[list[ScopeRun], "_Reference"]:
    """Return a run of each scope with its numbers or its error, and what they are held against, without its tensors.

    Raises what the first scope raised where all raise.
    """
    reference = _reference(workload, case, device, steps, notes)
    keep = fp64_device(device)
    runs = []
    first: Exception | None = None
    for scope in SCOPES:
        device.release()
        try:
            numbers = loop_numbers(workload, case, device, scope, steps, keep, settled, notes)
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises is what this scope does to it
            first = first or error
            runs.append(ScopeRun(scope=scope, error=said_of(error)))
            continue
        runs.append(_compared(scope, numbers, reference.numbers, notes))
        del numbers
    if first is not None and all(run.error for run in runs):
        raise first
    return runs, dataclasses.replace(reference, numbers=None)


@dataclass(frozen=True, slots=True)
class _Reference:
    """What scopes are held against: the steps in fp64, or in fp32 where those fail ("": there is none)."""

    dtype: str = ""
    numbers: Numbers | None = None
    losses: list[float | None] = field(default_factory=list)


def _reference(workload: Workload, case: Case, device: Device, steps: int, notes: list[str]) -> _Reference:
    """Return the numbers of the fp64 steps or, which `notes` say, of those in fp32, or none."""
    where = fp64_device(device)
    failed: list[str] = []
    for scope, on, dtype in (("", where, "fp64"), (PLAIN, device, PLAIN)):
        try:
            numbers = loop_numbers(workload, case, on, scope, steps, where, None, notes)
        except Exception as error:  # noqa: BLE001 - a network that does not run in fp64 may train well in fp32
            failed.append(said_of(error))
            if is_out_of_memory(error):
                break
            device.release()  # what the error held of the steps
            continue
        notes += [FP32_INSTEAD.format(*failed)] if failed else []
        return _Reference(dtype, numbers, numbers.losses)
    notes.append(f"no error is known, as the fp64 reference failed: {'; fp32 failed: '.join(failed)}")
    return _Reference()


def _compared(scope: str, numbers: Numbers, reference: Numbers | None, notes: list[str]) -> ScopeRun:
    """Return a run of a scope with its numbers beside those of the reference."""
    run = ScopeRun(scope=scope, dtypes=numbers.dtypes, losses=numbers.losses, notes=numbers.notes)
    if reference is None:
        return run
    loss, expected = numbers.losses[0], reference.losses[0]

    def error(values: dict[str, torch.Tensor], references: dict[str, torch.Tensor]) -> float | None:
        return compare(list(values.values()), [references[name] for name in values]).rel_l2

    try:
        outputs = compare(numbers.outputs, reference.outputs).rel_l2
    except ValueError as raised:  # other shapes: a detector found other boxes
        outputs = None
        notes.append(f"{raised}: no error of the output is defined")
    return dataclasses.replace(
        run,
        output_rel_l2=outputs,
        loss_abs_error=None if loss is None or expected is None else abs(loss - expected),
        grad_rel_l2=error(numbers.gradients, reference.gradients),
        update_rel_l2=error(numbers.moved, reference.moved),
    )


def _traced(loop: Loop, settled: Settled, notes: list[str]) -> tuple[list[int], list[int], list[int]]:
    """Return, per step, casts, the bytes they move and the weights read as copies that an earlier step made."""
    loop.start(settled)
    loop.restore()
    starts = []
    try:
        with trace_casts(loop.step.module) as ledger:
            for _ in loop.taken():
                starts.append(len(ledger.ops))
    except UsageError as refused:  # a program that no op of can be watched
        notes.append(f"casts were not counted: {refused}")
        return [], [], []
    return split_by_step(ledger.trace, [0, *starts[:-1]])


def split_by_step(trace: CastTrace, starts: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Return, per step, casts, the bytes they move and the weights read as copies that an earlier step made.

    `starts` are the indices of the first ops of the steps.
    """
    ends = [*starts[1:], len(trace.ops)]
    casts, moved, stale = [], [], []
    for start, end in zip(starts, ends, strict=True):
        made = [cast for cast in trace.casts if start <= cast.index < end]
        uses = [use for use in trace.weights if start <= use.operation < end]
        casts.append(len(made))
        moved.append(sum(cast.bytes_moved for cast in made))
        stale.append(len({use.name for use in uses if use.cast is not None and use.cast < start}))
    return casts, moved, stale


def _memory(
    builds: Sequence[partial[Loop]], settled: Settled, device: Device, notes: list[str]
) -> list[tuple[list[int], list[int]]]:
    """Return, for each loop, the peak of each step and what is allocated after it, above what was before the first.

    On the CPU all loops are built before the first is run, because the allocation record is good for once in a process.
    Nothing, which `notes` explain, where there is no room.
    """
    try:
        if isinstance(device, Cpu):
            return _cpu_memory(builds, settled, device)
        found = []
        for build in builds:
            found.append(_device_memory(build(), settled, device))
            device.release()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        notes.append("memory was not measured: there is no room for it")
        return [([], [])] * len(builds)
    return found


def _cpu_memory(builds: Sequence[partial[Loop]], settled: Settled, device: Device) -> list[tuple[list[int], list[int]]]:
    loops = [build() for build in builds]
    calls = []
    for loop in loops:
        loop.start(settled)
        loop.restore()
        taken = loop.taken()
        calls.append([partial(next, taken, None)] * (loop.steps + 1))  # the last leaves the region
    device.release()
    changes = iter(cpu_changes([call for each in calls for call in each]))
    found = []
    for loop in loops:
        peaks, alive, current = [], [], 0
        for change in [next(changes) for _ in range(loop.steps + 1)][:-1]:
            peaks.append(current + change.peak)
            current += change.net
            alive.append(current)
        found.append((peaks, alive))
    return found


def _device_memory(loop: Loop, settled: Settled, device: Device) -> tuple[list[int], list[int]]:
    loop.start(settled)
    loop.restore()
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
