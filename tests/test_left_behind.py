"""The check after every test: what it names, and what it passes over."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from tests.conftest import left_behind, state_of_process


def dtype() -> Callable[[], None]:
    torch.set_default_dtype(torch.float64)
    return lambda: torch.set_default_dtype(torch.float32)


def folder() -> Callable[[], None]:
    before = Path.cwd()
    os.chdir("/")
    return lambda: os.chdir(before)


def handler() -> Callable[[], None]:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    return lambda: signal.signal(signal.SIGUSR1, before) and None


@pytest.mark.parametrize(
    ("leave", "named"),
    [
        (lambda: register_module_forward_hook(lambda *_: None).remove, "hooks of all modules (_global_forward_hooks)"),
        (dtype, "default dtype: torch.float32 became torch.float64"),
        (folder, "current folder"),
        (handler, "SIGUSR1"),
    ],
)
def test_what_a_test_leaves_is_named(leave: Callable[[], Callable[[], None]], named: str) -> None:
    before = state_of_process()
    undo = leave()
    try:
        left = left_behind(before, state_of_process())
    finally:
        undo()
    assert named in left[0]
    assert left_behind(before, state_of_process()) == []


def test_what_torchs_import_brings_is_nothing_left_and_what_differs_from_it_is() -> None:
    state = state_of_process()
    before = {name: value for name, value in state.items() if name.startswith(("variable", "handler"))}
    before |= {name: state[name] for name in ("current folder", "garbage collection")}
    assert left_behind(before, state) == []
    assert left_behind(before, {**state, "gradients": False}) == ["gradients: True became False"]
