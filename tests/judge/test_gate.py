"""The gate: what a policy makes of a comparison, made by hand."""

import dataclasses
import datetime
import itertools
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampbench.core.metrics import DRIFT, GATED
from ampbench.judge.gate import Ignore, Policy, Rule, judge
from ampbench.records.case import Case
from ampbench.records.changes import (
    OUTCOME,
    Change,
    ChangeCode,
    ChangeStatus,
    Comparison,
    ControlCode,
    ControlVerdict,
    Decided,
    GateCode,
    GateResult,
    Side,
)
from ampbench.records.rules import RuleChange
from tests.stored_runs import make_case

QUIET = ControlVerdict(cells=1, fired=False, code=ControlCode.QUIET, facts={"change": 0.0, "case": "mlp"})
FIRED = ControlVerdict(cells=1, fired=True, code=ControlCode.FIRED, facts={"change": 0.09, "case": "mlp"})
CODES = {
    ChangeStatus.REGRESSED: ChangeCode.BEYOND_THRESHOLD,
    ChangeStatus.IMPROVED: ChangeCode.BEYOND_THRESHOLD,
    ChangeStatus.UNCHANGED: ChangeCode.WITHIN_THRESHOLD,
    ChangeStatus.INCONCLUSIVE: ChangeCode.UNDECIDED,
    ChangeStatus.INCOMPARABLE: ChangeCode.NOT_MEASURED,
}
CHANGES = {
    ChangeStatus.REGRESSED: 0.08,
    ChangeStatus.IMPROVED: -0.08,
    ChangeStatus.UNCHANGED: 0.001,
    ChangeStatus.INCONCLUSIVE: 0.01,
}
TIME, MEMORY, ERROR = "seconds_median", "peak_memory_bytes", "output_rel_l2"
UNTIL = datetime.date(2026, 12, 31)


def finding(verdict: ChangeStatus, metric: str = TIME, case: Case | None = None, **changes: Any) -> Change:
    fields: dict[str, Any] = {
        "case": case or make_case(),
        "metric": metric,
        "kind": metric if metric == OUTCOME else GATED[metric].kind,
        "status": verdict,
        "code": CODES[verdict],
        "facts": {"of": "blocks", "side": "candidate"},
        "blocks": 16,
        "baseline": 1.0,
        "candidate": 1.0,
        "change": CHANGES.get(verdict),
        "threshold": 0.02,
    }
    if metric == OUTCOME:
        fields |= {"code": ChangeCode.OUTCOME_CHANGED, "change": None, "baseline": None, "candidate": None}
    return Change(**fields | changes)


def compared(*findings: Change, **changes: Any) -> Comparison:
    fields: dict[str, Any] = {
        "baseline": Side(run="base", path="runs/base.jsonl"),
        "candidate": Side(run="new", path="runs/new.jsonl"),
        "interleaved": False,
        "differences": [],
        "control": QUIET,
        "findings": findings,
        "other_numbers": [one.case.case_id for one in findings if one.code is ChangeCode.OTHER_WEIGHTS],
    }
    return Comparison(**fields | changes)


def codes(result: GateResult) -> list[GateCode]:
    return [point.code for point in result.why]


def notes(result: GateResult) -> list[GateCode]:
    return [point.code for point in result.notes if point.code is not GateCode.NOT_GATED]


SAME = finding(ChangeStatus.UNCHANGED)
WORSE = finding(ChangeStatus.REGRESSED)
UNDECIDED = finding(ChangeStatus.INCONCLUSIVE)
FAILS = finding(ChangeStatus.REGRESSED, OUTCOME)
OTHER = make_case("bf16_autocast")


MOVED = finding(
    ChangeStatus.REGRESSED, DRIFT, code=ChangeCode.OTHER_FUNCTION, facts={"output": 0.23, "dtype": "fp64"}, change=0.23
)
LOST = finding(ChangeStatus.INCOMPARABLE, ERROR, code=ChangeCode.OTHER_FUNCTION)


def test_what_computes_something_else_fails_and_is_told_before_any_regression() -> None:
    result = judge(compared(WORSE, LOST, MOVED), Policy())
    assert result.exit_code == 1
    assert codes(result) == [GateCode.OTHER_FUNCTION, GateCode.REGRESSED]


def test_another_function_that_an_ignore_allows_passes_with_its_errors() -> None:
    ignore = Ignore(metrics=(DRIFT,), until=UNTIL, reason="the new activation")
    result = judge(compared(SAME, LOST, MOVED), Policy(ignores=(ignore,)))
    assert (result.exit_code, notes(result)) == (0, [])
    assert [one.change for one in result.ignored] == [MOVED]


def test_what_is_not_gated_cannot_fail_but_outcomes_always_can() -> None:
    policy = Policy(only=("memory",))
    same = finding(ChangeStatus.UNCHANGED, MEMORY)
    assert judge(compared(same, WORSE), policy).exit_code == 0
    assert judge(compared(same, FAILS), policy).exit_code == 1


def test_a_case_that_was_ok_and_fails_is_a_regression_even_if_nothing_else_can_be_compared() -> None:
    lost = finding(ChangeStatus.INCOMPARABLE, candidate=None)
    result = judge(compared(FAILS, lost, failed=[FAILS.case.case_id]), Policy())
    assert result.exit_code == 1
    assert codes(result)[0] is GateCode.FAILS


def test_nothing_comparable_is_exit_4() -> None:
    other = finding(ChangeStatus.INCOMPARABLE, code=ChangeCode.OTHER_MACHINE, facts={"CPU": "A → B"})
    result = judge(compared(other), Policy())
    assert (result.status, result.exit_code, codes(result)) == ("undecided", 4, [GateCode.UNDECIDED])
    assert judge(compared(), Policy()).exit_code == 4
    assert judge(compared(SAME), Policy(only=("memory",))).exit_code == 4
    assert judge(compared(finding(ChangeStatus.IMPROVED, OUTCOME)), Policy()).exit_code == 4


def test_an_ignore_leaves_a_regression_out_and_is_shown() -> None:
    ignore = Ignore(cases="linear_chain", metrics=("time",), until=UNTIL, reason="known")
    policy = Policy(ignores=(ignore,))
    result = judge(compared(WORSE), policy)
    assert result.exit_code == 0
    assert result.regressions == ()
    (left_out,) = result.ignored
    assert (left_out.case_id, left_out.metric, left_out.until) == (WORSE.case.case_id, TIME, UNTIL)
    assert (left_out.change, result.decided) == (WORSE, {})
    assert judge(compared(WORSE, finding(ChangeStatus.REGRESSED, MEMORY)), policy).exit_code == 1


def test_an_ignore_covers_failures_and_missing_cases() -> None:
    policy = Policy(ignores=(Ignore(cases="linear_chain", until=UNTIL, reason="known"),))
    gone = make_case("tf32").case_id
    same, failed = finding(ChangeStatus.UNCHANGED, MEMORY), [FAILS.case.case_id, OTHER.case_id]
    comparison = compared(FAILS, UNDECIDED, same, only_baseline=[gone], lost_cases=[gone], failed=failed)
    result = judge(comparison, policy)
    assert (result.exit_code, result.why, result.failed) == (0, (), ())
    assert {(one.case_id, one.metric) for one in result.ignored} >= {
        (FAILS.case.case_id, OUTCOME),
        (gone, OUTCOME),
        (OTHER.case_id, OUTCOME),
    }


@pytest.mark.parametrize("metric", [TIME, MEMORY, ERROR])
@pytest.mark.parametrize(("asked", "code"), [(0.0, 0), (0.75, 0), (0.76, 4), (1.0, 4)])
def test_of_each_kind_as_much_must_be_decided_as_the_policy_says(metric: str, asked: float, code: int) -> None:
    others = [finding(ChangeStatus.UNCHANGED, metric, make_case(batch_size=size)) for size in (1, 2, 3)]
    result = judge(compared(finding(ChangeStatus.INCONCLUSIVE, metric), *others), Policy(min_decided=asked))
    assert result.exit_code == code
    assert [one.decided / one.findings for one in result.decided.values()] == [0.75]
    if code:
        assert result.status == "undecided"
        assert [(one.code, one.kind, one.decided, one.findings) for one in result.why] == [
            (GateCode.UNDECIDED, GATED[metric].kind, 3, 4)
        ]


@pytest.mark.parametrize("kind", ["time", "memory", "accuracy"])
def test_a_kind_that_is_asked_for_and_has_no_numbers_is_undecided_one_that_is_not_is_noted(kind: str) -> None:
    metrics = {"time": TIME, "memory": MEMORY, "accuracy": ERROR}
    others = [finding(ChangeStatus.UNCHANGED, metric) for name, metric in metrics.items() if name != kind]
    asked = judge(compared(*others), Policy(only=tuple(metrics)))
    assert (asked.exit_code, [(one.code, one.kind) for one in asked.why]) == (4, [(GateCode.NOTHING, kind)])
    default = judge(compared(*others), Policy())
    assert (default.exit_code, [(one.code, one.names) for one in default.notes]) == (0, [(GateCode.NOT_GATED, (kind,))])


def test_what_is_ignored_does_not_decide_for_others() -> None:
    ignore = Ignore(cases="linear_chain and not bf16", metrics=("time",), until=UNTIL, reason="known")
    result = judge(compared(SAME, finding(ChangeStatus.INCONCLUSIVE, case=OTHER)), Policy(ignores=(ignore,)))
    assert (result.exit_code, result.decided) == (4, {"time": Decided(decided=0, findings=1)})


def test_cases_that_the_candidate_skipped_are_not_decided() -> None:
    skips = [
        finding(ChangeStatus.INCOMPARABLE, OUTCOME, make_case(batch_size=size), code=ChangeCode.NOT_MEASURED)
        for size in (1, 2)
    ]
    result = judge(compared(SAME, *skips), Policy())
    assert (result.status, result.decided) == ("undecided", {"time": Decided(decided=1, findings=3)})
    assert judge(compared(SAME, skips[0]), Policy()).passed
    ignore = Ignore(metrics=(OUTCOME,), until=UNTIL, reason="no room there")
    assert judge(compared(SAME, *skips), Policy(ignores=(ignore,))).passed


def test_cases_that_the_candidate_does_not_have_are_not_decided_where_they_were_ok() -> None:
    gone = ["gone", "lost"]
    result = judge(compared(SAME, only_baseline=[*gone, "skipped"], lost_cases=gone), Policy())
    assert (result.exit_code, result.decided) == (4, {"time": Decided(decided=1, findings=3)})
    assert judge(compared(SAME, only_baseline=gone, lost_cases=gone[:1]), Policy()).passed


def test_a_failure_goes_by_the_id_of_the_baseline_where_an_arm_has_another() -> None:
    candidates = {FAILS.case.case_id: OTHER}
    result = judge(compared(FAILS, SAME, candidates=candidates, failed=[OTHER.case_id]), Policy())
    assert (codes(result), result.failed) == ([GateCode.FAILS], (FAILS.case.case_id,))
    ignore = Ignore(cases="not bf16", until=UNTIL, reason="known")
    failing = compared(FAILS, candidates=candidates, failed=[OTHER.case_id])
    assert judge(failing, Policy(ignores=(ignore,))).failed == ()


MORE = finding(ChangeStatus.UNCHANGED, ERROR, make_case("tf32"))
DOUBTS: dict[GateCode, Comparison] = {
    GateCode.CONTROL_FIRED: compared(SAME, control=FIRED),
    GateCode.OTHER_NUMBERS: compared(
        SAME, MORE, finding(ChangeStatus.INCOMPARABLE, ERROR, code=ChangeCode.OTHER_WEIGHTS)
    ),
    GateCode.LOST: compared(SAME, MORE, finding(ChangeStatus.INCOMPARABLE, ERROR, candidate=None)),
    GateCode.SKIPPED: compared(
        SAME,
        finding(ChangeStatus.INCOMPARABLE, OUTCOME, case=OTHER, code=ChangeCode.NOT_MEASURED, facts={"before": "ok"}),
    ),
    GateCode.MISSING: compared(SAME, only_baseline=["gone"]),
}


@pytest.mark.parametrize("code", DOUBTS)
def test_a_doubt_is_noted_and_passes(code: GateCode) -> None:
    result = judge(DOUBTS[code], Policy())
    assert (code in notes(result), result.passed) == (True, True)


def test_a_rule_or_ignore_that_matches_nothing_is_noted() -> None:
    rule = Rule(cases="mpl", thresholds={"time": 0.1})
    ignore = Ignore(cases="mpl", until=UNTIL, reason="known")
    idle = judge(compared(SAME), Policy(rules=(rule,), ignores=(ignore,))).notes[-2:]
    assert [(point.code, point.number) for point in idle] == [(GateCode.IDLE_RULE, 1), (GateCode.IDLE_IGNORE, 1)]


@pytest.mark.parametrize("combined", list(itertools.product([False, True], repeat=3)))
def test_a_regression_comes_before_4_and_then_3(combined: tuple[bool, ...]) -> None:
    incomparable, worse, failed = combined
    findings = [finding(ChangeStatus.INCOMPARABLE) if incomparable else SAME]
    findings += [finding(ChangeStatus.REGRESSED, MEMORY)] if worse else []
    result = judge(compared(*findings, failed=["x"] if failed else []), Policy())
    expected = 1 if worse else 4 if incomparable else 3 if failed else 0
    assert result.exit_code == expected
    assert len(result.why) >= sum(combined)


def change(op: str = "aten::rms_norm", device: str = "cuda", **changes: Any) -> RuleChange:
    fields = {"dtypes": ["float16", "bfloat16"], "field": "observed", "before": "unlisted", "after": "float32"}
    return RuleChange(**{"op": op, "device": device} | fields | changes)


def probed(*changes: RuleChange, devices: tuple[str, ...] = ("cpu", "cuda"), **others: Any) -> Comparison:
    """Return a comparison of two runs that hold nothing but rules."""
    return compared(rule_changes=changes, rule_devices=devices, **others)


ALTERING = {
    "observed": change(),
    "observed in one dtype": change(dtypes=["float16"]),
    "registered": change(field="registered", before="no", after="yes"),
    "variant": change(field="variant out=", before="unchanged", after="refused"),
    "gone": change(field="op", before="there, float32", after="not there"),
    "of fake tensors": change(device="xpu"),
}
NOTED = {
    "new op": change(field="op", before="not there", after="there, float32"),
    "document": change(field="documented by pytorch_page", before="unlisted", after="float32"),
}


def test_rules_that_are_the_same_pass_and_are_something_compared() -> None:
    result = judge(probed(), Policy())
    assert (result.exit_code, result.why, result.rule_devices) == (0, (), ("cpu", "cuda"))
    assert judge(probed(), Policy(only=("rules",), min_decided=1.0)).exit_code == 0


@pytest.mark.parametrize("name", ALTERING)
@pytest.mark.parametrize("only", [("rules",), ()])
def test_a_rule_that_changed_fails_whatever_else_is_compared(name: str, only: tuple[str, ...]) -> None:
    altered = ALTERING[name]
    for comparison in (probed(altered), compared(SAME, rule_changes=[altered], rule_devices=["cuda"])):
        result = judge(comparison, Policy(only=only))
        assert result.exit_code == 1
        assert result.rule_changes == (altered,)
        assert codes(result) == [GateCode.RULES_CHANGED]


@pytest.mark.parametrize("name", NOTED)
def test_what_documents_say_and_new_ops_fail_no_gate(name: str) -> None:
    result = judge(probed(NOTED[name]), Policy())
    assert (result.exit_code, result.rule_changes, result.notes) == (0, (), ())


def test_rules_observed_before_and_not_now_are_noted() -> None:
    blind = probed(rules_unobserved=[change(f"aten::op{number}", after="not observed") for number in range(4)])
    result = judge(blind, Policy())
    assert (result.exit_code, notes(result), len(result.notes[0].rules)) == (0, [GateCode.RULES_UNSEEN], 4)
    known = Ignore(cases="/", metrics=["rules"], until=datetime.date(2099, 1, 1), reason="no device")
    ignored = judge(blind, Policy(ignores=[known]))
    assert (ignored.exit_code, len(ignored.ignored)) == (0, 4)


def test_rules_that_are_not_gated_neither_fail_nor_are_they_something_compared() -> None:
    policy = Policy(only=("time", "memory", "accuracy"))
    result = judge(compared(SAME, rule_changes=[change()], rule_devices=["cuda"]), policy)
    assert (result.exit_code, result.rule_changes, result.rule_devices, notes(result)) == (4, (), (), [])
    assert codes(result) == [GateCode.NOTHING, GateCode.NOTHING]
    assert judge(probed(change()), policy).exit_code == 4


def test_an_ignore_leaves_a_changed_rule_out_by_its_op_and_device() -> None:
    ignore = Ignore(cases="rms_norm and cuda", metrics=("rules",), until=UNTIL, reason="known")
    result = judge(probed(change(), change(device="xpu")), Policy(ignores=(ignore,)))
    assert [(one.case_id, one.metric, one.rule) for one in result.ignored] == [("rms_norm/cuda", "rules", change())]
    assert [one.device for one in result.rule_changes] == ["xpu"]
    alone = judge(probed(change()), Policy(ignores=(ignore,)))
    assert (alone.exit_code, alone.notes) == (0, ())
    assert notes(judge(probed(change("aten::mm")), Policy(ignores=(ignore,)))) == [GateCode.IDLE_IGNORE]
    other = Ignore(cases="rms_norm", metrics=("time",), until=UNTIL, reason="slow")
    assert judge(probed(change()), Policy(ignores=(other,))).exit_code == 1


def mirrored(comparison: Comparison) -> Comparison:
    """Return what comparing the other way round says."""
    swap = {ChangeStatus.REGRESSED: ChangeStatus.IMPROVED, ChangeStatus.IMPROVED: ChangeStatus.REGRESSED}
    findings = [
        dataclasses.replace(
            one,
            status=swap.get(one.status, one.status),
            change=None if one.change is None else 1 / (1 + one.change) - 1,
            baseline=one.candidate,
            candidate=one.baseline,
        )
        for one in comparison.findings
    ]
    return dataclasses.replace(
        comparison, baseline=comparison.candidate, candidate=comparison.baseline, findings=findings
    )


comparisons = st.lists(
    st.builds(
        finding,
        st.sampled_from(ChangeStatus),
        st.sampled_from([*GATED, OUTCOME]),
        st.builds(make_case, batch_size=st.integers(1, 4)),
        change=st.none() | st.floats(-0.9, 9) | st.just(math.nan),
    ),
    max_size=8,
    unique_by=lambda one: (one.case.case_id, one.metric),
).map(lambda found: compared(*found))
policies = st.builds(
    Policy,
    only=st.sampled_from([("time",), ("memory", "accuracy"), ("time", "memory", "accuracy")]),
    min_decided=st.floats(0, 1),
    ignores=st.sampled_from([(), (Ignore(cases="b1/", until=UNTIL, reason="known"),)]),
)


def keys(findings: Any) -> set[tuple[str, str]]:
    return {(one.case.case_id, one.metric) for one in findings}


@given(comparisons, st.sampled_from([(), ("time",)]))
def test_swapped_arms_mirror_the_gate(comparison: Comparison, only: tuple[str, ...]) -> None:
    policy = Policy(only=only)
    there, back = judge(comparison, policy), judge(mirrored(comparison), policy)
    assert keys(there.regressions) == keys(back.improved)
    assert keys(there.improved) == keys(back.regressions)
    assert keys(there.inconclusive) == keys(back.inconclusive)
    assert keys(there.unchanged) == keys(back.unchanged)
    assert there.decided == back.decided


@given(comparisons, policies, st.randoms(use_true_random=False))
def test_the_order_of_findings_does_not_show(comparison: Comparison, policy: Policy, luck: random.Random) -> None:
    shuffled = list(comparison.findings)
    luck.shuffle(shuffled)
    changed = dataclasses.replace(comparison, findings=shuffled, failed=["a", "b"])
    comparison = dataclasses.replace(comparison, failed=["b", "a"])
    assert repr(judge(comparison, policy)) == repr(judge(changed, policy))


@given(comparisons, policies)
def test_no_regression_passes_unless_it_is_ignored_or_not_gated(comparison: Comparison, policy: Policy) -> None:
    result = judge(comparison, policy)
    worse = {
        (one.case.case_id, one.metric)
        for one in comparison.findings
        if one.status is ChangeStatus.REGRESSED and (one.kind == OUTCOME or one.kind in policy.kinds)
    }
    excused = {(one.case_id, one.metric) for one in result.ignored}
    assert keys(result.regressions) == worse - excused
    assert result.passed == (not result.why) == (result.exit_code == 0)
    if worse - excused:
        assert result.exit_code == 1
    assert all(one.decided <= one.findings for one in result.decided.values())
