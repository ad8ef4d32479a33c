"""The session of a fleet against machines of a script, on a clock of their own: no process, no Ray."""

import errno
import itertools
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from ampbench.drive.fleet import WAIT_SECONDS
from ampbench.errors import NothingToRunError, StoreError
from ampbench.records.case import Environment, kind_of
from ampbench.records.measured import KILLED
from ampbench.records.run import EACH, SPREAD, Settings
from ampbench.store import StoredRun, list_runs, read_run
from benchmarks.self.fleet import OPENING_SECONDS, Machine, ScriptedCluster, fleet_session, make_plan
from benchmarks.self.load import make_header

ROUNDS = 3
CASES = 48
SETTINGS = Settings(rounds=ROUNDS)
HERE = make_header().environment


def cluster_of(*machines: Machine, cases: int = CASES, **settings: float) -> ScriptedCluster:
    return ScriptedCluster(machines, make_plan(cases), structs.replace(SETTINGS, **settings))  # type: ignore[arg-type]


def runs_of(results: Path) -> dict[str, StoredRun]:
    runs = map(read_run, list_runs(results))
    return {run.header.fleet.lane: run for run in runs if run.header.fleet is not None}


def turns_of(runs: dict[str, StoredRun]) -> Counter[tuple[str, str, int]]:
    """Return how often each turn was done, the control's apart."""
    found: Counter[tuple[str, str, int]] = Counter()
    for run in runs.values():
        found.update(("round", each.case_id, each.round) for each in run.rounds if not each.control)
        found.update(("memory", case_id, 0) for case_id in run.memory)
        found.update(("divergence", case_id, 0) for case_id in run.divergence)
    return found


def assert_whole(runs: dict[str, StoredRun], cluster: ScriptedCluster, times: int = 1) -> None:
    """Fail unless each turn of the plan was done just so many times."""
    found = turns_of(runs)
    ids = [planned.case.case_id for planned in cluster.plan]
    wanted = [("round", case_id, number) for case_id in ids for number in range(ROUNDS)]
    wanted += [(what, case_id, 0) for case_id in ids for what in ("memory", "divergence")]
    assert found == dict.fromkeys(wanted, times)


def test_every_lane_measures_every_case_and_is_a_run_of_its_own(tmp_path: Path) -> None:
    cluster = cluster_of(Machine("a"), Machine("b", seconds=2.0))
    assert fleet_session(cluster, tmp_path, EACH).run() == "complete"
    runs = runs_of(tmp_path)
    assert runs.keys() == {"a", "b"}
    assert_whole(runs, cluster, times=2)
    for name, run in runs.items():
        assert run.complete
        assert list(run.cases) == [planned.case.case_id for planned in cluster.plan]
        assert run.path.stem.endswith(f"-{name}-abcdef")
    assert cluster.closed


def test_lanes_of_a_kind_share_the_cases_and_each_turn_is_done_once(tmp_path: Path) -> None:
    cluster = cluster_of(Machine("a"), Machine("b"), Machine("c", seconds=3.0))
    assert fleet_session(cluster, tmp_path, SPREAD).run() == "complete"
    runs = runs_of(tmp_path)
    assert_whole(runs, cluster)
    assert min(len(run.cases) for run in runs.values()) > 0
    assert len(runs["c"].cases) < len(runs["a"].cases)


def test_machines_of_another_kind_share_nothing(tmp_path: Path) -> None:
    other = structs.replace(HERE, threads=2)
    cluster = cluster_of(Machine("a"), Machine("b", other), Machine("c", other))
    assert fleet_session(cluster, tmp_path, SPREAD).run() == "complete"
    runs = runs_of(tmp_path)
    assert len(runs["a"].cases) == CASES
    assert len(runs["b"].cases) + len(runs["c"].cases) == CASES
    assert_whole(runs, cluster, times=2)


def test_another_lane_goes_on_with_what_a_dead_one_had_begun_and_repeats_nothing(tmp_path: Path) -> None:
    cluster = cluster_of(Machine("a", dies=60.0), Machine("b"))
    session = fleet_session(cluster, tmp_path, SPREAD)
    assert session.run() == "complete"
    assert session.left == 0
    runs = runs_of(tmp_path)
    assert runs["a"].rounds or runs["a"].memory
    assert_whole(runs, cluster)


def test_a_lane_that_joins_late_takes_its_part(tmp_path: Path) -> None:
    cluster = cluster_of(Machine("a"), Machine("late", appears=40.0))
    fleet_session(cluster, tmp_path, SPREAD).run()
    runs = runs_of(tmp_path)
    assert runs["late"].cases
    assert_whole(runs, cluster)


def test_a_lane_that_comes_back_goes_on_with_its_own_run(tmp_path: Path) -> None:
    cluster = cluster_of(Machine("a", dies=60.0), Machine("b"), Machine("a", appears=70.0, id="again"))
    session = fleet_session(cluster, tmp_path, EACH)
    assert session.run() == "complete"
    assert session.left == 0
    runs = runs_of(tmp_path)
    assert len(list_runs(tmp_path)) == 2
    assert_whole(runs, cluster, times=2)


def test_where_nobody_is_left_each_case_says_why_and_is_measured_on_resume(tmp_path: Path) -> None:
    cluster = cluster_of(Machine("a", dies=60.0), Machine("b", structs.replace(HERE, threads=2)))
    session = fleet_session(cluster, tmp_path, SPREAD)
    assert session.run() == "complete"
    runs = runs_of(tmp_path)
    failures = runs["a"].failures
    assert failures
    assert session.left == len(failures)
    assert {(one.cause, one.message) for one in failures.values()} == {(KILLED, "a was lost: its node died")}
    resumed = cluster_of(Machine("other"), Machine("b", structs.replace(HERE, threads=2)))
    session = fleet_session(resumed, tmp_path, SPREAD, earlier=list(runs.values()))
    assert session.run() == "complete"
    assert session.left == 0
    assert_whole(runs_of(tmp_path), resumed, times=2)


def test_an_interruption_keeps_what_was_measured_and_a_resumed_fleet_measures_the_rest(tmp_path: Path) -> None:
    cluster = cluster_of(Machine("a"), Machine("b"))
    stops = iter([*itertools.repeat(False, 90), True])

    def watch(_: str, __: object) -> None:
        if next(stops, False):
            raise KeyboardInterrupt

    session = fleet_session(cluster, tmp_path, SPREAD, watch)
    assert session.run() == "interrupted"
    runs = runs_of(tmp_path)
    assert {run.ended for run in runs.values()} == {"interrupted"}
    again = cluster_of(Machine("a"), Machine("b"), Machine("c"))
    assert fleet_session(again, tmp_path, SPREAD, earlier=list(runs.values())).run() == "complete"
    found = runs_of(tmp_path)
    assert_whole(found, again)
    assert {name: run.path for name, run in found.items() if name != "c"} == {
        name: run.path for name, run in runs.items()
    }


def test_a_complete_fleet_that_is_resumed_asks_for_nothing(tmp_path: Path) -> None:
    fleet_session(cluster_of(Machine("a")), tmp_path, EACH).run()
    cluster = cluster_of(Machine("a"))
    session = fleet_session(cluster, tmp_path, EACH, earlier=list(runs_of(tmp_path).values()))
    assert session.run() == "complete"
    assert cluster.asked == []


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
    assert sorted(versions) == ["0", "9"]


def test_a_case_that_fails_on_a_lane_is_not_tried_on_another(tmp_path: Path) -> None:
    case_id = make_plan(CASES)[5].case.case_id
    cluster = cluster_of(Machine("a", fails=[case_id]), Machine("b", fails=[case_id]))
    session = fleet_session(cluster, tmp_path, SPREAD)
    assert session.run() == "complete"
    assert session.left == 0
    runs = runs_of(tmp_path)
    assert sum(case_id in run.failures for run in runs.values()) == 1


def test_what_cannot_run_is_told_once_for_machines_that_share(tmp_path: Path) -> None:
    plan = make_plan(CASES)
    plan[3] = replace(plan[3], skip="no loss")
    cluster = ScriptedCluster([Machine("a"), Machine("b")], plan, SETTINGS)
    fleet_session(cluster, tmp_path, SPREAD).run()
    told = [skip for run in runs_of(tmp_path).values() for skip in run.skips.values()]
    assert [(one.case_id, one.reason) for one in told] == [(cluster.plan[3].case.case_id, "no loss")]


def test_a_machine_that_cannot_measure_is_left_out_with_the_reason(tmp_path: Path) -> None:
    cluster = cluster_of(Machine("a"), Machine("old", problem="it has another ampbench"))
    session = fleet_session(cluster, tmp_path, EACH)
    assert session.run() == "complete"
    assert [(lane.name, lane.why) for lane in session.lanes if lane.why] == [("old", "it has another ampbench")]
    assert runs_of(tmp_path).keys() == {"a"}


def test_where_none_can_measure_the_reasons_of_all_are_said(tmp_path: Path) -> None:
    cluster = cluster_of(Machine("a", problem="no torch"), Machine("b", problem="no ampbench"))
    with pytest.raises(NothingToRunError, match=r"no machine of the cluster can measure: a: no torch; b: no ampbench"):
        fleet_session(cluster, tmp_path, EACH).run()
    assert cluster.closed
    assert list_runs(tmp_path) == []


def test_a_lane_that_never_becomes_free_is_waited_for_as_long_as_others_work_and_then_a_while(tmp_path: Path) -> None:
    cluster = cluster_of(Machine("a"), Machine("taken", free=1e9))
    session = fleet_session(cluster, tmp_path, EACH)
    assert session.run() == "complete"
    (lost,) = (lane for lane in session.lanes if lane.why)
    assert lost.why == f"it did not become free within {WAIT_SECONDS:.0f} s"
    assert cluster.now >= OPENING_SECONDS + CASES * (2 + ROUNDS)


def test_a_full_disk_ends_the_fleet_and_what_was_stored_before_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = itertools.count()
    sync = os.fsync

    def filling(descriptor: int) -> None:
        if next(written) > 40:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    cluster = cluster_of(Machine("a"), Machine("b"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", filling)
        with pytest.raises(StoreError, match=r"No space left .* continue with --resume \S+ --ray ADDRESS") as caught:
            fleet_session(cluster, tmp_path, SPREAD).run()
    assert cluster.closed
    runs = runs_of(tmp_path)
    assert turns_of(runs)
    assert {f"--resume {run.header.fleet.id} --" in str(caught.value) for run in runs.values()} == {True}
    again = cluster_of(Machine("a"), Machine("b"))
    assert fleet_session(again, tmp_path, SPREAD, earlier=list(runs.values())).run() == "complete"
    assert_whole(runs_of(tmp_path), again)


def test_a_run_file_that_is_deleted_meanwhile_ends_the_fleet_and_the_other_lanes_keep_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, sync = itertools.count(), os.fsync

    def deleting(descriptor: int) -> None:
        sync(descriptor)
        if next(written) == 40:
            Path(f"/proc/self/fd/{descriptor}").readlink().unlink()

    cluster = cluster_of(Machine("a"), Machine("b"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", deleting)
        with pytest.raises(StoreError, match=r"was moved or deleted .* then ampbench run anew$"):
            fleet_session(cluster, tmp_path, SPREAD).run()
    assert cluster.closed
    (kept,) = runs_of(tmp_path).values()
    assert kept.rounds
    assert not kept.cut


def test_progress_ends_where_all_turns_are_done(tmp_path: Path) -> None:
    case_id = make_plan(CASES)[5].case.case_id
    lines = []
    cluster = cluster_of(Machine("a", fails=[case_id]), Machine("b"))
    session = fleet_session(cluster, tmp_path, SPREAD, lambda line, _: lines.append(line))
    session.run()
    assert session.done == session.total
    assert lines[-1] == f"2 lanes; {session.done} of {session.total} turns, about 0 s left"


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"host": "elsewhere"}, True),
        ({"memory_bytes": 1}, True),
        ({"threads": 3}, False),
        ({"torch_version": "3"}, False),
        ({"cpu": "another"}, False),
        ({"variables": {"OMP_PROC_BIND": "1"}}, False),
    ],
)
def test_machines_are_of_one_kind_where_their_names_alone_differ(change: dict[str, object], same: bool) -> None:
    other: Environment = structs.replace(HERE, **change)  # type: ignore[arg-type]
    assert (kind_of(HERE) == kind_of(other)) == same
