import json
from collections.abc import Callable
from pathlib import Path

import pytest

import ampbench as library
from ampbench.records.changes import ChangeStatus, ControlCode
from ampbench.store import read_run
from tests.compared_runs import BF16, FP32, noisy, rounds_of
from tests.stored_runs import COMPLETE, make_case, make_divergence, make_memory, write_run

OTHER = make_case(workload="mlp")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A results folder with three runs: before; after, with fp32 3% slower and more memory; one of another case."""
    for run, seconds, peak, cases in (("1-before", 1e-3, 1000, (FP32, BF16)), ("2-after", 1.03e-3, 1100, (FP32, BF16)),
                                      ("3-other", 1e-3, 1000, (OTHER,))):  # fmt: skip
        entries = []
        for case in cases:
            value = seconds if case is FP32 else 1e-3
            entries += [
                *rounds_of(case, noisy(value, 8, seed=int(run[0])), weights_digest="aa"),
                make_memory(case, peak),
            ]
            entries += [make_divergence(case, output_rel_l2=1e-3)]
        write_run(tmp_path / "results", list(cases), *entries, COMPLETE, run=run)
    return tmp_path / "results"


def test_two_stored_runs_are_compared_and_the_exit_code_says_nothing_of_what_was_found(ampbench, folder):
    found = ampbench("compare", "1-before", "2-after", "--results", folder)
    assert (found.code, found.err) == (0, "")
    assert "regressed" in found.out
    last = " ".join(found.out.split("\n\n")[-1].split())
    assert last == "3 regressed (time 1, memory 2), 5 unchanged"


def rows(found):
    assert (found.code, found.err) == (0, "")
    return json.loads(found.out)["findings"]


def test_a_keyword_and_kinds_narrow_what_is_shown(ampbench, folder):
    narrowed = rows(ampbench("compare", "1-before", "2-after", "--results", folder, "-k", "not bf16", "--json",
                             "--metric", "time,memory"))  # fmt: skip
    assert {row["case_id"] for row in narrowed} == {FP32.case_id}
    assert {row["kind"] for row in narrowed} == {"time", "memory"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ("1-before", "3-other"),
            4,
            "nothing in common that can be compared: 1-before has 2 cases, such as",
        ),
        (("1-before", "4-none"), 2, "unknown run '4-none'"),
        (("1-before", "2-after", "--metric", "tme"), 2, "unknown kind 'tme': did you mean time?"),
        (("1-before", "2-after", "-k", "resnet"), 5, "no case of both runs matches -k 'resnet'"),
        (("1-before", "2-after", "-k", "and"), 2, "is not an expression"),
        (("1-before",), 2, "missing argument 'CANDIDATE'"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(ampbench: Callable, folder, arguments, code, said):
    found = ampbench("compare", *arguments, "--results", folder)
    assert (found.code, found.out) == (code, "")
    assert said in found.err
    assert found.err.count("\n") == 1


def test_runs_by_name_path_and_as_results_give_the_same_changes_as_the_command_line(ampbench, folder):
    named = library.compare("1-before", "2-after", folder)
    before, after, _ = files = sorted((folder / "runs").iterdir())
    results = [library.open(path) for path in files[:2]]
    for found in (named, library.compare(*results), library.compare(read_run(before), after)):
        assert found.to_dict()["findings"] == named.to_dict()["findings"]
    printed = ampbench("compare", "1-before", "2-after", "--results", folder, "--json").out
    assert json.loads(printed) == json.loads(json.dumps(named.to_dict(), default=str))
    assert [change.status for change in named.changes[:3]] == [ChangeStatus.REGRESSED] * 3
    assert named.base.header.run == named.to_dict()["baseline"]["run"] == "1-before"
    assert [each.code for each in named.statements] == [ControlCode.NEITHER]
    assert list(named.frame["status"]) == [change.status for change in named.changes]
    assert "\n3 regressed (time 1, memory 2)" in str(named)
    assert "3 regressed" in named._repr_html_()
    assert {change.kind for change in library.compare(*results, only=["time"], keyword="bf16").changes} == {"time"}


CHECKS = [
    str(Path(__file__).parents[2] / "results" / "checks" / f"torch-{version}.jsonl.gz")
    for version in ("2.11.0", "2.12.1")
]


def test_two_runs_of_checks_say_which_defects_came_and_went(ampbench):
    compared = ampbench("compare", *CHECKS, "--json")
    defects = json.loads(compared.out)["defects"]
    assert compared.code == 0
    assert defects
    assert all(defect["came"] == (defect["after"] == "defective") for defect in defects)
    assert ampbench("compare", *CHECKS, "--metric", "time").code == 0
