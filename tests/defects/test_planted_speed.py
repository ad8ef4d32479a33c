"""Checks of what mixed precision costs see the cost where it is planted, and none where it is taken away."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import pytest
import torch

from ampbench.defects import CHECKS, program_of
from ampbench.studies.check import DEFECTIVE, DIFFERS, GOOD
from ampbench.studies.devices_measure import run_program
from tests.defects.planting import Plant

F = torch.nn.functional


def outcome(name: str, plant: Plant = nullcontext) -> str:
    with plant():
        return run_program(name, program_of(CHECKS[name]), "cpu").outcome


def slow(module: Any, op: str, when: Callable[..., bool]) -> Plant:
    """Have an op take another 50 ms where `when` says so of its arguments."""
    real = getattr(module, op)

    def call(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.05 * when(*args))
        return real(*args, **kwargs)

    return lambda: mock.patch.object(module, op, call)


def upcasting_softmax() -> AbstractContextManager[Any]:
    real = torch.softmax
    return mock.patch.object(torch, "softmax", lambda scores, dim: real(scores.float(), dim))


def half(*args: torch.Tensor) -> bool:
    return args[0].dtype != torch.float32


def in_autocast(*_: torch.Tensor) -> bool:
    return torch.is_autocast_enabled("cpu")


SLOW: dict[str, Plant] = {
    "bf16-matmul-speed": slow(torch, "matmul", half),
    "bf16-conv-speed": slow(F, "conv2d", half),
    "bf16-training-speed": slow(F, "linear", in_autocast),
    "documented-speedup": slow(F, "conv2d", in_autocast),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_planted_slowness_is_seen(name: str) -> None:
    assert outcome(name, SLOW[name]) in (DEFECTIVE, DIFFERS)


def test_a_planted_cast_is_seen() -> None:
    assert outcome("half-model-casts") == GOOD
    assert outcome("half-model-casts", upcasting_softmax) == DIFFERS
