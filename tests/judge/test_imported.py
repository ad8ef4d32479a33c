from dataclasses import replace

import pytest

from ampbench.judge.compare import compare
from ampbench.judge.gate import judge
from ampbench.judge.policy import Policy
from ampbench.judge.rounds import MeasuredRun
from ampbench.records.measured import Failure
from ampbench.records.run import Imported
from ampbench.records.verdicts import OUTCOME, Code, Verdict
from tests.compared_runs import BF16, FP32, Times, environment, make_run, noisy
from tests.stored_runs import make_header

READ = {"seconds_median": 1e-3, "peak_memory_bytes": 4096.0, "grad_rel_l2": 1e-3, "output_floor_ratio": 2.0}
KINDS = {
    "seconds_median": "time",
    "peak_memory_bytes": "memory",
    "grad_rel_l2": "accuracy",
    "output_floor_ratio": "accuracy",
}


def imported(program="asv", readings=READ, cases=(FP32,), **header):
    """Return a run that was read from another program, with the same readings of each case."""
    run = make_run(Times(*((case, []) for case in cases)), header=make_header(**header))
    return replace(
        run,
        header=replace(run.header, imported=Imported(program=program, file="a.json")),
        memory={},
        divergence={},
        readings={metric: {case.case_id: value for case in cases} for metric, value in readings.items()},
    )


def by_metric(baseline, candidate):
    comparison = compare(baseline, candidate)
    return {one.metric: one for one in comparison.findings}


@pytest.mark.parametrize("program", ["asv", "pytest-benchmark"])
def test_two_imported_runs_show_their_numbers_and_get_no_verdict(program):
    found = by_metric(imported(program), imported(program, {**READ, "seconds_median": 9.0}))
    assert {metric: one.kind for metric, one in found.items()} == KINDS
    for one in found.values():
        assert (one.verdict, one.code, one.change) == (Verdict.INCOMPARABLE, Code.IMPORTED, None)
    assert (found["seconds_median"].baseline, found["seconds_median"].candidate) == (1e-3, 9.0)
    how = f"compare with {program} compare, or measure with ampbench ab"
    assert found["seconds_median"].reason == f"imported from {program}: its samples were not kept; {how}"
    lost = "what the number was made from was not kept"
    assert found["peak_memory_bytes"].reason == found["grad_rel_l2"].reason == f"imported from {program}: {lost}; {how}"


def test_one_imported_side_is_named():
    measured = make_run(Times((FP32, noisy(1e-3))), peak_bytes=4096, grad_rel_l2=1e-3)
    found = by_metric(measured, imported())
    lost = "the candidate was imported from asv: its samples were not kept; measure with ampbench ab"
    assert found["seconds_median"].reason == lost
    assert found["seconds_median"].baseline == pytest.approx(1e-3, rel=0.01)
    assert (found["peak_memory_bytes"].baseline, found["peak_memory_bytes"].candidate) == (4096, 4096)
    assert (found["output_floor_ratio"].baseline, found["output_floor_ratio"].candidate) == (4, 2)
    back = by_metric(imported(), measured)
    assert back["grad_rel_l2"].reason.startswith("the baseline was imported from asv: ")
    for metric, kind in KINDS.items():
        for one in (found[metric], back[metric]):
            assert (one.verdict, one.code, one.kind) == (Verdict.INCOMPARABLE, Code.IMPORTED, kind)


def test_a_ratio_to_the_floor_is_shown_where_nothing_else_was_read():
    (found,) = compare(*(imported(readings={"output_floor_ratio": value}) for value in (2.0, 3.0))).findings
    assert (found.metric, found.baseline, found.candidate) == ("output_floor_ratio", 2.0, 3.0)
    assert found.code is Code.IMPORTED


def test_a_rate_stands_in_for_a_time_that_neither_side_has():
    (found,) = compare(*[imported(readings={"items_per_second": 8000.0})] * 2).findings
    assert (found.metric, found.kind, found.code) == ("items_per_second", "time", Code.IMPORTED)
    timed = imported(readings={"items_per_second": 8000.0, "seconds_median": 1e-3})
    assert list(by_metric(timed, timed)) == ["seconds_median"]


def test_two_programs_are_both_named_and_neither_can_compare():
    found = by_metric(imported("asv"), imported("pytest-benchmark"))
    reason = "imported from asv and pytest-benchmark: its samples were not kept; measure with ampbench ab"
    assert found["seconds_median"].reason == reason


def test_another_machine_or_unknown_threads_change_nothing_about_that():
    elsewhere = environment(make_header(), host="other", cpu="", cpu_count=None, threads=None)
    found = by_metric(imported(), imported(environment=elsewhere.environment))
    assert {one.code for one in found.values()} == {Code.IMPORTED}


def test_a_metric_that_one_side_lacks_is_no_number_there():
    found = by_metric(imported(), imported(readings={"seconds_median": 1e-3}))
    assert (found["peak_memory_bytes"].baseline, found["peak_memory_bytes"].candidate) == (4096, None)
    assert found["peak_memory_bytes"].code is Code.IMPORTED


def test_a_time_that_an_imported_side_lacks_is_not_passed_over():
    measured, other = make_run(Times((FP32, noisy(1e-3)))), imported(readings={"peak_memory_bytes": 4096.0})
    lost, gained = by_metric(measured, other)["seconds_median"], by_metric(other, measured)["seconds_median"]
    assert (lost.code, lost.candidate, lost.reason) == (Code.NOT_MEASURED, None, "the candidate has no number")
    assert (gained.code, gained.baseline, gained.reason) == (Code.NOT_MEASURED, None, "the baseline has no number")
    assert "seconds_median" not in by_metric(other, other)


def test_cases_with_rounds_are_decided_beside_imported_ones():
    times = Times((FP32, noisy(1e-3)), (BF16, noisy(1e-3, seed=1)))
    slower = Times((FP32, noisy(1.5e-3, seed=2)), (BF16, []))
    candidate = replace(make_run(slower), readings={"seconds_median": {BF16.case_id: 1e-3}})
    found = {one.case.precision: one for one in compare(make_run(times), candidate).findings if one.kind == "time"}
    assert found["fp32"].verdict is not Verdict.INCOMPARABLE
    assert found["bf16_autocast"].code is Code.IMPORTED
    assert found["bf16_autocast"].reason.startswith("the candidate was imported from ampbench: ")


def test_an_imported_case_that_fails_is_a_regression_and_one_without_a_number_is_not_measured():
    failure = Failure(case_id=FP32.case_id, stage="round", cause="unknown", message="no value")
    failed = replace(imported(), failures={FP32.case_id: failure})
    found = by_metric(imported(), failed)[OUTCOME]
    assert (found.verdict, found.reason) == (Verdict.REGRESSED, "was ok and failed: unknown: no value")
    assert MeasuredRun.of(imported()).outcome(FP32.case_id).name == "ok"
    assert by_metric(imported(), imported(readings={}))[OUTCOME].code is Code.NOT_MEASURED


def test_a_gate_on_imported_runs_has_nothing_to_compare():
    result = judge(compare(imported(), imported()), Policy())
    assert result.exit_code == 4
    assert "imported from asv: its samples were not kept" in result.sentences[0]
