import math
import random
from collections.abc import Callable
from functools import partial
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ampbench.instruments.keep_fp32 import search as searching
from ampbench.instruments.keep_fp32.records import SearchSpace, Trial
from ampbench.instruments.keep_fp32.search import (
    _Search,
    find_conflict,
    more_suspected,
    search,
    sets_between,
    smallest_hitting,
)
from ampbench.instruments.keep_fp32.trials import Budget, TrialsSpentError, Tried, islands, units_of
from ampbench.records.measured import OUT_OF_MEMORY
from tests.instruments.keep_fp32.planted_spaces import Network, blocks_of, breaks, smallest_by_exhaustion, space_of

BUDGET = 1e-2
PRIORS = ["none", "right", "blind", "wrong"]
PATHS = blocks_of(150)


def planted(seed: int, prior: str) -> tuple[SearchSpace, list[int]]:
    """Return 150 modules of which five are at fault; their errors on exact inputs say which, nothing, or others."""
    chance = random.Random(seed)
    bad = sorted(chance.sample(range(len(PATHS)), 5))
    own = {path: 1e-3 * math.exp(chance.gauss(0.0, 1.0)) for path in PATHS}
    overflow = {
        "right": [PATHS[unit] for unit in bad],
        "wrong": chance.sample([path for unit, path in enumerate(PATHS) if unit not in bad], 5),
    }
    return space_of(PATHS, {} if prior == "none" else own, overflow.get(prior, [])), bad


def additive(seed: int, count: int, spread: float, *, containers: bool = False):
    """Return what each of `count` units adds to the square of the error, and containers of three that are not whole."""
    chance = random.Random(seed)
    units = [1e-6 * math.exp(chance.gauss(0.0, spread)) ** 2 for _ in range(count)]
    blocks = [1e-6 * math.exp(chance.gauss(0.0, spread)) ** 2 * containers for _ in range((count + 2) // 3)]
    return units, lambda low: 1e-10 + sum(units[u] for u in low) + sum(blocks[b] for b in {u // 3 for u in low})


def meets_with(squared: Callable[[frozenset[int]], float], budget: float) -> Callable[[frozenset[int]], bool]:
    return lambda kept: squared(frozenset(range(12)) - kept) <= budget**2


def meets_when_run(network: Network, budget: float, kept: frozenset[int]) -> bool:
    return network.error(islands(network.space, kept)) <= budget


def bisected(network: Network, order: list[int], budget: float) -> frozenset[int] | None:
    """Return the shortest beginning of `order` that meets the budget, as plain bisection finds it."""
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if network.error(islands(network.space, frozenset(order[:middle]))) <= budget:
            high = middle
        else:
            low = middle + 1
    return frozenset(order[:high])


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("seed", range(4))
def test_five_overflowing_modules_of_150_are_found_and_proven_within_60_trials(prior, seed):
    space, bad = planted(seed, prior)
    found = search(space, Network(space, breaks(*([unit] for unit in bad))), max_error=BUDGET, seed=seed)
    assert found.units == set(bad)
    assert found.kept == islands(space, set(bad))
    assert found.smallest
    assert found.trials <= 60


@pytest.mark.slow
@pytest.mark.parametrize("prior", PRIORS)
def test_five_overflowing_modules_are_found_wherever_they_are(prior):
    for seed in range(200):
        test_five_overflowing_modules_of_150_are_found_and_proven_within_60_trials(prior, seed)


@pytest.mark.parametrize("prior", PRIORS)
def test_errors_that_are_large_but_finite_are_found_like_those_that_overflow(prior):
    space, bad = planted(7, prior)
    found = search(space, Network(space, breaks(*([unit] for unit in bad), with_error=1.0)), max_error=BUDGET)
    assert (found.units, found.smallest) == (set(bad), True)


def test_a_right_expectation_saves_trials():
    told, bad = planted(3, "right")
    untold, _ = planted(3, "none")
    answers = breaks(*([unit] for unit in bad))
    assert 2 * search(told, Network(told, answers), max_error=BUDGET).trials < (
        search(untold, Network(untold, answers), max_error=BUDGET).trials
    )


@pytest.mark.parametrize("prior", PRIORS)
def test_of_two_modules_that_hurt_only_together_one_is_kept(prior):
    space, (a, b, c, d, e) = planted(11, prior)
    found = search(space, Network(space, breaks([a], [b], [c], [d, e])), max_error=BUDGET)
    assert found.smallest
    assert found.units in ({a, b, c, d}, {a, b, c, e})


def test_one_module_that_two_pairs_share_is_enough():
    space = space_of(PATHS[:60])
    found = search(space, Network(space, breaks([5, 40], [22, 40])), max_error=BUDGET)
    assert (found.units, found.smallest) == ({40}, True)


def test_plain_bisection_keeps_more_where_modules_interact():
    space = space_of(PATHS[:60])
    network = Network(space, breaks([5, 40], [22, 40]))
    by_running = bisected(network, list(range(60)), BUDGET)
    found = search(space, network, max_error=BUDGET)
    assert by_running == set(range(23))
    assert found.units == {40}


@pytest.mark.parametrize("prior", PRIORS)
def test_a_container_whose_own_operation_overflows_is_kept_whole(prior):
    space, _ = planted(5, prior)
    found = search(space, Network(space, breaks(*([unit] for unit in range(35, 40)))), max_error=BUDGET)
    assert found.kept == ["layers.7"]
    assert found.smallest


def test_neighbours_that_round_between_them_are_kept_with_their_container():
    paths = blocks_of(24, 3)
    space = space_of(paths)

    def squared(low):
        return 1e-10 + (0.0 if low.isdisjoint({9, 10, 11}) else 1.0) + 1e-9 * len(low)

    found = search(space, Network(space, squared), max_error=BUDGET)
    assert (found.kept, found.smallest) == (["layers.3"], True)


@pytest.mark.parametrize("containers", [False, True])
@pytest.mark.parametrize("told", ["nothing", "roughly", "the opposite"])
@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_where_errors_add_up_the_set_is_as_small_as_the_smallest_of_all(told, spread, containers):
    for seed in range(4):
        adds, squared = additive(seed, 12, spread, containers=containers)
        paths = blocks_of(12, 3)
        chance = random.Random(seed)
        own = {
            "nothing": {},
            "roughly": {p: math.sqrt(one) * math.exp(chance.gauss(0, 0.3)) for p, one in zip(paths, adds, strict=True)},
            "the opposite": {p: 1e-6 / math.sqrt(one) for p, one in zip(paths, adds, strict=True)},
        }
        space = space_of(paths, own[told])
        low = frozenset(chance.sample(range(12), chance.randrange(1, 12)))
        budget = 1.0001 * math.sqrt(squared(low))
        found = search(space, Network(space, squared), max_error=budget, seed=seed)
        assert found.units is not None
        assert len(found.units) == smallest_by_exhaustion(12, meets_with(squared, budget))


def test_rounding_noise_does_not_mislead():
    for seed in range(8):
        _, squared = additive(seed, 12, 1.0)
        space = space_of(blocks_of(12, 3))
        network = Network(space, squared, noise=0.01, seed=seed)
        low = frozenset(random.Random(seed).sample(range(12), 5))
        budget = 1.02 * math.sqrt(squared(low))
        found = search(space, network, max_error=budget, seed=seed)
        least = smallest_by_exhaustion(12, partial(meets_when_run, network, budget))
        assert found.units is not None
        assert len(found.units) == least
        assert network.error(found.kept) <= budget


@pytest.mark.parametrize("count", [4, 12, 30])
def test_trials_that_contradict_each_other_end_the_search_all_the_same(count):
    for seed in range(10):
        space = space_of(blocks_of(count, 4), dict.fromkeys(blocks_of(count, 4)[:seed], 0.01))
        network = Network(space, lambda low: 1e-4 * len(low) ** 0.3, noise=0.5, seed=seed)
        found = search(space, network, max_error=BUDGET, seed=seed, max_trials=100)
        assert found.trials <= 100
        assert found.kept is None or network.error(found.kept) <= BUDGET


@settings(max_examples=60)
@given(st.data())
def test_a_set_said_to_be_the_smallest_is(data):
    count = data.draw(st.integers(1, 9))
    conflicts = data.draw(st.lists(st.frozensets(st.integers(0, count - 1), min_size=1, max_size=4), max_size=6))
    error = data.draw(st.sampled_from([math.inf, 0.02, 1.0]))
    space = space_of(blocks_of(count, 3), dict.fromkeys(data.draw(st.permutations(blocks_of(count, 3)))[:4], 0.01))
    network = Network(space, breaks(*conflicts, with_error=error))
    found = search(space, network, max_error=BUDGET, max_trials=200)
    every = frozenset(range(count))
    least = smallest_by_exhaustion(count, lambda kept: not any(one <= every - kept for one in conflicts))
    assert found.smallest
    assert found.units is not None
    assert len(found.units) == least
    assert network.error(found.kept) <= BUDGET


def test_where_nothing_kept_meets_the_budget_one_trial_is_enough():
    space = space_of(PATHS)
    found = search(space, Network(space, breaks()), max_error=BUDGET)
    assert (found.kept, found.units, found.smallest, found.trials) == ([], frozenset(), True, 1)


def test_where_not_even_all_kept_meets_the_budget_the_closest_trial_is_told():
    space = space_of(PATHS)
    found = search(space, Network(space, lambda low: 1.0 + len(low)), max_error=BUDGET)
    assert (found.kept, found.units, found.smallest, found.trials) == (None, None, False, 2)


def test_a_space_without_modules_is_searched_with_one_trial():
    space = SearchSpace(case_id="c", units=[])
    assert search(space, Network(space, breaks()), max_error=BUDGET).kept == []
    assert search(space, Network(space, lambda low: 1.0), max_error=BUDGET).kept is None


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8, 13, 21])
def test_when_trials_run_out_the_best_set_so_far_is_returned(most):
    space, bad = planted(2, "none")
    network = Network(space, breaks(*([unit] for unit in bad)))
    found = search(space, network, max_error=BUDGET, max_trials=most)
    assert found.trials == len(network.tried) == most
    assert not found.smallest
    if most == 1:
        assert found.kept is None
    else:
        assert network.error(found.kept) <= BUDGET


def test_no_set_is_tried_twice():
    for seed in range(3):
        space, bad = planted(seed, "wrong")
        network = Network(space, breaks([bad[0]], bad[1:3], bad[3:]))
        search(space, network, max_error=BUDGET, seed=seed)
        assert len({tuple(trial.kept) for trial in network.tried}) == len(network.tried)


def test_a_search_that_is_repeated_tries_the_same_and_one_that_is_resumed_nothing_twice():
    space, bad = planted(9, "blind")
    first = Network(space, breaks([bad[0]], [bad[1]], bad[2:4]))
    found = search(space, first, max_error=BUDGET, seed=4)
    known = {tuple(trial.kept): trial for trial in first.tried}
    assert search(space, lambda kept: known[tuple(kept)], max_error=BUDGET, seed=4) == found

    half = {tuple(trial.kept): trial for trial in first.tried[:10]}
    rest = Network(space, first.squared)
    resumed = search(
        space, lambda kept: half[tuple(kept)] if tuple(kept) in half else rest(kept), max_error=BUDGET, seed=4
    )
    assert (resumed.kept, resumed.trials) == (found.kept, found.trials)
    assert [trial.kept for trial in rest.tried] == [trial.kept for trial in first.tried[10:]]


def test_gradients_count_where_they_have_a_budget():
    space = space_of(PATHS[:20])
    network = Network(space, breaks([3], floor=1e-12, with_error=0.24 * BUDGET**2))
    assert search(space, network, max_error=BUDGET).kept == []
    assert search(space, network, max_error=BUDGET, max_gradient_error=BUDGET).kept == []
    found = search(space, network, max_error=BUDGET, max_gradient_error=0.9 * BUDGET)
    assert (found.units, found.smallest) == ({3}, True)


def test_undefined_gradients_do_not_meet_a_budget():
    space = space_of(PATHS[:6])

    def attempt(kept):
        return Trial(case_id="c", kept=kept, output_rel_l2=0.0, grad_rel_l2=0.0 if 2 in units_of(space, kept) else None)

    assert search(space, attempt, max_error=BUDGET).kept == []
    assert search(space, attempt, max_error=BUDGET, max_gradient_error=BUDGET).units == {2}


def test_a_step_that_raises_fails():
    space = space_of(PATHS[:6])

    def attempt(kept):
        fails = 4 not in units_of(space, kept)
        return Trial(case_id="c", kept=kept, output_rel_l2=None if fails else 0.0, error="no kernel" * fails)

    assert search(space, attempt, max_error=BUDGET).units == {4}


@pytest.mark.parametrize(("objective", "kept"), [("speed", 2), ("memory", 7)])
def test_of_modules_of_which_either_is_enough_the_cheaper_is_kept(objective, kept):
    space = space_of(PATHS[:10])
    units = [replace(unit, weight_bytes=1000, output_bytes=64) for unit in space.units]
    units[7] = replace(units[7], weight_bytes=40, output_bytes=400)
    space = replace(space, units=units)
    found = search(space, Network(space, breaks([2, 7])), max_error=BUDGET, objective=objective)
    assert (found.units, found.smallest) == ({kept}, True)


@pytest.mark.parametrize("objective", ["speed", "memory"])
def test_what_a_unit_took_when_it_was_timed_changes_nothing(objective):
    space, bad = planted(5, "blind")
    slower = [replace(unit, seconds=random.Random(place).random()) for place, unit in enumerate(space.units)]
    answers = breaks(*([unit] for unit in bad[:2]), bad[2:])
    networks = Network(space, answers), Network(space, answers)
    found = [
        search(one, network, max_error=BUDGET, objective=objective)
        for one, network in zip((space, replace(space, units=slower)), networks, strict=True)
    ]
    assert found[0] == found[1]
    assert networks[0].tried == networks[1].tried


@pytest.mark.parametrize("count", [6, 40])
def test_a_smaller_set_is_found_though_larger_ones_fail_by_little(count):
    """As where outputs are rounded: what is kept besides {1, 4} helps only if it is all, or by luck."""

    def squared(low):
        if not low.isdisjoint({1, 4}):
            return math.inf
        return BUDGET**2 * (0.5 if not low or (len(low) == count - 3 and 2 not in low) else 1.5)

    own = {path: 2e-3 if place == 2 else 1e-3 for place, path in enumerate(blocks_of(count, 3))}
    space = space_of(blocks_of(count, 3), own)
    found = search(space, Network(space, squared), max_error=BUDGET, max_trials=100)
    assert found.units == {1, 2, 4}
    assert not found.smallest


def test_a_set_is_not_said_to_be_the_smallest_where_a_trial_contradicts_that_more_is_better():
    def squared(low):
        lucky = low == frozenset(range(6)) - {3}
        return BUDGET**2 * (0.5 if lucky or not low else 1.5 * len(low))

    space = space_of(blocks_of(6, 3), {blocks_of(6, 3)[3]: 1e-2})
    network = Network(space, squared)
    found = search(space, network, max_error=BUDGET)
    assert (found.units, found.smallest) == ({3}, False)


def test_modules_that_fail_by_far_are_not_tried_again(monkeypatch):
    space, bad = planted(3, "right")
    network = Network(space, breaks(*([unit] for unit in bad), with_error=1.0))
    found = search(space, network, max_error=BUDGET)
    monkeypatch.setattr(_Search, "look_again", lambda self: None)
    assert search(space, Network(space, network.squared), max_error=BUDGET) == found


@pytest.mark.parametrize("prior", PRIORS)
def test_where_there_is_no_room_to_keep_all_smaller_sets_are_found(prior):
    space, bad = planted(6, prior)
    network = Network(space, breaks(*([unit] for unit in bad)))

    def attempt(kept):
        if len(units_of(space, kept)) > 140:
            return Trial(case_id="c", kept=kept, error=OUT_OF_MEMORY)
        return network(kept)

    found = search(space, attempt, max_error=BUDGET)
    assert found.units is not None
    assert set(bad) <= found.units
    assert found.trials <= 60


def test_where_there_is_room_for_nothing_the_search_ends():
    space, _ = planted(6, "right")

    def attempt(kept):
        return Trial(case_id="c", kept=kept, error=OUT_OF_MEMORY if kept else "", nonfinite=0 if kept else 3)

    found = search(space, attempt, max_error=BUDGET)
    assert (found.kept, found.smallest) == (None, False)
    assert found.trials <= 60


def test_an_interrupt_passes_through():
    def attempt(kept):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(space_of(PATHS), attempt, max_error=BUDGET)


def test_no_pair_is_missed_among_few_modules():
    for pair in combinations(range(5), 2):
        space = space_of(PATHS[:5])
        found = search(space, Network(space, breaks(pair)), max_error=BUDGET)
        assert found.smallest
        assert len(found.units) == 1
        assert found.units <= set(pair)


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
    before, searching.NODES = searching.NODES, nodes
    try:
        found = smallest_hitting(conflicts, [0.0] * COUNT, COUNT)
    finally:
        searching.NODES = before
    assert found.least <= size
    assert found.kept is None or all(one & found.kept for one in conflicts)


def test_one_disliked_unit_is_better_than_two_liked_ones():
    conflicts = [frozenset({0, 3}), frozenset({1, 3}), frozenset({2, 4})]
    assert smallest_hitting(conflicts, [0.0, 0.0, 0.0, 5.0, 5.0], 5).kept == {2, 3}


def test_without_conflicts_nothing_need_be_held():
    found = smallest_hitting([], [], 0)
    assert (found.kept, found.least) == (frozenset(), 0)


SPACE = space_of(blocks_of(12, 4), own=dict.fromkeys(blocks_of(12, 4), 0.001))


def tried(*sets: tuple[set[int], float | None]) -> list[Trial]:
    return [
        Trial(case_id="c", number=number, kept=islands(SPACE, units), output_rel_l2=error)
        for number, (units, error) in enumerate(sets)
    ]


def sizes(found, trials=(), **options) -> list[int]:
    return [len(units_of(SPACE, kept)) for kept in sets_between(SPACE, found, trials, **options)]


def test_sets_begin_with_none_and_end_with_all_and_hold_the_one_found():
    sets = sets_between(SPACE, {1, 6}, [])
    assert sets[0] == []
    assert sets[-1] == [""]
    assert islands(SPACE, {1, 6}) in sets


@pytest.mark.parametrize("found", [None, set(), set(range(12))])
def test_a_found_set_that_is_none_or_all_comes_once(found):
    assert sizes(found) == [0, 12]


def test_without_trials_half_of_the_found_set_and_its_containers_are_weighed():
    assert sizes({1, 6}) == [0, 1, 2, 8, 12]


def test_a_single_unit_has_no_half():
    assert sizes({1}) == [0, 1, 4, 12]


def test_tried_sets_that_err_less_than_smaller_ones_are_weighed():
    trials = tried((set(), 1.0), ({1}, 0.5), ({2}, 0.9), ({1, 6}, 0.1), ({1, 2, 3}, 0.4), ({1, 6, 7}, 0.05))
    assert sets_between(SPACE, {1, 6}, trials) == [islands(SPACE, one) for one in (set(), {1}, {1, 6}, {1, 6, 7})] + [
        [""]
    ]


def test_sets_with_values_that_are_not_finite_are_not_weighed():
    assert sizes({1}, tried(({2, 3}, None), ({1}, 0.1))) == [0, 1, 4, 12]


def test_where_no_set_meets_what_was_tried_is_weighed():
    assert sizes(None, tried(({2, 3}, 0.5), ({1}, 0.7))) == [0, 1, 2, 12]


def test_no_more_sets_than_asked_for_are_weighed_on_both_sides_of_the_one_found():
    trials = tried(*((set(range(count)), 1.0 / (count + 1)) for count in range(12)))
    found = sizes(set(range(6)), trials)
    assert len(found) == 6
    assert found == sorted(set(found))
    assert sum(size < 6 for size in found) >= 2
    assert sum(size > 6 for size in found) >= 2
    assert sizes(set(range(6)), trials, most=3) == [0, 6, 12]


def test_the_order_of_trials_does_not_matter():
    trials = tried((set(), 1.0), ({1}, 0.5), ({2}, 0.5), ({1, 6}, 0.1), ({1, 6, 7}, 0.05))
    assert sets_between(SPACE, {1, 6}, trials) == sets_between(SPACE, {1, 6}, trials[::-1])
