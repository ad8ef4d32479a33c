"""The goals of the statistics, held to on simulated noise; `benchmarks/self/verdicts.py` prints the whole table."""

import functools
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.stats

from ampbench.judge.deciding import LOOKS
from ampbench.records.changes import ChangeStatus
from tests.simulation.noise import NOISES
from tests.simulation.suite import CELLS, Share, run_gates, run_stored, run_tables, share_of_cells, share_of_gates

QUIET = [name for name, noise in NOISES.items() if noise.quiet]
SLOW = [name for name in QUIET if "slow" in name]
OUTLIER = "one outlier"
"""One block of the candidate takes three times as long: the mean of 32 blocks 6%."""
STEADY = [name for name in QUIET if name not in SLOW]


@pytest.fixture(autouse=True, scope="module")
def _a_table_is_tested_once() -> Iterator[None]:
    """Compute Fisher's exact test, a millisecond, once for each table of counts: thousands of gates share hundreds."""
    test = scipy.stats.fisher_exact
    known = functools.cache(lambda *counts: test(np.array(counts).reshape(2, 2)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scipy.stats, "fisher_exact", lambda table: known(*table.ravel().tolist()))
        yield


def above(share: Share) -> float:
    """Return the largest share that what was seen does not exclude."""
    return share.interval[1]


@pytest.mark.parametrize("name", NOISES)
def test_the_same_code_raises_no_alarm_whatever_the_noise(name):
    outcome = run_gates(name, gates=15)
    assert share_of_cells(outcome.changed).count == 0
    assert np.isin(outcome.blocks, LOOKS).mean() > 0.99


@pytest.mark.parametrize("name", STEADY)
def test_a_slowdown_of_five_percent_is_found(name):
    assert run_gates(name, gates=12, effect=0.05).share(ChangeStatus.REGRESSED).value >= 0.95


@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize("effect", [0.01, 0.02])
def test_a_change_that_is_no_larger_than_the_threshold_is_not_called_one(name, effect):
    assert share_of_cells(run_gates(name, gates=12, effect=effect).changed).count == 0


@pytest.mark.parametrize("name", STEADY)
def test_a_change_just_beyond_the_threshold_is_taken_for_none_as_rarely_as_the_level_says_and_never_for_a_gain(name):
    outcome = run_gates(name, gates=12, effect=0.03)
    assert outcome.share(ChangeStatus.UNCHANGED).value <= 0.05
    assert outcome.share(ChangeStatus.IMPROVED).count == 0


@pytest.mark.parametrize("name", [name for name in STEADY if name != OUTLIER])
def test_the_same_code_is_proven_unchanged(name):
    assert run_gates(name, gates=25).share(ChangeStatus.UNCHANGED).value >= 0.8


@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize(("effect", "verdict"), [(0.0, ChangeStatus.UNCHANGED), (0.1, ChangeStatus.REGRESSED)])
def test_slow_blocks_change_no_verdict_on_the_typical_time(name, effect, verdict):
    outcome = run_gates(name, gates=25, effect=effect, judge_means=False)
    assert outcome.share(verdict).value >= 0.93  # 0.95, and room for 200 cells


@pytest.mark.parametrize("name", [*SLOW, OUTLIER])
def test_where_blocks_are_slow_now_and_then_the_mean_is_open_and_nothing_is_called_unchanged(name):
    outcome = run_gates(name, gates=12)
    assert outcome.share(ChangeStatus.UNCHANGED).value <= 0.2
    assert outcome.tail_open.mean() >= 0.7
    assert not outcome.changed.any()


def test_steps_that_are_slow_now_and_then_are_seen_by_the_mean_and_by_nothing_else():
    fastest, mean = (run_gates("iid", gates=12, slow_steps=0.05, judge_means=judge) for judge in (False, True))
    assert fastest.share(ChangeStatus.UNCHANGED).value >= 0.95
    assert mean.mean_changed.mean() >= 0.9
    assert not np.isin(mean.verdicts, [ChangeStatus.REGRESSED, ChangeStatus.IMPROVED]).any()


@pytest.mark.parametrize("rounds", [4, 10])
def test_stored_runs_with_independent_rounds_raise_no_alarm(rounds):
    verdicts = run_stored("iid", gates=100, rounds=rounds)
    assert not np.isin(verdicts, [ChangeStatus.REGRESSED, ChangeStatus.IMPROVED]).any()


@pytest.mark.parametrize("name", STEADY)
def test_a_quiet_noise_varies_no_more_than_the_goals_speak_of(name):
    logs = NOISES[name].model(np.random.default_rng(0), (50, CELLS, 40))
    assert np.std(logs, axis=2).mean() <= 0.0155


@pytest.mark.slow
@pytest.mark.parametrize("name", NOISES)
def test_false_alarms_stay_within_the_goals_in_thousands_of_cells(name):
    outcome = run_gates(name, gates=2000)
    assert above(share_of_cells(outcome.changed)) <= 0.001
    assert above(share_of_gates(outcome.changed)) <= 0.01
    assert share_of_cells(outcome.control_fired).interval[0] <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", NOISES)
def test_changes_of_the_thresholds_size_are_called_ones_as_rarely_as_none(name):
    outcome = run_gates(name, gates=500, effect=0.02)
    assert share_of_cells(outcome.changed).interval[0] <= 0.001


@pytest.mark.slow
@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize(("effect", "goal"), [(0.05, 0.95), (0.10, 0.999)])
def test_power_reaches_the_goals_in_thousands_of_cells(name, effect, goal):
    assert run_gates(name, gates=250, effect=effect).share(ChangeStatus.REGRESSED).value >= goal


@pytest.mark.parametrize("name", NOISES)
def test_the_interval_of_a_speed_holds_the_truth_as_often_as_it_says_and_what_is_no_faster_is_rarely_taken(name):
    same = run_tables(name, tables=200, rounds=4)
    assert same.covered.mean() >= 0.90  # 95%, and room for 200 tables
    assert same.taken.mean() <= 0.07  # of two such precisions, each at most 2.5%


@pytest.mark.parametrize("name", [name for name in STEADY if name != OUTLIER])
def test_a_gain_of_a_tenth_is_taken_from_four_rounds_and_never_said_to_be_none(name):
    gained = run_tables(name, tables=100, rounds=4, gain=0.10)
    assert gained.taken.mean() >= 0.95
    assert not gained.stayed.any()
