"""What accounts for a change, from traces and probes of rules that runs hold beside measurements, or alone."""

from pathlib import Path

import pytest
from msgspec import structs

from ampbench.errors import NothingComparableError
from ampbench.judge.compare import change_sentences, compare, compare_traces, explanation, narrowed
from ampbench.records.casts import CastPass, CastTrace, Operation
from ampbench.records.changes import ChangeStatus, Traces
from ampbench.records.rules import FAKE, NOT_OBSERVED, RuleChange
from ampbench.show.comparison import explanation_lines
from ampbench.store import gathered
from tests.compared_runs import BF16, FP32, Times, arms, environment, make_run, noisy
from tests.rule_probes import observation, probe
from tests.stored_runs import COMPLETE, holding, make_case, make_header

CASE = make_case("fp16_autocast", device="cuda")
RMS_NORM = RuleChange(
    op="aten::rms_norm", device="cuda", dtypes=["float16", "bfloat16"], field="observed", before="unlisted",
    after="float32",
)  # fmt: skip


def op(index, dtype, function="rms_norm", module="a", name="", **fields):
    named = name or f"aten.{function}"
    outputs = fields.pop("outputs", (dtype,))
    return Operation(
        index=index, name=named, function=f"torch.{function}", module=module, inputs=(dtype,), outputs=outputs, **fields
    )


def blocks(dtype, count=25):
    return CastTrace(ops=[op(index, dtype, module=f"blocks.{index}.norm") for index in range(count)])


def said(before, after, first=()):
    return change_sentences(compare_traces(before, after), first)


def test_a_function_is_said_with_its_dtypes_and_modules():
    (sentence,) = said(blocks("bf16"), blocks("fp32"))
    assert sentence == "rms_norm: bf16 → fp32 in 25 modules, such as blocks.0.norm"
    (sentence,) = said(blocks("bf16", 1), blocks("fp32", 1))
    assert sentence == "rms_norm: bf16 → fp32 in blocks.0.norm"


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ([op(0, "bf16")], [], "rms_norm: 1 op fewer in bf16 (aten.rms_norm) in a"),
        ([], [op(0, "bf16")], "rms_norm: 1 more op in bf16 (aten.rms_norm) in a"),
        ([op(0, "fp32", name="aten.mul")], [op(0, "fp32")], "rms_norm: aten.mul → aten.rms_norm in a"),
        ([], [op(0, "bf16", module="20")], "rms_norm: 1 more op in bf16 (aten.rms_norm) in module 20"),
        ([op(0, "bf16", module="")], [op(0, "fp32", module="")], "rms_norm: bf16 → fp32"),
        ([op(0, "bf16", outputs=("fp32",))], [op(0, "bf16")], "rms_norm: returns fp32 → bf16 in a"),
    ],
)
def test_ops_that_come_go_or_are_replaced_are_named(before, after, sentence):
    assert said(CastTrace(ops=before), CastTrace(ops=after)) == [sentence]


def test_an_explanation_names_the_rule_that_changed_and_where_nothing_ran_on_hardware():
    before, after = (
        CastPass(case_id=CASE.case_id, how=FAKE, trace=blocks(dtype)) for dtype in ("fp16", "fp32")
    )  # fmt: skip
    found = explanation(CASE, before, after, [RMS_NORM])
    assert found.rules == [RMS_NORM]
    assert found.lines == [
        "rms_norm: fp16 → fp32 in 25 modules, such as blocks.0.norm",
        "both sides ran on fake tensors, not on hardware",
    ]
    onboard = structs.replace(before, how="device")
    assert explanation(CASE, onboard, after).lines[1:] == ["the candidate ran on fake tensors, not on hardware"]
    compiled = structs.replace(CASE, path="compiled")
    assert explanation(compiled, onboard, onboard).lines[1:] == ["traced in eager mode, measured compiled"]


def traced(case, dtype="bf16", count=2):
    ops = [
        Operation(index=index, name="aten._fused_rms_norm", function="torch.rms_norm", module="norm", inputs=(dtype,),
                  outputs=(dtype,))
        for index in range(count)
    ]  # fmt: skip
    return CastPass(case_id=case.case_id, how="device", trace=CastTrace(ops=ops))


def explaining(*found, cases=(FP32, BF16), kind="casts"):
    """Return a run that holds nothing but what was `found`."""
    return gathered(Path("runs/run.jsonl"), make_header(explains=kind), [*cases, *found, COMPLETE])


def rules(observed, device="cpu", **given):
    return probe(observation("aten::rms_norm", observed=observed, **given), device=device)


def slower(before=(), after=()):
    """Return the runs of two arms, the second slower in fp32, with what each explains `before` and `after`."""
    ours, theirs = arms()
    sides = []
    for place, header in enumerate((ours, theirs)):
        seconds = 1e-3 * (1 + 0.07 * place)
        run = make_run(
            Times((FP32, noisy(seconds, seed=place)), (BF16, noisy(5e-4, seed=place))),
            fresh=noisy(seconds, 8, seed=5 + place),
            header=environment(header, torch_version=("2.11.0", "2.12.0")[place]),
        )
        sides.append(holding(run, *(before, after)[place]))
    return sides


def test_a_regressed_case_that_both_runs_traced_is_explained_with_the_rule_that_changed():
    before = traced(FP32, "bf16"), rules("unlisted")
    found = compare(*slower(before, (traced(FP32, "fp32"), rules("float32"))))
    assert found.findings[0].status is ChangeStatus.REGRESSED
    assert list(found.explained) == [FP32.case_id]
    assert explanation_lines(found, FP32.case_id) == [
        "rms_norm: bf16 → fp32 in norm",
        "autocast's rule for rms_norm on cpu to bf16: unlisted → float32 between torch 2.11.0 and 2.12.0",
    ]
    assert [(one.op, one.field) for one in found.rule_changes] == [("aten::rms_norm", "observed")]
    assert list(found.rule_devices) == ["cpu"]


def test_rules_that_only_the_baseline_observed_are_told():
    before = probe(observation("aten::add", observed="widest"), observation("aten::mul", observed="unlisted"))
    after = probe(observation("aten::add", observed=None), observation("aten::mul", observed="unlisted"))
    found = compare(*slower([before], [after]))
    assert [(one.op, one.dtypes, one.before, one.after) for one in found.rules_unobserved] == [
        ("aten::add", ["bfloat16"], "widest", NOT_OBSERVED)
    ]
    assert list(found.rule_changes) == []


def test_rules_are_compared_where_both_runs_probed_a_device_and_others_are_told():
    before = rules("unlisted"), rules("float32", "cuda")
    found = compare(*slower(before, (rules("unlisted"), rules("widest", "xpu"))))
    assert (list(found.rule_devices), list(found.rule_devices_missing)) == (["cpu"], ["cuda"])
    assert list(found.rule_changes) == []


def test_runs_that_only_explain_have_explanations_and_no_findings():
    before = explaining(traced(FP32), traced(BF16))
    found = compare(before, explaining(traced(FP32), traced(BF16, "fp32")))
    assert list(found.findings) == []
    assert found.explained[FP32.case_id][:2] == (Traces.SAME, ["the same: 2 ops, 0 casts"])
    assert found.explained[BF16.case_id][:2] == (Traces.CHANGED, ["rms_norm: bf16 → fp32 in norm"])
    assert not found.apart
    assert list(narrowed(found, FP32.case_id.__eq__).explained) == [FP32.case_id]


def test_what_is_observed_comes_before_what_is_only_registered():
    before, after = (
        probe(*(observation(op, observed=was, registered=listed) for op, was, listed in rows), device="cpu")
        for rows in (
            [("aten::add", None, False), ("aten::mul", "unlisted", True)],
            [("aten::add", None, True), ("aten::mul", "float32", True)],
        )
    )
    found = compare(*slower([before], [after]))
    assert [(one.op, one.field) for one in found.rule_changes] == [
        ("aten::mul", "observed"),
        ("aten::add", "registered"),
    ]
    assert NOT_OBSERVED not in found.rule_changes[0].before


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (
            explaining(traced(FP32)),
            slower()[0],
            "explains casts and has 2 cases, such as .*, 1 traced; base has 2 cases",
        ),
        (explaining(rules("unlisted"), cases=[], kind="rules"), slower()[0], "nothing in common that can be compared"),
        (
            explaining(rules("unlisted"), cases=[], kind="rules"),
            explaining(traced(FP32)),
            "explains rules and has no case; .* explains casts and has 2 cases, such as",
        ),
        (
            explaining(rules("unlisted"), cases=[], kind="rules"),
            explaining(rules("unlisted", "cuda"), cases=[], kind="rules"),
            "nothing in common that can be compared",
        ),
    ],
)
def test_runs_with_nothing_in_common_are_not_comparable(one, other, said):
    with pytest.raises(NothingComparableError, match=said):
        compare(one, other)
