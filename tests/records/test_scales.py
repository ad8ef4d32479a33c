import dataclasses

import pytest

from ampbench.records.magnitudes import usable_scales
from tests.records.test_headroom import magnitudes


def gradients(*values):
    return magnitudes(list(values), "gradient")


def test_the_largest_gradient_bounds_the_scale_and_the_smallest_says_what_is_lost():
    found = usable_scales([gradients(1.0, 2.0**-30), gradients(0.5)])
    assert found.highest == 2.0**15  # times 1.0 it is 32768, doubled it would be infinite
    assert found.lowest == 2.0**6  # below it 2**-30 becomes 2**-25, a tie, and zero
    assert found.needed
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
    assert found.lowest == 1 < found.highest
    assert not found.needed
    assert found.unscaled == 0.0


def test_no_scale_is_beyond_what_fp32_holds_nor_below_one_without_need():
    tiny = usable_scales([gradients(2.0**-140, 2.0**-149)])
    assert (tiny.lowest, tiny.highest) == (2.0**125, 2.0**127)
    assert usable_scales([gradients(1.0)]).lowest == 1
    assert usable_scales([gradients(2.0**100)]).lowest == 2.0**-125
    assert usable_scales([dataclasses.replace(gradients(1.0), largest=1e300)]) is None


def test_without_gradients_there_is_no_scale():
    assert usable_scales([magnitudes([1.0])]) is None
    assert usable_scales([gradients(0.0)]) is None
