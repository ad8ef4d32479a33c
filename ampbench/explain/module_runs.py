"""Calls of a network's modules as they happen, from hooks that no module can see: what went in, what came out.

The hooks are torch's global ones: a module that carries hooks of its own leaves its fused path (TransformerEncoder).
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ampbench.errors import UsageError
from ampbench.explain.modules import is_compiled, remove_hook, tensors_in


@dataclass(slots=True, eq=False)
class ModuleRun:
    """One call of a module; `kwargs` and `outputs` are known once it has run.

    `outputs` are the floating tensors it returned, without those that a module within it returned and nobody changed
    since. `leaf`: no module of the network ran within it, so what it does is its own: modules without children, but
    also those that only use their children's weights (MultiheadAttention) and those that took a fused path. `within`
    are the calls around it, outermost first; `kept` is free for whoever watches.
    """

    path: str
    module: torch.nn.Module
    args: tuple[Any, ...]
    within: tuple[torch.nn.Module, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    returned: Any = None
    outputs: list[torch.Tensor] = field(default_factory=list)
    leaf: bool = True
    kept: Any = None
    inner: list[tuple[weakref.ref[torch.Tensor], int | None]] = field(default_factory=list)


def module_paths(model: torch.nn.Module) -> dict[torch.nn.Module, str]:
    """Return the first name of each module in `model`; raises `UsageError` for one that torch.compile has compiled."""
    paths = {module: path for path, module in model.named_modules()}
    for module, path in paths.items():
        if is_compiled(module):
            raise UsageError(
                f"{path or 'the model'} is compiled by torch.compile, inside which no module can be watched; give the "
                "model as it was before torch.compile"
            )
    return paths


@contextmanager
def watch_runs(
    model: torch.nn.Module,
    after: Callable[[ModuleRun], None],
    before: Callable[[ModuleRun], None] | None = None,
) -> Iterator[None]:
    """Tell `after` of every call of a module of `model` that returned, and `before` when it begins.

    A shared module has the first of its names. Modules that `after` calls are not told of. The hooks of the program's
    own modules stay as they are: those that change a module's output do so after `after`.
    """
    paths = module_paths(model)
    stack: list[ModuleRun] = []
    busy = False

    def begin(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        nonlocal busy
        if busy or module not in paths:
            return
        if stack:
            stack[-1].leaf = False
        run = ModuleRun(paths[module], module, args, tuple(outer.module for outer in stack))
        stack.append(run)
        if before is not None:
            busy = True
            try:
                before(run)
            finally:
                busy = False

    def end(module: torch.nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        nonlocal busy
        if busy or module not in paths:
            return
        while stack and stack[-1].module is not module:  # an exception left them unfinished
            stack.pop()
        if not stack:
            return
        run = stack.pop()
        if len(rest) < 2 or rest[-1] is None:  # after an exception torch leaves the kwargs out
            return
        run.args, run.kwargs, run.returned = args, rest[0], rest[-1]
        floating = [tensor for tensor in tensors_in(run.returned) if tensor.is_floating_point()]
        run.outputs = [
            tensor
            for tensor in floating
            if not any(ref() is tensor and since == version(tensor) for ref, since in run.inner)
        ]
        run.inner = []
        if stack:
            stack[-1].inner += [(weakref.ref(tensor), version(tensor)) for tensor in floating]
        busy = True
        try:
            after(run)
        finally:
            busy = False

    with ExitStack() as handles:
        handles.callback(register_module_forward_pre_hook(begin).remove)
        handles.callback(remove_hook, register_module_forward_hook(end, with_kwargs=True, always_call=True))
        yield


def version(tensor: torch.Tensor) -> int | None:
    """Return how often a tensor was written to; None in inference mode, where torch does not count."""
    return None if tensor.is_inference() else tensor._version
