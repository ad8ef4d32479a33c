import pytest

from ampbench.instruments.keep_fp32.search import sets_between
from ampbench.instruments.keep_fp32.trials import islands, units_of
from ampbench.records.keeping import Trial
from tests.instruments.keep_fp32.planted_spaces import blocks_of, space_of

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
