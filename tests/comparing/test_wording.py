import math

import pytest

from ampbench.comparing.deciding import Decision
from ampbench.comparing.wording import change_in_words, decision_in_words, limit, percent, percent_range
from ampbench.verdicts import Code, Verdict


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0716, "7.2%"),
        (0.0004, "0.04%"),
        (0.1234, "12%"),
        (0.0, "0%"),
        (-0.0000001, "0%"),
        (0.09951, "10%"),
        (math.inf, "inf %"),
    ],
)
def test_percentages_are_short(value, text):
    assert percent(value) == text


def test_signs_are_written_where_asked_for():
    assert percent(0.0716, sign=True) == "+7.2%"
    assert percent(-0.0716, sign=True) == "-7.2%"


def test_ranges_keep_a_decimal_so_that_their_ends_differ():
    assert percent_range(0.0998, 0.1034) == "10.0 to 10.3%"
    assert percent_range(-0.012, 1.5, sign=True) == "-1.2 to +150%"


@pytest.mark.parametrize(("threshold", "text"), [(0.02, "2%"), (0.025, "2.5%"), (0.1, "10%")])
def test_thresholds_are_written_as_they_are_typed(threshold, text):
    assert limit(threshold) == text


@pytest.mark.parametrize(
    ("change", "text"),
    [(0.072, "7.2% slower"), (-0.05, "5.0% faster"), (2.1, "3.1 times as long"), (0.0, "0% faster")],
)
def test_changes_are_said_in_words(change, text):
    assert change_in_words(change) == text


@pytest.mark.parametrize(("detectable", "said"), [(0.5, True), (10.0, True), (10.01, False), (1.4e26, False)])
def test_a_change_beyond_all_reason_is_not_said_to_have_been_seen(detectable: float, said: bool):
    decision = Decision(
        verdict=Verdict.INCONCLUSIVE, code=Code.UNDECIDED, change=0.1, low=-0.99, high=detectable, p_worse=None,
        p_better=None, blocks=3, slow_share_baseline=0.0, slow_share_candidate=0.0, slow_p=1.0, mean_change=None,
        p90_change=None, standard_error=None, detectable_change=detectable, blocks_needed=40,
    )  # fmt: skip
    text = decision_in_words(decision, 0.02, "rounds", 0)
    assert ("would have been seen" in text) is said
    assert ("and over +1000%" in text) is not said
    assert text.endswith("about 40 rounds would decide")
    assert len(text) < 120
