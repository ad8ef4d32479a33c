import base64
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from ampbench.core import stats
from ampbench.core.stats import BLOCK, ENTRIES, Moved, moved, sketch_of

NAN = math.nan

POSITIVE = st.floats(1e-9, 1e3)
DIFFERENCES = st.lists(st.floats(-1, 1).map(lambda each: round(each, 2)), min_size=1, max_size=10)
SEGMENTS = st.lists(st.lists(POSITIVE, min_size=1, max_size=9), min_size=1, max_size=9)


def flat(segments):
    return np.concatenate(segments), np.array([len(one) for one in segments])


def test_a_round_is_worth_its_fastest_sample_of_all_builds():
    assert stats.round_value([[2.0, 1.5, 9.0], [5.0, 3.0], [100.0]]) == 1.5


def test_a_sample_that_was_kept_from_the_processor_does_not_count_beside_one_that_was_not():
    samples, cpu = [[3.0, 1.01], [1.0]], [[0.5, 1.0], [0.9]]
    assert stats.round_value(samples, cpu) == 1.01
    assert stats.round_value(samples) == 1.0
    assert not stats.all_inflated(samples, cpu)


def test_a_round_of_which_no_sample_ran_at_one_go_is_worth_the_least_cpu_time():
    samples, cpu = [[30.0, 20.0], [25.0]], [[6.0, 6.1], [6.2]]
    assert stats.round_value(samples, cpu) == 6.0
    assert stats.all_inflated(samples, cpu)
    assert not stats.all_inflated(samples, None)


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


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.1], [1.0, 1.1, 0.0], [1.0, 1.1, -1.0], [1.0, 1.1, math.nan]])
def test_there_is_no_interval_under_three_values_or_with_one_that_has_no_logarithm(values):
    assert stats.log_t_interval(values) is None


def test_a_ratio_is_undefined_rather_than_infinite():
    found = stats.ratio([1.0, 1.0, 0.0, math.nan, 1.0, math.inf, 1e300], [2.0, 0.0, 0.0, 1.0, math.nan, 1.0, -1e-10])
    assert found[0] == 0.5
    assert np.isnan(found[1:]).all()


@pytest.mark.parametrize("count", [1, 2, 5, 10])
def test_the_signed_rank_distribution_is_that_of_all_signs(count):
    sums = [sum(rank for rank in range(1, count + 1) if signs >> (rank - 1) & 1) for signs in range(2**count)]
    expected = [np.mean(np.array(sums) >= one) for one in range(count * (count + 1) // 2 + 1)]
    assert stats.signed_rank_survival(count) == pytest.approx(expected, abs=1e-14)


@given(st.lists(st.floats(0.01, 1), min_size=3, max_size=12, unique=True), st.randoms(use_true_random=False))
def test_p_values_without_ties_are_scipys(sizes, random):
    values = [size * random.choice([-1, 1]) for size in sizes]
    found = stats.signed_ranks(np.array([values]))
    assert found.p_above[0] == pytest.approx(scipy.stats.wilcoxon(values, alternative="greater", method="exact").pvalue)
    assert found.p_below[0] == pytest.approx(scipy.stats.wilcoxon(values, alternative="less", method="exact").pvalue)


@given(DIFFERENCES)
def test_ties_and_zeros_are_broken_the_least_favourable_way(values):
    # over all signs that the differences could have had, p is at most alpha no more often than alpha
    signs = np.array(np.meshgrid(*[[-1, 1]] * len(values), indexing="ij")).reshape(len(values), -1).T
    p_values = stats.signed_ranks(signs * np.abs(values)).p_above
    for alpha in np.unique(p_values):
        assert np.mean(p_values <= alpha) <= alpha + 1e-12


def test_rows_of_different_lengths_are_as_each_alone():
    rows = [[0.1, 0.2, -0.05, 0.3, 0.4, 0.15, 0.11], [0.1, -0.2, 0.5], [0.3], []]
    table = np.array([row + [NAN] * (9 - len(row)) for row in rows])
    together = stats.signed_ranks(table, (0.05, 0.3))
    for place, row in enumerate(rows):
        alone = stats.signed_ranks(np.array([row]).reshape(1, len(row)), (0.05, 0.3))
        assert together.counts[place] == len(row)
        assert together.p_above[place] == alone.p_above[0]
        assert together.estimates[place] == pytest.approx(alone.estimates[0], nan_ok=True)
        assert together.lows[:, place].tolist() == alone.lows[:, 0].tolist()
        assert together.highs[:, place].tolist() == alone.highs[:, 0].tolist()


def test_the_estimate_is_the_median_of_the_walsh_averages():
    # by hand: averages of 1, 2, 6 are 1, 1.5, 2, 3.5, 4, 6
    assert stats.signed_ranks(np.array([[2.0, 6.0, 1.0]])).estimates[0] == 2.75


def test_bounds_miss_the_true_location_as_rarely_as_they_say():
    table = np.random.default_rng(2).laplace(1.0, 1.0, (4000, 12))
    found = stats.signed_ranks(table, (0.05,))
    exact = 0.046142578125  # P(W <= 17) for n = 12
    assert np.mean(found.lows[0] > 1) == pytest.approx(exact, abs=0.012)
    assert np.mean(found.highs[0] < 1) == pytest.approx(exact, abs=0.012)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_outliers_do_not_depend_on_signs(values, random):
    flipped = [value * random.choice([-1, 1]) for value in values]
    assert np.array_equal(stats.outlying(np.array([values]), 0.2), stats.outlying(np.array([flipped]), 0.2))


@given(st.lists(st.lists(st.floats(-9, 9), min_size=1, max_size=6), min_size=1, max_size=4), st.floats(0, 1))
def test_quantiles_of_rows_are_numpys_of_each_alone(rows, share):
    table = np.array([row + [NAN] * (7 - len(row)) for row in rows])
    assert stats.row_quantiles(table, share) == pytest.approx([np.quantile(row, share) for row in rows], abs=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_holm_lies_between_no_adjustment_and_bonferronis(p_values):
    adjusted = stats.holm(np.array(p_values))
    assert (adjusted >= np.array(p_values) - 1e-15).all()
    assert (adjusted <= np.minimum(1, len(p_values) * np.array(p_values)) + 1e-15).all()


def test_welch_is_scipys_where_there_are_no_further_components():
    generator = np.random.default_rng(3)
    first, second = generator.normal(0, 1, 5), generator.normal(1, 3, 9)
    difference, error, freedom = stats.welch(first[None], second[None])
    expected = scipy.stats.ttest_ind(second, first, equal_var=False)
    assert difference[0] / error[0] == pytest.approx(expected.statistic)
    assert freedom[0] == pytest.approx(expected.df)


def test_fishers_p_values_are_scipys():
    tables = [(0, 8, 5, 8), (3, 16, 2, 12), (0, 8, 0, 8), (4, 4, 0, 4)]
    found = stats.fisher_p(*np.array(tables).T)
    expected = [scipy.stats.fisher_exact([[a, n - a], [b, m - b]]).pvalue for a, n, b, m in tables]
    assert found.tolist() == pytest.approx(expected)


def test_the_count_to_decide_by_hand():
    margin, variance = np.full(4, 0.02), np.full(4, 0.02**2)
    found = stats.count_to_decide(np.array([0.05, 0.0, 0.02, -0.05]), variance, 0.0, margin, (0.001, 0.05), 0.95)
    # (3.0902 + 1.6449) * 0.02 / 0.05 squared; (1.6449 + 1.9600) * 0.02 / 0.02 squared; never, at the very margin
    assert found.tolist() == pytest.approx([3.5874, 12.9947, math.inf, 3.5874], rel=1e-3)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.floats(0, 0.5))
def test_ranks_against_a_margin_are_those_of_what_lies_beyond_it(values, margin):
    differences = np.array([values])
    found = stats.signed_ranks(differences, margins=margin)
    # a Walsh average beyond the margin is one above 0 of the differences less the margin, but for the last bit
    pairs = [(one + other) / 2 for place, one in enumerate(values) for other in values[place:]]
    survival = stats.signed_rank_survival(len(values))
    assert found.p_above_margin[0] == survival[sum(pair > margin for pair in pairs)]
    assert found.p_below_margin[0] == survival[sum(pair < -margin for pair in pairs)]
    assert found.p_above_margin[0] >= found.p_above[0]


def swaps(first, second, margin):
    """The exact one-sided p-value of swapping the arms of each block, by all its ways."""
    differences = second - margin * first
    ways = np.array(np.meshgrid(*[[-1, 1]] * len(differences))).reshape(len(differences), -1)
    return float(np.mean(ways.T @ differences >= differences.sum() - 1e-12))


@pytest.mark.parametrize("margin", [1.0, 1.05, 1.2])
def test_ratios_of_subsets_are_the_test_that_swaps_arms_in_all_ways(margin):
    generator = np.random.default_rng(11)
    first, second = generator.lognormal(0, 0.3, (4, 9)), 1.1 * generator.lognormal(0, 0.3, (4, 9))
    second[1, 3] = first[2, 0] = NAN
    found = stats.mean_ratios(first, second, (0.05,), margin)
    for row in range(4):
        whole = ~(np.isnan(first[row]) | np.isnan(second[row]))
        one, other = first[row, whole], second[row, whole]
        assert found.estimates[row] == pytest.approx(other.mean() / one.mean())
        assert found.p_above[row] == pytest.approx(swaps(one, other, margin))
        assert found.p_below[row] == pytest.approx(swaps(other, one, margin))


def test_bounds_of_a_ratio_of_means_are_the_margins_that_the_test_just_allows():
    generator = np.random.default_rng(12)
    first, second = generator.lognormal(0, 0.1, (1, 10)), generator.lognormal(0, 0.1, (1, 10))
    found = stats.mean_ratios(first, second, (0.05,))
    low, high = found.lows[0, 0], found.highs[0, 0]
    assert swaps(first[0], second[0], 0.9999 * low) <= 0.05 < swaps(first[0], second[0], 1.0001 * low)
    assert swaps(second[0], first[0], 0.9999 / high) <= 0.05 < swaps(second[0], first[0], 1.0001 / high)


def test_too_few_blocks_bound_no_ratio_and_none_has_no_estimate():
    found = stats.mean_ratios(np.ones((1, 4)), np.ones((1, 4)), (0.05,))
    assert (found.lows[0, 0], found.highs[0, 0]) == (0.0, math.inf)
    found = stats.mean_ratios(np.full((1, 4), NAN), np.ones((1, 4)), (0.05,))
    assert math.isnan(found.estimates[0])
    assert (found.p_above[0], found.p_below[0]) == (1.0, 1.0)


def test_the_mean_of_a_round_counts_every_step_and_the_cpu_time_of_samples_held_up():
    assert stats.round_mean([[1.0, 3.0], [2.0]], [10, 30]) == pytest.approx((40 + 60) / (20 + 30))
    assert stats.round_mean([[1.0, 3.0]], [5], [[1.0, 2.97]]) == 2.0
    assert stats.round_mean([[1.0, 3.0]], [5], [[1.0, 1.5]]) == pytest.approx(1.25)
    assert stats.round_mean([[1.0], [2.0]], [7]) == 1.5


@pytest.mark.parametrize(
    ("successes", "trials"), [(32, 32), (31, 32), (1, 1), (0, 5), (298, 300), (9103, 9216), (9210, 9216)]
)
def test_the_bound_of_a_share_is_that_of_clopper_and_pearson(successes: int, trials: int) -> None:
    exact = scipy.stats.binomtest(successes, trials, alternative="greater").proportion_ci(0.95, "exact")
    assert float(stats.share_bound(successes, trials)) == pytest.approx(exact.low)


@pytest.mark.parametrize(
    ("successes", "trials", "share"),
    [(-1, 5, 0.5), (0, 5, 0.01), (3, 3, 0.9), (2, 299, 0.01), (20, 2000, 0.01), (5000, 10_000, 0.5), (900, 9216, 0.1)],
)
def test_the_chance_of_at_most_so_many_is_the_binomial_distribution_s(
    successes: int, trials: int, share: float
) -> None:
    exact = scipy.stats.binom.cdf(successes, trials, share)
    assert stats.chance_of_at_most(successes, trials, share) == pytest.approx(exact, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize(("successes", "trials"), [(1_000_000, 10_000_000), (999_000, 10_000_000), (2**50, 2**53)])
def test_the_chance_of_at_most_a_million_and_more_is_the_normal_distribution_s(successes: int, trials: int) -> None:
    for share in (successes / trials, 1.001 * successes / trials):
        exact = scipy.stats.binom.cdf(successes, trials, share)
        assert stats.chance_of_at_most(successes, trials, share) == pytest.approx(exact, abs=1e-3)


def test_intervals_go_by_scipys_quantiles_whether_these_are_known_or_asked_for() -> None:
    freedom = np.array([math.nan, *range(1, 200)])
    expected = scipy.special.stdtrit(freedom, 0.975)
    assert stats._t_quantiles(freedom) == pytest.approx(expected, rel=0, nan_ok=True)
    for number in range(1, 200):
        assert stats._t_quantiles(np.array([float(number)]))[0] == pytest.approx(expected[number], rel=1e-15)


RESOLUTION = 1e-8
"""Two sketches of one vector seem at most this far apart, relative to its norm: their numbers are rounded."""


def sketch(values, name="0", block=BLOCK):
    values = np.asarray(values, dtype=np.float64)
    return sketch_of([(name, [values[start : start + block] for start in range(0, len(values), block)])])


def apart(before, after):
    """Return how far one vector seems to lie from another, and how far it does."""
    ours, theirs = sketch(before), sketch(after)
    found = moved(ours.norm, theirs.norm, ours.text, theirs.text)
    assert not found.at_least
    return found.distance, float(np.linalg.norm(after - before) / np.linalg.norm(before))


def vectors(seed, size=3000):
    return np.random.default_rng(seed).normal(0.3, 1.0, (2, size))


def turned_and_longer(x, y):
    return 2 * x + y


def at_few_places(x, y):
    return np.where(np.arange(len(x)) % 701 == 0, x + 5, x)


def permuted(x, y):
    return x[np.argsort(y)]


CHANGES = [turned_and_longer, at_few_places, permuted]


@pytest.mark.parametrize("change", CHANGES)
def test_the_distance_is_told_within_12_percent_in_19_of_20_vectors_and_never_missed(change):
    ratios = []
    for seed in range(60):
        x, y = vectors(seed)
        seen, true = apart(x, change(x, y))
        ratios.append(seen / true)
    assert np.mean(np.abs(np.array(ratios) - 1) < 0.125) >= 0.9
    assert min(ratios) > 0.6
    assert np.mean(ratios) == pytest.approx(1, abs=0.05)


def test_a_vector_rounded_in_fp64_seems_no_further_apart_than_the_resolution():
    x, y = vectors(0, 300_000)
    assert apart(x, x)[0] == 0
    assert apart(x, x * (1 + 1e-14 * y))[0] < RESOLUTION


def test_what_an_element_draws_depends_on_its_tensors_name_and_its_place_alone():
    x, y = vectors(2, 5000)
    whole = sketch_of([("a", [x]), ("b", [y])])
    assert sketch_of([("b", [y]), ("a", [x])]).text == whole.text
    assert sketch(x, block=BLOCK).text == sketch(x, block=64).text
    assert sketch(x, "a").text != sketch(x, "b").text


def test_the_draws_are_the_same_for_ever():
    values = np.zeros(3)
    values[2] = 1.0
    entries = np.frombuffer(base64.b64decode(sketch(values).text.removeprefix("1:")), "<i4")
    assert len(entries) == ENTRIES
    assert {int(place): int(entries[place]) for place in np.flatnonzero(entries)} == DRAWN


DRAWN = {29: 2**30, 44: -(2**30), 90: 2**30, 111: -(2**30)}
"""The third element of the tensor called 0: half of it in four of the 128 places."""


@pytest.mark.parametrize("other", [None, "", "2:AAAA", "1:AAAA", "1:???", "1:" + "A" * 687])
def test_without_a_sketch_on_both_sides_or_of_another_form_the_norms_tell_at_least_how_far(other):
    ours = sketch([3.0, 4.0])
    assert moved(5.0, 6.0, ours.text, other) == Moved(pytest.approx(0.2), at_least=True)
    assert moved(5.0, 6.0) == Moved(pytest.approx(0.2), at_least=True)


def test_elements_that_are_not_finite_count_as_zero():
    assert sketch([1.0, math.nan, 2.0, math.inf]) == sketch([1.0, 0.0, 2.0, 0.0])
