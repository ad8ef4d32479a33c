"""Facts of an op beyond its dtypes: its caller, source line, tensors and pass.

Values are followed by their storage: kind, name and the cast that made them. A dispatch mode runs below autocast, where
autocast always looks switched off; so a mode above it follows the running Python function and the state of autocast.
Autograd numbers its nodes just before their forward op runs; so the latest number leads from a node to its forward op,
module and cast, without a hook on any tensor. Together these show who asked for a cast: autocast, the user's code, or
an op's own code.
"""

import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from msgspec import structs
from torch import overrides
from torch.overrides import TorchFunctionMode, resolve_name

import ampbench
from ampbench.records.case import AUTOCAST_DEVICES
from ampbench.records.casts import ACTIVATION, AUTOCAST, EXPLICIT, GRADIENT, INPUT, INTERNAL, WEIGHT, WHOLE, Cast
from ampbench.trace.dtypes import HALVES
from ampbench.trace.modules import ModuleStack


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


def cacheable(source: torch.Tensor, out: torch.Tensor) -> bool:
    """Return whether autocast keeps this copy: ATen's `cached_cast` (autocast_mode.cpp) decides by these conditions."""
    return (
        source.dtype is torch.float32
        and out.dtype is torch.get_autocast_dtype(source.device.type)
        and source.requires_grad
        and source.is_leaf
        and not source._is_view()
        and torch.is_autocast_cache_enabled()
        and not torch.is_inference_mode_enabled()
    )


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
INSIDE = (str(Path(torch.__file__).parent), str(_OURS))
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
        self._devices = _autocast_devices()
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
        explicit = getattr(func, "__name__", "") in CONVERSIONS or kwargs.get("dtype") is not None
        self.current = Call(self._number, func, explicit, self.autocast, _caller() if self._sources else None)
        try:
            if _has_kernel(func, args, kwargs):
                return self._whole(func, args, kwargs)
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


def _autocast_devices() -> tuple[str, ...]:
    """Return the device types on which a program may switch autocast on."""
    devices = [*AUTOCAST_DEVICES]
    if (current := torch.accelerator.current_accelerator()) is not None and current.type not in devices:
        devices.append(current.type)
    return tuple(devices)


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


def _has_kernel(function: Any, args: Any, kwargs: Any) -> bool:
    """Return whether `function` is one kernel on the device that its fake tensors stand for."""
    row = WHOLE.get(getattr(function, "__name__", ""))
    tensor = next((leaf for leaf in (*args, *kwargs.values()) if isinstance(leaf, torch.Tensor)), None)
    return (
        row is not None
        and tensor is not None
        and type(tensor).__name__ == "FakeTensor"
        and tensor.device.type in row.devices
    )


def _caller() -> str | None:
    """Return "file:line" of the innermost frame that is neither torch's nor ours, a built-in workload's excepted."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_WORKLOADS) or not file.startswith((*INSIDE, "<frozen")):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None


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


def undoes_cast() -> bool:
    """Return whether autograd is now differentiating a cast."""
    node = _current_node()
    return node is not None and any(kind in node.name() for kind in _CASTING)


def in_backward() -> bool:
    """Return whether this thread is in a backward pass now."""
    return _graph_task() != -1


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
