"""Runs that hold traces and probes of rules beside measurements, or nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest

from ampbench.errors import NothingComparableError
from ampbench.judge.compare import compare, of_cases
from ampbench.records.casts import CastPass, CastTrace, Operation
from ampbench.records.measured import Failure, Skip
from ampbench.records.rules import NOT_OBSERVED
from ampbench.records.verdicts import Verdict
from ampbench.store import StoredRun, read_run
from tests.compared_runs import BF16, FP32, Times, arms, environment, make_run, noisy
from tests.rule_probes import observation, probe
from tests.stored_runs import COMPLETE, make_header, write_run


def traced(case, dtype="bf16", count=2):
    ops = [
        Operation(index=index, name="aten._fused_rms_norm", function="torch.rms_norm", module="norm", inputs=(dtype,),
                  outputs=(dtype,))
        for index in range(count)
    ]  # fmt: skip
    return CastPass(case_id=case.case_id, how="device", trace=CastTrace(ops=ops))


def explaining(*passes, cases=(FP32, BF16), kind="casts", **fields):
    """Return a run that holds nothing but `passes`."""
    return StoredRun(
        path=Path("runs/run.jsonl"),
        header=make_header(explains=kind),
        cases={case.case_id: case for case in cases},
        casts={one.case_id: one for one in passes},
        footers=[COMPLETE],
        **fields,
    )


def rules(observed, device="cpu", version="2.11.0", **given):
    made = probe(observation("aten::rms_norm", observed=observed, **given), device=device, version=version)
    return {device: made}


def slower(**fields):
    """Return the runs of two arms, the second slower in fp32, with `fields` of `StoredRun` for each."""
    ours, theirs = arms()
    sides = []
    for place, header in enumerate((ours, theirs)):
        seconds = 1e-3 * (1 + 0.07 * place)
        run = make_run(
            Times((FP32, noisy(seconds, seed=place)), (BF16, noisy(5e-4, seed=place))),
            fresh=noisy(seconds, 8, seed=5 + place),
            header=environment(header, torch_version=("2.11.0", "2.12.0")[place]),
        )
        sides.append(replace(run, **{name: both[place] for name, both in fields.items()}))
    return sides


def test_a_regressed_case_that_both_runs_traced_is_explained_with_the_rule_that_changed():
    passes = [{FP32.case_id: traced(FP32, dtype)} for dtype in ("bf16", "fp32")]
    found = compare(*slower(casts=passes, rules=[rules("unlisted"), rules("float32", version="2.12.0")]))
    assert found.findings[0].verdict is Verdict.REGRESSED
    assert found.explained == {
        FP32.case_id: [
            "rms_norm: bf16 → fp32 in norm",
            "autocast's rule for rms_norm on cpu to bf16: unlisted → float32 between torch 2.11.0 and 2.12.0",
        ]
    }
    assert [(one.op, one.field) for one in found.rule_changes] == [("aten::rms_norm", "observed")]
    assert list(found.rule_devices) == ["cpu"]


def test_traces_of_cases_that_did_not_change_are_neither_explained_nor_decoded(tmp_path):
    sides = []
    for run in slower():
        entries = [traced(FP32, "fp32"), traced(BF16), COMPLETE]
        path = write_run(tmp_path / run.header.arm.name, [FP32, BF16], *entries)
        broken = path.read_text().replace(
            f'"casts":{{"case_id":"{BF16.case_id}","how"', f'"casts":{{"case_id":"{BF16.case_id}","hew"'
        )
        path.write_text(broken)
        sides.append(replace(run, casts=read_run(path).casts))
    found = compare(*sides)
    assert [one.case.case_id for one in found.findings if one.verdict is Verdict.REGRESSED] == [FP32.case_id]
    assert list(found.explained) == [FP32.case_id]


def test_rules_and_dtypes_that_only_the_baseline_observed_are_told():
    before = probe(
        observation("aten::add", observed="widest", dtype="float16"),
        observation("aten::add", observed="widest"),
        observation("aten::mul", observed="unlisted"),
        dtypes=["float16", "bfloat16"],
    )
    after = probe(observation("aten::add", observed=None), observation("aten::mul", observed="unlisted"))
    found = compare(*slower(rules=[{"xpu": before}, {"xpu": after}]))
    assert list(found.rule_devices_missing) == ["xpu to fp16"]
    assert [(one.op, one.dtypes, one.before, one.after) for one in found.rules_unobserved] == [
        ("aten::add", ["bfloat16"], "widest", NOT_OBSERVED)
    ]
    assert list(found.rule_changes) == []


def test_a_case_traced_on_one_side_only_is_not_explained():
    found = compare(*slower(casts=[{FP32.case_id: traced(FP32)}, {}]))
    assert found.explained == {}


def test_rules_are_compared_where_both_runs_probed_a_device_and_others_are_told():
    both = rules("unlisted") | rules("float32", "cuda"), rules("unlisted", version="2.12.0") | rules("widest", "xpu")
    found = compare(*slower(rules=both))
    assert (list(found.rule_devices), list(found.rule_devices_missing)) == (["cpu"], ["cuda"])
    assert list(found.rule_changes) == []


def test_runs_that_only_explain_have_explanations_and_no_findings():
    before = explaining(traced(FP32), traced(BF16))
    found = compare(before, explaining(traced(FP32), traced(BF16, "fp32")))
    assert list(found.findings) == []
    assert found.explained[FP32.case_id] == ["the same: 2 ops, 0 casts"]
    assert found.explained[BF16.case_id] == ["rms_norm: bf16 → fp32 in norm"]
    assert not any("interleaved" in note for note in found.notes)
    assert list(of_cases(found, FP32.case_id.__eq__).explained) == [FP32.case_id]


def test_a_case_that_could_not_be_traced_says_why():
    failure = Failure(case_id=FP32.case_id, stage="casts", cause="exception", message="no such op")
    skip = Skip(case_id=BF16.case_id, reason="no loss given")
    after = explaining(failures={FP32.case_id: failure}, skips={BF16.case_id: skip})
    found = compare(explaining(traced(FP32), traced(BF16)), after)
    assert found.explained == {
        FP32.case_id: ["not traced in the candidate: no such op"],
        BF16.case_id: ["not traced in the candidate: no loss given"],
    }


def test_a_run_that_explains_is_compared_with_the_traces_of_one_that_measures():
    measured = slower(casts=[{FP32.case_id: traced(FP32)}, {}])[0]
    found = compare(measured, explaining(traced(FP32, "fp32"), cases=[FP32]))
    assert list(found.findings) == []
    assert list(found.explained) == [FP32.case_id]


def test_runs_that_only_probed_rules_are_compared_by_these():
    before = explaining(cases=[], kind="rules", rules=rules("unlisted"))
    found = compare(before, explaining(cases=[], kind="rules", rules=rules("float32", version="2.12.0")))
    assert [(one.before, one.after) for one in found.rule_changes] == [("unlisted", "float32")]
    same = compare(before, before)
    assert (list(same.rule_changes), list(same.rule_devices)) == ([], ["cpu"])


def test_what_is_observed_comes_before_what_is_only_registered():
    both = [
        {"cpu": probe(*(observation(op, observed=was, registered=listed) for op, was, listed in rows), device="cpu")}
        for rows in (
            [("aten::add", None, False), ("aten::mul", "unlisted", True)],
            [("aten::add", None, True), ("aten::mul", "float32", True)],
        )
    ]
    found = compare(*slower(rules=both))
    assert [(one.op, one.field) for one in found.rule_changes] == [
        ("aten::mul", "observed"),
        ("aten::add", "registered"),
    ]
    assert NOT_OBSERVED not in found.rule_changes[0].before


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (explaining(traced(FP32)), slower()[0], "explains casts and traced 1 case; base measures and traced no case"),
        (explaining(cases=[], kind="rules", rules=rules("unlisted")), slower()[0], "the runs have no case in common"),
        (
            explaining(cases=[], kind="rules", rules=rules("unlisted")),
            explaining(traced(FP32)),
            "explains rules and has none; .* explains casts and has 2, such as",
        ),
        (
            explaining(cases=[], kind="rules", rules=rules("unlisted")),
            explaining(cases=[], kind="rules", rules=rules("unlisted", "cuda")),
            "the runs have no case in common",
        ),
    ],
)
def test_runs_with_nothing_in_common_are_not_comparable(one, other, said):
    with pytest.raises(NothingComparableError, match=said):
        compare(one, other)
