"""Checks of compiled code see the defect where it is planted: mostly in torch.compile, which then compiles nothing."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from packaging.version import Version

from ampbench.defects import CHECKS
from ampbench.studies.check import DEFECTIVE, DIFFERS, GOOD
from tests.defects.planting import Plant, outcome_of

Function = Callable[..., Any]


def compiling(change: Callable[[Function], Function]) -> AbstractContextManager[Any]:
    """Have torch.compile return what `change` makes of a function."""

    def instead(function: Function | None = None, **options: Any) -> Any:
        return change if function is None else change(function)

    return mock.patch.object(torch, "compile", instead)


def raising(error: Exception) -> Plant:
    def change(function: Function) -> Function:
        return mock.Mock(side_effect=error)

    return lambda: compiling(change)


def stale() -> AbstractContextManager[Any]:
    """Have whatever is compiled return for ever what it returned first."""
    answers: list[Any] = []

    def change(function: Function) -> Function:
        def run(*inputs: torch.Tensor) -> Any:
            if not answers:
                answers.append(function(*inputs))
            return answers[0]

        return run

    return compiling(change)


def compiling_each_call() -> AbstractContextManager[Any]:
    def instead(function: Function, backend: Function) -> Function:
        return lambda *inputs: backend(SimpleNamespace(forward=function), inputs)(*inputs)

    return mock.patch.object(torch, "compile", instead)


def promoting() -> AbstractContextManager[Any]:
    return compiling(lambda function: lambda *inputs: function(*(one.float() for one in inputs)))


def removing_casts() -> AbstractContextManager[Any]:
    return compiling(lambda function: lambda values: values)


def unrounded() -> AbstractContextManager[Any]:
    return compiling(lambda function: lambda *inputs: function(*(one.double() for one in inputs)))


def bypassing_the_cache() -> AbstractContextManager[Any]:
    from torch._dynamo.utils import counters

    def change(function: Function) -> Function:
        def run(*inputs: torch.Tensor) -> Any:
            counters["aot_autograd"]["autograd_cache_bypass"] += 1
            return function(*inputs)

        return run

    return compiling(change)


PLANTED: dict[str, Plant] = {
    "compile-autocast-object": stale,
    "compile-equal-regions": compiling_each_call,
    "compile-entered-by-hand": raising(AssertionError("Global autocast state changed while dynamo tracing")),
    "compile-mixed-matmul": promoting,
    "compile-emulated-casts": removing_casts,
    "compile-bf16-threshold": unrounded,
    "compile-bf16-margin": unrounded,
    "compile-cache-bypass": bypassing_the_cache,
    "compile-cache-dtype": stale,
    "compile-autocast-available": raising(RuntimeError("Unsupported: call of a function that cannot be traced")),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_seen(name: str) -> None:
    assert outcome_of(name, PLANTED[name]).outcome in (DEFECTIVE, DIFFERS)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_without_it_all_is_well(name: str) -> None:
    check = CHECKS[name]
    if check.mended and Version(torch.__version__) < Version(check.mended):
        pytest.skip(f"this torch is older than {check.mended}, which mended it")
    if check.compiler and shutil.which("g++") is None:
        pytest.skip("there is no C++ compiler")
    assert outcome_of(name).outcome == GOOD
