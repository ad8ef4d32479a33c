"""What is promised of change points, held to on simulated series; `benchmarks/self/changes.py` prints the tables."""

import pytest

from tests.simulation.trends import HISTORIES, flagged, follow, found

pytest.importorskip("asv.step_detect")

STEADY = ("independent, normal", "heavy tails (t3)", "AR(1), 0.5")


def test_a_step_of_five_percent_is_found_within_ten_points():
    assert found("independent, normal", 0.01, 0.05, after=10, count=150).value >= 0.85


@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize("spread", [0.01, 0.03])
def test_series_without_a_step_are_seldom_flagged(name, spread):
    assert flagged(name, spread, count=100).count <= 3  # at 1%, more come about in 2% of such tests


@pytest.mark.parametrize("name", ["independent, normal", "both", "one run disturbed, without a word"])
def test_commits_that_change_nothing_are_seldom_blamed(name):
    assert follow(name, points=5, count=15).series.count <= 1  # of 180 series


def test_a_step_of_twenty_percent_is_found_in_three_versions_whatever_the_whole_runs_did():
    for name in ("independent, normal", "luck of whole runs, 5%"):
        followed = follow(name, points=3, count=15, effect=0.2)
        assert followed.found.value >= 0.5
        assert followed.series.count == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize("spread", [0.01, 0.03])
def test_at_most_one_series_in_a_hundred_is_flagged(name, spread):
    assert flagged(name, spread, count=2000).value <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize("points", [2, 12])
@pytest.mark.parametrize("name", HISTORIES)
def test_at_most_one_history_in_a_hundred_has_a_change_that_is_none(name, points):
    assert follow(name, points=points, count=60).histories.count <= 3  # at 1%, more come about in 0.3% of such tests
