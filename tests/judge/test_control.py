"""An arm against itself, from comparisons written by hand."""

import math

import pytest

from ampbench.judge.compare import block_seconds, compare, judge_self
from ampbench.records.verdicts import Comparison
from tests.compared_runs import BF16, FP32, Times, arms, make_run, noisy
from tests.stored_runs import make_round

OURS, THEIRS = arms()


def against_itself(factor: float = 1.0, spread: float = 0.002, fresh: float | None = None) -> Comparison:
    again = fresh or factor
    ours = Times((FP32, noisy(1e-3, spread=spread, seed=1)), (BF16, noisy(2e-3, spread=spread, seed=2)))
    theirs = Times((FP32, noisy(1e-3 * factor, spread=spread, seed=3)), (BF16, noisy(2e-3, spread=spread, seed=4)))
    return compare(
        make_run(ours, fresh=noisy(1e-3, 10, spread, 5), header=OURS),
        make_run(theirs, fresh=noisy(1e-3 * again, 10, spread, 6), header=THEIRS),
    )


def test_a_quiet_machine_has_no_alarms_and_proves_it() -> None:
    found = judge_self(against_itself(), [])
    assert (found.cases, found.blocks) == (2, 16)
    assert not found.alarms
    assert len(found.unchanged) == 2
    assert found.highest_rate == pytest.approx(0.658, abs=0.001)  # Wilson, 0 of 2


def test_a_difference_that_fresh_blocks_show_again_is_an_alarm() -> None:
    found = judge_self(against_itself(factor=1.1), [])
    assert [one.case for one in found.alarms] == [FP32]


def test_a_difference_that_fresh_blocks_do_not_show_is_a_suspicion() -> None:
    found = judge_self(against_itself(factor=1.1, fresh=1.0), [])
    assert not found.alarms
    assert [one.case for one in found.suspected] == [FP32]


def test_what_can_be_seen_shrinks_with_the_square_root_of_the_blocks_down_to_the_threshold() -> None:
    wide, quiet = (judge_self(against_itself(spread=spread), []) for spread in (0.05, 0.0005))
    assert [one.blocks for one in wide.detectable] == [16, 24, 32]
    first, _, last = wide.detectable
    assert first.median > last.median > 0.02
    assert first.worst >= first.median
    assert quiet.detectable[0].median == pytest.approx(0.02, abs=0.002)


def test_the_time_of_a_block_is_that_between_two_rounds_of_a_case() -> None:
    ends = ["2026-01-31T12:00:00+00:00", "2026-01-31T12:00:05+00:00", "2026-01-31T12:00:11+00:00"]
    rounds = [make_round(FP32, 1e-3, number, finished_at=end) for number, end in enumerate(ends)]
    assert block_seconds(rounds) == pytest.approx(5.5)
    assert math.isnan(block_seconds(rounds[:1]))
