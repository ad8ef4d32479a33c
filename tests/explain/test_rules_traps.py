import re

import pytest
import torch

from ampbench.explain.dtypes import is_present
from ampbench.explain.rules.probe import (
    CALLED,
    NEEDS_GRAD,
    PLACEMENTS,
    call_traced,
    probe_traps,
    stale_cache,
    trace_under_autocast,
)


def test_the_stale_cache_is_probed_and_the_claim_follows_from_what_was_found():
    claim = stale_cache("cpu")
    assert claim.found in ("the gradient is kept", "the gradient is lost")
    assert claim.holds == (claim.found == "the gradient is lost")


def test_tracing_inside_autocast_fails_with_the_weight_cache_and_works_without():
    with_cache = trace_under_autocast("cpu", "around", cache=True, check=True)
    assert with_cache.found.startswith(f"fails: {NEEDS_GRAD}")
    without = trace_under_autocast("cpu", "around", cache=False, check=True)
    assert without.found.startswith("works: returns bfloat16")
    assert with_cache.holds
    assert without.holds


def test_it_is_the_second_tracing_that_fails_so_without_the_check_it_works():
    claim = trace_under_autocast("cpu", "around", cache=True, check=False)
    assert claim.found.startswith("works")
    assert claim.holds is False


@pytest.mark.parametrize("cache", [True, False])
def test_autocast_inside_the_traced_module_works(cache):
    assert trace_under_autocast("cpu", "inside", cache=cache, check=True).found.startswith("works: returns bfloat16")


@pytest.mark.parametrize(("placement", "frozen"), CALLED)
def test_what_a_trace_gives_outside_and_inside_a_region_is_tried_and_held_against_eager_mode(placement, frozen):
    claim = call_traced("cpu", placement, frozen)
    found = re.fullmatch(
        r"outside a region (\w+), inside (\w+), eager autocast (\w+); (\d+) casts in the graph", claim.found
    )
    outside, inside, eager, casts = found.groups()
    assert eager == "bfloat16"  # CPU has no rule for layer_norm, which keeps the dtype of its input
    assert claim.holds == (inside == eager and outside == ("float32" if placement == "nowhere" else eager))
    assert (int(casts) == 0) == (placement == "nowhere")


def test_every_placement_has_a_claim_of_its_own_name():
    names = [claim.name for claim in probe_traps("cpu")]
    assert len(set(names)) == len(names)


def test_an_absent_device_is_never_traced_or_trained_on():
    device = next(one for one in ("xpu", "cuda") if not is_present(one))
    claims = probe_traps(device)
    assert len(claims) == 1 + len(PLACEMENTS) + len(CALLED)
    assert {claim.how for claim in claims} == {"not observed"}


def test_probing_leaves_autocast_and_its_cache_as_they_were():
    before = torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()
    probe_traps("cpu")
    assert (torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()) == before
