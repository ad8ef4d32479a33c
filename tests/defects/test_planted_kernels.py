"""Checks of kernels of half precision, and of what mixed precision costs, see the defect where it is planted."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn import functional as F

from ampbench.defects import CHECKS, program_of
from ampbench.studies.check import DEFECTIVE, DIFFERS, GOOD
from ampbench.studies.devices_measure import run_program
from tests.defects.planting import Plant

HALF = (torch.float16, torch.bfloat16)
BY_CPU = {"bf16-conv-ones", "bf16-conv3d-stride"}
"""Defects of some CPUs, which may well be here."""


def instead(owner: Any, name: str, of_half: Callable[..., Any]) -> Plant:
    """Have `owner`'s function of that name, of half precision, do as `of_half` does, which is given the real one."""
    real = getattr(owner, name)

    def function(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return of_half(real, first, *args, **kwargs) if first.dtype in HALF else real(first, *args, **kwargs)

    return lambda: mock.patch.object(owner, name, function)


def running(values: torch.Tensor, step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """Return what `step` comes to, value by value, rounded to their dtype each time."""
    reached = [values[0]]
    for value in values[1:]:
        reached.append(step(reached[-1], value))
    return reached


def multiplied(_: Any, values: torch.Tensor, __: int) -> torch.Tensor:
    return torch.stack(running(values, torch.mul))


def summed_by_blocks(real: Any, values: torch.Tensor, _: int) -> torch.Tensor:
    blocks = real(values.view(500, -1), 1)
    before = torch.stack(running(torch.cat([torch.zeros_like(values[:1]), blocks[:-1, -1]]), torch.add))
    return (blocks + before[:, None]).flatten()


def softened(real: Any, values: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return real(values, dim, dtype=dtype) if dtype else values.exp() / values.exp().sum(dim, keepdim=True)


def rounding_draws() -> AbstractContextManager[Any]:
    """Have uniform draws be of fp32, rounded."""
    real = torch.rand

    def rand(*args: Any, dtype: torch.dtype, **kwargs: Any) -> torch.Tensor:
        return real(*args, **kwargs).to(dtype)

    return mock.patch.object(torch, "rand", rand)


Tensor = torch.Tensor
PLANTED: dict[str, Plant] = {
    "fp16-cumsum": instead(Tensor, "cumsum", summed_by_blocks),
    "fp16-cumprod": instead(Tensor, "cumprod", multiplied),
    "bf16-conv-ones": instead(F, "conv2d", lambda real, values, kernel: real(values, kernel) / 4),
    "bf16-conv3d-stride": instead(F, "conv3d", lambda real, *args, **kwargs: real(*args, **kwargs) * 1.1),
    "softmax-in-fp32": instead(torch, "softmax", softened),
    "softshrink-beyond-fp16": instead(F, "softshrink", lambda _, values, __: torch.zeros_like(values)),
    "half-rand-below-one": rounding_draws,
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_seen(name: str) -> None:
    text = program_of(CHECKS[name])
    assert run_program(name, text, "cpu").outcome == GOOD or name in BY_CPU
    with PLANTED[name]():
        assert run_program(name, text, "cpu").outcome in (DEFECTIVE, DIFFERS)


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
