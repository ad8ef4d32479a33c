"""A loss with what it holds, weights and whole networks, where the step is and in the dtype of its targets."""

import copy
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

Move = Callable[[Any], Any]
"""Returns a copy of a tensor on the device of the step, floating ones in the dtype of targets."""

Store = Callable[[torch.nn.Module], None]
"""Brings a module to the device of the step, and its weights into the dtype that the step's are stored in."""


def carried(loss: Any, copies: dict[int, Any], move: Move, store: Store) -> tuple[Any, list[torch.Tensor]]:
    """Return `loss` with copies of the modules and tensors that it holds, moved and cast as targets are; and these.

    They are what a function closes over, has as defaults or names among its module's variables, what a `partial`, a
    bound method or another object has been given, at any depth of lists, tuples and dicts; the loss itself may be a
    module. `copies` has, by the ids of the originals, the modules and parameters of the step's network, so that a loss
    that asks these (a penalty on weights) asks those that are trained; it is added to. What holds nothing is returned
    as it is, and so are torch's own objects and containers of more than `MOST_ITEMS`.
    """
    carrier = _Carrier(copies, move, store)
    return carrier.carry(loss), carrier.held


MOST_ITEMS = 10_000
"""A container of more items is data of another kind than weights, and looking at each would take too long."""


class _Carrier:
    def __init__(self, copies: dict[int, Any], move: Move, store: Store):
        self._copies, self._move, self._store = copies, move, store
        self._kept: list[Any] = []  # ids are of objects that live
        self.held: list[torch.Tensor] = []

    def carry(self, value: Any) -> Any:
        """Return a value with copies of what it holds, or itself where it holds nothing."""
        if id(value) in self._copies:
            return self._copies[id(value)]
        if not isinstance(value, torch.Tensor | torch.nn.Module | list | tuple | dict) and not _may_hold(value):
            return value
        self._kept.append(value)
        self._copies[id(value)] = value  # while it is looked at, for what holds itself
        made = self._copies[id(value)] = self._made(value)
        return made

    def _made(self, value: Any) -> Any:
        match value:
            case torch.nn.Module():
                del self._copies[id(value)]
                module = copy.deepcopy(value, self._copies)
                self._store(module)
                self.held += [*module.parameters(), *module.buffers()]
                return module
            case torch.Tensor():
                self.held.append(self._move(value))
                return self.held[-1]
            case dict():
                items = self._each(value.values())
                return value if items is None else _like(value, dict(zip(value, items, strict=True)))
            case list() | tuple():
                items = self._each(value)
                return value if items is None else _like(value, items)
            case functools.partial():
                func, args, keywords = (self.carry(part) for part in (value.func, value.args, value.keywords))
                held = (func, args, keywords)
                same = all(a is b for a, b in zip(held, (value.func, value.args, value.keywords), strict=True))
                return value if same else functools.partial(func, *args, **keywords)
            case types.MethodType():
                owner = self.carry(value.__self__)
                return value if owner is value.__self__ else types.MethodType(value.__func__, owner)
            case types.FunctionType():
                return self._function(value)
        return self._object(value)

    def _each(self, values: Any) -> list[Any] | None:
        """Return what the values become; None where all are as they were."""
        before = list(values)
        if len(before) > MOST_ITEMS:
            return None
        after = [self.carry(value) for value in before]
        return None if all(one is other for one, other in zip(before, after, strict=True)) else after

    def _function(self, function: types.FunctionType) -> Any:
        cells = [cell for cell in function.__closure__ or () if _full(cell)]
        contents = self._each(cell.cell_contents for cell in cells)
        defaults, keywords = self.carry(function.__defaults__), self.carry(function.__kwdefaults__)
        named = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
        named = {name: value for name, value in named.items() if _is_plainly_held(value)}
        variables = self._each(named.values())
        if (
            contents is None
            and variables is None
            and defaults is function.__defaults__
            and keywords is function.__kwdefaults__
        ):
            return function
        filled = dict(zip(map(id, cells), contents or [], strict=False))
        closure = tuple(
            types.CellType(filled[id(cell)]) if id(cell) in filled else cell for cell in function.__closure__ or ()
        )
        surroundings = function.__globals__
        if variables is not None:
            surroundings = {**surroundings, **dict(zip(named, variables, strict=True))}
        made = types.FunctionType(function.__code__, surroundings, function.__name__, defaults, closure)
        made.__kwdefaults__ = keywords
        made.__dict__.update(function.__dict__)
        return made

    def _object(self, value: Any) -> Any:
        attributes = vars(value)
        items = self._each(attributes.values())
        if items is None:
            return value
        made = copy.copy(value)
        vars(made).update(zip(attributes, items, strict=True))
        return made


def _may_hold(value: Any) -> bool:
    """Return whether a value that is no tensor, module or container may hold some: a function, or a user's object."""
    if isinstance(value, types.MethodType | functools.partial):
        return True
    if isinstance(value, type | types.ModuleType) or not hasattr(value, "__dict__"):
        return False
    home = value.__module__ if isinstance(value, types.FunctionType) else type(value).__module__
    return (home or "").partition(".")[0] not in {"torch", "builtins", "numpy", "random"}


def _is_plainly_held(value: Any) -> bool:
    """Return whether a variable of a module is looked into: a tensor, a network, or a user's function."""
    return isinstance(value, torch.Tensor | torch.nn.Module) or (
        isinstance(value, types.FunctionType) and value.__module__.partition(".")[0] not in {"torch", "ampbench"}
    )


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code, and functions within it, may look up among its module's variables."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _full(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _like(value: Any, items: Any) -> Any:
    """Return `items` as another of the class of `value`."""
    if isinstance(value, dict):
        made = copy.copy(value)
        made.update(items)
        return made
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
