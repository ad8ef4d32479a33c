from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from ampbench.instruments.keep_fp32 import search
from ampbench.instruments.keep_fp32.search import smallest_hitting

COUNT = 8
conflict_sets = st.lists(st.frozensets(st.integers(0, COUNT - 1), min_size=1), max_size=8)


def by_exhaustion(conflicts, dislike):
    """Return the size and the least dislike of the smallest sets that hold one of each conflict."""
    for size in range(COUNT + 1):
        fitting = [s for s in combinations(range(COUNT), size) if all(one & set(s) for one in conflicts)]
        if fitting:
            return size, min(sum(dislike[unit] for unit in s) for s in fitting)
    raise AssertionError


@given(conflict_sets, st.lists(st.integers(0, 5), min_size=COUNT, max_size=COUNT))
def test_the_smallest_and_of_those_the_least_disliked_set_is_found(conflicts, dislike):
    size, disliked = by_exhaustion(conflicts, dislike)
    found = smallest_hitting(conflicts, dislike, COUNT)
    assert found.kept is not None
    assert all(one & found.kept for one in conflicts)
    assert (len(found.kept), sum(dislike[unit] for unit in found.kept), found.least) == (size, disliked, size)


@given(conflict_sets, st.integers(0, COUNT))
def test_that_no_set_is_small_enough_is_said(conflicts, most):
    size, _ = by_exhaustion(conflicts, [0.0] * COUNT)
    found = smallest_hitting(conflicts, [0.0] * COUNT, most)
    assert (found.kept is None) == (size > most)
    assert (found.least > most) == (size > most)


@given(conflict_sets, st.integers(1, 4))
def test_a_search_that_is_cut_short_claims_no_more_than_is_true(conflicts, nodes):
    size, _ = by_exhaustion(conflicts, [0.0] * COUNT)
    before, search.NODES = search.NODES, nodes
    try:
        found = smallest_hitting(conflicts, [0.0] * COUNT, COUNT)
    finally:
        search.NODES = before
    assert found.least <= size
    assert found.kept is None or all(one & found.kept for one in conflicts)


def test_one_disliked_unit_is_better_than_two_liked_ones():
    conflicts = [frozenset({0, 3}), frozenset({1, 3}), frozenset({2, 4})]
    assert smallest_hitting(conflicts, [0.0, 0.0, 0.0, 5.0, 5.0], 5).kept == {2, 3}


def test_without_conflicts_nothing_need_be_held():
    found = smallest_hitting([], [], 0)
    assert (found.kept, found.least) == (frozenset(), 0)
