"""What the study of scopes concludes: each cost where it is, none where it is not, and never a doubtful one."""

from typing import Any

import pytest
from msgspec import structs

from ampbench.core.statement import Statement
from ampbench.records.measured import Fitness
from ampbench.studies.scope import (
    FORWARD,
    FORWARD_AND_LOSS,
    UNCACHED_LOOP,
    WHOLE_LOOP,
    WITH_BACKWARD,
    Scope,
    ScopePass,
    casts_text,
    conclusions,
)
from ampbench.studies.study import Timing
from tests.studies.planted_scopes import CASE, run, scope_pass, timed


def about(found: ScopePass) -> dict[str, dict[str, Statement]]:
    """What is concluded by scope and, in order, by code (and what of, where an error is named)."""
    by: dict[str, dict[str, Statement]] = {}
    for each in conclusions(CASE, found):
        by.setdefault(each.subject, {})[f"{each.code} {each.facts.get('what', '')}".strip()] = each
    return by


def test_each_scope_shows_its_costs_and_the_recommended_one_none_of_them() -> None:
    by = about(scope_pass())
    assert {scope: list(codes) for scope, codes in by.items()} == {
        FORWARD_AND_LOSS: [Scope.RECOMMENDED],
        FORWARD: [f"{Scope.ERROR} loss"],
        WITH_BACKWARD: [Scope.TIME, Scope.CASTS, Scope.PEAK],
        WHOLE_LOOP: [Scope.STALE, Scope.KEEPS, Scope.TIME, f"{Scope.ERROR} update"],
        UNCACHED_LOOP: [Scope.CASTS],
    }
    assert by[WHOLE_LOOP][Scope.STALE].facts == {"step": 2, "weights": 6}
    assert by[WITH_BACKWARD][Scope.TIME].facts["ratio"] == pytest.approx(1.25)


@pytest.mark.parametrize(
    "samples",
    [timed(1.0), timed(1.002), [[1e-3 * (2 if build % 2 else 0.5)] for build in range(8)], timed(2.0)[:4], []],
    ids=["same", "within rounding", "noisy", "too few builds", "not timed"],
)
def test_no_difference_in_time_is_claimed_that_is_not_certain(samples: list[list[float]]) -> None:
    found = about(scope_pass(uncached=run(UNCACHED_LOOP, samples=samples)))
    assert list(found[UNCACHED_LOOP]) == [Scope.FREE]


def test_no_difference_in_time_is_claimed_where_the_machine_was_busy() -> None:
    busy = structs.replace(scope_pass(uncached=run(UNCACHED_LOOP, 2.0)), fitness=Fitness(other_share=0.5))
    found = about(busy)
    assert (list(found[UNCACHED_LOOP]), list(found[""])) == ([Scope.FREE], [Timing.BUSY])
    assert Scope.TIME in about(structs.replace(busy, fitness=Fitness()))[UNCACHED_LOOP]


def test_growth_is_told_instead_of_what_is_kept_and_is_the_median() -> None:
    grown = about(scope_pass(uncached=run(UNCACHED_LOOP, alive_bytes=[100, 300, 500, 700])))[UNCACHED_LOOP]
    assert grown[Scope.GROWS].facts == {"growth": 200}
    once = about(scope_pass(uncached=run(UNCACHED_LOOP, alive_bytes=[0, 100, 100, 100])))[UNCACHED_LOOP]
    assert once[Scope.KEEPS].facts == {"kept": 100}


def test_what_every_scope_keeps_is_no_cost_of_one_but_no_credit_of_the_recommended_one() -> None:
    kept: dict[str, Any] = {"alive_bytes": [64] * 4}
    found = about(scope_pass(best=run(FORWARD_AND_LOSS, **kept), uncached=run(UNCACHED_LOOP, **kept)))
    assert list(found[FORWARD_AND_LOSS]) == [Scope.RECOMMENDED, Scope.KEEPS]
    assert list(found[UNCACHED_LOOP]) == [Scope.FREE]


def test_a_loss_in_half_within_the_recommended_scope_is_told() -> None:
    low = {"output": "bf16", "loss": "bf16", "gradients": "fp32"}
    found = about(scope_pass(best=run(FORWARD_AND_LOSS, dtypes=low)))
    assert Scope.LOW_LOSS in found[FORWARD_AND_LOSS]


def test_what_a_scope_raises_is_all_that_is_said_of_it_and_others_stand_by_themselves() -> None:
    broken = run(FORWARD_AND_LOSS, error="RuntimeError: unsafe", samples=[], casts=[], dtypes={})
    found = about(scope_pass(best=broken))
    assert list(found[FORWARD_AND_LOSS]) == [Scope.RAISES]
    assert list(found[FORWARD]) == [Scope.FREE]
    assert list(found[WHOLE_LOOP]) == [Scope.STALE, Scope.KEEPS]
    forward = about(scope_pass(forward=structs.replace(broken, scope=FORWARD)))[FORWARD]
    assert forward[Scope.RAISES].facts == {"error": "RuntimeError: unsafe"}


def test_an_error_that_is_undefined_where_the_recommended_scope_has_one_is_told() -> None:
    found = about(scope_pass(uncached=run(UNCACHED_LOOP, output_rel_l2=None, grad_rel_l2=None)))
    assert list(found[UNCACHED_LOOP]) == [f"{Scope.UNDEFINED} output", f"{Scope.UNDEFINED} gradient"]


@pytest.mark.parametrize(
    ("casts", "text"), [([15], "15"), ([15, 15], "15"), ([15, 9, 9], "15, then 9"), ([15, 9, 11], "9 to 15")]
)
def test_casts_per_step_are_as_short_as_can_be(casts: list[int], text: str) -> None:
    assert casts_text(casts) == text
