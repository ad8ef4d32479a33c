import numpy as np
import pytest

from ampbench.judge.frame import run_frame
from ampbench.judge.rounds import MeasuredRun, Role, grid
from tests.compared_runs import BF16, FP32, Times, make_run, noisy
from tests.stored_runs import COMPLETE, make_divergence, make_memory, make_round, write_run


def test_a_run_read_from_its_file_is_the_same_as_one_read_whole(tmp_path):
    rounds = [make_round(FP32, value, number) for number, value in enumerate(noisy(1e-3, 5))]
    entries = [*rounds, make_memory(FP32, 5), make_divergence(FP32), make_round(FP32, 2e-3, control=True), COMPLETE]
    read = MeasuredRun.read(write_run(tmp_path, [FP32], *entries))
    whole = make_run(Times((FP32, [])))
    whole.rounds[:] = [*rounds, make_round(FP32, 2e-3, control=True)]
    for name in ("owners", "blocks", "roles", "seconds"):
        assert np.array_equal(getattr(read.rounds, name), getattr(MeasuredRun.of(whole).rounds, name))
    assert read.has_controls


def test_seconds_and_outcomes_are_those_of_the_frame():
    stored = make_run(Times((FP32, noisy(1e-3, 5)), (BF16, [])), control=noisy(5e-3, 5), fresh=noisy(2e-3, 3))
    frame = run_frame(stored).set_index("case_id")
    measured = MeasuredRun.of(stored)
    assert measured.seconds == {FP32.case_id: pytest.approx(frame.loc[FP32.case_id, "seconds_median"])}
    for case_id, outcome in frame["outcome"].items():
        assert measured.outcome(case_id).name == outcome


def test_rounds_become_a_table_by_their_numbers_or_by_their_order():
    stored = make_run(Times((FP32, []), (BF16, [])))
    stored.rounds[:] = [make_round(FP32, 3.0, 7), make_round(BF16, 1.0, 5), make_round(FP32, 2.0, 5)]
    rounds = MeasuredRun.of(stored).rounds
    numbered = grid(rounds, rounds.seconds, Role.OWN, [1, 0], np.array([5, 7]))
    np.testing.assert_array_equal(numbered, [[1.0, np.nan], [2.0, 3.0]])
    ordered = grid(rounds, rounds.seconds, Role.OWN, [1, 0], None)
    np.testing.assert_array_equal(ordered, [[1.0, np.nan], [3.0, 2.0]])
    assert grid(rounds, rounds.seconds, Role.CONTROL, [0], None).shape == (1, 0)
    assert grid(rounds, rounds.seconds, Role.OWN, [], None).shape == (0, 0)
