from dataclasses import replace

import pytest

from ampbench.instruments.casts.changes import compare_traces
from ampbench.instruments.rules.findings import rule_change_said
from ampbench.judge.explaining import UNEXPLAINED, change_sentences, explanation
from ampbench.records.casts import Cast, CastPass, CastTrace, Operation, WeightUse
from ampbench.records.rules import FAKE, RuleChange
from tests.stored_runs import make_case

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


def blocks(dtype, count=25, seconds=None):
    ops = [op(index, dtype, module=f"blocks.{index}.norm", seconds=seconds) for index in range(count)]
    return CastTrace(ops=ops, timed=seconds is not None)


def said(before, after, first=()):
    return change_sentences(compare_traces(before, after), first)


def cast(index, name="0.weight", **fields):
    return Cast(
        **{"index": index, "operation": 0, "what": "weight", "name": name, "from_dtype": "fp32", "to_dtype": "bf16",
           "elements": 256, "bytes_read": 1024, "bytes_written": 512, "tensor": index} | fields
    )  # fmt: skip


def test_a_function_is_said_with_its_dtypes_modules_and_traced_time():
    (sentence,) = said(blocks("bf16"), blocks("fp32"))
    assert sentence == "rms_norm: bf16 → fp32 in 25 modules, such as blocks.0.norm"
    (sentence,) = said(blocks("bf16", 1, seconds=1e-3), blocks("fp32", 1, seconds=2e-3))
    assert sentence == "rms_norm: bf16 → fp32 in blocks.0.norm (traced: 1.00 ms → 2.00 ms)"


def test_what_is_the_same_in_both_phases_is_said_once():
    def both(dtype):
        return CastTrace(ops=[op(0, dtype), op(1, dtype, phase="backward")])

    assert said(both("bf16"), both("fp32")) == ["rms_norm: bf16 → fp32 in a, forward and backward"]
    only = CastTrace(ops=[op(0, "bf16"), op(1, "fp32", phase="backward")])
    assert said(both("bf16"), only) == ["rms_norm: bf16 → fp32 in a, backward"]


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ([op(0, "bf16")], [], "rms_norm: 1 op in bf16 fewer (aten.rms_norm) in a"),
        ([], [op(0, "bf16")], "rms_norm: 1 more op in bf16 (aten.rms_norm) in a"),
        ([op(0, "fp32", name="aten.mul")], [op(0, "fp32")], "rms_norm: aten.rms_norm instead of aten.mul in a"),
        ([op(0, "bf16", module="")], [op(0, "fp32", module="")], "rms_norm: bf16 → fp32"),
        (
            [op(0, "bf16", outputs=("fp32",))],
            [op(0, "bf16")],
            "rms_norm: aten.rms_norm in bf16 with other dtypes beside, returns fp32 → bf16 in a",
        ),
    ],
)
def test_ops_that_come_go_or_are_replaced_are_named(before, after, sentence):
    assert said(CastTrace(ops=before), CastTrace(ops=after)) == [sentence]


def test_many_changes_are_cut_and_those_of_a_changed_rule_come_first():
    names = ["add", "mul", "linear", "conv2d", "gelu", "rms_norm"]
    traces = [CastTrace(ops=[op(i, dtype, name) for i, name in enumerate(names)]) for dtype in ("bf16", "fp32")]
    sentences = said(*traces, first=["rms_norm"])
    assert [one.partition(":")[0] for one in sentences[:4]] == ["rms_norm", "add", "mul", "linear"]
    assert sentences[4:] == ["2 more changes of ops: conv2d, gelu"]


def test_casts_are_said_in_total_and_by_kind():
    ops = [op(0, "bf16", "linear")]
    before = CastTrace(ops=ops, casts=[cast(0)])
    after = CastTrace(ops=ops, casts=[cast(0), cast(0, "1.weight"), cast(0, what="gradient", phase="backward")])
    (sentence,) = said(before, after)
    assert sentence == (
        "1 → 3 casts a step, 1.50 KiB → 4.50 KiB: +1 weight fp32 → bf16 for linear, +1.50 KiB, such as 1.weight; "
        "+1 gradient fp32 → bf16 for linear in the backward pass, +1.50 KiB, such as 0.weight"
    )
    larger = CastTrace(ops=ops, casts=[cast(0, bytes_read=2048)])
    assert "1 of another size weight" not in said(before, larger)[0]
    assert said(before, larger) == [
        "1 → 1 cast a step, 1.50 KiB → 2.50 KiB: 1 weight fp32 → bf16 for linear of another size, +1.00 KiB"
    ]


def test_weights_are_said_by_how_they_reach_their_ops():
    ops = [op(0, "bf16", "linear")]
    uses = [WeightUse(name=f"{n}.weight", operation=0, status="not needed") for n in range(2)]
    before = CastTrace(ops=ops, weights=uses)
    after = CastTrace(ops=ops, weights=[replace(one, status="cast", cast=0) for one in uses])
    assert said(before, after) == ["2 weights not needed → cast, such as 0.weight"]


def test_without_a_change_a_case_is_unexplained_and_says_what_was_looked_at():
    (sentence,) = said(blocks("bf16"), blocks("bf16"))
    assert sentence == (
        f"{UNEXPLAINED}: the same ops, dtypes and casts on both sides (25 ops, 0 casts); what is left: sizes, "
        "arguments, kernels, libraries, the machine"
    )


def test_an_explanation_names_the_rule_that_changed_and_where_nothing_ran_on_hardware():
    before, after = (
        CastPass(case_id=CASE.case_id, how=FAKE, trace=blocks(dtype)) for dtype in ("fp16", "fp32")
    )  # fmt: skip
    assert explanation(CASE, before, after, [RMS_NORM], ("2.11.0", "2.12.0")) == [
        "rms_norm: fp16 → fp32 in 25 modules, such as blocks.0.norm",
        "autocast's rule for rms_norm on cuda: unlisted → float32 between torch 2.11.0 and 2.12.0",
        "both sides ran on fake tensors, not on hardware",
    ]
    onboard = replace(before, how="device")
    assert explanation(CASE, onboard, after)[1:] == ["the candidate ran on fake tensors, not on hardware"]
    compiled = replace(CASE, path="compiled")
    assert explanation(compiled, onboard, onboard)[1:] == ["traced in eager mode, measured compiled"]


def test_a_rule_that_changed_and_makes_no_difference_to_the_step_is_named_as_such():
    same = CastPass(case_id=CASE.case_id, how="device", trace=blocks("fp32"))
    unexplained, rule = explanation(CASE, same, same, [RMS_NORM], ("2.11.0", "2.12.0"))
    assert unexplained.startswith(UNEXPLAINED)
    assert rule == (
        "autocast's rule for rms_norm on cuda: unlisted → float32 between torch 2.11.0 and 2.12.0; "
        "no difference to this step"
    )
    assert len(explanation(CASE, same, same, [replace(RMS_NORM, op="aten::softmax.int")])) == 1


def test_a_changed_rule_is_one_line_with_the_dtypes_it_is_about():
    assert rule_change_said(RMS_NORM) == "rms_norm on cuda: unlisted → float32"
    one = replace(RMS_NORM, dtypes=["float16"], field="registered", before="no", after="yes")
    assert rule_change_said(one) == "rms_norm on cuda to fp16, registered: no → yes"
    assert rule_change_said(replace(RMS_NORM, after="lower_precision")).endswith("unlisted → lower")
