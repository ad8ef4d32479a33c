"""`trace_casts`: every op and every cast of a block of anyone's code, as it runs, without changing what it computes."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pandas as pd
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ampbench.casts.summary import cache_bytes
from ampbench.casts.tables import op_frame
from ampbench.explain.calls import CallMode, function_name
from ampbench.explain.dtypes import short_dtype
from ampbench.explain.modules import ModuleStack
from ampbench.explain.recorder import Recorder
from ampbench.records.casts import Cast, CastTrace, ModuleCalls, Operation, WeightUse
from ampbench.records.environments import AUTOCAST_DEVICES


class CastLedger:
    """What `trace_casts` has seen so far, readable at any time: within the block, after it, and after an error in it.

    `ops`, `casts`, `weights` and `modules` are records in the order of running, `trace` all four together.
    """

    def __init__(self, recorder: Recorder, *, timed: bool):
        self._recorder = recorder
        self._timed = timed
        self._read: tuple[tuple[int, int], CastTrace] | None = None

    @property
    def trace(self) -> CastTrace:
        """Everything recorded so far."""
        state = len(self._recorder.ops), self._recorder.corrections
        if self._read is None or self._read[0] != state:
            self._read = (state, _trace(self._recorder, timed=self._timed))
        return self._read[1]

    @property
    def ops(self) -> list[Operation]:
        """Every op, casts included."""
        return self.trace.ops

    @property
    def casts(self) -> list[Cast]:
        """Every copy into another dtype."""
        return self.trace.casts

    @property
    def weights(self) -> list[WeightUse]:
        """Every forward use of a parameter: cast for it, reused from autocast's cache, or not needed."""
        return self.trace.weights

    @property
    def modules(self) -> list[ModuleCalls]:
        """The dtypes that went in and out of each module."""
        return self.trace.modules

    @property
    def cache_bytes(self) -> int:
        """The bytes of the weights' copies autocast's cache keeps alive until its region ends."""
        return cache_bytes(self.trace)

    def uses_of(self, tensor: torch.Tensor) -> tuple[str, list[int]]:
        """Return the name of a tensor that was there before the block, "" where no module was given it by one.

        Beside it stand the forward ops that took it in the dtype it has, by their `index`: those that cast it, too.
        """
        return self._recorder.uses_of(tensor)

    def to_frame(self) -> pd.DataFrame:
        """Return a row per op, with the columns of its `Operation` and, where it is a cast, of its `Cast`."""
        return op_frame(self.trace)


@contextmanager
def trace_casts(
    model: torch.nn.Module | None = None, *, sources: bool = False, time: bool = False
) -> Iterator[CastLedger]:
    """Record every op and every cast of the block into the `CastLedger` it yields.

    `model` gives modules and parameters their names, as its `named_modules` does; without it each outermost module
    that is called gives them, below the name of its class. `sources` adds the caller's line to each op, `time` its
    seconds (an accelerator is waited for around each op). Enter it outside the autocast region: copies of weights that
    a region made before the block are not known as such. Results are those of the untraced program, bit by bit.
    Traces nest; what runs in other threads the block starts is not seen. Raises `UsageError`, in the block, for
    modules compiled by torch.compile and for tensor subclasses with ops of their own; a compiled *function* runs
    uncompiled while a trace is on, because torch does not run compiled code under a dispatch mode.
    """
    calls = CallMode(autocast_devices(), sources=sources)
    recorder = Recorder(calls, model, time=time)
    calls.whole = recorder.run_whole
    with ExitStack() as stack:
        recorder.modules.hook()
        stack.callback(recorder.modules.unhook)
        places = recorder.places

        def starts() -> None:
            recorder.optimizes()
            places.optimizing = True

        stack.callback(register_optimizer_step_pre_hook(lambda *_: starts()).remove)
        stack.callback(register_optimizer_step_post_hook(lambda *_: setattr(places, "optimizing", False)).remove)
        stack.enter_context(calls)
        stack.enter_context(recorder)
        yield CastLedger(recorder, timed=time)


def autocast_devices() -> tuple[str, ...]:
    """Return the device types on which a program may switch autocast on."""
    devices = [*AUTOCAST_DEVICES]
    if (here := torch.accelerator.current_accelerator()) is not None and here.type not in devices:
        devices.append(here.type)
    return tuple(devices)


def _trace(recorder: Recorder, *, timed: bool) -> CastTrace:
    dtypes: dict[tuple[torch.dtype, ...], tuple[str, ...]] = {}
    functions: dict[Any, str | None] = {}

    def short(row: tuple[torch.dtype, ...]) -> tuple[str, ...]:
        if row not in dtypes:
            dtypes[row] = tuple(short_dtype(dtype) for dtype in row)
        return dtypes[row]

    def named(function: Any) -> str | None:
        if function not in functions:
            functions[function] = function_name(function)
        return functions[function]

    ops = [
        Operation(
            index=index,
            name=row.name,
            function=named(row.function),
            module=row.module,
            phase=row.phase,
            recomputed=row.recomputed,
            forward=row.forward,
            inputs=short(row.inputs),
            outputs=short(row.outputs),
            source=row.source,
            seconds=row.seconds,
        )
        for index, row in enumerate(recorder.ops)
    ]
    casts = [
        Cast(
            index=row.index,
            operation=row.operation,
            what=row.what,
            name=row.name or (row.value.name if row.what == row.value.what else ""),
            module=row.module,
            phase=row.phase,
            from_dtype=short_dtype(row.source_dtype),
            to_dtype=short_dtype(row.dtype),
            elements=row.elements,
            bytes_read=row.read * row.source_dtype.itemsize,
            bytes_written=row.elements * row.dtype.itemsize,
            seconds=row.seconds,
            origin=row.origin,
            cached=row.cached,
            tensor=row.tensor,
            made_by=row.made_by,
            producer=row.producer,
            read_as_is=row.value.read_as_is,
        )
        for row in recorder.casts
    ]
    weights = [
        WeightUse(name=name, operation=operation, module=module, status=status, cast=cast)
        for name, operation, module, status, cast in recorder.uses
    ]
    return CastTrace(
        ops=ops,
        casts=casts,
        weights=weights,
        modules=_modules(recorder.modules),
        timed=timed,
        inference=bool(ops) and not recorder.learning,
        model_ops=recorder.model_ops,
    )


def _modules(stack: ModuleStack) -> list[ModuleCalls]:
    return [
        ModuleCalls(
            module=path,
            kind=kind,
            inputs=tuple(map(short_dtype, inputs)),
            outputs=tuple(map(short_dtype, outputs)),
            parameters=tuple(map(short_dtype, parameters)),
            calls=calls,
        )
        for (path, kind, inputs, outputs, parameters), calls in sorted(
            stack.calls.items(), key=lambda item: stack.order[item[0][0]]
        )
    ]
