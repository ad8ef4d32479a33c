"""`trace_casts`: every op and every cast of a running block of code, without changing its results.

The dispatch mode behind a ledger sees every op, follows values by their storage, and records casts.
"""

import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from msgspec import structs
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ampbench.records.casts import (
    ACTIVATION,
    AUTOCAST,
    CAST,
    EXPLICIT,
    GRADIENT,
    INPUT,
    NOT_NEEDED,
    REUSED,
    STATE,
    WEIGHT,
    WHOLE,
    Cast,
    CastTrace,
    ModuleCalls,
    Operation,
    Promotion,
    WeightUse,
    cache_bytes,
)
from ampbench.trace.calls import (
    Call,
    CallMode,
    OpenCast,
    Place,
    Places,
    Running,
    Value,
    Values,
    cacheable,
    copied,
    function_name,
    in_backward,
    lives,
    op_tensors,
    origin_of,
    promoted,
    storage_key,
    undoes_cast,
)
from ampbench.trace.dtypes import HALVES, Kind, op_kind, resolving, short_dtype, take_apart
from ampbench.trace.modules import ModuleStack

if TYPE_CHECKING:
    import pandas as pd

_STATES = frozenset({INPUT, ACTIVATION})
"""What is an optimizer's own state where an optimizer casts it."""

_SCALER = "aten._amp_"
"""How the ops of GradScaler begin, which run between the backward pass and the optimizer's step."""

_MEAN = "aten.mean"
"""Of a half, a sum in fp32: a CPU converts what is summed, and what is returned before it is written."""

_OF_CONSTANTS = frozenset({torch.ops.aten.equal.default, torch.ops.aten._local_scalar_dense.default})

_PLAIN = frozenset({"Tensor", "Parameter", "FakeTensor"})
"""Classes of torch whose ops are the ones dispatched; any other class with its own dispatch hides ops from a mode."""


@dataclass(slots=True)
class _Whole:
    """A function that runs now and is recorded as one op, `name`: its kind and arguments, from when it is reached."""

    name: str
    kind: Kind | None = None
    args: Any = ()
    kwargs: Any = field(default_factory=dict)


class CastLedger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The ops, casts and weights of a block, readable at any time: within it, after it, and after an error in it.

    `ops` has every op, casts included, and `weights` every forward use of a parameter: cast for it, reused from
    autocast's cache, or not needed. Operators that are given functions (`torch.cond`, `flex_attention`) are one op
    each, as their kernels are.
    """

    supports_higher_order_operators = True

    def __init__(self, model: torch.nn.Module | None, *, sources: bool = False, time: bool = False):
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[Operation] = []
        self.weights: list[WeightUse] = []
        self._casts: list[OpenCast] = []
        self._promotions: list[Promotion] = []
        self._values = Values(lambda tensor: self.stack.find(tensor))  # noqa: PLW0108 - they come next
        self.calls = CallMode(self.run_whole, sources=sources)
        self.stack = ModuleStack(model, self._values.name, self.calls, self._returned)
        self.places = Places(self.stack)
        self._time = time
        self._synchronize = torch.accelerator.synchronize if time and torch.accelerator.is_available() else None
        self._cast_at: dict[int, OpenCast] = {}
        self._numbers = 0
        self._last_use: dict[str, int] = {}
        self._lowered = False
        self._whole: _Whole | None = None
        self._loose: int | None = None
        self._handing_on = False
        self._learning = False
        self._model_ops: int | None = None

    @property
    def trace(self) -> CastTrace:
        """Everything recorded so far."""
        return CastTrace(
            ops=[*self.ops],
            casts=self.casts,
            promotions=[*self._promotions],
            weights=[*self.weights],
            modules=self.modules,
            timed=self._time,
            inference=bool(self.ops) and not self._learning,
            model_ops=self._model_ops,
        )

    @property
    def casts(self) -> list[Cast]:
        """Every copy into another dtype."""
        return [row.closed() for row in self._casts]

    @property
    def modules(self) -> list[ModuleCalls]:
        """The dtypes that went in and out of each module."""
        return self.stack.dtypes()

    @property
    def cache_bytes(self) -> int:
        """The bytes of the weights' copies autocast's cache keeps alive until its region ends."""
        return cache_bytes(self.trace)

    def to_frame(self) -> "pd.DataFrame":
        """Return a row per op, with the columns of its `Operation` and, where it is a cast, of its `Cast`."""
        import pandas as pd  # half a second that a worker need not wait for

        from ampbench.records.casts import OP_COLUMNS, op_rows

        return pd.DataFrame(op_rows(self.trace), columns=OP_COLUMNS).astype({"seconds": float})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op and record it, or the ops of a tensor subclass."""
        kwargs = kwargs or {}
        kind = op_kind(func)
        if any(map(_has_own_ops, types)):
            return self._hand_on(func, kind, args, kwargs)
        if func in _OF_CONSTANTS and not any(isinstance(arg, torch.Tensor) for arg in args):
            # TorchScript folds and compares the constants of a graph it optimizes; numbers reach a mode as such
            return args[0] if len(args) == 1 else type(args[0]) is type(args[1]) and args[0] == args[1]
        whole = self._whole
        if whole is not None and (whole.kind is not None or kind.name == whole.name):
            if whole.kind is None:
                whole.kind, whole.args, whole.kwargs = kind, args, kwargs
            if not kind.composite:
                return func(*args, **kwargs)
            with self:
                return func.decompose(*args, **kwargs)  # its other kernel asks libraries of the device
        if kind.decomposes(args, kwargs):
            return self._decompose(func, kind, args, kwargs)
        if kind.nested:
            func = partial(self._open if kind.opaque and not self._lowered else _run_nested, func)
        if self._synchronize is not None:
            self._synchronize()
        Running.ops += 1
        start = perf_counter()
        try:
            out = func(*args, **kwargs)
            if self._synchronize is not None:
                self._synchronize()
        finally:
            Running.ops -= 1
        seconds = perf_counter() - start if self._time else None
        with torch._C.DisableTorchFunction():
            self._record(kind, args, kwargs, out, seconds)
        return out

    def run_whole(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run, on fake tensors, a function that their device has one kernel for, and record it as one op.

        What autocast casts on the way in is recorded, too.
        """
        name = function.__name__
        with torch.inference_mode():  # where a composite op reaches a mode
            if WHOLE[name].lowers:
                args, kwargs = pytree.tree_map_only(torch.Tensor, self._lower, (args, kwargs))
            self._whole = whole = _Whole(f"aten.{name}")
            try:
                out = function(*args, **kwargs)
            finally:
                self._whole = None
        if not torch.is_inference_mode_enabled():
            self._whole = whole
            out = pytree.tree_map_only(torch.Tensor, torch.clone, out)
            self._whole = None
        if whole.kind is not None:
            with torch._C.DisableTorchFunction():
                self._record(whole.kind, whole.args, whole.kwargs, out, None)
        return out

    def optimizes(self) -> None:
        """Say that an optimizer or GradScaler is at work.

        What ran outside all modules since the backward pass, or since the last such work, belongs to it: gradients were
        unscaled, clipped, asked whether they are finite.
        """
        start = self._loose
        if start is None or start == len(self.ops):
            return
        self.ops[start:] = [structs.replace(op, phase="optimizer") for op in self.ops[start:]]
        while self.weights and self.weights[-1].operation >= start:
            self.weights.pop()
        for row in reversed(self._casts):
            if row.cast.index < start:
                break
            state = {"what": STATE, "name": ""} if row.cast.what in _STATES else {}
            row.cast = structs.replace(row.cast, phase="optimizer", **state)

    def uses_of(self, tensor: torch.Tensor) -> tuple[str, list[int]]:
        """Return the name of a tensor from before the block, "" for none, and the `index` of each op that read it.

        Those are the forward ops that read it unchanged, its casts included.
        """
        with torch._C.DisableTorchFunction():
            value = self._values.known.get(storage_key(tensor))
        return ("", []) if value is None or not lives(value) else (value.name, value.uses)

    def _returned(self) -> None:
        if not in_backward():
            self._model_ops = len(self.ops)

    def _open(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run an op with autocast as the program has it: a mode's own code runs with autocast off."""
        on = [device for device in self.calls.autocast if not torch.is_autocast_enabled(device)]
        for device in on:
            torch.set_autocast_enabled(device, True)
        try:
            return _run_nested(func, *args, **kwargs)
        finally:
            for device in on:
                torch.set_autocast_enabled(device, False)

    def _hand_on(self, func: Any, kind: Kind, args: Any, kwargs: Any) -> Any:
        """Run an op of a tensor subclass and record the ops that replace it, or the op itself where none is visible."""
        if self._handing_on:
            self._handing_on = False
            return NotImplemented
        before, self._handing_on = len(self.ops), True
        with self:
            out = func(*args, **kwargs)
        if len(self.ops) == before:
            with torch._C.DisableTorchFunction():
                self._record(kind, args, kwargs, out, None)
        return out

    def _decompose(self, func: Any, kind: Kind, args: Any, kwargs: Any) -> Any:
        """Run a composite op, which reaches a mode whole in inference mode, part by part.

        Autocast casts the parts of an op that has no rule (einsum); an op that has one was cast already.
        """
        before = self._lowered
        self._lowered = before or bool(set(self.calls.autocast) & set(kind.autocast))
        try:
            with self:
                if self._lowered:
                    return _run_nested(take_apart, func, *args, **kwargs)
                return self._open(take_apart, func, *args, **kwargs)
        finally:
            self._lowered = before

    def _lower(self, tensor: torch.Tensor) -> torch.Tensor:
        """Cast the inputs of a low-dtype kernel as autocast does."""
        device = tensor.device.type
        lowered = device in self.calls.autocast and tensor.dtype is torch.float32
        return tensor.to(torch.get_autocast_dtype(device)) if lowered else tensor

    def _record(self, kind: Kind, args: Any, kwargs: Any, out: Any, seconds: float | None) -> None:
        if kind.silent:
            return
        # autocast casts a weight for its cache with gradients on, whatever the program says
        self._learning = self._learning or (torch.is_grad_enabled() and not kind.casts)
        index = len(self.ops)
        call = self.calls.current
        sources = op_tensors(args)
        if kwargs:
            sources += op_tensors(kwargs.values())
        outputs = [out] if isinstance(out, torch.Tensor) else op_tensors(out) if isinstance(out, list | tuple) else []
        place = self.places.find(index, called=call is not None)
        function = function_name(call.function) if call else None
        if kind.name.startswith(_SCALER):
            place = place._replace(phase="optimizer")
            self.optimizes()
        if (forward := place.forward) is not None:
            place = place._replace(module=self.ops[forward].module)
            function = function or self.ops[forward].function
        elif place.leaf is not None:
            stored = self._values.known.get(storage_key(place.leaf))
            place = place._replace(module=self.stack.owners.get(stored.name, "") if stored is not None else "")
        keys = [storage_key(tensor) for tensor in sources]
        written = [storage_key(tensor) for tensor in outputs]
        fresh = [key for key in written if key not in keys]
        row = None
        if kind.casts and sources[0].dtype is not out.dtype:
            row = self._cast(index, call, sources[0], out, place, seconds)
        elif kind.copies and (pairs := copied(args)):
            row = self._cast(index, call, *pairs[0], place, seconds)
            row.cast = structs.replace(
                row.cast,
                elements=sum(target.numel() for _, target in pairs),
                bytes_read=sum(source.numel() * source.dtype.itemsize for source, _ in pairs),
                bytes_written=sum(target.numel() * target.dtype.itemsize for _, target in pairs),
                origin=row.cast.origin if place.phase == "backward" else EXPLICIT,
                cached=False,
            )
        if fresh or kind.writes or not written:
            self._consume(index, call, sources, keys, place, kind, row)
        number = call.number if call else 0
        if row is not None and kind.casts:
            self._values.known[written[0]] = Value(row.cast.what, row.cast.name, row, number, index)
        elif fresh:
            role = GRADIENT if place.phase == "backward" else ACTIVATION if sources else INPUT
            for key in fresh:
                self._values.known[key] = Value(role, place.module if role != INPUT else "", None, number, index)
        if kind.writes:
            arguments = {**dict(enumerate(args)), **kwargs}
            self._values.written(index, (tensor for at in kind.writes for tensor in op_tensors([arguments.get(at)])))
        if (kind.promotes and len({tensor.dtype for tensor in sources}) > 1) or kind.name == _MEAN:
            inside = promoted(args) if kind.promotes else _averaged(sources[0], outputs[0])
            self._promotions += [_promotion(index, tensor, dtype) for tensor, dtype in inside]
        self.ops.append(
            Operation(
                index=index,
                name=kind.name,
                function=function,
                module=place.module,
                phase=place.phase,
                recomputed=place.recomputed,
                forward=place.forward,
                inputs=tuple([short_dtype(tensor.dtype) for tensor in sources]),
                outputs=tuple([short_dtype(tensor.dtype) for tensor in outputs]),
                source=call.source if call else None,
                seconds=seconds,
            )
        )
        if place.phase != "forward":
            self._loose = index + 1
        elif place.recomputed or self.stack.depth:
            self._loose = None

    def _cast(
        self,
        index: int,
        call: Call | None,
        source: torch.Tensor,
        out: torch.Tensor,
        place: Place,
        seconds: float | None,
    ) -> OpenCast:
        value = self._values.find(source, storage_key(source), place.phase)
        if isinstance(source, torch.nn.Parameter):
            value.what = WEIGHT  # of a module built in the block that has not been called yet
        role, name = value.what, value.name
        undone = None
        if place.phase == "backward" and undoes_cast():
            role = GRADIENT
            undone = self._cast_at.get(place.forward) if place.forward is not None else None
        elif place.phase == "optimizer" and role in _STATES:
            role, name = STATE, ""
        if role == GRADIENT:
            name = undone.cast.name if undone is not None else name or place.module
        strided = source.layout is torch.strided
        view = (source.shape, source.stride(), source.storage_offset()) if strided else source.shape
        tensor = value.views.get(view)
        if tensor is None:
            self._numbers += 1
            tensor = value.views[view] = self._numbers
        origin = origin_of(call, self.calls.autocast, value, source, out.dtype, undone)
        cast = Cast(
            index=index,
            what=role,
            name=name,
            module=place.module,
            phase=place.phase,
            from_dtype=short_dtype(source.dtype),
            to_dtype=short_dtype(out.dtype),
            elements=source.numel(),
            bytes_read=source.numel() * source.dtype.itemsize,
            bytes_written=source.numel() * out.dtype.itemsize,
            seconds=seconds,
            origin=origin,
            cached=origin == AUTOCAST and place.phase != "backward" and cacheable(source, out),
            tensor=tensor,
            made_by=value.cast.cast.index if value.cast is not None else None,
            producer=value.op,
        )
        row = OpenCast(cast, value, call.number if call else 0)
        self._casts.append(row)
        self._cast_at[index] = row
        return row

    def _consume(
        self,
        index: int,
        call: Call | None,
        sources: list[torch.Tensor],
        keys: list[int],
        place: Place,
        kind: Kind,
        copy_row: OpenCast | None,
    ) -> None:
        """Record how a computing op used copies from casts, weights and inputs."""
        number, forward = call.number if call else -index - 1, place.phase == "forward"
        use = partial(self._use, number=number, index=index, module=place.module)
        for tensor, key in zip(sources, keys, strict=True):
            value = self._values.known.get(key)
            if value is None or not lives(value):
                value = self._values.find(tensor, key, place.phase)
            row = value.cast
            if row is None and value.what == INPUT and forward:
                value.uses.append(index)
            if row is not None:
                first, cast = row.operation is None, row.cast
                if first:
                    row.operation = index
                if value.what == WEIGHT and forward and copy_row is None:
                    if cast.origin == AUTOCAST:
                        use(cast.name, CAST if first or row.call == number else REUSED, cast.index)
                    elif isinstance(tensor, torch.nn.Parameter):
                        use(cast.name, NOT_NEEDED)
                    elif first:
                        use(cast.name, CAST, cast.index)
            elif copy_row is None and forward:
                value.read_as_is = True
                if value.what == WEIGHT and not kind.writes:
                    use(value.name, NOT_NEEDED)

    def _use(self, name: str, status: str, cast: int | None = None, *, number: int, index: int, module: str) -> None:
        if not name or self._last_use.get(name) != number:
            self._last_use[name] = number
            self.weights.append(WeightUse(name=name, operation=index, module=module, status=status, cast=cast))


def _promotion(index: int, tensor: torch.Tensor, dtype: torch.dtype) -> Promotion:
    """Return the record of an input that op `index` converts inside its kernel."""
    return Promotion(
        operation=index,
        from_dtype=short_dtype(tensor.dtype),
        to_dtype=short_dtype(dtype),
        elements=tensor.numel(),
        bytes_read=tensor.numel() * tensor.dtype.itemsize,
        bytes_written=tensor.numel() * dtype.itemsize,
    )


def _averaged(source: torch.Tensor, out: torch.Tensor) -> list[tuple[torch.Tensor, torch.dtype]]:
    """Return the promotion inside a mean of a half tensor."""
    halves = source.dtype in HALVES and out.dtype in HALVES
    return [(source, torch.float32), (out, torch.float32)] if halves else []


def _has_own_ops(kind: type) -> bool:
    plain = kind is torch.Tensor or (kind.__name__ in _PLAIN and kind.__module__.startswith("torch."))
    return not plain


def _run_nested(func: Any, *args: Any, **kwargs: Any) -> Any:
    with resolving():
        return func(*args, **kwargs)


@contextmanager
def trace_casts(
    model: torch.nn.Module | None = None, *, sources: bool = False, time: bool = False
) -> Iterator[CastLedger]:
    """Record every op and every cast of the block into the `CastLedger` it yields.

    `model` gives modules and parameters their names, as its `named_modules` does; without it each outermost module that
    is called gives them, below the name of its class. `sources` adds the caller's line to each op, `time` its seconds
    (an accelerator is waited for around each op). Enter it outside the autocast region: copies of weights that a region
    made before the block are not known as such. Results equal the untraced program's, bit by bit. Traces nest; what
    runs in other threads the block starts is not seen. Compiled modules and functions run uncompiled while a trace is
    on, because torch does not run compiled code under a dispatch mode.
    """
    ledger = CastLedger(model, sources=sources, time=time)
    with recording(ledger):
        yield ledger


@contextmanager
def recording(ledger: CastLedger) -> Iterator[None]:
    """Have a ledger watch the block, in which nothing is compiled."""

    def starts(*_: Any) -> None:
        ledger.optimizes()
        ledger.places.optimizing = True

    def ends(*_: Any) -> None:
        ledger.places.optimizing = False

    with ExitStack() as stack:
        ledger.stack.hook()
        stack.callback(ledger.stack.unhook)
        stack.callback(register_optimizer_step_pre_hook(starts).remove)
        stack.callback(register_optimizer_step_post_hook(ends).remove)
        stack.enter_context(ledger.calls)
        stack.enter_context(ledger)
        if "torch._dynamo" in sys.modules:  # which takes seconds to import, and is before anything is compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "Using `torch.compile", UserWarning)  # with hooks on modules, as here
        yield
