"""The peak of one step's memory by its parts; its kernels and launches; glibc's treatment of freed memory.

Peaks are a pass of their own, never timed, which also counts a step's FLOPs and least bytes.
"""

import ctypes
import dataclasses
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from msgspec import structs
from torch._C._autograd import DeviceType
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

from ampbench.core.precisions import PRECISIONS
from ampbench.errors import AmpbenchError, bounded, first_line, own_place, text_of
from ampbench.records.case import WITH_GRAPHS, Case, compile_mode
from ampbench.records.measured import OUT_OF_MEMORY, MemoryPass
from ampbench.trace.modules import is_compiled
from ampbench.worker.data import dense_parts, pairs_of, tensors_of
from ampbench.worker.machine import Accelerator, Cpu, Device, kernels_in
from ampbench.worker.step import Step, TrainingStep, build_step
from ampbench.worker.work import StepWork, count_work
from ampbench.workload import Workload

MMAP_THRESHOLD, TRIM_THRESHOLD = ("mmap_threshold", -3), ("trim_threshold", -1)
"""Parameters of malloc by their names in GLIBC_TUNABLES and in mallopt(3)."""
MMAP_THRESHOLD_BYTES = 32 << 20
"""The largest value that glibc accepts on 64-bit machines, half of its HEAP_MAX_SIZE, which it also reaches by
itself."""
NO_ROOM = re.compile(
    r"out of memory|_ALLOC_FAILED|_ALLOCATION_FAILED|ERROR_OUT_OF_\w+|DefaultCPUAllocator|unable to find an engine",
    re.IGNORECASE,
)
"""Texts of out-of-memory errors without their own type: CUDA, HIP, Triton and their drivers, cuBLAS, cuFFT, cuSOLVER,
hipBLAS; cuDNN 9; Level Zero and Unified Runtime; the CPU's allocator; cuDNN without room for a workspace."""
NEVER = -1
"""A threshold of trimming that gives nothing back."""


@cache
def keep_freed_memory() -> None:
    """Let glibc keep freed memory from now on (docs/statistics.md); does nothing with another libc.

    Parameters in GLIBC_TUNABLES stay as they are.
    """
    libc, tunables = ctypes.CDLL(None), os.environ.get("GLIBC_TUNABLES", "")
    if hasattr(libc, "mallopt") and hasattr(libc, "gnu_get_libc_version"):
        for (name, parameter), value in ((MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES), (TRIM_THRESHOLD, NEVER)):
            if f"glibc.malloc.{name}=" not in tunables:
                libc.mallopt(parameter, value)


COMPILING = 2
"""Steps of a compiled network before its memory is measured: torch may compile once more in the second."""
_MARK = "ampbench: next call"


def measure_memory(workload: Workload, case: Case, device: Device) -> MemoryPass:
    """Return the peak of one warmed-up step of `case`, with its named parts.

    On an accelerator it is the allocator's peak above the bytes allocated before the case was built; on the CPU the
    step's peak by the profiler's allocation record, plus the bytes alive when it began. FLOPs are counted as the step
    warms up; on a path other than eager, in an eager step before. An accelerator's busy time is counted in further
    steps. The device holds one batch, in inference without its targets; a network that comes compiled is compiled
    before. Compiled code may take kernels of attention apart, so their absence there means nothing.
    """
    workload = one_batch(workload, case)
    work = StepWork()

    def count(step: Step) -> None:
        nonlocal work
        kept = [*_weights(step), *step.module.buffers(), *_data_of(step)]
        # in inference mode a counter sees no autocast
        with step.mode() if isinstance(step, TrainingStep) else step.network.without_gradients():
            work = count_work(step.run, tf32=PRECISIONS[case.precision].tf32, kept=kept)

    def warmed(step: Step) -> None:
        if case.path == "eager":
            count(step)
        if case.path != "eager" or any(map(is_compiled, step.module.modules())):
            for _ in range(COMPILING):
                _run(step)
        elif case.phase == "inference":  # shows whether inference mode works, before the recording
            _run(step)

    def build() -> Step:
        step = build_step(workload, case, device)
        if case.path != "eager":
            count(step)
        step.prepare_path(case.path)
        if isinstance(step, TrainingStep):
            step.settle_scaler()
        return step

    if not isinstance(device, Cpu):
        _take_workspaces(workload, case, device)
    has_graphs = not isinstance(device, Cpu) and compile_mode(case.path) in WITH_GRAPHS
    listening: AbstractContextManager[list[str]] = graphs_left_aside() if has_graphs else nullcontext([])
    with listening as left_aside:
        ((step, recorded),) = peaks_of([build], device, warmed, recorded=has_graphs)
    training = isinstance(step, TrainingStep)
    compiled = bool(compile_mode(case.path)) or any(map(is_compiled, step.module.modules()))
    gradients = [weight.grad for weight in _weights(step) if weight.grad is not None]
    masters = step.masters if isinstance(step, TrainingStep) else None
    memory_pass = MemoryPass(
        case_id=case.case_id,
        source=memory_source(device),
        peak_bytes=recorded.peak,
        parameter_bytes=_storage_bytes(_weights(step)),
        buffer_bytes=_storage_bytes(step.module.buffers()),
        input_bytes=_input_bytes(step),
        gradient_bytes=_storage_bytes(gradients) if training else None,
        optimizer_bytes=_storage_bytes(_optimizer_tensors(step)) if training else None,
        flops=work.flops,
        flops_by_operation=work.flops_by_operation,
        least_bytes=_least_bytes(step, work),
        attention=None if compiled and not recorded.attention else recorded.attention,
        reserved_bytes=recorded.reserved,
        parameter_count=sum(parameter.numel() for parameter in step.module.parameters()),
        master_bytes=None if masters is None else _storage_bytes(masters.by_name.values()),
        graphs_left_aside=left_aside,
    )
    del gradients  # the steps below create new ones
    return structs.replace(memory_pass, busy_seconds=busy_of(partial(_run, step), device))


def one_batch(workload: Workload, case: Case) -> Workload:
    """Return `workload` with only its first batch, as on the device in a user's loop; targets only in training."""
    inputs, targets = pairs_of(workload)[0]
    return dataclasses.replace(workload, inputs=inputs, targets=targets if case.phase == "training" else None)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` means out of memory: by its type, its text (`NO_ROOM`), or its cause."""
    cause = error.__cause__ if isinstance(error, AmpbenchError) else None
    if cause is not None and is_out_of_memory(cause):
        return True
    typed = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return typed or (isinstance(error, RuntimeError) and NO_ROOM.search(text_of(error)) is not None)


def said_of(error: Exception) -> str:
    """Return the text of an error of the user's code: `OUT_OF_MEMORY`, or its first line and place."""
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    return first_line(error) + ("" if isinstance(error, AmpbenchError) else own_place(error))


def memory_source(device: Device) -> str:
    """Return the source of the peaks of `peaks_of`: "profiler" or "allocator"."""
    return "profiler" if isinstance(device, Cpu) else "allocator"


def _run(step: Step) -> None:
    with step.mode():
        step.run()


@dataclass(frozen=True, slots=True)
class Recorded:
    """A call's effect on the memory in use, in bytes: its `peak`, and the `net` change at its end.

    `attention` counts the runs of each kernel of attention (`machine.kernels_in`), `reserved` is the most that was
    taken from the device (None on the CPU).
    """

    peak: int
    net: int
    attention: dict[str, int]
    reserved: int | None = None


def peaks_of(
    builds: Sequence[Callable[[], Step]],
    device: Device,
    warm_up: Callable[[Step], None] = _run,
    *,
    recorded: bool = False,
) -> Iterator[tuple[Step, Recorded]]:
    """Yield each of `builds`, a step ready to run, with the effect of one step after `warm_up`.

    Peaks are above the bytes allocated before the build. With `recorded`, CUDA graphs are recorded in the warm-up, and
    the peak covers both: a replayed graph allocates nothing, but uses memory from its recording.

    On the CPU all are built before the first is run, because the allocation record works once in a process. On an
    accelerator one is built after the other, and the caller releases each before the next.
    """
    if isinstance(device, Cpu):
        steps = [build() for build in builds]
        alive = [_warm(step, warm_up) for step in steps]
        changes = cpu_changes([partial(_run, step) for step in steps])
        for step, held, change in zip(steps, alive, changes, strict=True):
            yield step, dataclasses.replace(change, peak=held + change.peak)
        return
    for build in builds:
        device.release()
        before = device.allocated_bytes()
        step = build()
        device.reset_peak()
        _warm(step, warm_up)
        device.release()
        if not recorded:
            device.reset_peak()
        started = device.allocated_bytes()
        with _profiled(memory=False) as threads:
            _run(step)
            device.synchronize()
        yield (
            step,
            Recorded(
                device.peak_bytes() - before,
                device.allocated_bytes() - started,
                kernels_in(threads),
                device.reserved_bytes(),
            ),
        )
        del step


def _warm(step: Step, warm_up: Callable[[Step], None]) -> int:
    """Run a step, drop its gradients, and return the bytes that stay alive: weights, state and inputs."""
    warm_up(step)
    if isinstance(step, TrainingStep):
        step.optimizer.zero_grad(set_to_none=True)
        step.loss = None
    tensors = [*_weights(step), *step.module.buffers(), *_optimizer_tensors(step)]
    return _storage_bytes(tensors) + _input_bytes(step)


def _weights(step: Step) -> list[torch.Tensor]:
    """Return the network's weights and the weights that its optimizer moves."""
    stored = step.stored().values() if isinstance(step, TrainingStep) else ()
    return [*step.module.parameters(), *stored]


def _data_of(step: Step) -> list[torch.Tensor]:
    """Return a step's data: inputs, targets, and tensors of its loss."""
    return [*tensors_of([step.data.batches, step.data.targets]), *step.network.held]


def _input_bytes(step: Step) -> int:
    return _storage_bytes(_data_of(step))


def _least_bytes(step: Step, work: StepWork) -> int | None:
    """Return the least bytes that a step reads and writes; None where they could not be counted.

    Added to the counts of `work`: in inference the outputs; in training the state of torch's own optimizers, read and
    written, for weights written in whole, since these optimizers use all their state in every step.
    """
    if work.read is None or work.written is None or work.produced is None:
        return None
    touched = sum(work.read.values()) + sum(work.written.values())
    if not isinstance(step, TrainingStep):
        return touched + work.produced
    if not type(step.optimizer).__module__.startswith("torch.optim."):
        return touched
    states = ((weight, state) for weight, state in step.optimizer.state.items() if work.wrote(weight))
    tensors = ((weight, value) for weight, state in states for value in state.values() if torch.is_tensor(value))
    kept = [value for weight, value in tensors if value.numel() == weight.numel()]
    return touched + 2 * _storage_bytes(kept)


def _take_workspaces(workload: Workload, case: Case, device: Accelerator) -> None:
    """Run a throw-away step, so that memory that libraries allocate once belongs to no case.

    cuBLAS takes its workspaces from the caching allocator at a process's first matrix product, and at its backward. The
    workspaces of an earlier case are freed first.
    """
    device.drop_workspaces()
    device.release()
    _run(build_step(workload, case, device))
    device.release()


def cpu_changes(calls: Sequence[Callable[[], Any]]) -> list[Recorded]:
    """Return the effect of each of `calls` on the CPU memory in use, by the profiler's allocation record.

    The autograd profiler runs without Kineto: it records the same allocations (a test compares them) and starts in a
    millisecond, where Kineto's first use costs over a second and opens the GPU driver. Either record is exact only the
    first time in a process: torch remembers the sizes of blocks freed after a session, and applies them to later blocks
    at the same addresses. So all calls share one session, with a mark before each.
    """
    with _profiled(memory=True) as threads:
        for call in calls:
            with torch.profiler.record_function(_MARK):
                pass
            call()
    marks = [event for events in threads for event in events if event.name() == _MARK]
    of_calls: list[list[list[Any]]] = [[[] for _ in threads] for _ in calls]
    for thread, events in enumerate(threads):
        begun = 0
        for event in events:
            while begun < len(marks) and marks[begun].cpu_elapsed_us(event) >= 0:
                begun += 1
            if begun:
                of_calls[begun - 1][thread].append(event)
    recorded = []
    for parts in of_calls:
        changes = [event.cpu_memory_usage() for part in parts for event in part if str(event.kind()) == "memory_alloc"]
        recorded.append(Recorded(peak_of(changes), sum(changes), kernels_in(parts)))
    return recorded


@contextmanager
def _profiled(*, memory: bool) -> Iterator[list[list[Any]]]:
    """Yield a list that holds the profiler's events of each thread, of ops and of `memory`, after the block."""
    threads: list[list[Any]] = []
    settings = ProfilerConfig(ProfilerState.CPU, False, memory, False, False, False, _ExperimentalConfig())
    torch._C._autograd._enable_profiler_legacy(settings)
    try:
        yield threads
    finally:
        threads += torch._C._autograd._disable_profiler_legacy()


def peak_of(changes: Iterable[int]) -> int:
    """Return the highest running sum of allocations (positive) and frees (negative), at least 0."""
    current = peak = 0
    for change in changes:
        current += change
        peak = max(peak, current)
    return peak


def _optimizer_tensors(step: Step) -> list[torch.Tensor]:
    states = step.optimizer.state.values() if isinstance(step, TrainingStep) else ()
    return [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]


def _storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the distinct storages of `tensors`; for sparse and nested ones, of their values."""
    storages = (part.untyped_storage() for tensor in tensors for part in dense_parts(tensor))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


PROFILED_STEPS = 5
"""Profiled steps: the times of kernels repeat, and launches do not count."""


def busy_of(run: Callable[[], Any], device: Device) -> float | None:
    """Return the seconds in a call of `run` during which the device computes or copies; None on a CPU, or unknown.

    `run` must be warm. It is called several more times under torch's profiler, which records only the device. Parallel
    streams count once. The profiler slows the process from then on: nothing may be timed in it.
    """
    activity = None if isinstance(device, Cpu) else getattr(torch.profiler.ProfilerActivity, device.type.upper(), None)
    if activity is None or activity not in torch.profiler.supported_activities():  # type: ignore[no-untyped-call]
        return None
    try:
        with torch.profiler.profile(activities=[activity]) as profiled:
            for _ in range(PROFILED_STEPS):
                run()
            device.synchronize()
        events = profiled.profiler.kineto_results.events()
    except Exception:  # noqa: BLE001 - a failing profiler does not fail the case
        return None
    return device_seconds(events) / PROFILED_STEPS or None


def device_seconds(events: Iterable[Any]) -> float:
    """Return the seconds during which a device had any work, by the profiler's `events`: kernels, copies and fills.

    Overlaps count once; gaps, events of the CPU and user annotations do not count.
    """
    spans = sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in events
        if event.device_type() != DeviceType.CPU and not event.is_user_annotation()
    )
    total, until = 0, -1
    for start, end in spans:
        if end > until:
            total += end - max(start, until)
            until = end
    return total / 1e9


@contextmanager
def graphs_left_aside() -> Iterator[list[str]]:
    """Collect the distinct reasons why torch.compile skips CUDA graphs, in a mode that records them.

    Torch counts and logs each skip (`log_cudagraph_skip_and_bump_counter` of torch/_inductor/cudagraph_utils.py); a
    counted skip without a reason is `NO_REASON`. The list is complete after the `with` statement.
    """
    from torch._dynamo.utils import counters  # a slow import, only for torch.compile

    reasons: list[str] = []
    collector = _Reasons(reasons)
    logger = logging.getLogger("torch._inductor.cudagraph_utils.__cudagraphs")
    before = counters["inductor"]["cudagraph_skips"]
    logger.addHandler(collector)
    try:
        yield reasons
    finally:
        logger.removeHandler(collector)
        if not reasons and counters["inductor"]["cudagraph_skips"] > before:
            reasons.append(NO_REASON)


NO_REASON = "torch gives no reason"


class _Reasons(logging.Handler):
    """Collects warnings in a list, each once, in one line and without a traceback."""

    def __init__(self, texts: list[str]):
        super().__init__(logging.WARNING)
        self._texts = texts

    def emit(self, record: logging.LogRecord) -> None:
        lines = record.getMessage().strip().splitlines()
        text = bounded(lines[0].rstrip(" .:")) if lines else NO_REASON
        if text not in self._texts:
            self._texts.append(text)
