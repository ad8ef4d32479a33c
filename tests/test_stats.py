import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from ampbench import stats

POSITIVE = st.floats(1e-9, 1e3)
SEGMENTS = st.lists(st.lists(POSITIVE, min_size=1, max_size=9), min_size=1, max_size=9)


def flat(segments):
    return np.concatenate(segments), np.array([len(one) for one in segments])


@given(st.lists(POSITIVE, min_size=1, max_size=20))
def test_the_median_is_numpys(values):
    assert stats.median(values) == pytest.approx(np.median(values), rel=1e-12)


def test_a_round_is_worth_the_median_over_builds_of_their_medians():
    assert stats.round_value([[2.0, 1.0, 9.0], [5.0, 3.0], [100.0]]) == 3.0


def test_one_slow_build_of_three_does_not_move_a_round():
    assert stats.round_value([[1.0] * 3, [1.0] * 3, [2.5] * 200]) == 1.0


@given(SEGMENTS)
def test_medians_of_segments_are_those_of_each_alone(segments):
    assert stats.segment_medians(*flat(segments)).tolist() == [stats.median(one) for one in segments]


@given(SEGMENTS)
def test_intervals_of_segments_are_scipys_of_each_alone(segments):
    lows, highs = stats.log_t_intervals(*flat(segments))
    for one, low, high in zip(segments, lows, highs, strict=True):
        if len(one) < 3:
            assert math.isnan(low)
            assert math.isnan(high)
            continue
        logs = np.log(one)
        error = scipy.stats.sem(logs)
        if error > 1e-9:
            expected = np.exp(scipy.stats.t.interval(0.95, len(one) - 1, logs.mean(), error))
            assert [low, high] == pytest.approx(expected, rel=1e-6)
        else:
            assert [low, high] == pytest.approx([one[0], one[0]], rel=1e-6)


def test_an_interval_of_three_known_rounds():
    # by hand: mean log 0, s = ln 2, t(2, 0.975) = 4.302653, half width 4.302653 * ln 2 / sqrt(3)
    low, high = stats.log_t_interval([0.5, 1.0, 2.0])
    assert high == pytest.approx(math.exp(4.302653 * math.log(2) / math.sqrt(3)), rel=1e-6)
    assert low == pytest.approx(1 / high, rel=1e-12)


def test_equal_rounds_have_an_interval_of_no_width():
    assert stats.log_t_interval([2.0, 2.0, 2.0]) == pytest.approx((2.0, 2.0))


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.1], [1.0, 1.1, 0.0], [1.0, 1.1, -1.0], [1.0, 1.1, math.nan]])
def test_there_is_no_interval_under_three_values_or_with_one_that_has_no_logarithm(values):
    assert stats.log_t_interval(values) is None


def test_the_interval_holds_the_true_value_as_often_as_it_says():
    generator = np.random.default_rng(20260131)
    values = generator.lognormal(0, 0.05, 4000 * 3)
    low, high = stats.log_t_intervals(values, np.full(4000, 3))
    assert np.mean((low <= 1) & (high >= 1)) == pytest.approx(0.95, abs=0.015)


def test_a_wider_confidence_gives_a_wider_interval():
    low, high = stats.log_t_interval([1.0, 1.1, 1.2])
    wider_low, wider_high = stats.log_t_interval([1.0, 1.1, 1.2], confidence=0.999)
    assert wider_low < low < high < wider_high


def test_a_ratio_is_undefined_rather_than_infinite():
    found = stats.ratio([1.0, 1.0, 0.0, math.nan, 1.0, math.inf], [2.0, 0.0, 0.0, 1.0, math.nan, 1.0])
    assert found[0] == 0.5
    assert np.isnan(found[1:]).all()


def test_a_ratio_broadcasts():
    assert stats.ratio(1.0, [1.0, 2.0]).tolist() == [1.0, 0.5]


def test_a_thousandth_of_noise_is_sixty_decibels():
    assert stats.sqnr_decibels([1e-3, 1.0]).tolist() == pytest.approx([60.0, 0.0])
    assert np.isnan(stats.sqnr_decibels([0.0, math.nan, math.inf])).all()
