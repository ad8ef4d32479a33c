import math

import pytest

from ampbench.comparing.wording import change_in_words, limit, percent, percent_range


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0716, "7.2 %"),
        (0.0004, "0.04 %"),
        (0.1234, "12 %"),
        (0.0, "0 %"),
        (-0.0000001, "0 %"),
        (0.09951, "10 %"),
        (math.inf, "inf %"),
    ],
)
def test_percentages_are_short(value, text):
    assert percent(value) == text


def test_signs_are_written_where_asked_for():
    assert percent(0.0716, sign=True) == "+7.2 %"
    assert percent(-0.0716, sign=True) == "-7.2 %"


def test_ranges_keep_a_decimal_so_that_their_ends_differ():
    assert percent_range(0.0998, 0.1034) == "10.0 to 10.3 %"
    assert percent_range(-0.012, 1.5, sign=True) == "-1.2 to +150 %"


@pytest.mark.parametrize(("threshold", "text"), [(0.02, "2 %"), (0.025, "2.5 %"), (0.1, "10 %")])
def test_thresholds_are_written_as_they_are_typed(threshold, text):
    assert limit(threshold) == text


@pytest.mark.parametrize(
    ("change", "text"),
    [(0.072, "7.2 % slower"), (-0.05, "5.0 % faster"), (2.1, "3.1 times as long"), (0.0, "0 % faster")],
)
def test_changes_are_said_in_words(change, text):
    assert change_in_words(change) == text
