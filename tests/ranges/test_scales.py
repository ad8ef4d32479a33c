import pytest

from ampbench.ranges.scales import usable_scales
from tests.ranges.test_headroom import magnitudes


def gradients(*values):
    return magnitudes(list(values), "gradient")


def test_the_largest_gradient_bounds_the_scale_and_the_smallest_says_what_is_lost():
    found = usable_scales([gradients(1.0, 2.0**-30), gradients(0.5)])
    assert found.highest == 2.0**15  # times 1.0 it is 32768, doubled it would be infinite
    assert found.lowest == 2.0**5  # below it 2**-30 becomes 2**-25, a tie, and zero
    assert (found.flushed, found.unscaled) == (0.0, pytest.approx(1 / 3))
    assert found.limiting == "layer"


def test_what_no_scale_saves_stays_lost():
    found = usable_scales([gradients(1.0, 2.0**-60)])
    assert found.flushed == 0.5 == found.unscaled
    assert found.highest == 2.0**15


def test_a_gradient_that_overflows_unscaled_asks_for_a_scale_below_one():
    found = usable_scales([gradients(65520.0)])
    assert found.highest == 0.5
    assert usable_scales([gradients(65519.0)]).highest == 1.0


def test_bf16_needs_no_scale():
    found = usable_scales([gradients(1.0, 2.0**-60)], "bf16")
    assert found.lowest < 1 < found.highest
    assert found.unscaled == 0.0


def test_without_gradients_there_is_no_scale():
    assert usable_scales([magnitudes([1.0])]) is None
    assert usable_scales([gradients(0.0)]) is None
