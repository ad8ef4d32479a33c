import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampbench.instruments.keep_fp32.search import find_conflict, more_suspected
from ampbench.instruments.keep_fp32.trials import Budget, TrialsSpentError, Tried
from tests.instruments.keep_fp32.planted_spaces import Network, blocks_of, breaks, space_of


def tried_of(count: int, squared, most: int = 200) -> Tried:
    space = space_of(blocks_of(count))
    tried = Tried(space, Network(space, squared), Budget(max_error=1e-2), most)
    tried.meets(tried.every)
    return tried


def same(count: int) -> dict[int, float]:
    return dict.fromkeys(range(count), 1.0)


@given(
    st.lists(st.frozensets(st.integers(0, 11), min_size=1, max_size=4), min_size=1, max_size=5),
    st.permutations(range(12)),
)
def test_a_conflict_fails_and_nothing_can_be_left_out_of_it(conflicts, order):
    tried = tried_of(12, breaks(*conflicts))
    found = find_conflict(tried, tried.every, {unit: 1.0 + place for place, unit in enumerate(order)})
    assert found in conflicts
    assert not any(one < found for one in conflicts)


def test_one_module_of_128_is_found_by_halving():
    tried = tried_of(128, breaks([77]))
    assert find_conflict(tried, tried.every, same(128)) == {77}
    assert len(tried.trials) <= 1 + 7 + 1


def test_a_suspect_is_found_at_once():
    tried = tried_of(128, breaks([77]))
    assert find_conflict(tried, tried.every, same(128) | {77: 1000.0}) == {77}
    assert len(tried.trials) == 2


def test_errors_that_add_up_have_no_conflict():
    tried = tried_of(32, lambda low: 1e-4 * len(low) / 8)
    assert find_conflict(tried, tried.every, same(32)) is None


def test_what_is_known_to_meet_the_budget_is_not_suspected():
    tried = tried_of(128, breaks([20]))
    tried.meets(frozenset(range(32, 128)))
    before = len(tried.trials)
    assert find_conflict(tried, tried.every, same(128)) == {20}
    assert len(tried.trials) - before <= 5 + 1


def test_half_of_the_guilt_may_be_one_unit():
    assert more_suspected(frozenset({3, 5, 8}), {3: 0.1, 5: 0.7, 8: 0.2}) == {5}
    assert more_suspected(frozenset({3}), {3: 0.0}) == {3}


def test_trials_that_run_out_end_it():
    tried = tried_of(128, breaks([77]), most=3)
    with pytest.raises(TrialsSpentError):
        find_conflict(tried, tried.every, same(128))


def test_trials_answer_for_sets_that_were_not_tried():
    tried = tried_of(8, breaks([2], [5, 6]))
    assert tried.known(frozenset({2, 5})) is None
    assert not tried.meets(frozenset({2}))
    assert tried.meets(frozenset({0, 1, 5}))
    left = tried.left
    assert tried.meets(frozenset({0, 5}))
    assert not tried.meets(frozenset({2, 7}))
    assert tried.left == left
    assert tried.conflicts() == [{2}]
    assert tried.excess(frozenset({2})) == math.inf
