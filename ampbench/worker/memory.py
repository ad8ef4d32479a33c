"""The peak of one step's memory by its parts; its kernels and launches; the least work of a step.

Peaks are a pass of their own, never timed, which also counts a step's FLOPs by operation and dtype, and the bytes it
reads and writes.
"""

import ctypes
import dataclasses
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from typing import Any

import torch
from msgspec import structs
from torch._C._autograd import DeviceType
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ampbench.core.precisions import PRECISIONS
from ampbench.errors import AmpbenchError, bounded, first_line, own_place, text_of
from ampbench.records.case import AUTOCAST_DEVICES, WITH_GRAPHS, Case, compile_mode
from ampbench.records.measured import ATTENTION, CONV, MATMUL, MULTIPLYING, OUT_OF_MEMORY, MemoryPass
from ampbench.trace.dtypes import op_kind, resolving, short_dtype, take_apart
from ampbench.trace.modules import hook_calls, is_compiled
from ampbench.worker.data import dense_parts, pairs_of, plain_parts, tensors_of
from ampbench.worker.machine import Cpu, Device, kernels_in
from ampbench.worker.step import Step, TrainingStep, build_step
from ampbench.workload import Workload

_Arguments = Sequence[Any]
_aten = torch.ops.aten


def count_flops(run: Callable[[], Any]) -> dict[str, int] | None:
    """Return the FLOPs of `run` by dtype ("bf16").

    A multiply-add is two. Matrix products, convolutions and attention count by `torch.utils.flop_counter`'s formulas of
    shapes (masked elements, too), and so do the fused kernels of recurrent networks and encoder layers; mv, addmv, dot,
    vdot, `torch.nn.Bilinear`, cdist and linear algebra do not. Call it with `torch.no_grad` rather than inference mode,
    which hides autocast. {}: nothing countable runs; None: some op cannot be counted. Where the counter itself breaks
    `run`, it is run once more; compiled code runs uncompiled.
    """
    return count_work(run).flops


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """The work of a call: `flops` as in `count_flops`, `flops_by_operation` those that no kernel can leave out.

    The latter are by operation (`MULTIPLYING`) and dtype: unmasked ones for causal attention, none for
    `flex_attention`, whose mask may leave out any. Attention written as products counts as products.

    `read` and `written` are bytes by the address of an earlier storage: of the largest tensor in it that an op used in
    whole. An op uses a tensor in whole if it multiplies it, or is pointwise, a cast, a copy or an optimizer's; lookups,
    views and scatters use parts and add nothing, so the sums are lower bounds. `produced` are the bytes of the call's
    results in new storages. None: could not be counted.
    """

    flops: dict[str, int] | None = None
    flops_by_operation: dict[str, dict[str, int]] | None = None
    read: dict[int, int] | None = None
    written: dict[int, int] | None = None
    produced: int | None = None

    def wrote(self, tensor: torch.Tensor) -> bool:
        """Return whether all of an earlier tensor was written."""
        written = self.written or {}
        return all(written.get(_address(part), -1) >= _own_bytes(part) for part in plain_parts(tensor))


def count_work(run: Callable[[], Any], *, tf32: bool = False, kept: Iterable[torch.Tensor] = ()) -> StepWork:
    """Return the work of a call of `run`, after the call; `kept` are the tensors whose bytes are counted.

    These must be dense and stay alive. `run` is called as in `count_flops`; with `tf32`, fp32's FLOPs count as "tf32".
    """
    dense = (tensor for tensor in kept if tensor.layout is torch.strided)
    counter = _Counter(_address(part) for tensor in dense for part in plain_parts(tensor))
    try:
        with hook_calls(lambda *_: counter.look()), counter:
            returned = run()
    except Exception:  # noqa: BLE001 - the second run raises again, unless the counter was at fault
        run()
        return StepWork()

    def by_dtype(counts: Mapping[str, int]) -> dict[str, int]:
        return {"tf32" if tf32 and dtype == "fp32" else dtype: count for dtype, count in counts.items() if count}

    fresh: dict[int, int] = {}
    for tensor in tensors_of(returned):
        if tensor.layout is torch.strided and _address(tensor) not in counter.kept:
            fresh[_address(tensor)] = max(fresh.get(_address(tensor), 0), _own_bytes(tensor))
    known = not counter.uncounted
    return StepWork(
        flops=by_dtype(counter.flops) if known else None,
        flops_by_operation={name: counts for name in MULTIPLYING if (counts := by_dtype(counter.least[name]))}
        if known
        else None,
        read=counter.read,
        written=counter.written,
        produced=sum(fresh.values()),
    )


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _own_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements, where elements repeated by a dimension count once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride else 1
    return min(elements * tensor.element_size(), tensor.untyped_storage().nbytes()) if tensor.numel() else 0


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every op and counts its FLOPs in `flops`; `uncounted` names the ops that cannot be counted.

    `least`, `read` and `written` are as in `StepWork`, for the storages at the addresses `kept`. `lowered` is
    autocast's dtype by device, as of a module's last call: in a mode's code autocast is off.
    """

    supports_higher_order_operators = True

    def __init__(self, kept: Iterable[int] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops: Counter[str] = Counter()
        self.least: dict[str, Counter[str]] = {name: Counter() for name in MULTIPLYING}
        self.uncounted: list[str] = []
        self.lowered: dict[str, torch.dtype] = {}
        self.kept = frozenset(kept)
        self.read: dict[int, int] = {}
        self.written: dict[int, int] = {}

    def look(self) -> None:
        """Note the devices where autocast is on now, and its dtypes."""
        enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
        self.lowered = {device: dtype(device) for device in AUTOCAST_DEVICES if enabled(device)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op, in parts where only these have formulas, and count it."""
        kwargs = kwargs or {}
        if any(kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for kind in types):
            return NotImplemented  # a subclass runs ops on plain tensors, which are counted here
        called = getattr(func, "overloadpacket", func)
        plain = isinstance(func, torch._ops.OpOverload)
        known = called in _OURS or called in flop_registry
        if not known and plain and op_kind(func).decomposes(args, kwargs):
            with self, resolving():
                return take_apart(func, *args, **kwargs)
        out = func(*args, **kwargs)
        if known:
            ours = _OURS.get(called)
            try:
                count = ours(args, out) if ours else flop_registry[called](*args, **kwargs, out_val=out)
            except Exception:  # noqa: BLE001 - a layout without a formula, such as a nested tensor's
                self.uncounted.append(str(called))
            else:
                tensors = tensors_of((args, kwargs))
                first = next((tensor for tensor in tensors if tensor.is_floating_point()), tensors[0])
                lowers = called in _LOWERED and first.dtype is torch.float32  # products inside are in autocast's dtype
                dtype = short_dtype(self.lowered.get(first.device.type, first.dtype) if lowers else first.dtype)
                self.flops[dtype] += count
                for operation, least in _least(called, func, args, kwargs, count):
                    self.least[operation][dtype] += least
        elif not plain:
            self.uncounted.append(str(called))
        if self.kept and plain:
            name = func._schema.name.removeprefix("aten::")
            optimizes = name.startswith(("_foreach_", "_fused_")) and name != "_fused_sdp_choice"
            if known or torch.Tag.pointwise in func.tags or optimizes or name in _WHOLE:
                self._touch(func, args, kwargs)
        return out

    def _touch(self, func: Any, args: _Arguments, kwargs: Mapping[str, Any]) -> None:
        """Note the storages in `kept` that an op reads and writes, if it uses its tensors in whole.

        An op with an empty or a sparse tensor may ignore the others.
        """
        values = [*zip(func._schema.arguments, args, strict=False)]
        values += [(argument, kwargs[argument.name]) for argument in func._schema.arguments if argument.name in kwargs]
        tensors = [
            (argument, leaf)
            for argument, value in values
            for leaf in (value if isinstance(value, list | tuple) else [value])
            if isinstance(leaf, torch.Tensor)
        ]
        masked = any(argument.name in _CAUSAL and value for argument, value in values)
        if masked or any(leaf.layout is not torch.strided or not leaf.numel() for _, leaf in tensors):
            return
        for argument, leaf in tensors:
            address = _address(leaf)
            if address in self.kept:
                writes = argument.alias_info is not None and argument.alias_info.is_write
                if writes:
                    self.written[address] = max(self.written.get(address, 0), _own_bytes(leaf))
                if not (writes and getattr(func, "overloadpacket", func) in _OVERWRITING):
                    self.read[address] = max(self.read.get(address, 0), _own_bytes(leaf))


def _least(
    called: Any, func: Any, args: _Arguments, kwargs: Mapping[str, Any], count: int
) -> Iterator[tuple[str, int]]:
    """Yield the operations of an op's `count` FLOPs, and the FLOPs that no kernel can leave out."""
    name = str(called)
    if called in _LOWERED:
        products = _products(args[0], [args[place] for place in _LOWERED[called]])
        yield MATMUL, products
        yield ATTENTION, count - products
    elif "flex_attention" in name:
        return
    elif "attention" in name:
        names = [argument.name for argument in func._schema.arguments]
        known = dict(zip(names, args, strict=False)) | dict(kwargs)
        query, key, share = known.get("query"), known.get("key"), 1.0
        if any(known.get(argument) for argument in _CAUSAL):
            share = 0.0  # shapes do not show it: sequences of various lengths in one tensor
            if query is not None and key is not None and query.ndim == 4 and known.get("is_causal") and count:
                # each query is compared with the keys up to its place
                queries, keys = query.shape[-2], key.shape[-2]
                square = min(queries, keys)
                share = (square * (square + 1) // 2 + (queries - square) * keys) / (queries * keys)
        yield ATTENTION, int(count * share)
    else:
        yield CONV if "conv" in name else MATMUL, count


def _products(inputs: torch.Tensor, weights: Sequence[torch.Tensor]) -> int:
    """Return the FLOPs of multiplying every position of `inputs`, whose last dimension are features, by each matrix."""
    positions = inputs.numel() // inputs.shape[-1]
    return 2 * positions * sum(weight.numel() for weight in weights if weight.ndim == 2)


def _recurrent(args: _Arguments, _: Any) -> int:
    return _products(args[0], args[1])


def _recurrent_backward(args: _Arguments, _: Any) -> int:
    """Count the gradients of inputs and states, which are always made, and of weights, if requested.

    The last argument holds the requests for input, states, cells and weights.
    """
    return (2 if args[-1][3] else 1) * _products(args[0], args[1])


def _fast_path(args: _Arguments, _: Any, op: Any) -> int:
    """Count the fast path of an encoder layer or attention, which requires query, key and value to be equal.

    All positions are compared with each other, and their values weighed.
    """
    batch, length, width = args[0].shape
    return _products(args[0], [args[place] for place in _LOWERED[op]]) + int(4 * batch * length * length * width)


def _convolution_backward(args: _Arguments, out: Any) -> int:
    """Count as torch does, but the gradient of an output channel's weights only with the inputs of its group."""
    *before, groups, (of_input, of_weight, of_bias) = args
    whole = flop_registry[_aten.convolution_backward]
    for_inputs = whole(*before, groups, [of_input, False, of_bias], out_val=out)
    for_weights = whole(*before, groups, [False, of_weight, of_bias], out_val=out)
    return int(for_inputs + for_weights // groups)


def _fused_attention(args: _Arguments, out: Any, name: str = "_scaled_dot_product_flash_attention") -> int:
    """Count as torch does for the kernel `name`: of query, key and value, in a backward pass with a gradient before."""
    return int(flop_registry[getattr(_aten, name)](*args[: 4 if name.endswith("_backward") else 3], out_val=out))


_attention_backward = partial(_fused_attention, name="_scaled_dot_product_flash_attention_backward")
_OURS: Mapping[Any, Callable[[_Arguments, Any], int]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _fused_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    _aten._scaled_dot_product_fused_attention_overrideable: _fused_attention,
    _aten._scaled_dot_product_fused_attention_overrideable_backward: _attention_backward,
    _aten._cudnn_rnn: _recurrent,
    _aten._cudnn_rnn_backward: _recurrent_backward,
    _aten.miopen_rnn: _recurrent,
    _aten.miopen_rnn_backward: _recurrent_backward,
    _aten.mkldnn_rnn_layer: lambda args, _: _products(args[0], args[1:3]),  # weights of inputs and of states
    _aten.mkldnn_rnn_layer_backward: lambda args, _: 2 * _products(args[0], args[1:3]),
    _aten._transformer_encoder_layer_fwd: partial(_fast_path, op=_aten._transformer_encoder_layer_fwd),
    _aten._native_multi_head_attention: partial(_fast_path, op=_aten._native_multi_head_attention),
    _aten.convolution_backward: _convolution_backward,
}
"""Formulas, from positional arguments and result, for ops that some supported torch does not count, or counts
wrongly."""

_LOWERED: Mapping[Any, Sequence[int]] = {
    _aten._transformer_encoder_layer_fwd: (3, 5, 14, 16),
    _aten._native_multi_head_attention: (5, 7),
}
"""Kernels with fp32 inputs under autocast that multiply in its dtype, with the places of their weights."""
_CAUSAL = ("is_causal", "custom_mask_type")
"""Arguments that make attention leave out the keys behind each query."""
_OVERWRITING = frozenset({_aten.copy_, _aten.zero_, _aten.fill_})
_WHOLE = frozenset(
    {
        "_to_copy", "copy_", "clone", "zero_", "fill_", "native_layer_norm", "native_group_norm", "native_batch_norm",
        "_native_batch_norm_legit", "cudnn_batch_norm", "_fused_rms_norm", "sum", "mean", "linalg_vector_norm",
    }
)  # fmt: skip
"""Ops without torch's tag for pointwise ones that use their tensors in whole."""


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
        # A throw-away step takes what libraries allocate once: cuBLAS its workspaces, at the first matrix product of a
        # process and at its backward. Those of an earlier case are freed first.
        device.drop_workspaces()
        device.release()
        _run(build_step(workload, case, device))
        device.release()
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
        source="profiler" if isinstance(device, Cpu) else "allocator",
        peak_bytes=recorded.peak,
        parameter_bytes=_storage_bytes(_weights(step)),
        buffer_bytes=_storage_bytes(step.module.buffers()),
        input_bytes=_storage_bytes(_data_of(step)),
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
    return _storage_bytes(tensors) + _storage_bytes(_data_of(step))


def _weights(step: Step) -> list[torch.Tensor]:
    stored = step.stored().values() if isinstance(step, TrainingStep) else ()
    return [*step.module.parameters(), *stored]


def _data_of(step: Step) -> list[torch.Tensor]:
    """Return a step's data: inputs, targets, and tensors of its loss."""
    return [*tensors_of([step.data.batches, step.data.targets]), *step.network.held]


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
    return max(accumulate(changes, initial=0))


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
