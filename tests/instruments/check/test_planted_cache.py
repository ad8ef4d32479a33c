"""Checks of autocast's cache see the defect where it is planted."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo  # checkpoint imports it, which would take each child seconds
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState, TrainingState

from ampbench.instruments.check.records import DEFECTIVE, DIFFERS, GOOD
from tests.instruments.check.planting import Plant, outcome_of


@contextmanager
def casts_kept_as_made() -> Iterator[None]:
    """Have a region keep each cast as it was first made, be it without a history or for inference, until it ends."""
    kept: dict[int, torch.Tensor] = {}
    real = torch.nn.functional.linear

    def linear(batch: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            weights = tuple(kept.setdefault(id(weight), weight.to(dtype)) for weight in weights)
        return real(batch, *weights)

    with (
        mock.patch.object(torch.nn.functional, "linear", linear),
        mock.patch.object(torch, "clear_autocast_cache", kept.clear),
    ):
        yield


def views_kept() -> AbstractContextManager[Any]:
    """Have the casts of matmul's second factor stay."""
    kept: list[torch.Tensor] = []
    real = torch.matmul

    def matmul(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        kept.append(right.to(left.dtype))
        return real(left, kept[-1])

    return mock.patch.object(torch, "matmul", matmul)


def recomputing_in_default_dtype() -> AbstractContextManager[Any]:
    """Have checkpoint believe that autocast is to the dtype that it takes by itself."""
    return mock.patch.object(torch, "get_autocast_dtype", return_value=torch.bfloat16)


def recomputing_uncast() -> AbstractContextManager[Any]:
    """Have FSDP2 leave inputs as they are while backward recomputes."""
    real = FSDPState._pre_forward

    def pre_forward(state: FSDPState, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        if state._training_state == TrainingState.PRE_BACKWARD:
            return args, kwargs
        return real(state, module, args, kwargs)

    return mock.patch.object(FSDPState, "_pre_forward", pre_forward)


def clearing_nothing() -> AbstractContextManager[Any]:
    """Have the cache never be cleared."""
    return mock.patch.object(torch, "clear_autocast_cache")


def with_cache(on: bool) -> Plant:
    """Have every region be entered with the cache on, or off."""
    real = torch.autocast

    def autocast(device: str, dtype: torch.dtype, cache_enabled: bool = True) -> Any:
        return real(device, dtype=dtype, cache_enabled=on)

    return lambda: mock.patch.object(torch, "autocast", autocast)


PLANTED: dict[str, Plant] = {
    "no-grad-cache": casts_kept_as_made,
    "inference-mode-cache": casts_kept_as_made,
    "checkpoint-after-no-grad": casts_kept_as_made,
    "checkpoint-recompute-dtype": recomputing_in_default_dtype,
    "fsdp2-recompute-dtype": recomputing_uncast,
    "view-cast-memory": views_kept,
    "thread-cast-cache": clearing_nothing,
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_seen(name: str) -> None:
    assert outcome_of(name).outcome == GOOD
    assert outcome_of(name, PLANTED[name]).outcome in (DEFECTIVE, DIFFERS)


CURED: dict[str, Plant] = {
    "sac-shared-weight": with_cache(False),
    "nested-dtype-cache": with_cache(False),
    "stale-weight-cast": with_cache(False),
    "shared-weight-gradient": with_cache(False),
    "dead-weight-casts": with_cache(False),
    "no-grad-weight-copies": with_cache(False),
    "jit-trace-cache": with_cache(False),
    "uncached-weight-copies": with_cache(True),
}


@pytest.mark.parametrize("name", CURED)
def test_a_remedy_is_seen(name: str) -> None:
    assert outcome_of(name, CURED[name]).outcome == GOOD
