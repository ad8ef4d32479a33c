"""Checks of autocast's cache and of which op runs in which dtype see the defect where it is planted."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor

from ampbench.defects import CHECKS
from ampbench.studies.check import DEFECTIVE, DIFFERS, GOOD
from tests.defects.planting import Plant, outcome_of


def with_cache(on: bool) -> Plant:
    """Have every region be entered with the cache on, or off."""
    real = torch.autocast

    def autocast(device: str, dtype: torch.dtype, cache_enabled: bool = True) -> Any:
        return real(device, dtype=dtype, cache_enabled=on)

    return lambda: mock.patch.object(torch, "autocast", autocast)


def without_history() -> AbstractContextManager[Any]:
    """Have linear layers give what no gradient goes through."""
    real = torch.nn.functional.linear
    return mock.patch.object(torch.nn.functional, "linear", lambda *given: real(*given).detach())


CURED: dict[str, Plant] = {
    "sac-shared-weight": with_cache(False), "nested-dtype-cache": with_cache(False),
    "stale-weight-cast": with_cache(False), "shared-weight-gradient": with_cache(False),
    "dead-weight-casts": with_cache(False), "no-grad-weight-copies": with_cache(False),
    "uncached-weight-copies": with_cache(True),
}  # fmt: skip


@pytest.mark.parametrize("name", CURED)
def test_a_remedy_is_seen(name: str) -> None:
    assert outcome_of(name, CURED[name]).outcome == GOOD


def test_a_trace_in_a_region_fails_with_the_cache_and_works_without() -> None:
    failed = outcome_of("jit-trace-cache")
    assert failed.outcome == DEFECTIVE
    assert "Cannot insert a Tensor that requires grad as a constant" in failed.seen
    assert outcome_of("jit-trace-cache", with_cache(False)).outcome == GOOD


HALVES = (torch.float16, torch.bfloat16)


def changed(owner: Any, name: str, change: Callable[[Any], Any]) -> Plant:
    """Return what has a function of torch return the change of what it returns."""
    real = getattr(owner, name)
    return lambda: mock.patch.object(owner, name, lambda *args, **kwargs: change(real(*args, **kwargs)))


def refusing(owner: Any, name: str, refuses: Callable[..., bool], message: str) -> Plant:
    """Return what has a function of torch raise for some of its arguments."""
    real = getattr(owner, name)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if refuses(*args):
            raise RuntimeError(message)
        return real(*args, **kwargs)

    return lambda: mock.patch.object(owner, name, refuse)


def is_half(given: Any, *_: Any) -> bool:
    return given.dtype in HALVES


def always(*_: Any) -> bool:
    return True


def own_dtype_in_backward() -> AbstractContextManager[Any]:
    """Have backward see autocast's default dtype, as a thread of its own did."""
    real = torch.Tensor.backward

    def backward(self: torch.Tensor) -> None:
        before = torch.get_autocast_dtype("cpu")
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        real(self)
        torch.set_autocast_dtype("cpu", before)

    return mock.patch.object(torch.Tensor, "backward", backward)


@contextlib.contextmanager
def fp32_statistics_when_fake() -> Iterator[None]:
    """Have native_layer_norm promise fp32 statistics."""
    real = torch.native_layer_norm

    def norm(*args: Any) -> Any:
        found = real(*args)
        return [one.float() if isinstance(one, FakeTensor) else one for one in found]

    with mock.patch.object(torch, "native_layer_norm", norm):
        yield


PLANTED: dict[str, Plant] = {
    "no-grad-cache": without_history,
    "documented-bf16-inference": changed(F, "conv2d", torch.Tensor.float),
    "documented-fp16-inference": refusing(F, "conv2d", always, "could not create a primitive descriptor"),
    "backward-thread-dtype": own_dtype_in_backward,
    "batch-norm-no-affine": refusing(F, "batch_norm", is_half, "expected scalar type BFloat16 but found Float"),
    "fft-after-product": refusing(torch.fft, "rfft", is_half, "Unsupported dtype BFloat16"),
    "layer-norm-statistics": fp32_statistics_when_fake,
    "lstm-bf16": refusing(torch.nn.LSTM, "forward", always, "could not create a primitive descriptor"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_seen(name: str) -> None:
    assert outcome_of(name).outcome == GOOD or name == "lstm-bf16", "not every CPU has a kernel for it"
    assert outcome_of(name, PLANTED[name]).outcome in (DEFECTIVE, DIFFERS)


CLAIMS: dict[str, Plant] = {
    "documented-training": refusing(
        F, "conv2d", lambda *_: torch.get_autocast_dtype("cpu") == torch.float16, "not implemented for 'Half'"
    ),
    "documented-spelling": lambda: mock.patch.object(torch.xpu, "amp", torch.amp, create=True),
    "jit-trace-inside": lambda: mock.patch.object(torch.jit, "trace", lambda network, *_: network),
}
"""Claims that do not hold, and what makes them hold."""


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_of_the_document_holds_or_does_not(name: str) -> None:
    device = CHECKS[name].devices[0]
    assert outcome_of(name, device=device).outcome == DIFFERS
    assert outcome_of(name, CLAIMS[name], device).outcome == GOOD
