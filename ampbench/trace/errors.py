"""How far each module of a network errs in a low precision by itself, on the inputs that it has in fp32."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ampbench.core.precisions import BASELINE, Precision, find_precision
from ampbench.errors import UsageError, bounded, text_of
from ampbench.records.ranges import ModuleError
from ampbench.trace.dtypes import floating_dtypes
from ampbench.trace.emulated import emulated_forward, precision_at
from ampbench.trace.keep_fp32 import is_kept
from ampbench.trace.modules import ModuleRun, floating_stored, learning, tensors_in, version, watch_runs


@dataclass(slots=True)
class Dtypes:
    """The dtypes that `watch_dtypes` has seen so far, by module: floating inputs and outputs of each call.

    `given[path]` has a tuple for each call, of the positional inputs in order and then of those by keyword.
    """

    given: dict[str, list[tuple[torch.dtype, ...]]] = field(default_factory=dict)
    returned: dict[str, set[torch.dtype]] = field(default_factory=dict)

    def look(self, run: ModuleRun) -> None:
        """Note the dtypes of a call."""
        self.given.setdefault(run.path, []).append(floating_dtypes((run.args, run.kwargs)))
        self.returned.setdefault(run.path, set()).update(floating_dtypes(run.returned))


@contextmanager
def watch_dtypes(model: torch.nn.Module) -> Iterator[Dtypes]:
    """See the dtypes of the floating inputs and outputs of every module while the block runs `model`.

    Results stay the same, bit by bit. Raises `UsageError` for modules compiled by torch.compile.
    """
    dtypes = Dtypes()
    with watch_runs(model, dtypes.look):
        yield dtypes


Given = Mapping[str, Sequence[tuple[torch.dtype, ...]]]
"""The dtypes of the floating inputs of each call of modules, as `watch_dtypes` sees them."""

_FP32 = find_precision(BASELINE)


@dataclass(slots=True)
class _Sum:
    kind: str
    error: float = 0.0
    reference: float = 0.0
    note: str = ""
    counts: Counter[str] = field(default_factory=lambda: Counter(elements=0))


@dataclass(slots=True)
class _Before:
    """The state before a call that the call can change: inputs, buffers, random generators by device type.

    `args` are copies of `given`, and `versions` None, or where nothing was copied, the tensors' versions.
    """

    given: tuple[Any, ...]
    args: tuple[Any, ...]
    versions: list[int | None] | None
    buffers: dict[str, torch.Tensor | None]
    random: dict[str, torch.Tensor]


@dataclass(slots=True)
class Errors:
    """What `watch_errors` has seen so far: `modules`, in the order of running."""

    sums: dict[str, _Sum] = field(default_factory=dict)

    @property
    def modules(self) -> list[ModuleError]:
        """The own error of each module, over all its calls."""
        return [
            ModuleError(
                module=path,
                kind=row.kind,
                own_rel_l2=math.sqrt(row.error / row.reference) if row.reference else None,
                note=row.note,
                **row.counts,
            )
            for path, row in self.sums.items()
        ]


@contextmanager
def watch_errors(
    model: torch.nn.Module, shadow: Precision | str, dtypes_given: Given = MappingProxyType({})
) -> Iterator[Errors]:
    """Run each module again in the precision `shadow`, on the inputs of the fp32 run in the block, and compare.

    What is yielded has `modules`, a record each in the order of running: `module`, `own_rel_l2`, and how many of its
    `elements` `overflowed` or `flushed` to zero.

    `shadow` is a row of `ampbench.core.precisions` or its name: with autocast, the module runs on the fp32 inputs and
    weights below autocast, else its weights, buffers and floating inputs are rounded to the storage dtype. With
    `dtypes_given`, the dtypes that `watch_dtypes` saw in a run below autocast, inputs are rounded to these; a module's
    own error is that against itself in fp32 on the rounded inputs. What overflows or flushes is counted against fp32 on
    the inputs as they were. Compared are the modules in which no other module of `model` ran, and that `keep_fp32` does
    not keep. Results stay the same, bit by bit: whatever the shadow changes is put back. Where a module cannot run in
    the precision, or not be repeated, its record says so. Raises `UsageError` for modules compiled by torch.compile.
    """
    row = find_precision(shadow) if isinstance(shadow, str) else shadow
    if row.autocast is None and row.storage == "float32":
        raise UsageError(f"{row.name} rounds no module's values: watch the errors of a precision in fp16 or bf16")
    errors = Errors()
    calls = {path: iter(dtypes) for path, dtypes in dtypes_given.items()}
    row_at = precision_at(row, model)

    def compare(run: ModuleRun) -> None:
        dtypes = next(calls.get(run.path, iter(())), None)
        if (held := row_at(run.path)) is not None:
            _compare(run, held, errors.sums, dtypes)

    with watch_runs(model, compare, _remember):
        yield errors


def _remember(run: ModuleRun) -> None:
    """Keep the state that the call may change; inputs only of modules without children, which may overwrite them."""
    devices = {tensor.device.type for tensor in tensors_in(run.args)} | {"cpu"}
    alone = not run.module._modules
    run.kept = _Before(
        given=run.args,
        args=pytree.tree_map(_copied, run.args) if alone else run.args,
        versions=None if alone else _versions(run.args),
        buffers={name: _copied(buffer) for name, buffer in run.module._buffers.items()},
        random={device: _random_state(device) for device in devices},
    )


def _compare(
    run: ModuleRun, row: Precision, sums: dict[str, _Sum], dtypes_given: tuple[torch.dtype, ...] | None
) -> None:
    """Repeat a module's call in a precision and add its errors; `dtypes_given` are its inputs' dtypes there."""
    outputs = floating_stored(run.returned)
    if not run.leaf or not outputs or any(is_kept(module) for module in (*run.within, run.module)):
        return
    total = sums.setdefault(run.path, _Sum(type(run.module).__name__))
    before: _Before = run.kept
    if before.versions is not None and before.versions != _versions(before.given):
        total.note = "it writes into its inputs"
        return
    hooked = [id(new) for new in run.args] != [id(old) for old in before.given]  # by a hook of the user's
    args = run.args if hooked else before.args
    after = {device: _random_state(device) for device in before.random}
    if any(device != "cpu" and not torch.equal(state, before.random[device]) for device, state in after.items()):
        total.note = "it draws random numbers, and others in half precision on this device"
        return
    given_exactly = args, run.kwargs
    inputs: Any = given_exactly
    if dtypes_given is not None and len(dtypes_given) == len(floating_dtypes(given_exactly)):
        wanted_dtypes = iter(dtypes_given)
        inputs = pytree.tree_map_only(
            torch.Tensor,
            lambda leaf: leaf.detach().to(next(wanted_dtypes)) if leaf.is_floating_point() else leaf,
            given_exactly,
        )
    if row.autocast is None:
        inputs = pytree.tree_map(partial(_lowered, storage=getattr(torch, row.storage)), inputs)
    rounded = any(
        new.dtype is not old.dtype
        for new, old in zip(floating_stored(inputs), floating_stored(given_exactly), strict=True)
    )

    def exactly(leaf: Any, like: Any) -> Any:
        return leaf.detach().to(like.dtype, copy=True) if isinstance(leaf, torch.Tensor) else leaf

    held = pytree.tree_map(exactly, inputs, given_exactly) if rounded else None
    device = outputs[0].device.type
    try:
        _set_random_states(before.random)
        low = _run_again(run, inputs, before.buffers, row, device)
        _set_random_states(before.random)
        exact = outputs if held is None else floating_stored(_run_again(run, held, before.buffers, _FP32, device))
    except (RuntimeError, TypeError, ValueError) as error:  # errors of kernels and of a module's own checks
        total.note = f"it does not run in {row.name}: {bounded(text_of(error).partition(chr(10))[0])}"
        return
    finally:
        _set_random_states(after)
    lows = floating_stored(low)
    if any([tensor.shape for tensor in values] != [tensor.shape for tensor in outputs] for values in (lows, exact)):
        total.note = f"it returns other shapes in {row.name}"
        return
    dtype = getattr(torch, row.autocast or row.storage)
    for tensor in floating_stored((args, run.kwargs)):
        total.counts["inputs_overflowed"] += int((tensor.isfinite() & ~tensor.detach().to(dtype).isfinite()).sum())
    for wanted, held_exactly, in_half in zip(outputs, exact, lows, strict=True):
        _add(total, wanted.detach(), held_exactly.detach(), in_half)


def _run_again(
    run: ModuleRun,
    inputs: tuple[Any, Any],
    buffers: Mapping[str, torch.Tensor | None],
    row: Precision,
    device: str,
) -> Any:
    """Call a module's forward in a precision, on inputs that are in it, and leave no trace of it in the module."""
    module = run.module
    lowered = partial(_lowered, storage=getattr(torch, row.storage))
    learns = learning(module)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if learns and torch.backends.mha.get_fastpath_enabled():
            # Without a graph, some modules would take a fused path that the fp32 call did not take.
            torch.backends.mha.set_fastpath_enabled(False)
            stack.callback(torch.backends.mha.set_fastpath_enabled, True)
        for part in module.modules():
            stack.callback(part.__dict__.update, dict(part.__dict__))
            stack.callback(part.__dict__.clear)  # the first to be called
            state = buffers if part is module else part._buffers
            part.__dict__["_parameters"] = {name: lowered(value) for name, value in part._parameters.items()}
            part.__dict__["_buffers"] = {name: lowered(_copied(value)) for name, value in state.items()}
            if isinstance(part, torch.nn.RNNBase):
                part.__dict__["_flat_weights"] = [lowered(value) for value in part._flat_weights]
        low = getattr(torch, row.autocast) if row.autocast is not None else None
        stack.enter_context(torch.autocast(device, dtype=low, enabled=low is not None, cache_enabled=False))
        args, kwargs = inputs
        return (emulated_forward(module, row) or module.forward)(*args, **kwargs)


def _lowered(leaf: Any, storage: torch.dtype) -> Any:
    return leaf.detach().to(storage) if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float32 else leaf


def _add(total: _Sum, wanted: torch.Tensor, exact: torch.Tensor, low: torch.Tensor) -> None:
    """Compare one output with fp32's, `wanted`, and with fp32's on the rounded inputs, `exact`.

    Chunk by chunk, so that no copy of the whole is made.
    """
    size = 1 << 20
    for start in range(0, wanted.numel(), size):
        first, reference, computed = (
            values.reshape(-1)[start : start + size].double() for values in (wanted, exact, low)
        )
        error = float((computed - reference).square().sum())
        total.counts["elements"] += len(first)
        if not math.isfinite(error):
            total.counts["overflowed"] += int((first.isfinite() & ~computed.isfinite()).sum())
            both = reference.isfinite() & computed.isfinite()
            reference, computed = reference.where(both, 0.0), computed.where(both, math.nan)
            error = float((computed - reference).where(both, 0.0).square().sum())
        total.counts["flushed"] += int(((computed == 0) & (first != 0) & first.isfinite()).sum())
        total.reference += float(reference.square().sum())
        total.error += error


def _versions(tree: object) -> list[int | None]:
    return [version(tensor) for tensor in tensors_in(tree)]


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _random_state(device: str) -> torch.Tensor:
    return torch.get_rng_state() if device == "cpu" else torch.get_device_module(device).get_rng_state()


def _set_random_states(states: Mapping[str, torch.Tensor]) -> None:
    for device, state in states.items():
        (torch if device == "cpu" else torch.get_device_module(device)).set_rng_state(state)
