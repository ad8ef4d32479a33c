"""How long a run is said to take still, from what its tasks took so far."""

import pytest

from ampbench.cli import progress as module
from ampbench.cli.progress import TimeLeft
from ampbench.drive.planning import PlannedCase
from ampbench.drive.rounds import OVERHEAD_SECONDS, SERVER_SECONDS, Progress, Turn
from ampbench.records.case import WorkloadSource
from ampbench.records.run import Settings
from ampbench.records.wire import MEMORY, ROUND
from tests.stored_runs import make_case, make_round

SOURCE = WorkloadSource(name="net", family="user", module="net", function="make", builtin=False)
CASE = PlannedCase(case=make_case(), source=SOURCE)


def rounds(servers: int) -> list[list[Turn]]:
    return [[Turn(ROUND, CASE, number)] for number in range(servers)]


def test_nothing_is_said_before_anything_is_known() -> None:
    assert TimeLeft(rounds(2), Settings()).after(0) is None


def test_servers_that_have_yet_to_start_are_part_of_it() -> None:
    left = TimeLeft(rounds(3), Settings())
    left.add(rounds(1)[0][0], 2.0)
    assert left.after(1) == pytest.approx(2 * 2.0 + 2 * SERVER_SECONDS)
    left.started(5.0)
    assert left.after(2) == pytest.approx(2.0 + 5.0)
    assert left.after(3) == 0.0


def test_rounds_take_their_budget_where_only_passes_were_seen() -> None:
    memory = Turn(MEMORY, CASE)
    left = TimeLeft([[memory, *rounds(1)[0]]], Settings(min_run_seconds=2.0))
    left.add(memory, 0.1)
    assert left.after(1) == pytest.approx(3.0 + OVERHEAD_SECONDS)


def test_the_start_of_a_server_is_told_apart_from_the_round_it_was_started_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[TimeLeft] = []

    class Kept(TimeLeft):
        def __init__(self, servers: list[list[Turn]], settings: Settings):
            super().__init__(servers, settings)
            made.append(self)

    monkeypatch.setattr(module, "TimeLeft", Kept)
    servers, entry = rounds(3), make_round(CASE.case)  # which took a second
    with module.progress(servers, Settings()) as watch:
        for done, (began, ended) in enumerate([(0.0, 1.1), (1.1, 7.2)]):
            task = servers[done][0]
            watch(Progress(task, done, 3, began))
            watch(Progress(task, done + 1, 3, ended, entry))
    assert made[0].after(2) == pytest.approx(1.1 + 5.0, abs=0.1)
