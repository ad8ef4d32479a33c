import errno
import gzip
import os
import socket
from pathlib import Path

import pytest

from ampbench.cli.main import main
from ampbench.errors import StoreError, UnknownNameError, UsageError
from ampbench.judge.frame import load
from ampbench.records.kinds import CASTS, RULES
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import SPREAD, Fleet
from ampbench.store import (
    check_results,
    find_fleet,
    find_run,
    find_runs,
    list_runs,
    measured_files,
    measures,
    read_found,
    read_run,
    run_files,
    run_id,
)
from tests.stored_runs import COMPLETE, make_case, make_round, write_run

SKIP = Skip(case_id=make_case().case_id, reason="no loss given")
FIRST, SECOND, THIRD = "20260130T090000Z-bench-aaa111", "20260131T120000Z-bench-1f9a3c", "20260131T130000Z-lab-1fbbbb"


@pytest.fixture
def results(tmp_path):
    for run in (FIRST, SECOND, THIRD):
        write_run(tmp_path, [make_case()], SKIP, COMPLETE, run=run)
    return tmp_path


def test_reading_a_folder_writes_nothing_into_it(results, capsys):
    for run in (FIRST, SECOND):
        write_run(results, [make_case()], make_round(make_case()), COMPLETE, run=f"{run}0")

    def contents():
        return {path: path.read_bytes() if path.is_file() else None for path in results.rglob("*")}

    before = contents()
    verbs = (["list", "runs"], ["show", "latest"], ["compare", f"{FIRST}0", f"{SECOND}0"], ["trend"])
    for verb in verbs:
        main([*verb, "--results", str(results)])
    load(results)
    assert contents() == before


@pytest.mark.parametrize(
    ("name", "run"),
    [
        (FIRST, FIRST),
        ("20260130", FIRST),
        ("20260131T12", SECOND),
        ("1f9", SECOND),
        ("1fbbbb", THIRD),
        ("latest", THIRD),
    ],
)
def test_a_run_is_found_by_id_prefix_last_part_or_as_the_latest(results, name, run):
    assert find_run(name, results).stem == run


def test_several_runs_of_one_prefix_are_refused_by_name(results):
    with pytest.raises(UsageError, match=f"2 runs begin or end with '1f'.*{SECOND}, {THIRD}"):
        find_run("1f", results)


def test_a_folder_of_results_is_no_run(results, monkeypatch):
    monkeypatch.chdir(results.parent)
    with pytest.raises(UsageError, match=f"{results.name} is a folder, not a run"):
        find_run(results.name, results)


@pytest.mark.parametrize("name", ["20260131T120000Z-bench-1f9a3d", "nonsense", ""])
def test_an_unknown_run_is_refused_with_the_nearest(results, name):
    with pytest.raises(UnknownNameError, match=SECOND):
        find_run(name, results)


def test_a_check_names_each_damaged_file_and_takes_a_cut_for_none(results):
    first, second, third = list_runs(results)
    first.write_bytes(first.read_bytes()[:-1])
    second.write_bytes(second.read_bytes() + b"{}\n")
    found = check_results(results)
    assert [path for path, _ in found] == [first, second, third]
    assert [problem is None for _, problem in found] == [True, False, True]
    assert found[1][1].startswith(f"{second}, line 5: damaged")


@pytest.fixture
def explained(results):
    """Add two newer runs that measured nothing."""
    write_run(results, [], COMPLETE, run="20260201T000000Z-bench-ccc111", explains=RULES)
    write_run(results, [make_case()], COMPLETE, run="20260202T000000Z-bench-ccc222", explains=CASTS)
    return results


def test_the_latest_run_is_the_newest_that_measured(explained):
    assert find_run("latest", explained).stem == THIRD
    assert find_run("ccc1", explained).stem == "20260201T000000Z-bench-ccc111"
    assert len(list_runs(explained)) == 5


def test_a_run_measures_unless_it_says_what_it_explains(explained):
    *measured, rules, casts = list_runs(explained)
    assert [measures(path) for path in measured] == [True] * 3
    assert not measures(rules)
    assert not measures(casts)
    rules.write_text("damaged")
    assert measures(rules)
    assert run_files(explained) == run_files(explained / "runs") == [*measured, rules, casts]
    assert run_files(explained, measuring=True) == measured_files(explained) == [*measured, rules]


@pytest.fixture
def compressed(results):
    """Compress the second run, and the third beside its plain file."""
    for run, kept in ((SECOND, False), (THIRD, True)):
        plain = results / "runs" / f"{run}.jsonl"
        plain.with_name(f"{run}.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
        if not kept:
            plain.unlink()
    return results


def test_compressed_runs_are_listed_loaded_and_found_by_id_and_one_that_is_there_plain_too_is_once(compressed):
    names = [f"{FIRST}.jsonl", f"{SECOND}.jsonl.gz", f"{THIRD}.jsonl"]
    assert [path.name for path in list_runs(compressed)] == names
    assert [path.name for path in run_files(compressed / "runs")] == names
    assert list(map(run_id, list_runs(compressed))) == [FIRST, SECOND, THIRD]
    for name in (SECOND, "1f9", "20260131T12"):
        assert find_run(name, compressed).name == f"{SECOND}.jsonl.gz"
    assert find_run("latest", compressed).name == f"{THIRD}.jsonl"


FUTURE = "20990101T000000Z-bench-abc123"


def doubts_of(results: Path) -> tuple[Path, list[str]]:
    said: list[str] = []
    return find_run("latest", results, said.append), said


@pytest.mark.parametrize("content", [b'{"header":' * 5000 + b"\n", b"nonsense\n", b"", b'{"header":{"schema":99}}\n'])
def test_latest_goes_on_beyond_a_file_that_cannot_be_read_and_names_it(results, content):
    bad = results / "runs" / f"{FUTURE}.jsonl"
    bad.write_bytes(content)
    latest, (said,) = doubts_of(results)
    assert latest.stem == THIRD
    assert said.startswith(f"latest leaves out what cannot be read: {bad}, line 1: ")


def bind(path):
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), bind])
def test_what_is_no_file_is_refused_by_name_and_not_waited_for(results, monkeypatch, make):
    monkeypatch.chdir(results / "runs")
    odd = Path(f"{FUTURE}.jsonl")
    make(odd)
    found = dict(check_results(results))
    odd = results / "runs" / odd
    assert [problem for problem in found.values() if problem] == [f"cannot read {odd}: it is no file"]
    assert doubts_of(results)[0].stem == THIRD
    with pytest.raises(UsageError, match=f"{odd}"):
        find_run(str(odd), results)
    with pytest.raises(StoreError, match=f"cannot read {odd}: it is no file"):
        read_run(odd)


def test_a_folder_that_cannot_be_read_is_said_and_not_taken_for_an_empty_one(results, monkeypatch):
    denied = results / "runs"

    def denying(real):
        def deny(folder):
            if Path(folder) == denied:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
            return real(folder)

        return deny

    with monkeypatch.context() as patch:
        for name in ("listdir", "scandir"):  # root, as whom tests may run, is denied nothing
            patch.setattr(os, name, denying(getattr(os, name)))
        with pytest.raises(StoreError, match=f"cannot read {denied}: Permission denied"):
            list_runs(results)
        assert check_results(results) == [(denied, f"cannot read {denied}: Permission denied")]
    plain = results / "other" / "runs"
    plain.parent.mkdir()
    plain.touch()
    with pytest.raises(StoreError, match=f"cannot read {plain}: it is no folder"):
        list_runs(plain.parent)
    assert check_results(plain.parent) == [(plain, f"cannot read {plain}: it is no folder")]


def test_lanes_that_share_the_cases_of_a_fleet_are_found_and_read_as_one_run(results):
    cases = [make_case(batch_size=size) for size in (1, 2)]
    causes = zip(cases, ("crash", "killed"), strict=True)
    failures = [Failure(case_id=case.case_id, stage="round", cause=cause, message="") for case, cause in causes]
    for lane, entries in (("a", failures), ("b", [make_round(case) for case in cases])):
        fleet = Fleet(id="f1ee70", lane=lane, on=SPREAD)
        write_run(results, cases, *entries, COMPLETE, run=f"20260201T090000Z-{lane}-f1ee70", fleet=fleet)
    lanes = list_runs(results)[-2:]
    assert find_runs("f1ee70", results) == find_runs("latest", results) == find_fleet(lanes[0].stem, results) == lanes
    assert find_runs(lanes[0].stem, results) == lanes[:1]
    with pytest.raises(UsageError, match=f"run {THIRD} is no fleet's"):
        find_fleet(THIRD, results)
    together = read_found("f1ee70", results)
    assert (together.header.fleet.lane, len(together.rounds)) == ("a + b", 2)
    assert [*together.failures.values()] == failures[:1], "a measured case outdoes a killed worker"
    for lane in "cd":
        fleet = Fleet(id="f1ee71", lane=lane)
        write_run(results, cases, COMPLETE, run=f"20260202T090000Z-{lane}-f1ee71", fleet=fleet)
    assert read_found("latest", results).header.fleet.lane == "d", "each lane has its own cases"
