"""`trace_casts`: every op and every cast of a running block of code, without changing its results.

The dispatch mode behind a ledger sees every op, follows values by their storage (kind, name, and the cast that made
them), and records casts. It runs below autocast, where autocast always looks switched off; so a mode above it follows
the running Python function and the state of autocast. Autograd numbers its nodes just before their forward op runs; so
the latest number leads from a node to its forward op, module and cast, without a hook on any tensor. Together these
show who asked for a cast: autocast, the user's code, or an op's own code.
"""

import functools
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from msgspec import structs
from torch import overrides
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import ampbench
from ampbench.records.case import AUTOCAST_DEVICES
from ampbench.records.casts import (
    ACTIVATION,
    AUTOCAST,
    CAST,
    EXPLICIT,
    GRADIENT,
    INPUT,
    INTERNAL,
    NOT_NEEDED,
    OP_COLUMNS,
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
    op_rows,
)
from ampbench.trace.dtypes import HALVES, Kind, op_kind, resolving, short_dtype, take_apart
from ampbench.trace.modules import ModuleStack

if TYPE_CHECKING:
    import pandas as pd


@dataclass(slots=True)
class OpenCast:
    """A cast of `value` as it was made in `call`; `operation` is known once the copy is used."""

    cast: Cast
    value: "Value"
    call: int
    operation: int | None = None

    def closed(self) -> Cast:
        """Return the record of the cast, with what later ops and the modules showed."""
        name = self.cast.name or (self.value.name if self.cast.what == self.value.what else "")
        return structs.replace(self.cast, name=name, operation=self.operation, read_as_is=self.value.read_as_is)


@dataclass(slots=True, eq=False)
class Value:
    """The known content of one storage: its kind, its name, and the cast that made it, if any.

    `call` is the Python call that made it, `op` the op that made it, `alive` a reference to a tensor from outside
    (None: made here), `uses` the forward ops that read it unchanged, its casts included.
    """

    what: str
    name: str
    cast: OpenCast | None = None
    call: int = 0
    op: int | None = None
    alive: Any = None
    read_as_is: bool = False
    views: dict[Any, int] = field(default_factory=dict)
    uses: list[int] = field(default_factory=list)


class Values:
    """The `known` values by the key of their storage; `owner` names a parameter that is not known."""

    def __init__(self, owner: Callable[[torch.Tensor], str]):
        self.known: dict[int, Value] = {}
        self._owner = owner

    def name(self, tensor: torch.Tensor, role: str, name: str) -> None:
        """Give a tensor from outside its name, unless it is known already."""
        with torch._C.DisableTorchFunction():
            key = storage_key(tensor)
            known = self.known.get(key)
            if known is not None and lives(known) and role == known.what == INPUT:
                known.name = known.name or name
            elif role != INPUT or known is None or not lives(known):
                self.known[key] = Value(role, name, alive=weakref.ref(tensor))

    def find(self, tensor: torch.Tensor, key: int, phase: str) -> Value:
        """Return the known facts of a tensor; an unknown tensor came from outside."""
        known = self.known.get(key)
        if known is not None and lives(known):
            return known
        if isinstance(tensor, torch.nn.Parameter):
            known = Value(WEIGHT, self._owner(tensor), alive=weakref.ref(tensor))
        elif phase == "backward":
            known = Value(GRADIENT, "", alive=weakref.ref(tensor))
        else:
            leaf = tensor.requires_grad and tensor.is_leaf
            known = Value(WEIGHT if leaf else INPUT, "", alive=weakref.ref(tensor))
        self.known[key] = known
        return known

    def written(self, op: int, tensors: Iterable[torch.Tensor]) -> None:
        """Forget the content of tensors that `op` wrote into; a parameter stays a parameter."""
        for tensor in tensors:
            value = self.known.get(storage_key(tensor))
            if value is not None:
                value.views, value.op = {}, op
                if value.cast is not None:
                    value.cast = None
                    value.what = ACTIVATION


def storage_key(tensor: torch.Tensor) -> int:
    """Return the key that all views of one storage share; a tensor without a storage (sparse) is its own key."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return id(tensor)


def lives(value: Value) -> bool:
    """Return whether a value can still be the content of its storage; freed addresses are used again."""
    return value.alive is None or value.alive() is not None


def op_tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors among an op's arguments, and in lists of them."""
    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += [leaf for leaf in value if isinstance(leaf, torch.Tensor)]
    return tensors


def copied(args: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the tensors that `copy_` and `_foreach_copy_` convert, in pairs, all between the same two dtypes."""
    pairs = [
        (source, target)
        for target, source in zip(op_tensors(args[:1]), op_tensors(args[1:2]), strict=False)
        if source.dtype is not target.dtype and source.is_floating_point() and target.is_floating_point()
    ]
    return [pair for pair in pairs if [tensor.dtype for tensor in pair] == [tensor.dtype for tensor in pairs[0]]]


def promoted(args: Any) -> list[tuple[torch.Tensor, torch.dtype]]:
    """Return the floating tensors that an element-wise op converts, and the target dtype.

    Tensors without dimensions widen no others.
    """
    floating = [tensor for tensor in op_tensors(args) if tensor.is_floating_point()]
    dtypes = {tensor.dtype for tensor in floating if tensor.ndim} or {tensor.dtype for tensor in floating}
    if not dtypes:
        return []
    common = functools.reduce(torch.promote_types, dtypes)
    return [(tensor, common) for tensor in floating if tensor.dtype is not common]


CONVERSIONS = frozenset(
    {
        *("to", "type", "type_as", "half", "bfloat16", "float", "double", "chalf", "cfloat", "cdouble"),
        *("bool", "byte", "char", "short", "int", "long", "copy_", "asarray", "as_tensor", "tensor"),
    }
)
"""The Python functions whose purpose is to convert; so does any function that is given a `dtype`."""

UPCASTING = frozenset({"scaled_dot_product_attention", "_scaled_dot_product_attention_math"})
"""Functions autocast lowers, whose own implementation then computes in fp32: attention without a fused kernel."""

BACKWARD = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)

_OPENED = (*BACKWARD, torch.nn.functional.multi_head_attention_forward)
"""Functions whose inner calls are watched, too: a reader wants to know these."""

_OWN = (torch.Tensor, torch.nn.Parameter)

_GUARDS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")

# Untyped in torch.
_top: Callable[[], Any] = overrides._get_current_function_mode
_pop: Callable[[], Any] = overrides._pop_mode
_push: Callable[[Any], None] = overrides._push_mode

_OURS = Path(ampbench.__file__).parent
_INSIDE = (str(Path(torch.__file__).parent), str(_OURS), "<frozen")
"""Folders of torch and of this package, whose code is not the program's own."""

_WORKLOADS = str(_OURS / "workloads")


class Running:
    """What goes on now, for all traces that are on.

    `ops` run inside ledgers' own code; `differentiating`: a backward pass was asked for; `create_graph`: it records
    a graph, so that grad mode does not tell a recomputed forward pass from it.
    """

    ops = 0
    differentiating = False
    create_graph = False


class Call(NamedTuple):
    """One call of a torch function: its running number, the function, and the state it was called in.

    `autocast` names the device types on which autocast is on.
    """

    number: int
    function: Any
    explicit: bool
    autocast: tuple[str, ...]
    source: str | None


class CallMode(TorchFunctionMode):
    """Keeps `current`, the outermost torch function that is running; None between calls and in autograd's own code.

    `autocast` names the device types on which autocast was on when last seen. `whole` runs what fake tensors would take
    apart and their device would not.
    """

    def __init__(self, whole: Callable[..., Any], *, sources: bool):
        super().__init__()
        self._whole = whole
        self.current: Call | None = None
        self.autocast: tuple[str, ...] = ()
        current = torch.accelerator.current_accelerator()
        self._devices = dict.fromkeys([*AUTOCAST_DEVICES, *([current.type] if current is not None else [])])
        self._sources = sources
        self._number = 0
        self._pauses: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, with `current` telling of it meanwhile."""
        kwargs = kwargs or {}
        if type(func) is _GETTER:  # .shape, .dtype, .grad: no operation worth a name
            return func(*args, **kwargs)
        before = self.current
        if func in _OPENED:
            return self._open(func, types, args, kwargs)
        if type(func) is torch._ops.OpOverload:
            # Called by the program, or by the mode of a trace within this one, which sees autocast off.
            if not Running.ops:
                self.look()
            return func(*args, **kwargs)
        self.look()
        self._number += 1
        frame = next(program_frames(), None) if self._sources else None
        source = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else None
        explicit = getattr(func, "__name__", "") in CONVERSIONS or kwargs.get("dtype") is not None
        self.current = Call(self._number, func, explicit, self.autocast, source)
        try:
            row = WHOLE.get(getattr(func, "__name__", ""))
            tensor = next((leaf for leaf in (*args, *kwargs.values()) if isinstance(leaf, torch.Tensor)), None)
            known = row is not None and tensor is not None and tensor.device.type in row.devices
            if known and type(tensor).__name__ == "FakeTensor":
                return self._whole(func, args, kwargs)  # one kernel on the device that fake tensors stand for
            return func(*args, **kwargs)
        finally:
            self.current = before

    def look(self) -> None:
        """Remember on which devices autocast is on now."""
        enabled = torch.is_autocast_enabled
        self.autocast = tuple([device for device in self._devices if enabled(device)])

    def pause(self) -> None:
        """Leave the stack of modes, until `resume`: some modules run other kernels where functions are overridden."""
        self.look()
        above: list[Any] = []
        while (mode := _top()) is not None and mode is not self:
            above.append(_pop())
        if mode is self:
            _pop()
        for upper_mode in reversed(above):
            _push(upper_mode)
        self._pauses.append(mode is self)

    def resume(self) -> None:
        """Undo the last `pause`."""
        if self._pauses.pop():
            _push(self)

    def _open(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run a function of torch and watch what it calls.

        The mode must be off while `func` asks whether it is overridden, and on for what it does next; so a copy is run
        that does not ask. A tensor subclass keeps its say.
        """
        before = self.current, Running.create_graph, Running.differentiating
        self.look()
        if func in BACKWARD:
            self.current = None
            Running.create_graph = bool(kwargs.get("create_graph"))
            Running.differentiating = True
        try:
            if any(kind not in _OWN for kind in types):
                return func(*args, **kwargs)
            with self:
                return _unguarded(func)(*args, **kwargs)
        finally:
            self.current, Running.create_graph, Running.differentiating = before


@functools.cache
def function_name(function: Any) -> str | None:
    """Return a torch function's public name, "torch.nn.functional.linear"."""
    if function is None:
        return None
    name = resolve_name(function)
    return str(name) if name else getattr(function, "__qualname__", None) or repr(function)


@functools.cache
def _unguarded(function: types.FunctionType) -> Callable[..., Any]:
    """Return `function` with the question for overrides answered no."""
    guards = [guard for guard in _GUARDS if guard in function.__globals__]
    names = {**function.__globals__, **dict.fromkeys(guards, lambda *_: False)}
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def program_frames() -> Iterator[FrameType]:
    """Yield the frames that are neither torch's nor ours, built-in workloads' excepted, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_WORKLOADS) or not file.startswith(_INSIDE):
            yield frame
        frame = frame.f_back


_GETTER = type(vars(torch._C.TensorBase)["shape"].__get__)


_ACCUMULATES = 2**64 - 1
"""The number of every AccumulateGrad node, which has no forward op."""

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
"""The backward pass this thread is in; -1: none."""

_current_node: Callable[[], Any] = torch._C._current_autograd_node
"""The node of the autograd graph that is being differentiated, or None."""

_next_sequence: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
"""The number the next node of this thread's autograd graph will have."""


_CASTING = ("ToCopyBackward", "CopyBackwards")
"""Nodes of `to` and of `copy_`."""


class Place(NamedTuple):
    """Phase, module running now, whether a forward op is recomputed, the forward op a backward op differentiates.

    `leaf` is the tensor whose gradient is being stored.
    """

    phase: str
    module: str
    recomputed: bool = False
    forward: int | None = None
    leaf: torch.Tensor | None = None


class Places:
    """Follows the phases of a program. `optimizing` is set around an optimizer's step."""

    def __init__(self, modules: ModuleStack):
        self.optimizing = False
        self._modules = modules
        self._by_sequence: dict[int, int | None] = {_next_sequence() - 1: None}
        self._in_backward = False
        self._depth_before_backward = 0

    def find(self, index: int, *, called: bool) -> Place:
        """Return where op `index`, which runs now, is; `called`: from a Python function of torch."""
        modules = self._modules
        if _graph_task() == -1:
            self._in_backward = False
            self._by_sequence.setdefault(_next_sequence() - 1, index)
            if Running.differentiating:
                return Place("backward", modules.path)
            return Place("optimizer" if self.optimizing and modules.depth == 0 else "forward", modules.path)
        if not self._in_backward:
            self._in_backward, self._depth_before_backward = True, modules.depth
        within = modules.depth > self._depth_before_backward
        recomputed = torch.is_grad_enabled() and (within or (called and not Running.create_graph))
        if recomputed or Running.create_graph:
            self._by_sequence.setdefault(_next_sequence() - 1, index)
        if recomputed:
            return Place("forward", modules.path, recomputed=True)
        node = _current_node()
        if node is None:
            return Place("backward", modules.path)
        sequence = node._sequence_nr()
        if sequence < 0 or sequence >= _ACCUMULATES:
            return Place("backward", modules.path, leaf=getattr(node, "variable", None))
        return Place("backward", modules.path, forward=self._by_sequence.get(sequence))


def leaves_ahead() -> list[torch.Tensor]:
    """Return the tensors whose gradients the node that autograd differentiates now hands on to, or a view after it."""
    node = _current_node()
    ahead = [following for following, _ in node.next_functions if following is not None] if node is not None else []
    beyond = [following for near in ahead for following, _ in near.next_functions if following is not None]
    return [leaf for near in (*ahead, *beyond) if (leaf := getattr(near, "variable", None)) is not None]


def origin_of(
    call: Call | None,
    autocast: tuple[str, ...],
    value: Value,
    source: torch.Tensor,
    dtype: torch.dtype,
    undone: OpenCast | None,
) -> str:
    """Return who asked for a cast of `source`, which is `value`, to `dtype`; `undone` is the forward cast it undoes.

    Autocast, on for the devices `autocast` between calls, casts what an op is given, on the way in; a cast is an op's
    own where autocast is off or never casts such dtypes, and where a function of `UPCASTING` leaves the low dtype again
    or returns to it.
    """
    if call is not None and call.explicit:
        return EXPLICIT
    if undone is not None:
        return undone.cast.origin
    on = call.autocast if call is not None else autocast
    if source.device.type not in on:
        return INTERNAL
    low = torch.get_autocast_dtype(source.device.type)
    if {source.dtype, dtype} - {torch.float32, *HALVES, low}:
        return INTERNAL  # autocast leaves fp64 and integers alone
    if call is not None and getattr(call.function, "__name__", "") in UPCASTING:
        made_here = value.call == call.number
        return INTERNAL if dtype is not low or made_here else AUTOCAST
    return AUTOCAST


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

        return pd.DataFrame(op_rows(self.trace), columns=OP_COLUMNS).astype({"seconds": float})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op and record it, or the ops of a tensor subclass."""
        kwargs = kwargs or {}
        kind = op_kind(func)
        if any(
            cls is not torch.Tensor and not (cls.__name__ in _PLAIN and cls.__module__.startswith("torch."))
            for cls in types
        ):
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
            if WHOLE[name].lowers:  # a low-dtype kernel, whose inputs autocast casts
                on = {device: torch.get_autocast_dtype(device) for device in self.calls.autocast}
                args, kwargs = pytree.tree_map_only(
                    torch.Tensor,
                    lambda tensor: tensor.to(on.get(tensor.device.type)) if tensor.dtype is torch.float32 else tensor,
                    (args, kwargs),
                )
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
        if _graph_task() == -1:  # not in a backward pass
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
        inside = promoted(args) if kind.promotes and len({tensor.dtype for tensor in sources}) > 1 else []
        if kind.name == _MEAN and {sources[0].dtype, outputs[0].dtype} <= {*HALVES}:
            inside = [(sources[0], torch.float32), (outputs[0], torch.float32)]
        for tensor, dtype in inside:
            self._promotions.append(
                Promotion(
                    operation=index,
                    from_dtype=short_dtype(tensor.dtype),
                    to_dtype=short_dtype(dtype),
                    elements=tensor.numel(),
                    bytes_read=tensor.numel() * tensor.dtype.itemsize,
                    bytes_written=tensor.numel() * dtype.itemsize,
                )
            )
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
        node = _current_node() if place.phase == "backward" else None
        if node is not None and any(kind in node.name() for kind in _CASTING):  # autograd differentiates a cast
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
        # ATen's `cached_cast` (autocast_mode.cpp) decides by these conditions
        cached = (
            origin == AUTOCAST
            and place.phase != "backward"
            and source.dtype is torch.float32
            and out.dtype is torch.get_autocast_dtype(source.device.type)
            and source.requires_grad
            and source.is_leaf
            and not source._is_view()
            and torch.is_autocast_cache_enabled()
            and not torch.is_inference_mode_enabled()
        )
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
            cached=cached,
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
        number, forward = call.number if call else -index - 1, place.phase == "forward"

        def use(name: str, status: str, cast: int | None = None) -> None:
            if not name or self._last_use.get(name) != number:
                self._last_use[name] = number
                row = WeightUse(name=name, operation=index, module=place.module, status=status, cast=cast)
                self.weights.append(row)

        for tensor, key in zip(sources, keys, strict=True):
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
        stack.enter_context(ledger.stack.hooked())
        stack.callback(register_optimizer_step_pre_hook(starts).remove)
        stack.callback(register_optimizer_step_post_hook(ends).remove)
        stack.enter_context(ledger.calls)
        stack.enter_context(ledger)
        if "torch._dynamo" in sys.modules:  # which takes seconds to import, and is before anything is compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "Using `torch.compile", UserWarning)  # with hooks on modules, as here
        yield
