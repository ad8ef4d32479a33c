"""Checks of autocast's cache see the defect where it is planted."""

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo  # checkpoint imports it, which would take each child seconds

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


PLANTED: dict[str, Plant] = {
    "no-grad-cache": without_history,
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_of_the_cache_is_seen(name: str) -> None:
    assert outcome_of(name).outcome == GOOD
    assert outcome_of(name, PLANTED[name]).outcome in (DEFECTIVE, DIFFERS)


CURED: dict[str, Plant] = {
    "sac-shared-weight": with_cache(False),
    "nested-dtype-cache": with_cache(False),
    "stale-weight-cast": with_cache(False),
    "shared-weight-gradient": with_cache(False),
    "dead-weight-casts": with_cache(False),
    "no-grad-weight-copies": with_cache(False),
    "uncached-weight-copies": with_cache(True),
}


@pytest.mark.parametrize("name", CURED)
def test_a_remedy_is_seen(name: str) -> None:
    assert outcome_of(name, CURED[name]).outcome == GOOD


def test_a_trace_in_a_region_fails_with_the_cache_and_works_without() -> None:
    failed = outcome_of("jit-trace-cache")
    assert failed.outcome == DEFECTIVE
    assert "Cannot insert a Tensor that requires grad as a constant" in failed.seen
    assert outcome_of("jit-trace-cache", with_cache(False)).outcome == GOOD
