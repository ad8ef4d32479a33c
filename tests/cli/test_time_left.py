"""How long a run is said to take still, from what its tasks took so far."""

import pytest

from ampbench.cli.progress import TimeLeft
from ampbench.drive.planning import PlannedCase
from ampbench.drive.rounds import Progress, Turn, turn_seconds
from ampbench.records.case import WorkloadSource
from ampbench.records.run import Settings
from ampbench.records.wire import ROUND
from tests.stored_runs import make_case, make_round

SOURCE = WorkloadSource(name="net", family="user", module="net", function="make", builtin=False)
CASE = PlannedCase(case=make_case(), source=SOURCE)
ROUNDS = [[Turn(ROUND, CASE, number)] for number in range(4)]


def after_a_round(settings: Settings, seconds: float) -> float:
    """Return what is left of two networks of four rounds, of which the first round of the first took so long."""
    left, (turn,) = TimeLeft([ROUNDS, ROUNDS], settings), ROUNDS[0]
    begins = Progress(turn, 0, 0, 1.0)
    left.note(begins)
    assert left.after(begins) == pytest.approx(sum(turn_seconds(turn, settings) for (turn,) in 2 * ROUNDS))
    ends = Progress(turn, 0, 1, 1.0 + seconds, make_round(CASE.case))
    left.note(ends)
    return left.after(ends)


def test_the_rounds_to_come_take_as_long_as_the_last_one() -> None:
    assert after_a_round(Settings(), 2.0) == pytest.approx(3 * 2.0 + 4 * 2.0)


def test_no_network_takes_longer_than_its_budget() -> None:
    assert after_a_round(Settings(budget_seconds=5.0), 2.0) == pytest.approx((5.0 - 3.0) + 5.0)
    assert after_a_round(Settings(budget_seconds=5.0), 9.0) == pytest.approx(5.0)
