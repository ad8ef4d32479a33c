"""The peak of one step's memory, and whose it is; a pass of its own, never timed."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch.utils import _pytree as pytree

from ampbench.errors import AmpbenchError, first_line, own_place, text_of
from ampbench.explain.modules import is_compiled
from ampbench.precisions import PRECISIONS
from ampbench.records.cases import Case
from ampbench.records.measurements import OUT_OF_MEMORY, MemoryPass
from ampbench.worker.devices import Cpu, Device
from ampbench.worker.flops import count_flops
from ampbench.worker.heap import page_faults
from ampbench.worker.step import Step
from ampbench.workload import Workload

COMPILING = 2
"""Steps that a compiled network runs before its memory is measured: torch may compile once more in the second."""
_MARK = "ampbench: next call"


def measure_memory(workload: Workload, case: Case, device: Device) -> MemoryPass:
    """Return the peak of one warmed-up step of `case`, with the parts that have a name.

    On an accelerator the allocator's peak above what was allocated before the case was built; on the CPU what the step
    allocates at its peak by the profiler's allocation record, plus what was alive when it began. FLOPs are counted as
    the step warms up; on a path other than eager, in an eager step before. Page faults are counted in further steps.
    On the device lies one batch, in inference without its targets; a network that comes compiled is compiled before.
    """
    workload = one_batch(workload, case)
    flops: dict[str, int] | None = None

    def count(step: Step) -> None:
        nonlocal flops
        with (
            nullcontext() if step.training or step.by_inputs else torch.no_grad()
        ):  # in inference mode a counter sees no autocast
            flops = count_flops(step.run, tf32=PRECISIONS[case.precision].tf32)

    def warmed(step: Step) -> None:
        if case.path == "eager":
            count(step)
        if case.path != "eager" or any(map(is_compiled, step.module.modules())):
            for _ in range(COMPILING):
                _run(step)

    def build() -> Step:
        step = Step(workload, case, device)
        if case.path != "eager":
            count(step)
        step.prepare_path(case.path)
        step.settle_scaler()
        return step

    if not isinstance(device, Cpu):
        _take_workspaces(workload, case, device)
    ((step, peak),) = peaks_of([build], device, warmed)
    stored = step.stored().values()
    gradients = [weight.grad for weight in stored if weight.grad is not None]
    return MemoryPass(
        case_id=case.case_id,
        source=memory_source(device),
        peak_bytes=peak,
        parameter_bytes=_storage_bytes([*step.module.parameters(), *stored]),
        buffer_bytes=_storage_bytes(step.module.buffers()),
        input_bytes=_input_bytes(step),
        gradient_bytes=_storage_bytes(gradients) if step.training else None,
        optimizer_bytes=_storage_bytes(_optimizer_tensors(step.optimizer)) if step.training else None,
        rss_bytes=rss_bytes(),
        flops=flops,
        faults=page_faults(partial(_run, step)) if isinstance(device, Cpu) else None,
    )


def one_batch(workload: Workload, case: Case) -> Workload:
    """Return `workload` with the first batch alone, as a user's loop has it on the device; targets only in training."""
    several = isinstance(workload.inputs, list)
    inputs = workload.inputs[0] if several else workload.inputs
    targets = workload.targets[0] if several and workload.targets is not None else workload.targets
    return dataclasses.replace(workload, inputs=inputs, targets=targets if case.phase == "training" else None)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` says that memory ran out: torch's own error, Python's, or the CPU allocator's text."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in text_of(error)


def said_of(error: Exception) -> str:
    """Return what an error of the user's code is told as: `OUT_OF_MEMORY`, or its first line and where it arose."""
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    return first_line(error) + ("" if isinstance(error, AmpbenchError) else own_place(error))


def memory_source(device: Device) -> str:
    """Return where the peaks of `peaks_of` come from: "profiler" or "allocator"."""
    return "profiler" if isinstance(device, Cpu) else "allocator"


def _run(step: Step) -> None:
    with step.mode():
        step.run()


def peaks_of(
    builds: Sequence[Callable[[], Step]], device: Device, warm_up: Callable[[Step], None] = _run
) -> Iterator[tuple[Step, int]]:
    """Yield what each of `builds` makes, a step ready to run, with the peak in bytes of one step after `warm_up`.

    On the CPU all are built before the first is run, because the allocation record is good for once in a process. On an
    accelerator one is built after the other, and the caller lets go of each before it asks for the next.
    """
    if isinstance(device, Cpu):
        steps = [build() for build in builds]
        alive = [_warm(step, warm_up) for step in steps]
        peaks = cpu_peaks([partial(_run, step) for step in steps])
        yield from zip(steps, map(sum, zip(alive, peaks, strict=True)), strict=True)
        return
    for build in builds:
        device.release()
        before = device.allocated_bytes()
        step = build()
        _warm(step, warm_up)
        device.release()
        device.reset_peak()
        _run(step)
        device.synchronize()
        yield step, device.peak_bytes() - before
        del step


def _warm(step: Step, warm_up: Callable[[Step], None]) -> int:
    """Run a step, drop its gradients, and return the bytes of what stays alive: weights, state and inputs."""
    warm_up(step)
    if step.optimizer is not None:
        step.optimizer.zero_grad(set_to_none=True)
    step.loss = None
    state = _optimizer_tensors(step.optimizer)
    weights = [*step.module.parameters(), *step.stored().values()]
    return _storage_bytes([*weights, *step.module.buffers(), *state]) + _input_bytes(step)


def _input_bytes(step: Step) -> int:
    return _storage_bytes([*_leaves([step.batches, step.targets]), *step.held])


def _take_workspaces(workload: Workload, case: Case, device: Device) -> None:
    """Run a step that is thrown away, so that what libraries allocate once and keep belongs to no case.

    cuBLAS takes its workspaces from the caching allocator at a process' first matrix product, and at its backward.
    """
    step = Step(workload, case, device)
    with step.mode():
        step.run()
    del step
    device.release()


def cpu_peaks(calls: Sequence[Callable[[], Any]]) -> list[int]:
    """Return the most bytes that each of `calls` had allocated on the CPU at once, as `cpu_changes` sees them."""
    return [change.peak for change in cpu_changes(calls)]


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a call did to the memory in use, in bytes: the most that it added at once, and what it left (or freed)."""

    peak: int
    net: int


def cpu_changes(calls: Sequence[Callable[[], Any]]) -> list[Allocation]:
    """Return what each of `calls` did to the memory in use on the CPU, by the profiler's allocation record.

    The autograd profiler is used without Kineto: it records the same allocations (a test compares them) and starts in
    a millisecond, where Kineto's first use costs over a second and opens the GPU driver. The record of either is exact
    only the first time in a process: torch remembers the sizes of blocks that were freed after a session ended, and
    takes them for those of later blocks at the same addresses. So all calls share one session, with a mark before each.
    """
    settings = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
    torch._C._autograd._enable_profiler_legacy(settings)
    try:
        for call in calls:
            with torch.profiler.record_function(_MARK):
                pass
            call()
    finally:
        threads = torch._C._autograd._disable_profiler_legacy()
    marks = [event for events in threads for event in events if event.name() == _MARK]
    changes: list[list[int]] = [[] for _ in calls]
    for events in threads:
        for event in events:
            if str(event.kind()) == "memory_alloc" and (begun := sum(m.cpu_elapsed_us(event) >= 0 for m in marks)):
                changes[begun - 1].append(event.cpu_memory_usage())
    return [Allocation(peak_of(each), sum(each)) for each in changes]


def peak_of(changes: Iterable[int]) -> int:
    """Return the highest running sum of allocations (positive) and frees (negative), at least 0."""
    current = peak = 0
    for change in changes:
        current += change
        peak = max(peak, current)
    return peak


def rss_bytes(field: str = "VmRSS") -> int | None:
    """Return this process' resident set (or its peak, `VmHWM`) in bytes; None where the kernel does not tell."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    line = next((line for line in status.splitlines() if line.startswith(f"{field}:")), None)
    return int(line.split()[1]) * 1024 if line else None


def _optimizer_tensors(optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    states = optimizer.state.values() if optimizer is not None else ()
    return [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]


def _leaves(tree: Any) -> Iterator[torch.Tensor]:
    yield from (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the distinct storages behind `tensors`; of sparse and nested ones, behind their values."""
    parts = (part for tensor in tensors for part in _dense_parts(tensor))
    storages = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in parts}
    return sum(storages.values())


def _dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the dense tensors that a tensor of any layout stores."""
    match tensor.layout:
        case torch.sparse_coo:
            return [tensor._indices(), tensor._values()]
        case torch.sparse_csr | torch.sparse_bsr:
            return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
        case torch.sparse_csc | torch.sparse_bsc:
            return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
        case torch.jagged:
            return [tensor.values()]
    return [tensor]
