"""The events of a training loop, seen without a change of the loop: backward passes and steps."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

Listener = Callable[..., None]
"""Called with the arguments of a method."""


@contextmanager
def around(owner: Any, name: str, before: Listener, after: Listener) -> Iterator[None]:
    """Call functions before each call of a method of `owner`, a class or an object, in this block and after it returns.

    The method is replaced for as long as anybody listens: torch has no hook on these.
    """
    own = vars(owner).get(name)
    listeners: list[tuple[Listener, Listener]] | None = getattr(own, "listeners", None)
    own = getattr(own, "own", own)
    if listeners is None:
        listeners = []
        setattr(owner, name, _heard(getattr(owner, name), listeners, own))
    listeners.append((before, after))
    try:
        yield
    finally:
        listeners.remove((before, after))
        method = vars(owner).get(name)
        if not listeners and getattr(method, "listeners", None) is listeners:  # nobody replaced it since
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


def _heard(method: Callable[..., Any], listeners: list[tuple[Listener, Listener]], own: Any) -> Callable[..., Any]:
    @functools.wraps(method)
    def heard(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(*args, **kwargs)
        for before, _ in listeners:
            before(*args, **kwargs)
        returned = method(*args, **kwargs)
        for _, after in listeners:
            after(*args, **kwargs)
        return returned

    heard.listeners, heard.own = listeners, own  # type: ignore[attr-defined]
    return heard


@contextmanager
def on_step(before: Listener, after: Listener) -> Iterator[None]:
    """Call functions before and after each step of any optimizer of torch in this block."""
    hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
