"""The session of a fleet against machines of a script: no process, no Ray."""

import contextlib
import errno
import heapq
import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import structs

import ampbench
from ampbench.convert import cases_of
from ampbench.drive import fleet
from ampbench.drive.fleet import Share
from ampbench.errors import NothingToRunError, StoreError
from ampbench.records.case import Environment, kind_of
from ampbench.records.measured import KILLED, Failure
from ampbench.records.run import EACH, SPREAD
from ampbench.store import StoredRun, list_runs, read_run
from ampbench.trend.values import read_runs
from tests.fleet.scripted_cluster import HERE, Machine, ScriptedCluster, fleet_session, runs_of, turns_of
from tests.stored_runs import make_case

ROUNDS, KILLS = 3, 50


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fleet, "LOOK_SECONDS", 0.01)
    return


def cluster_of(*machines: Machine) -> ScriptedCluster:
    return ScriptedCluster(machines)


@pytest.fixture(scope="module")
def ids(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the ids of the plan's cases that run."""
    results = tmp_path_factory.mktemp("whole")
    fleet_session(cluster_of(Machine("a")), results, EACH).run()
    (run,) = map(read_run, list_runs(results))
    return [case_id for case_id in run.cases if case_id not in run.skips]


def assert_whole(runs: dict[str, StoredRun], ids: list[str], times: int = 1) -> None:
    """Fail unless each turn of the plan was done this number of times."""
    found = turns_of(runs)
    wanted = [("round", case_id, number) for case_id in ids for number in range(ROUNDS)]
    wanted += [(what, case_id, 0) for case_id in ids for what in ("memory", "divergence")]
    wanted += [("late", case_id, 0) for case_id in ids if "/training/" in case_id]
    assert found == dict.fromkeys(wanted, times)


def others_begun(name: str, turns: int = 1) -> Callable[[ScriptedCluster], bool]:
    return lambda cluster: cluster.turns(name) >= turns


def in_turn(name: str, other: str) -> Callable[[ScriptedCluster], bool]:
    return lambda cluster: cluster.turns(name) <= cluster.turns(other)


def test_every_lane_measures_every_case_and_is_a_run_of_its_own(tmp_path: Path, ids: list[str]) -> None:
    cluster = cluster_of(Machine("a"), Machine("b"))
    assert fleet_session(cluster, tmp_path, EACH).run() == "complete"
    runs = runs_of(tmp_path)
    assert runs.keys() == {"a", "b"}
    assert_whole(runs, ids, times=2)
    for name, run in runs.items():
        assert run.complete
        assert {*run.cases} - {*run.skips} == {*ids}
        assert run.path.stem.endswith(f"-{name}-abcdef")
        assert run.header.settings.memory_limit_bytes == 1 << 30
    assert cluster.closed


def test_nodes_of_one_host_and_name_are_lanes_of_their_own(tmp_path: Path, ids: list[str]) -> None:
    assert fleet_session(cluster_of(Machine("a", id="x"), Machine("a", id="y")), tmp_path, EACH).run() == "complete"
    assert runs_of(tmp_path).keys() == {"a", "a-2"}
    assert_whole(runs_of(tmp_path), ids, times=2)


def test_lanes_of_a_kind_share_the_cases_and_each_turn_is_done_once(tmp_path: Path, ids: list[str]) -> None:
    cluster = cluster_of(Machine("a", wait=others_begun("b")), Machine("b", wait=lambda one: len(one.opened) == 2))
    assert fleet_session(cluster, tmp_path, SPREAD).run() == "complete"
    runs = runs_of(tmp_path)
    assert_whole(runs, ids)
    assert min(len(run.cases) for run in runs.values()) > 0
    skips = [skip.case_id for run in runs.values() for skip in run.skips.values()]
    assert len(skips) == len({*skips}) > 0


def test_another_lane_goes_on_with_the_work_of_a_dead_one_and_repeats_nothing(tmp_path: Path, ids: list[str]) -> None:
    cluster = cluster_of(Machine("a", dies=9), Machine("b", free=others_begun("a")))
    session = fleet_session(cluster, tmp_path, SPREAD)
    assert session.run() == "complete"
    assert session.left == 0
    runs = runs_of(tmp_path)
    assert runs["a"].rounds or runs["a"].memory
    assert_whole(runs, ids)


def test_a_lane_that_joins_late_takes_its_part(tmp_path: Path, ids: list[str]) -> None:
    begun = others_begun("late")
    first = Machine("a", wait=lambda cluster: cluster.turns("a") < 2 or begun(cluster))
    cluster = cluster_of(first, Machine("late", appears=others_begun("a")))
    fleet_session(cluster, tmp_path, SPREAD).run()
    assert_whole(runs_of(tmp_path), ids)


def test_a_lane_that_comes_back_goes_on_with_its_own_run(tmp_path: Path, ids: list[str]) -> None:
    cluster = cluster_of(
        Machine("a", dies=9), Machine("b", wait=lambda one: "again" in one.opened),
        Machine("a", appears=others_begun("a", 9), id="again"),
    )  # fmt: skip
    session = fleet_session(cluster, tmp_path, EACH)
    assert session.run() == "complete"
    assert session.left == 0
    assert len(list_runs(tmp_path)) == 2
    assert_whole(runs_of(tmp_path), ids, times=2)


def test_where_nobody_is_left_each_case_says_why_and_is_measured_on_resume(tmp_path: Path, ids: list[str]) -> None:
    other = structs.replace(HERE, threads=2)
    session = fleet_session(cluster_of(Machine("a", dies=9), Machine("b", other)), tmp_path, SPREAD)
    assert session.run() == "complete"
    runs = runs_of(tmp_path)
    failures = runs["a"].failures
    assert failures
    assert session.left == len(failures)
    assert {failure.cause for failure in failures.values()} == {KILLED}
    assert {failure.message.partition(": ")[0] for failure in failures.values()} == {"a was lost"}
    resumed = cluster_of(Machine("other"), Machine("b", other))
    session = fleet_session(resumed, tmp_path, SPREAD, earlier=list(runs.values()))
    assert session.run() == "complete"
    assert session.left == 0
    assert_whole(runs_of(tmp_path), ids, times=2)


class Interruption:
    """Interrupts the thread that waits for a fleet after a number of entries, as Ctrl-C does."""

    def __init__(self, entries: int):
        self.left = entries

    def __call__(self, _: str, __: object) -> None:
        self.left -= 1
        if not self.left:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, KILLS))])
def test_interruptions_and_deaths_at_random_lose_nothing_and_a_resumed_fleet_measures_the_rest(
    seed: int, tmp_path: Path, ids: list[str]
) -> None:
    draw, runs, whole = random.Random(seed), dict[str, StoredRun](), False
    while not whole:
        machines = [Machine(name, dies=draw.choice([float("inf"), draw.randrange(1, 30)])) for name in "abc"]
        interruption, earlier = Interruption(draw.randrange(5, 60)), runs
        with contextlib.suppress(NothingToRunError):  # all died as they began
            session = fleet_session(cluster_of(*machines), tmp_path, SPREAD, interruption, [*earlier.values()])
            whole = session.run() == "complete" and not session.left
        runs = runs_of(tmp_path)
        assert {name: runs[name].path for name in earlier} == {name: run.path for name, run in earlier.items()}
    assert_whole(runs, ids)


def test_a_resumed_fleet_reads_as_one_run_everywhere(tmp_path: Path, ids: list[str]) -> None:
    cluster = cluster_of(Machine("a", wait=in_turn("a", "b")), Machine("b", wait=in_turn("b", "a")))
    fleet_session(cluster, tmp_path, SPREAD, Interruption(20)).run()
    again = cluster_of(Machine("c"))
    fleet_session(again, tmp_path, SPREAD, earlier=list(runs_of(tmp_path).values())).run()
    assert len(runs_of(tmp_path)) == 3
    loaded = ampbench.load(tmp_path)
    assert [*loaded[loaded["outcome"] == "ok"]["case_id"]] == ids
    assert loaded["case_id"].is_unique
    rows = ampbench.open("abcdef", tmp_path).rows
    assert {row["case_id"]: row["outcome"] for row in rows} == dict(loaded[["case_id", "outcome"]].values)
    assert len(read_runs([], tmp_path).runs) == 1
    assert len(cases_of(list_runs(tmp_path))[0]) == len(rows)


def test_a_complete_fleet_that_is_resumed_measures_nothing(tmp_path: Path) -> None:
    fleet_session(cluster_of(Machine("a")), tmp_path, EACH).run()
    cluster = cluster_of(Machine("a"))
    session = fleet_session(cluster, tmp_path, EACH, earlier=list(runs_of(tmp_path).values()))
    assert session.run() == "complete"
    assert cluster.turns("a") == 0


def test_another_torch_on_the_same_machine_is_measured_anew_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = (f"2026013{day}T120000Z-a-000000" for day in range(1, 3))
    monkeypatch.setattr("ampbench.drive.fleet.new_run_id", lambda _: next(days))
    fleet_session(cluster_of(Machine("a")), tmp_path, EACH).run()
    cluster = cluster_of(Machine("a", structs.replace(HERE, torch_version="9")))
    session = fleet_session(cluster, tmp_path, EACH, earlier=list(runs_of(tmp_path).values()))
    assert session.run() == "complete"
    versions = [read_run(path).header.environment.torch_version for path in list_runs(tmp_path)]
    assert sorted(versions) == ["2.15.0", "9"]


def test_a_case_that_fails_on_a_lane_is_not_tried_on_another(tmp_path: Path, ids: list[str]) -> None:
    cluster = cluster_of(Machine("a", fails=[ids[5]]), Machine("b", fails=[ids[5]]))
    lines: list[str] = []
    session = fleet_session(cluster, tmp_path, SPREAD, lambda line, _: lines.append(line))
    assert session.run() == "complete"
    assert session.left == 0
    assert sum(ids[5] in run.failures for run in runs_of(tmp_path).values()) == 1
    assert lines[-1] == f"2 lanes; {session.total} of {session.total} turns, about 0 s left"


def test_a_machine_that_cannot_measure_is_left_out_with_the_reason(tmp_path: Path) -> None:
    cluster = cluster_of(Machine("a"), Machine("old", problem="it has another ampbench"))
    session = fleet_session(cluster, tmp_path, EACH)
    assert session.run() == "complete"
    assert [(lane.name, lane.why) for lane in session.lanes.values() if lane.why] == [
        ("old", "it has another ampbench")
    ]
    assert runs_of(tmp_path).keys() == {"a"}


def test_where_none_can_measure_the_reasons_of_all_are_given(tmp_path: Path) -> None:
    cluster = cluster_of(Machine("a", problem="no torch"), Machine("b", problem="no ampbench"))
    with pytest.raises(NothingToRunError, match=r"no machine of the cluster can measure: a: no torch; b: no ampbench"):
        fleet_session(cluster, tmp_path, EACH).run()
    assert cluster.closed
    assert list_runs(tmp_path) == []


def test_a_lane_that_never_becomes_free_is_waited_for_as_long_as_others_work_and_then_a_while(
    tmp_path: Path, ids: list[str]
) -> None:
    cluster = cluster_of(Machine("a"), Machine("taken", free=lambda _: False))
    all_turns = len(ids) * (2 + ROUNDS)
    session = fleet_session(cluster, tmp_path, EACH, clock=lambda: 1e6 if cluster.turns("a") >= all_turns else 0.0)
    assert session.run() == "complete"
    (lost,) = (lane for lane in session.lanes.values() if lane.why)
    assert lost.why == f"it did not become free within {fleet.WAIT_SECONDS:.0f} s"
    assert_whole(runs_of(tmp_path), ids)


def test_a_full_disk_ends_the_fleet_and_a_resumed_one_measures_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: list[str]
) -> None:
    written, sync = itertools.count(), os.fsync

    def filling(descriptor: int) -> None:
        if next(written) > 40:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    both = lambda _: len(list_runs(tmp_path)) == 2  # noqa: E731
    cluster = cluster_of(Machine("a", wait=both), Machine("b", wait=both))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", filling)
        with pytest.raises(StoreError, match=r"No space left .* --resume \S+ --ray ADDRESS") as caught:
            fleet_session(cluster, tmp_path, SPREAD).run()
    assert cluster.closed
    runs = runs_of(tmp_path)
    assert turns_of(runs)
    assert {f"--resume {run.header.fleet.id} --" in str(caught.value) for run in runs.values()} == {True}
    again = cluster_of(Machine("a"), Machine("b"))
    assert fleet_session(again, tmp_path, SPREAD, earlier=list(runs.values())).run() == "complete"
    assert_whole(runs_of(tmp_path), ids)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"host": "elsewhere"}, True), ({"memory_bytes": 1}, True), ({"threads": 3}, False),
        ({"torch_version": "3"}, False), ({"cpu": "another"}, False), ({"variables": {"OMP_PROC_BIND": "1"}}, False),
    ],
)  # fmt: skip
def test_machines_are_of_one_kind_where_their_names_alone_differ(change: dict[str, object], same: bool) -> None:
    other: Environment = structs.replace(HERE, **change)  # type: ignore[arg-type]
    assert (kind_of(HERE) == kind_of(other)) == same


def share_of(tables: int) -> Share:
    cases = [make_case(name, workload=f"w{number}") for number in range(tables) for name in ("fp32", "bf16_pure")]
    wanted = {case.case_id: [("round", case.case_id, number, False) for number in range(ROUNDS)] for case in cases}
    return Share({case.case_id: case for case in cases}, wanted)


def end(share: Share, case_id: str) -> None:
    share.add(Failure(case_id=case_id, stage="round", cause="exception", message="broken"))


def test_pieces_are_equal_parts_of_what_is_left_and_keep_tables_whole() -> None:
    share = share_of(12)
    pieces = [share.take(2) for _ in range(7)]
    assert [len(piece) for piece in pieces] == [4, 3, 2, 1, 1, 1, 0]
    assert all(len(table) == 2 for piece in pieces for table in piece)
    end(share, pieces[0][0][0])
    share.give_back(pieces[0])
    assert share.take(0) == pieces[0], "a table is finished with its last case"


def test_thirty_two_lanes_that_die_at_random_lose_nothing_repeat_nothing_and_are_busy() -> None:
    draw, lanes, tables = random.Random(1), 32, 500
    share, seconds = share_of(tables), [draw.uniform(20.0, 60.0) for _ in range(tables)]
    free, at_work, lived, done = [(0.0, lane) for lane in range(lanes)], 0.0, 0.0, Counter[str]()
    while free:
        began, lane = heapq.heappop(free)
        if not (piece := share.take(lanes)):
            continue
        measured = piece[: draw.randrange(len(piece))] if draw.random() < 0.05 else piece  # it dies, another appears
        for case_id in itertools.chain.from_iterable(measured):
            done[case_id] += 1
            end(share, case_id)
        share.give_back(piece)
        taken = 12.0 + sum(seconds[int(share.cases[case_id].workload[1:])] for case_id, *_ in measured)
        at_work, lived = at_work + taken, max(lived, began + taken)
        heapq.heappush(free, (began + taken, lane))
    assert done == dict.fromkeys(share.cases, 1)
    assert at_work >= 0.9 * lanes * lived, at_work / (lanes * lived)
