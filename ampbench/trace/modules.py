"""The modules of a network: the running one, the names of its tensors, its inputs and outputs.

Calls are seen as they happen, from hooks that no module can see. The hooks are torch's global ones: a
module that carries hooks of its own leaves its fused path (TransformerEncoder).
"""

import dataclasses
import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as module_hooks
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ampbench.errors import UsageError
from ampbench.records.casts import BUFFER, INPUT, WEIGHT, ModuleCalls
from ampbench.trace.dtypes import short_dtype

if TYPE_CHECKING:
    from ampbench.trace.ledger import CallMode

FUSED = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder)
"""Modules that take another, fused path in inference, and leave it when any torch function is overridden."""

_ALL = 3
"""What a forward hook is given of a call that did not fail: positional and keyword arguments, and the output."""

ModuleKey = tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]


class ModuleStack:
    """The modules now running, innermost last, kept by hooks on every module's call while `hooked`.

    `name(tensor, what, name)` receives the parameters, buffers and inputs of each outermost module; keyword inputs once
    it is done, as torch shows them only then. `calls` looks at autocast before each module and pauses for those whose
    inference takes a fused path. `returned()` is called after the model, or after each outermost module without one.
    `begun` counts the calls of the model.
    """

    def __init__(
        self,
        model: torch.nn.Module | None,
        name: Callable[[torch.Tensor, str, str], None],
        calls: "CallMode",
        returned: Callable[[], None],
    ):
        self.path = ""
        self.depth = self.begun = 0
        self.seen: Counter[ModuleKey] = Counter()
        self.order: dict[str, int] = {}
        self.owners: dict[str, str] = {}
        self._name = name
        self._calls = calls
        self._returned = returned
        self._stack: list[tuple[torch.nn.Module, str, bool]] = []
        self._names: weakref.WeakKeyDictionary[torch.nn.Module, list[str]] = weakref.WeakKeyDictionary()
        self._roots: Counter[str] = Counter()
        self._paths: weakref.WeakKeyDictionary[torch.nn.Module, dict[str | None, str]] = weakref.WeakKeyDictionary()
        self._model = model

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Watch within the context, however far the modules get; names the tensors of the model, if one was given."""
        if self._model is not None:
            self._learn(self._model, "")
        try:
            with hook_calls(self._before, self._after):
                yield
        finally:
            while self._stack:
                self._pop()

    def dtypes(self) -> list[ModuleCalls]:
        """Return the dtypes of the calls so far, modules in the order of first running."""
        ordered = sorted(self.seen.items(), key=lambda item: self.order[item[0][0]])
        return [
            ModuleCalls(module=path, kind=kind, inputs=inputs, outputs=outputs, parameters=parameters, calls=calls)
            for (path, kind, inputs, outputs, parameters), calls in ordered
        ]

    def find(self, tensor: torch.Tensor) -> str:
        """Return the name of a parameter that a running module has got since it was first seen, or ""."""
        for module, path, _ in reversed(self._stack):
            for name, parameter in module.named_parameters():
                if parameter is tensor:
                    return _joined(path, name)
        return ""

    def _learn(self, root: torch.nn.Module, prefix: str) -> None:
        for name, module in root.named_modules(remove_duplicate=False):
            self._names.setdefault(module, []).append(_joined(prefix, name))
        for name, parameter in root.named_parameters():
            self._name(parameter, WEIGHT, _joined(prefix, name))
            self.owners[_joined(prefix, name)] = _joined(prefix, name.rpartition(".")[0])
        for name, buffer in root.named_buffers():
            self._name(buffer, BUFFER, _joined(prefix, name))

    def _before(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        path = self._path(module)
        if not self._stack:
            for name, tensor in _named_inputs(module, args):
                self._name(tensor, INPUT, name)
        self._calls.look()
        fused = isinstance(module, FUSED) and not module.training and not learning(module)
        self._stack.append((module, path, fused))
        self.begun += module is self._model
        self.path = path
        self.depth += 1
        self.order.setdefault(path, len(self.order))
        if fused:
            self._calls.pause()

    def _after(self, module: torch.nn.Module, *call: Any) -> None:
        """Take args, kwargs and output; after an exception torch leaves the kwargs out."""
        # An exception can leave modules above this one unfinished.
        while self._stack and self._stack[-1][0] is not module:
            self._pop()
        if not self._stack:
            return
        path = self._stack[-1][1]
        self._pop()
        if module is self._model or (self._model is None and not self._stack):
            self._returned()
        if not self._stack and len(call) == _ALL:
            for name, tensor in call[1].items():
                if isinstance(tensor, torch.Tensor):
                    self._name(tensor, INPUT, name)
        parameters = dict.fromkeys(short_dtype(p.dtype) for p in module._parameters.values() if p is not None)
        inputs, outputs = (
            tuple(short_dtype(tensor.dtype) for tensor in tensors_in(side)) for side in (call[:-1], call[-1])
        )
        self.seen[path, type(module).__name__, inputs, outputs, tuple(parameters)] += 1

    def _pop(self) -> None:
        _, _, fused = self._stack.pop()
        self.depth -= 1
        self.path = self._stack[-1][1] if self._stack else ""
        if fused:
            self._calls.resume()

    def _path(self, module: torch.nn.Module) -> str:
        """Return where `module` sits: below its caller if it is there, else where the root has it, else its class."""
        parent, above, _ = self._stack[-1] if self._stack else (None, "", False)
        paths = self._paths.setdefault(module, {})
        key = None if parent is None else above
        if key in paths:
            return paths[key]
        kind, names = type(module).__name__, self._names.get(module)
        children = parent._modules if parent is not None else {}
        if (name := next((name for name, child in children.items() if child is module), None)) is not None:
            path = _joined(above, name)
        elif names is not None:
            path = next((path for path in names if not above or path.startswith(f"{above}.")), names[0])
        elif parent is not None:
            path = _joined(above, kind)
        else:
            self._roots[kind] += 1
            path = kind if self._roots[kind] == 1 else f"{kind}#{self._roots[kind]}"
            self._learn(module, path)
        paths[key] = path
        return path


def hook_calls(before: Callable[..., None], after: Callable[..., None] | None = None) -> ExitStack:
    """Call functions around the calls of all modules, like torch's global hooks, until the returned handle ends.

    `after` is given keywords, too, and called after exceptions. Neither is where torch.compile reads the code, as that
    of branches and loops is (`torch.cond`), which may change nothing around it.
    """
    hooks = ExitStack()

    def starting(*call: Any) -> None:
        if not torch.compiler.is_compiling():
            before(*call)

    def ending(*call: Any) -> None:
        if after is not None and not torch.compiler.is_compiling():
            after(*call)

    hooks.callback(register_module_forward_pre_hook(starting).remove)
    if after is not None:
        handle = register_module_forward_hook(ending, with_kwargs=True, always_call=True)
        # torch leaves this of a hook that takes keywords, and torch.compile takes it for a hook
        hooks.callback(getattr(module_hooks, "_global_forward_hooks_with_kwargs", {}).pop, handle.id, None)
        hooks.callback(handle.remove)
    return hooks


def tensors_in(tree: object) -> Iterator[torch.Tensor]:
    """Yield the tensors of `named_tensors_in`."""
    return (tensor for _, tensor in named_tensors_in(tree))


def named_tensors_in(tree: object, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of nested tuples, lists, mappings and dataclasses, in order, with the way to each.

    Keys of mappings and fields of dataclasses and named tuples ("scores"), places in tuples and lists ("[1]"), one
    after the other ("heads[1].boxes"). A tensor alone is "".
    """
    below = f"{name}." if name else ""
    if isinstance(tree, torch.Tensor):
        yield name, tree
    elif isinstance(tree, Mapping):
        for key, item in tree.items():
            yield from named_tensors_in(item, f"{below}{key}")
    elif isinstance(tree, tuple | list):
        fields = getattr(tree, "_fields", ())
        for place, item in enumerate(tree):
            yield from named_tensors_in(item, f"{below}{fields[place]}" if fields else f"{name}[{place}]")
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for entry in dataclasses.fields(tree):
            yield from named_tensors_in(getattr(tree, entry.name), f"{below}{entry.name}")


def floating_stored(tree: object) -> list[torch.Tensor]:
    """Return the floating tensors in `tree`; for nested tensors (padded sequences in an encoder), their storage."""
    floating = (tensor for tensor in tensors_in(tree) if tensor.is_floating_point())
    return [tensor.values() if tensor.is_nested else tensor for tensor in floating]


def _named_inputs(module: torch.nn.Module, args: tuple[Any, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the positional input tensors of a module, named as its `forward` names them."""
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for number, arg in enumerate(args):
        name = positional[number] if number < len(positional) else f"input {number}"
        for place, tensor in enumerate(tensors_in(arg)):
            yield name if isinstance(arg, torch.Tensor) else f"{name}[{place}]", tensor


def learning(module: torch.nn.Module) -> bool:
    """Return whether autograd records a call of a module now, because it has trained parameters."""
    return torch.is_grad_enabled() and any(parameter.requires_grad for parameter in module.parameters())


def is_compiled(module: torch.nn.Module) -> bool:
    """Return whether torch.compile has compiled a module, in place or as a wrapper of it."""
    return getattr(module, "_compiled_call_impl", None) is not None or type(module).__name__ == "OptimizedModule"


class _Uncompiled(torch.nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._orig_mod(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        wrapped = super().__getattr__("_orig_mod")
        return wrapped if name == "_orig_mod" else getattr(wrapped, name)


def uncompile(network: torch.nn.Module) -> None:
    """Run modules compiled by torch.compile uncompiled, so that all are seen."""
    for module in filter(is_compiled, list(network.modules())):
        module._compiled_call_impl = None
        if type(module).__name__ == "OptimizedModule":
            module.__dict__.pop("forward")
            module.__class__ = _Uncompiled


def _joined(above: str, name: str) -> str:
    return f"{above}.{name}" if above and name else above or name


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
                f"{path or 'the model'} is compiled by torch.compile, so its modules cannot be watched; give the "
                "model from before torch.compile"
            )
    return paths


@contextmanager
def watch_runs(
    model: torch.nn.Module,
    after: Callable[[ModuleRun], None],
    before: Callable[[ModuleRun], None] | None = None,
) -> Iterator[None]:
    """Call `before` when a module of `model` begins, and `after` when it returns.

    A shared module has the first of its names. Modules that `after` calls are not reported. The program's own hooks
    stay: hooks that change a module's output do so after `after`.
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

    def end(module: torch.nn.Module, args: tuple[Any, ...], *returned: Any) -> None:
        nonlocal busy
        if busy or module not in paths:
            return
        while stack and stack[-1].module is not module:  # an exception left them unfinished
            stack.pop()
        if not stack:
            return
        run = stack.pop()
        if len(returned) < 2 or returned[-1] is None:  # after an exception torch leaves the kwargs out
            return
        run.args, run.kwargs, run.returned = args, returned[0], returned[-1]
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

    with hook_calls(begin, end):
        yield


def version(tensor: torch.Tensor) -> int | None:
    """Return how often a tensor was written to; None in inference mode, where torch does not count."""
    return None if tensor.is_inference() else tensor._version
