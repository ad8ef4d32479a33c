"""`keep_fp32`: islands of fp32 in a network that runs in half precision, under autocast or stored in half."""

import functools
import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from typing import Any, Self

import torch
from torch.utils import _pytree as pytree

from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.case import AUTOCAST_DEVICES
from ampbench.trace.dtypes import HALVES

_FORWARD, _APPLY, _OWN, _AROUND = "forward", "_apply", "_before_keep_fp32", "_around_keep_fp32"
_MADE = ("__init__", "__setstate__")
_HOOK = -1
"""The key of a kept module's hook: torch counts its own from 0, in each process anew."""


class Island:
    """A region in which floating tensors are computed in fp32: what `keep_fp32()` returns.

    It is a context, which switches autocast off, and a decorator for what `keep_fp32` takes. Re-entrant, and one
    object can be entered many times.
    """

    def __init__(self, *, cast_back: bool = False):
        self._cast_back = cast_back
        self._entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> Self:
        entered = without_autocast()
        entered.__enter__()
        self._entered.append(entered)
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)

    def __call__(self, target: Any, /, *names: str) -> Any:
        """Do as `keep_fp32(target, *names)` does."""
        return keep_fp32(target, *names, cast_back=self._cast_back)


def keep_fp32(target: Any = None, /, *names: str, cast_back: bool = False) -> Any:
    """Run `target` in fp32, whatever surrounds it; it serves as a context, a decorator and a call.

    * `with keep_fp32():` switches autocast off; tensors that are in half already stay so.
    * `@keep_fp32`, or `keep_fp32(function)`, returns the function so wrapped.
    * `keep_fp32(Class)` changes a module class in place, for all its instances, and returns it.
    * `keep_fp32(module)` changes one module with all it holds, in place, and returns it.
    * `keep_fp32(model, "head", "layer4.*.bn2")` changes those submodules: names as `named_modules` gives them, or
      patterns as of `fnmatch`; a module within a chosen one is kept anyhow.

    Floating inputs that come in fp32 are not rounded on the way in; those in half are converted, which is exact. With
    `cast_back`, floating outputs go back to the dtype around: autocast's, else that of the first half input, else, with
    no floating input (as of an embedding), the half that the model was moved to. A kept module's parameters and buffers
    are fp32, and stay so when the model around it is moved to half (`model.half()`); kept before that they have lost
    nothing. Modules that share a parameter must be kept together, or moving one of them takes it to half for all.
    TransformerEncoderLayer, which in eval reads the weights of what it holds past it, calls its modules one by one once
    one of them is kept (a no-op forward hook tells it); MultiheadAttention reads those of its `out_proj` always: keep
    it as a whole. Works under torch.compile, with copy, pickle and state_dict. Keeping what is kept already changes
    nothing but `cast_back`. `release_fp32` undoes it.

    Raises `UnknownNameError`, with the nearest names, where a name or pattern matches no submodule, and `UsageError`
    for a target that can have no island.
    """
    if target is None:
        if names:
            raise UsageError("keep_fp32 needs the model before the names of its submodules")
        return Island(cast_back=cast_back)
    if isinstance(target, torch.nn.Module):
        for module in _chosen(target, names) if names else [target]:
            _keep_module(module, cast_back)
        return target
    if names:
        raise UsageError(f"keep_fp32: names choose submodules, and {_named(target)} is no module")
    if isinstance(target, type):
        return _keep_class(target, cast_back)
    if not callable(target):
        raise UsageError(f"keep_fp32 takes a function, a module or a module class, not {_named(target)}")

    @functools.wraps(target)
    def kept(*args: Any, **kwargs: Any) -> Any:
        return _run(target, cast_back, None, args, kwargs)

    return kept


def release_fp32(target: Any, /, *names: str) -> Any:
    """Undo `keep_fp32` of a module, of submodules of it, or of a module class, and return it.

    Weights stay fp32 until the model is moved again. Raises as `keep_fp32` does for names.
    """
    if isinstance(target, torch.nn.Module):
        for module in _chosen(target, names) if names else [target]:
            if is_kept(module):
                del module.__dict__[_FORWARD], module.__dict__[_APPLY]
                _forget(module)
    elif isinstance(target, type):
        for name, replaced in target.__dict__.get(_OWN, {}).items():
            if replaced is None:
                delattr(target, name)
            else:
                setattr(target, name, replaced)
        if _OWN in target.__dict__:
            delattr(target, _OWN)
            for module in _instances(target):
                if not is_kept(module):
                    _forget(module)
    return target


def is_kept(module: torch.nn.Module) -> bool:
    """Return whether `keep_fp32` has been called for this very module."""
    return isinstance(module.__dict__.get(_FORWARD), _Forward)


class _Forward:
    """The forward of a kept module, in its instance; `own` is a forward that was set there before, if one was."""

    def __init__(self, module: torch.nn.Module, cast_back: bool):
        self.module, self.cast_back = module, cast_back
        self.own = module.__dict__.get(_FORWARD)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self.own if self.own is not None else functools.partial(type(self.module).forward, self.module)
        return _run(forward, self.cast_back, getattr(self.module, _AROUND, None), args, kwargs)


def _keep_module(module: torch.nn.Module, cast_back: bool) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        raise UsageError("keep_fp32 cannot change a TorchScript module: keep it before it is traced or scripted")
    if is_kept(module):
        module.__dict__[_FORWARD].cast_back = cast_back
        return
    # past Module.__setattr__, which other tools override
    module.__dict__[_FORWARD] = _Forward(module, cast_back)
    module.__dict__[_APPLY] = functools.partial(_apply_kept, module)  # through which every move goes
    leave_fused(module)
    _restore(module)


def _keep_class(target: type, cast_back: bool) -> type:
    if not issubclass(target, torch.nn.Module) or target is torch.nn.Module:
        raise UsageError(f"keep_fp32 takes a class of modules, such as torchvision.ops.RoIAlign, not {_named(target)}")
    release_fp32(target)
    before = {name: target.__dict__.get(name) for name in (_FORWARD, _APPLY, *_MADE)}
    forward, apply = target.forward, target._apply

    @functools.wraps(forward)
    def kept_forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            _restore(self)
        return _run(functools.partial(forward, self), cast_back, getattr(self, _AROUND, None), args, kwargs)

    @functools.wraps(apply)
    def kept_apply(self: torch.nn.Module, function: Any, recurse: bool = True) -> torch.nn.Module:
        return _apply_kept(self, function, recurse, apply)

    target.forward, target._apply = kept_forward, kept_apply  # type: ignore[method-assign]
    for name in _MADE:  # each new module gets the hook of a kept one
        setattr(target, name, _leaving_fused(getattr(target, name)))
    setattr(target, _OWN, before)
    for module in _instances(target):
        leave_fused(module)
    return target


def _leaving_fused(init: Callable[..., None]) -> Callable[..., None]:
    """Return `__init__` or `__setstate__` wrapped so that each new module gets the hook of a kept module."""

    @functools.wraps(init)
    def make(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        leave_fused(self)

    return make


def leave_fused(module: torch.nn.Module) -> None:
    """Make the enclosing module leave its fused path, which calls no inner module: torch does so for a hook."""
    module._forward_hooks[_HOOK] = _nothing


def _nothing(module: torch.nn.Module, args: Any, output: Any) -> None:
    """Do nothing with an output."""


def _forget(module: torch.nn.Module) -> None:
    module._forward_hooks.pop(_HOOK, None)
    module.__dict__.pop(_AROUND, None)


def _instances(target: type) -> list[Any]:
    # by type(), as proxies that gc lists, too, import what they stand for when they are asked for __class__
    return [
        instance
        for instance in gc.get_objects()
        if issubclass(type(instance), target) and "_forward_hooks" in instance.__dict__
    ]


def _restore(module: torch.nn.Module) -> None:
    """Return half weights and buffers to fp32, and remember their half dtype."""
    around = next(
        (tensor.dtype for tensor in (*module.parameters(), *module.buffers()) if tensor.dtype in HALVES), None
    )
    if around is not None:
        module._apply(_up)  # type: ignore[no-untyped-call]
        module.__dict__[_AROUND] = around


def _apply_kept(
    module: torch.nn.Module,
    function: Callable[[torch.Tensor], torch.Tensor],
    recurse: bool = True,
    apply: Callable[..., torch.nn.Module] | None = None,
) -> torch.nn.Module:
    """Move a module's tensors as `function` would, by `apply` or its class's; a move to half is only remembered."""
    around = module.__dict__.get(_AROUND)
    if around is not None and function(torch.empty(0, dtype=around)).dtype is not around:
        del module.__dict__[_AROUND]

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        out = function(tensor)
        if out.dtype in HALVES and tensor.is_floating_point() and tensor.dtype not in HALVES:
            module.__dict__[_AROUND] = out.dtype
            return torch.empty_like(out, dtype=tensor.dtype).copy_(tensor)
        return out

    moves: Callable[..., torch.nn.Module] = apply or type(module)._apply
    return moves(module, moved, recurse)


@contextmanager
def without_autocast(devices: tuple[str, ...] = AUTOCAST_DEVICES) -> Iterator[None]:
    """Switch autocast off on every device type; one within the other, which torch.compile follows."""
    if devices:
        with torch.autocast(devices[0], enabled=False), without_autocast(devices[1:]):
            yield
    else:
        yield


def _run(function: Callable[..., Any], cast_back: bool, moved_to: torch.dtype | None, args: Any, kwargs: Any) -> Any:
    """Call `function` with autocast off and half inputs in fp32; `moved_to` is the half the model was moved to."""
    back = _dtype_around((args, kwargs), moved_to) if cast_back else None
    with without_autocast():
        leaves, spec = pytree.tree_flatten((args, kwargs))
        raised: list[Any] = []
        for place, leaf in enumerate(leaves):  # one that comes twice stays one, as attention to itself asks
            first = next((earlier for earlier in range(place) if leaves[earlier] is leaf), place)
            raised.append(_up(leaf) if first == place else raised[first])
        args, kwargs = pytree.tree_unflatten(raised, spec)
        out = function(*args, **kwargs)
    if back is None:
        return out
    return pytree.tree_map(
        lambda leaf: leaf.to(back) if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float32 else leaf, out
    )


def _up(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype in HALVES else leaf


def _dtype_around(inputs: Any, moved_to: torch.dtype | None) -> torch.dtype | None:
    """Return the low dtype that surrounds a call with `inputs`: autocast's on their device, else their own.

    Without floating inputs it is `moved_to`.
    """
    tensors = [
        leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]
    for tensor in tensors:
        if torch.is_autocast_enabled(tensor.device.type):
            return torch.get_autocast_dtype(tensor.device.type)
    return next((tensor.dtype for tensor in tensors if tensor.dtype in HALVES), None if tensors else moved_to)


def _chosen(model: torch.nn.Module, names: Iterable[str]) -> list[torch.nn.Module]:
    """Return the submodules that names and patterns choose, each once, in the model's order."""
    known = dict(model.named_modules(remove_duplicate=False))
    chosen: set[int] = set()
    for name in names:
        matching = [path for path in known if path and fnmatchcase(path, name)]
        if not matching:
            raise UnknownNameError("submodule", name, [path for path in known if path])
        chosen |= {id(known[path]) for path in matching}
    return [module for module in dict.fromkeys(known.values()) if id(module) in chosen]


def _named(target: object) -> str:
    return getattr(target, "__qualname__", None) or repr(target)
