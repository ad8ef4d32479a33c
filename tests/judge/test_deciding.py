import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampbench.judge.deciding import CONFIRMATION_BLOCKS, Blocks, Means, decide_interleaved, decide_stored, judge_control
from ampbench.records.changes import ChangeCode, ChangeStatus

NAN = math.nan
MIRRORED = {ChangeStatus.REGRESSED: ChangeStatus.IMPROVED, ChangeStatus.IMPROVED: ChangeStatus.REGRESSED}


def quiet(cells=1, blocks=32, seed=0, spread=0.01):
    return 1e-3 * np.random.default_rng(seed).lognormal(0, spread, (cells, blocks))


def make_blocks(baseline, candidate, control=None, fresh=None):
    none = np.empty((len(baseline), 0))
    confirm_baseline, confirm_candidate = fresh or (none, none)
    return Blocks(
        baseline=baseline,
        candidate=candidate,
        control=np.full(baseline.shape, NAN) if control is None else control,
        confirm_baseline=confirm_baseline,
        confirm_candidate=confirm_candidate,
    )


def decide(baseline, candidate, threshold=0.02, fresh=None, **options):
    found = decide_interleaved(
        make_blocks(baseline, candidate, fresh=fresh), np.full(len(baseline), threshold), **options
    )
    return found[0]


def slowed(by, blocks, first_seed):
    return quiet(1, blocks, first_seed), by * quiet(1, blocks, first_seed + 1)


def interval(sides, rank):
    """Return the estimate and the 95% interval of the Walsh averages; `rank` is Wilcoxon's critical value at 0.025."""
    moved = np.log(sides[1][0]) - np.log(sides[0][0])
    walsh = np.sort([(one + other) / 2 for place, one in enumerate(moved) for other in moved[place:]])
    return pytest.approx(np.expm1([np.median(walsh), walsh[rank], walsh[-1 - rank]]), rel=1e-9)


def test_a_slowdown_that_fresh_blocks_show_too_is_a_regression_and_their_estimate_is_reported():
    fresh = slowed(1.10, CONFIRMATION_BLOCKS, 3)
    found = decide(*slowed(1.20, 16, 1), fresh=fresh)
    assert (found.status, found.code) == (ChangeStatus.REGRESSED, ChangeCode.BEYOND_THRESHOLD)
    assert [found.change, found.low, found.high] == interval(fresh, 8)
    assert found.p_worse == 0.5**16
    assert found.blocks == 16


def test_a_change_is_unconfirmed_until_fresh_blocks_are_there_unless_none_are_wanted():
    found = decide(*slowed(1.2, 16, 1))
    assert (found.status, found.code) == (ChangeStatus.INCONCLUSIVE, ChangeCode.UNCONFIRMED)
    assert [found.change, found.low, found.high] == interval(slowed(1.2, 16, 1), 29)
    sure = replace(found, status=ChangeStatus.REGRESSED, code=ChangeCode.BEYOND_THRESHOLD)
    assert decide(*slowed(1.2, 16, 1), confirm=False) == sure


@pytest.mark.parametrize("really", [1.0, 0.8, 1.01])
def test_a_change_that_fresh_blocks_do_not_show_is_not_confirmed(really):
    fresh = slowed(really, CONFIRMATION_BLOCKS, 3)
    found = decide(*slowed(1.2, 16, 1), fresh=fresh)
    assert (found.status, found.code) == (ChangeStatus.INCONCLUSIVE, ChangeCode.NOT_CONFIRMED)
    assert [found.change, found.low, found.high] == interval(fresh, 8)


def test_eight_blocks_never_show_a_change_but_can_show_that_there_is_none():
    assert decide(*slowed(3.0, 8, 1)).code is ChangeCode.UNDECIDED
    assert decide(quiet(blocks=8, spread=0.002), quiet(blocks=8, spread=0.002, seed=1)).status is ChangeStatus.UNCHANGED


def test_a_certain_change_within_the_threshold_is_none():
    found = decide(*slowed(1.01, 32, 1), threshold=0.05)
    assert found.p_worse < 0.001
    assert (found.status, found.code) == (ChangeStatus.UNCHANGED, ChangeCode.WITHIN_THRESHOLD)


def test_blocks_needed_do_decide_if_spread_and_estimate_stay():
    generator = np.random.default_rng(7)
    baseline, candidate = (generator.lognormal(0, 0.02, (400, 16)) for _ in "ab")
    found = decide_interleaved(make_blocks(baseline, candidate), np.full(400, 0.02))
    needed = int(np.median([each.blocks_needed for each in found if each.blocks_needed]))
    more = (generator.lognormal(0, 0.02, (400, needed)) for _ in "ab")
    again = decide_interleaved(make_blocks(*more), np.full(400, 0.02))
    assert np.mean([each.status is ChangeStatus.UNCHANGED for each in again]) >= 0.8


@pytest.mark.parametrize(
    ("blocks", "looks", "code"),
    [
        (6, 4, "too-few-blocks"),
        (7, 4, "undecided"),
        (4, 1, "too-few-blocks"),
        (5, 1, "undecided"),
        (0, 1, "too-few-blocks"),
    ],
)
def test_too_few_blocks_are_those_that_cannot_decide_anything(blocks, looks, code):
    found = decide(*slowed(3.0, blocks, 1), looks=looks)
    assert (found.status, found.code) == (ChangeStatus.INCONCLUSIVE, ChangeCode(code))
    assert found.blocks == blocks


@pytest.mark.parametrize("bad", [0.0, -1e-3, math.inf, -math.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_a_time_that_is_no_time_makes_a_cell_incomparable(bad, side):
    sides = [quiet(), quiet(seed=1)]
    sides[side][0, 5] = bad
    assert (decide(*sides).status, decide(*sides).code) == (ChangeStatus.INCOMPARABLE, ChangeCode.INVALID)
    stored = decide_stored(*sides, np.array([0.02]), [])[0]
    assert (stored.status, stored.code) == (ChangeStatus.INCOMPARABLE, ChangeCode.INVALID)


def test_a_missing_block_is_missing_on_both_sides():
    baseline, candidate = quiet(), quiet(seed=1)
    baseline[0, 3] = candidate[0, 7] = NAN
    kept = [block for block in range(32) if block not in (3, 7)]
    with_holes, without = decide(baseline, candidate), decide(baseline[:, kept], candidate[:, kept])
    assert replace(with_holes, standard_error=None) == replace(without, standard_error=None)
    assert with_holes.standard_error == pytest.approx(without.standard_error)
    assert with_holes.blocks == 30


def test_cells_with_different_numbers_of_blocks_are_decided_together():
    baseline, candidate = quiet(3), quiet(3, seed=1)
    candidate[1] *= 1.2
    baseline[0, 8:] = NAN
    together = decide_interleaved(make_blocks(baseline, candidate), np.full(3, 0.02))
    alone = [decide(baseline[cell : cell + 1], candidate[cell : cell + 1]) for cell in range(3)]
    assert together == alone
    assert [each.blocks for each in together] == [8, 32, 32]


def test_many_cells_pay_for_being_many():
    # 16 blocks: one cell is certain enough (1/65536 <= 0.001/4), but not after Holm over 200 (0.01/4/200)
    baseline, candidate = quiet(200, 16, spread=0.02), quiet(200, 16, 1, spread=0.02)
    candidate[0] *= 1.2
    together = decide_interleaved(make_blocks(baseline, candidate), np.full(200, 0.02))[0]
    assert together.code is ChangeCode.UNDECIDED
    assert decide(baseline[:1], candidate[:1]).code is ChangeCode.UNCONFIRMED


TIMES = st.lists(
    st.sampled_from([0.5, 0.99, 1.0, 1.01, 1.05, 1.3, 2.0, NAN, 0.0]) | st.floats(0.9, 1.1), min_size=16, max_size=16
)
SCALES = st.sampled_from([0.7, 0.95, 1.0, 1.05, 1.5])


def assert_mirrored(one, other):
    assert other.status is MIRRORED.get(one.status, one.status)
    assert other.code is one.code
    assert (other.p_worse, other.p_better, other.slow_p) == (one.p_better, one.p_worse, pytest.approx(one.slow_p))
    assert (other.slow_share_baseline, other.slow_share_candidate) == (
        one.slow_share_candidate,
        one.slow_share_baseline,
    )
    if one.change is not None:
        assert 1 + other.change == pytest.approx(1 / (1 + one.change), rel=1e-9)
    assert other.blocks_needed == one.blocks_needed


@given(TIMES, TIMES, TIMES, SCALES, st.sampled_from([0.0, 0.02, 0.2]))
def test_swapping_the_arms_mirrors_every_verdict(first, second, third, scale, threshold):
    baseline, candidate = np.array([first]), scale * np.array([second])
    fresh = (np.array([third[:8]]), scale * np.array([third[8:]]))
    assert_mirrored(
        decide(baseline, candidate, threshold, fresh), decide(candidate, baseline, threshold, (fresh[1], fresh[0]))
    )


@given(TIMES, TIMES, SCALES, st.lists(st.floats(-0.05, 0.05), max_size=2))
def test_swapping_stored_runs_mirrors_every_verdict(first, second, scale, controls):
    baseline, candidate = np.array([first]), scale * np.array([second[:12]])
    thresholds = np.array([0.02])
    there, back = (
        decide_stored(baseline, candidate, thresholds, controls),
        decide_stored(candidate, baseline, thresholds, controls),
    )
    assert there[0].status is MIRRORED.get(back[0].status, back[0].status)
    assert there[0].code is back[0].code


def test_a_changed_share_of_slow_blocks_is_reported_and_so_are_mean_and_tail():
    baseline, candidate = quiet(), quiet(seed=1)
    candidate[0, :6] *= 2
    found = decide(baseline, candidate)
    assert found.status is ChangeStatus.UNCHANGED
    assert (found.slow_share_baseline, found.slow_share_candidate) == (0.0, 6 / 32)
    assert found.slow_p == pytest.approx(0.0237, abs=1e-3)
    assert found.mean_change == pytest.approx(6 / 32, abs=0.01)
    assert found.p90_change == pytest.approx(1.0, abs=0.03)
    assert abs(found.change) < 0.01


def test_a_share_of_slow_blocks_that_has_changed_for_certain_is_never_unchanged():
    baseline, candidate = quiet(), quiet(seed=1)
    candidate[0, :12] *= 2
    found = decide(baseline, candidate)
    assert abs(found.change) < 0.01
    assert (found.status, found.code) == (ChangeStatus.INCONCLUSIVE, ChangeCode.UNDECIDED)


def test_two_blocks_in_sixteen_that_are_slow_hide_no_regression_and_make_none():
    for side in (0, 1):
        for factor in (1.0, 1.1):
            sides, fresh = list(slowed(factor, 16, 1)), list(slowed(factor, CONFIRMATION_BLOCKS, 3))
            expected = decide(*sides, fresh=tuple(fresh)).status
            sides[side][0, :2] *= 2
            fresh[side][0, :2] *= 2
            assert decide(*sides, fresh=tuple(fresh)).status is expected


def test_a_control_tells_where_it_fires_and_by_what():
    """What is certain and within the threshold, as of the second cell, is not where."""
    control = quiet(8, seed=2, spread=0.002)
    control[1] *= 1.01
    control[3] *= 1.1
    blocks, thresholds = make_blocks(quiet(8, spread=0.002), control, control=control), np.full(8, 0.02)
    ((place, change, of_mean),), _ = judge_control(blocks, thresholds)
    assert (place, of_mean) == (3, False)
    assert change == pytest.approx(0.1, abs=0.01)
    slow = quiet(8, seed=2)
    slow[6] *= 1.3
    means = Means(blocks=make_blocks(quiet(8), quiet(8), control=slow), thresholds=np.full(8, 0.05))
    both, _ = judge_control(blocks, thresholds, means)
    assert {(one.place, one.of_mean) for one in both} == {(3, False), (6, True)}


def test_no_control_does_not_fire_and_no_cells_have_no_decisions():
    assert not judge_control(make_blocks(quiet(2), quiet(2, seed=1)), np.full(2, 0.02))[0]
    assert not judge_control(make_blocks(quiet(0), quiet(0)), np.empty(0))[0]
    assert decide_interleaved(make_blocks(quiet(0), quiet(0)), np.empty(0)) == []
    assert decide_stored(quiet(0), quiet(0), np.empty(0), []) == []


def test_two_stored_rounds_are_too_few_and_three_are_not():
    few, enough = (decide_stored(*slowed(3.0, rounds, 1), np.array([0.02]), [])[0] for rounds in (2, 3))
    assert (few.code, enough.code) == (ChangeCode.TOO_FEW_BLOCKS, ChangeCode.BEYOND_THRESHOLD)


def test_stored_rounds_far_apart_are_a_regression_with_the_interval_of_welch():
    found = decide_stored(quiet(blocks=10), 1.1 * quiet(blocks=10, seed=1), np.array([0.02]), [0.001, 0.001])[0]
    assert found.status is ChangeStatus.REGRESSED
    assert 0.08 < found.low < found.change < found.high < 0.12
    assert found.blocks == 10


def test_one_slow_stored_round_in_four_is_set_apart_and_two_are_not():
    baseline, candidate = quiet(blocks=4), quiet(blocks=4, seed=1)
    candidate[0, 0] *= 2
    one = decide_stored(baseline, candidate, np.array([0.02]), [])[0]
    candidate[0, 1] *= 2.1
    two = decide_stored(baseline, candidate, np.array([0.02]), [])[0]
    assert abs(one.change) < 0.02
    assert one.mean_change == pytest.approx(0.25, abs=0.02)
    assert two.change > 0.3
    assert two.code is ChangeCode.UNDECIDED


def test_stored_rounds_that_never_vary_and_differ_have_certainly_changed():
    before, after = np.full((1, 4), 1e-3), np.full((1, 4), 1.1e-3)
    slower = decide_stored(before, after, np.array([0.02]), [])[0]
    assert (slower.status, slower.p_worse, slower.p_better) == (ChangeStatus.REGRESSED, 0.0, 1.0)
    assert decide_stored(after, before, np.array([0.02]), [])[0].status is ChangeStatus.IMPROVED


@pytest.mark.parametrize(
    ("slow", "blocks", "factor"), [(8, 16, 1.5), (16, 32, 1.5), (8, 16, 2), (6, 16, 2), (9, 32, 3)]
)
def test_a_change_of_many_blocks_of_one_arm_is_not_proven_to_be_none(slow, blocks, factor):
    baseline, candidate = quiet(blocks=blocks), quiet(seed=1, blocks=blocks)
    candidate[0, :slow] *= factor
    for one, other in ((baseline, candidate), (candidate, baseline)):
        assert decide(one, other).status is not ChangeStatus.UNCHANGED


def with_means(baseline, candidate, means, mean_fresh=None, fresh=None, threshold=0.05, **options):
    beside = Means(blocks=make_blocks(*means, fresh=mean_fresh), thresholds=np.full(len(baseline), threshold))
    return decide(baseline, candidate, fresh=fresh, means=beside, **options)


def test_unchanged_takes_a_mean_within_its_threshold():
    same = quiet(), quiet(seed=1)
    assert with_means(*same, (quiet(seed=2), quiet(seed=3))).code is ChangeCode.WITHIN_THRESHOLD
    loose = with_means(*same, (quiet(seed=2, spread=0.3), quiet(seed=3, spread=0.3)))
    assert (loose.status, loose.code, loose.mean_code) == (
        ChangeStatus.INCONCLUSIVE, ChangeCode.TAIL_UNDECIDED, ChangeCode.UNDECIDED,
    )  # fmt: skip
    assert loose.mean_low < loose.mean_change < loose.mean_high


def test_a_mean_that_moved_alone_is_found_confirmed_and_reported_from_the_fresh_blocks():
    typical, fresh = (quiet(), quiet(seed=1)), (quiet(1, 10, 4), quiet(1, 10, 5))
    waiting = with_means(*typical, slowed(1.2, 32, 6))
    assert (waiting.code, waiting.mean_code) == (ChangeCode.TAIL_UNDECIDED, ChangeCode.UNCONFIRMED)
    found = with_means(*typical, slowed(1.2, 32, 6), slowed(1.1, 10, 8), fresh)
    assert (found.status, found.mean_code) == (ChangeStatus.UNCHANGED, ChangeCode.BEYOND_THRESHOLD)
    assert found.mean_change == pytest.approx(0.1, abs=0.02)
    refuted = with_means(*typical, slowed(1.2, 32, 6), slowed(1.0, 10, 8), fresh)
    assert (refuted.code, refuted.mean_code) == (ChangeCode.TAIL_UNDECIDED, ChangeCode.NOT_CONFIRMED)


def test_stored_rounds_are_unchanged_only_with_their_means_and_a_mean_can_regress_alone():
    typical = quiet(blocks=10, spread=0.005), quiet(blocks=10, seed=1, spread=0.005)

    def decided(factor, spread):
        sides = quiet(1, 10, 2, spread), factor * quiet(1, 10, 3, spread)
        means = Means(blocks=make_blocks(*sides), thresholds=np.array([0.05]))
        return decide_stored(*typical, np.array([0.02]), [0.001], means, [0.001])[0]

    assert decided(1.0, 0.005).code is ChangeCode.WITHIN_THRESHOLD
    assert decided(1.0, 0.3).code is ChangeCode.TAIL_UNDECIDED
    assert (decided(1.3, 0.005).status, decided(1.3, 0.005).mean_code) == (
        ChangeStatus.UNCHANGED,
        ChangeCode.BEYOND_THRESHOLD,
    )
