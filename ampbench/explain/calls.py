"""Which Python function is running, whether it converts by itself, and what autocast does meanwhile.

A dispatch mode runs below autocast and cannot ask: inside it, autocast always looks switched off.
"""

import functools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import overrides
from torch.overrides import TorchFunctionMode, resolve_name

import ampbench
from ampbench.casts.inside import WHOLE

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
"""Functions whose insides are watched, too: what they call is what a reader wants to know."""

_OWN = (torch.Tensor, torch.nn.Parameter)

_GUARDS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")

# Untyped in torch.
_top: Callable[[], Any] = overrides._get_current_function_mode
_pop: Callable[[], Any] = overrides._pop_mode
_push: Callable[[Any], None] = overrides._push_mode

_OURS = Path(ampbench.__file__).parent
INSIDE = (str(Path(torch.__file__).parent), str(_OURS))
"""Where the code of torch and of this package lies, which is not the program's own."""

_WORKLOADS = str(_OURS / "workloads")


class Running:
    """What goes on now, for all traces that are on.

    `ops` run inside recorders' own code; `differentiating`: a backward pass was asked for; `create_graph`: it records
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

    `autocast` names the device types on which autocast was on when last seen. `whole`, if given, runs what fake tensors
    would take apart and their device would not.
    """

    def __init__(self, devices: tuple[str, ...], *, sources: bool):
        super().__init__()
        self.whole: Callable[..., Any] | None = None
        self.current: Call | None = None
        self.autocast: tuple[str, ...] = ()
        self._devices = devices
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
            if self.whole is not None and _has_kernel(func, args, kwargs):
                return self.whole(func, args, kwargs)
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
        for other in reversed(above):
            _push(other)
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


def function_name(function: Any) -> str | None:
    """Return a torch function's public name, "torch.nn.functional.linear"."""
    if function is None:
        return None
    name = resolve_name(function)
    return str(name) if name else getattr(function, "__qualname__", None) or repr(function)


@functools.cache
def _unguarded(function: types.FunctionType) -> Callable[..., Any]:
    """Return `function` with the question for overrides answered no."""
    names = {**function.__globals__, **{guard: _no for guard in _GUARDS if guard in function.__globals__}}
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _has_kernel(function: Any, args: Any, kwargs: Any) -> bool:
    """Tell whether the device of the fake tensors `function` is given has one kernel for it, where they have none."""
    row = WHOLE.get(getattr(function, "__name__", ""))
    given = next((leaf for leaf in (*args, *kwargs.values()) if isinstance(leaf, torch.Tensor)), None)
    return (
        row is not None
        and given is not None
        and type(given).__name__ == "FakeTensor"
        and given.device.type in row.devices
    )


def _no(*_: Any) -> bool:
    return False


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
