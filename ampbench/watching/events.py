"""The events of a training loop, seen without a change of the loop: backward passes and steps."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

Listener = Callable[..., Any]
"""Called with a function that does what the method does, and the method's positional arguments; returns its result."""


@contextmanager
def around(owner: Any, name: str, listener: Listener) -> Iterator[None]:
    """Have each call of a method of `owner`, a class or an object, go through `listener` in this block.

    The method is replaced for as long as anybody listens: torch has no hook on these.
    """
    before = vars(owner).get(name)
    listeners: list[Listener] | None = getattr(before, "listeners", None)
    before = getattr(before, "before", before)
    if listeners is None:
        listeners = []
        setattr(owner, name, _heard(getattr(owner, name), listeners, before))
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)
        method = vars(owner).get(name)
        if not listeners and getattr(method, "listeners", None) is listeners:  # nobody replaced it since
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def _heard(method: Callable[..., Any], listeners: list[Listener], before: Any) -> Callable[..., Any]:
    @functools.wraps(method)
    def heard(*args: Any, **kwargs: Any) -> Any:
        take = functools.partial(method, *args, **kwargs)
        for listener in () if torch.compiler.is_compiling() else tuple(listeners):
            take = functools.partial(listener, take, *args)
        return take()

    heard.listeners, heard.before = listeners, before  # type: ignore[attr-defined]
    return heard


@contextmanager
def on_step(
    before: Callable[[torch.optim.Optimizer], None], after: Callable[[torch.optim.Optimizer], None]
) -> Iterator[None]:
    """Call functions before and after each step of any optimizer of torch in this block."""
    hooks = [
        register_optimizer_step_pre_hook(lambda optimizer, *_: before(optimizer)),
        register_optimizer_step_post_hook(lambda optimizer, *_: after(optimizer)),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
