"""What the study of scopes concludes: each cost where it is, none where it is not, and never a doubtful one."""

import pytest
from msgspec import structs

from ampbench.core.statement import Statement
from ampbench.studies.scope import (
    FORWARD,
    FORWARD_AND_LOSS,
    UNCACHED_LOOP,
    WHOLE_LOOP,
    WITH_BACKWARD,
    Scope,
    ScopePass,
    conclusions,
)
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


def test_growth_is_told_instead_of_what_is_kept_and_is_the_median() -> None:
    grown = about(scope_pass(uncached=run(UNCACHED_LOOP, alive_bytes=[100, 300, 500, 700])))[UNCACHED_LOOP]
    assert grown[Scope.GROWS].facts == {"growth": 200}
    once = about(scope_pass(uncached=run(UNCACHED_LOOP, alive_bytes=[0, 100, 100, 100])))[UNCACHED_LOOP]
    assert once[Scope.KEEPS].facts == {"kept": 100}


def test_what_a_scope_raises_is_all_that_is_said_of_it_and_others_stand_by_themselves() -> None:
    broken = run(FORWARD_AND_LOSS, error="RuntimeError: unsafe", samples=[], casts=[], dtypes={})
    found = about(scope_pass(best=broken))
    assert list(found[FORWARD_AND_LOSS]) == [Scope.RAISES]
    assert list(found[FORWARD]) == [Scope.FREE]
    assert list(found[WHOLE_LOOP]) == [Scope.STALE, Scope.KEEPS]
    forward = about(scope_pass(forward=structs.replace(broken, scope=FORWARD)))[FORWARD]
    assert forward[Scope.RAISES].facts == {"error": "RuntimeError: unsafe"}
