"""The peak of one step's memory, and whose it is; a pass of its own, never timed."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch.utils import _pytree as pytree

from ampbench.records.cases import Case
from ampbench.records.measurements import MemoryPass
from ampbench.worker.devices import Cpu, Device
from ampbench.worker.step import Step
from ampbench.workload import Workload


def measure_memory(workload: Workload, case: Case, device: Device) -> MemoryPass:
    """Return the peak of one warmed-up step of `case`, with the parts that have a name.

    On an accelerator the allocator's peak above what was allocated before the case was built; on the CPU what the step
    allocates at its peak by the profiler's allocation record, plus what was alive when it began.
    """
    if not isinstance(device, Cpu):
        _take_workspaces(workload, case, device)
    before = device.allocated_bytes()
    step = Step(workload, case, device)
    step.settle_scaler()
    step.prepare_path(case.path)
    with step.mode():
        step.run()
    if step.optimizer is not None:
        step.optimizer.zero_grad(set_to_none=True)
    step.loss = None
    optimizer_state = _optimizer_tensors(step.optimizer)
    alive = _storage_bytes([*step.module.parameters(), *step.module.buffers(), *optimizer_state])
    inputs = _storage_bytes(_leaves([step.batches, step.targets]))
    if isinstance(device, Cpu):
        with step.mode():
            peak = alive + inputs + cpu_peak_bytes(step.run)
    else:
        device.release()
        device.reset_peak()
        with step.mode():
            step.run()
        device.synchronize()
        peak = device.peak_bytes() - before
    gradients = [p.grad for p in step.module.parameters() if p.grad is not None]
    return MemoryPass(
        case_id=case.case_id,
        source="profiler" if isinstance(device, Cpu) else "allocator",
        peak_bytes=peak,
        parameter_bytes=_storage_bytes(step.module.parameters()),
        buffer_bytes=_storage_bytes(step.module.buffers()),
        input_bytes=inputs,
        gradient_bytes=_storage_bytes(gradients) if step.training else None,
        optimizer_bytes=_storage_bytes(optimizer_state) if step.training else None,
        rss_bytes=rss_bytes(),
    )


def _take_workspaces(workload: Workload, case: Case, device: Device) -> None:
    """Run a step that is thrown away, so that what libraries allocate once and keep belongs to no case.

    cuBLAS takes its workspaces from the caching allocator at a process' first matrix product, and at its backward.
    """
    step = Step(workload, case, device)
    with step.mode():
        step.run()
    del step
    device.release()


def cpu_peak_bytes(call: Callable[[], Any]) -> int:
    """Return the most bytes that `call` had allocated on the CPU at once, by the profiler's allocation record.

    The autograd profiler is used without Kineto: it records the same allocations (a test compares them) and starts in
    a millisecond, where Kineto's first use costs over a second and opens the GPU driver. The record of either is exact
    only the first time in a process: torch remembers the sizes of blocks that were freed after a session ended, and
    takes them for those of later blocks at the same addresses.
    """
    settings = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
    torch._C._autograd._enable_profiler_legacy(settings)
    try:
        call()
    finally:
        threads = torch._C._autograd._disable_profiler_legacy()
    return peak_of(
        event.cpu_memory_usage() for events in threads for event in events if str(event.kind()) == "memory_alloc"
    )


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
    """Return the bytes of the distinct storages behind `tensors`."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
