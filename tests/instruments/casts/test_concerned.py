from dataclasses import replace

from ampbench.instruments.casts.changes import changed_names, compare_traces, concerned_rules, used_names
from tests.instruments.casts.test_changes import RMS_NORM, made_up


def rule(op="aten::rms_norm", **fields):
    return replace(RMS_NORM, op=op, **fields)


def test_a_changed_rule_concerns_the_function_the_op_and_what_casts_for_them_once_each():
    changes = compare_traces(
        made_up(("aten._fused_rms_norm", "torch.nn.functional.rms_norm", "a", "bf16")),
        made_up(("aten._fused_rms_norm", "torch.nn.functional.rms_norm", "a", "fp32")),
    )
    observed, registered = rule(), rule(field="registered", before="no", after="yes")
    others = [rule("aten::softmax.int"), rule(device="xpu"), rule("aten::rms_norm.x", field="op"), rule(field="claim")]
    assert concerned_rules(changed_names(changes), [registered, *others, observed], "cuda") == [observed]
    assert concerned_rules(changed_names(changes), [registered, *others], "cuda") == [registered]
    assert concerned_rules(changed_names(changes), [observed], "cpu") == []


def test_a_loss_is_known_by_the_name_of_its_function():
    rows = [[("aten.nll_loss_forward", "torch.nn.functional.cross_entropy", "", dtype)] for dtype in ("bf16", "fp32")]
    changes = compare_traces(*(made_up(*row) for row in rows))
    (one,) = concerned_rules(changed_names(changes), [rule("aten::cross_entropy_loss")], "cuda")
    assert one.op == "aten::cross_entropy_loss"


def test_names_of_a_trace_are_those_of_its_functions_and_ops_without_modules():
    assert used_names(made_up(("aten._fused_rms_norm", "torch.nn.functional.rms_norm", "a", "bf16"))) == {
        "fused_rms_norm", "rms_norm",
    }  # fmt: skip
