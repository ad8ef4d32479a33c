"""`ampbench.compare`: two runs as an object, by names, paths or results."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ampbench
from ampbench.judge.gate import Policy
from ampbench.records.changes import ChangeStatus, ControlCode, GateCode
from ampbench.store import read_run
from tests.compared_runs import BF16, FP32, noisy, rounds_of
from tests.stored_runs import COMPLETE, make_case, make_divergence, make_memory, write_run

OTHER = make_case(workload="mlp")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Three runs: before; after, with more memory; of another case."""
    found = {}
    for run, peak, cases in (
        ("1-before", 1000, (FP32, BF16)),
        ("2-after", 1100, (FP32, BF16)),
        ("3-other", 9, (OTHER,)),
    ):
        entries = [
            entry
            for case in cases
            for entry in (
                *rounds_of(case, noisy(1e-3, 8, seed=peak), weights_digest="aa"),
                make_memory(case, peak),
                make_divergence(case, output_rel_l2=1e-3),
            )
        ]
        found[run] = write_run(tmp_path / "results", list(cases), *entries, COMPLETE, run=run)
    return found


def test_runs_by_name_path_and_as_results_give_the_same_changes_as_the_command_line(ampbench, files, tmp_path) -> None:
    import ampbench as library

    named = library.compare("1-before", "2-after", tmp_path / "results")
    results = [library.open(path) for path in list(files.values())[:2]]
    stored = read_run(files["1-before"])
    for found in (named, library.compare(*results), library.compare(stored, files["2-after"])):
        assert found.to_dict()["findings"] == named.to_dict()["findings"]
    printed = ampbench("compare", "1-before", "2-after", "--results", tmp_path / "results", "--json").out
    assert json.loads(printed) == json.loads(json.dumps(named.to_dict(), default=str))
    assert [change.status for change in named.changes[:2]] == [ChangeStatus.REGRESSED] * 2
    assert named.base.header.run == named.to_dict()["baseline"]["run"] == "1-before"
    assert [each.code for each in named.statements] == [ControlCode.NEITHER]
    assert list(named.frame["status"]) == [change.status for change in named.changes]
    assert str(named).splitlines()[-1].startswith("2 regressed (memory 2)")
    assert "2 regressed" in named._repr_html_()
    assert {change.kind for change in library.compare(*results, only=["time"], keyword="bf16").changes} == {"time"}


def test_what_cannot_be_compared_is_an_error_and_leaves_a_gate_undecided_as_an_anchor(files) -> None:
    before, after, other = files.values()
    with pytest.raises(ampbench.NothingComparableError):
        ampbench.compare(before, other)
    with pytest.raises(ampbench.NothingToRunError):
        ampbench.compare(before, after, keyword="mlp").changes  # noqa: B018
    with pytest.raises(ampbench.UnknownNameError):
        ampbench.compare(before, after, only=["tme"])
    for candidate, code in ((before, 4), (after, 1)):
        found = ampbench.Comparison(read_run(before), read_run(candidate), Policy())
        result = found.gate(read_run(other))
        assert (result.exit_code, result.why[-1].code) == (code, GateCode.ANCHOR)


def test_comparing_imports_no_torch_and_no_pandas(files) -> None:
    before, after, _ = map(str, files.values())
    code = (
        f"import sys, ampbench; str(ampbench.compare({before!r}, {after!r})); "
        "sys.exit(' '.join({'torch', 'pandas'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr == "\n"
