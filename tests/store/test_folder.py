import gzip
import re
from pathlib import Path

import pytest

from ampbench.errors import NothingToRunError, UnknownNameError, UsageError
from ampbench.records.casts import CastPass, CastTrace
from ampbench.records.runs import CASTS, RULES
from ampbench.store import (
    check_results,
    find_run,
    list_runs,
    measured_files,
    measures,
    read_run,
    run_files,
    run_id,
)
from tests.stored_runs import COMPLETE, make_case, write_run

FIRST, SECOND, THIRD = "20260130T090000Z-bench-aaa111", "20260131T120000Z-bench-1f9a3c", "20260131T130000Z-lab-1fbbbb"


@pytest.fixture
def results(tmp_path):
    for run in (SECOND, THIRD, FIRST):
        write_run(tmp_path, [make_case()], COMPLETE, run=run)
    return tmp_path


def test_runs_are_listed_from_the_oldest_to_the_newest(results):
    assert [path.stem for path in list_runs(results)] == [FIRST, SECOND, THIRD]


def test_a_folder_without_runs_lists_none(tmp_path):
    assert list_runs(tmp_path / "missing") == []


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


def test_a_run_is_found_by_its_path(results):
    path = results / "runs" / f"{FIRST}.jsonl"
    assert find_run(str(path), results / "elsewhere") == path


def test_several_runs_of_one_prefix_are_refused_by_name(results):
    with pytest.raises(UsageError, match=f"2 runs begin or end with '1f'.*{SECOND}, {THIRD}"):
        find_run("1f", results)


@pytest.mark.parametrize("name", ["20260131T120000Z-bench-1f9a3d", "nonsense", ""])
def test_an_unknown_run_is_refused_with_the_nearest(results, name):
    with pytest.raises(UnknownNameError, match=SECOND):
        find_run(name, results)


def test_a_path_that_is_not_there_is_refused(results):
    with pytest.raises(UsageError, match=r"there is no run file other\.jsonl"):
        find_run("other.jsonl", results)


def test_a_folder_without_runs_says_how_to_measure_one(tmp_path):
    with pytest.raises(NothingToRunError, match="`ampbench run`"):
        find_run("latest", tmp_path)


def test_a_folder_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(UsageError, match=r"there is no results folder .*nosuch"):
        find_run("latest", tmp_path / "nosuch")


def test_a_check_names_each_damaged_file_and_takes_a_cut_for_none(results):
    first, second, third = list_runs(results)
    first.write_bytes(first.read_bytes()[:-1])
    second.write_bytes(second.read_bytes() + b"{}\n")
    found = check_results(results)
    assert [path for path, _ in found] == [first, second, third]
    assert [problem is None for _, problem in found] == [True, False, True]
    assert found[1][1].startswith(f"{second}, line 4: damaged")


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


def test_where_every_run_explains_none_is_the_latest(tmp_path):
    write_run(tmp_path, [], COMPLETE, explains=RULES)
    with pytest.raises(NothingToRunError, match=r"no run in .* has measured"):
        find_run("latest", tmp_path)


def test_a_run_measures_unless_it_says_what_it_explains(explained):
    *measured, rules, casts = list_runs(explained)
    assert [measures(path) for path in measured] == [True] * 3
    assert not measures(rules)
    assert not measures(casts)
    rules.write_text("damaged")
    assert measures(rules)
    assert run_files(explained) == run_files(explained / "runs") == [*measured, rules, casts]
    assert run_files(explained, measuring=True) == measured_files(explained) == [*measured, rules]


def test_a_folder_of_runs_that_only_explain_says_so(tmp_path):
    write_run(tmp_path, [], COMPLETE, run=FIRST, explains=RULES)
    with pytest.raises(UsageError, match=f"run {FIRST} explains rules and measured nothing: ampbench show {FIRST}"):
        measured_files(tmp_path)


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


def test_a_check_looks_into_every_file_the_compressed_ones_too(compressed):
    damaged = compressed / "runs" / f"{SECOND}.jsonl.gz"
    damaged.write_bytes(damaged.read_bytes()[:-12])
    found = dict(check_results(compressed))
    assert len(found) == 4
    assert [path for path, problem in found.items() if problem] == [damaged]


def test_a_check_decodes_every_trace_also_one_that_a_later_outdid(tmp_path):
    case = make_case()
    passes = [CastPass(case_id=case.case_id, how="device", trace=CastTrace())] * 2
    path = write_run(tmp_path, [case], *passes, COMPLETE, explains=CASTS)
    assert check_results(tmp_path) == [(path, None)]
    path.write_bytes(path.read_bytes().replace(b'"timed":false', b'"timed":0', 1))
    assert read_run(path).casts[case.case_id] == passes[1]
    ((_, problem),) = check_results(tmp_path)
    assert problem.startswith(f"{path}, line 3: damaged: Expected `bool`")


@pytest.mark.parametrize("name", ["torch-2.15.jsonl.gz", "old.json.gz", "run.jsonl"])
def test_a_name_with_the_suffix_of_a_file_is_a_path(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=rf"there is no run file {re.escape(name)}"):
        find_run(name, "results")
    (tmp_path / name).touch()
    assert find_run(name, "results") == Path(name)
