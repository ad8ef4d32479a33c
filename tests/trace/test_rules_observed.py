import warnings

import pytest
import torch

from ampbench.records.rules import CATEGORIES, PYTORCH_PAGE, XPU_REFERENCE
from ampbench.trace.dtypes import is_present, stood_in
from ampbench.trace.rules import (
    SAMPLES,
    classify,
    document,
    documented_category,
    documented_ops,
    fill,
    find_inplace,
    find_op,
    find_out,
    outcome,
    registered_ops,
    run_trials,
    run_variants,
)
from tests.rule_probes import call, trial

LOW, FP32 = call("float16"), call("float32")
UNTOUCHED = {"fp32": trial(FP32, FP32), "lower": trial(LOW, LOW)}


def observed(name, device, dtype="float16"):
    with stood_in(device):
        return classify(run_trials(find_op(name), SAMPLES[name], device, getattr(torch, dtype)), dtype)


def test_what_autocast_does_not_touch_is_unlisted():
    assert classify(UNTOUCHED, "float16") == "unlisted"


def test_fp32_inputs_in_the_low_dtype_are_lower_precision_even_where_the_kernel_casts_them_back():
    assert classify({**UNTOUCHED, "fp32": trial(LOW, FP32)}, "float16") == "lower_precision"
    back = call("float32", casts=["float32 to float16", "float16 to float32"])
    assert classify({**UNTOUCHED, "fp32": trial(back, FP32)}, "float16") == "lower_precision"


def test_low_inputs_in_fp32_are_float32_by_a_cast_or_by_the_outputs_dtype():
    assert classify({**UNTOUCHED, "lower": trial(FP32, LOW)}, "float16") == "float32"
    by_dtype = call("float16", outputs=["float32"])
    assert classify({**UNTOUCHED, "lower": trial(by_dtype, LOW)}, "float16") == "float32"
    transform = trial(call("complex64"), call(error="NotImplementedError: Unsupported dtype BFloat16"))
    assert classify({**UNTOUCHED, "lower": transform}, "bfloat16") == "float32"


def test_mixed_inputs_all_in_fp32_are_widest_unless_the_op_does_that_alone():
    natively = call("float16", "float32", outputs=["float32"])
    assert classify({**UNTOUCHED, "mixed": trial(FP32, natively)}, "float16") == "widest"
    assert classify({**UNTOUCHED, "mixed": trial(natively, natively)}, "float16") == "unlisted"


def test_only_an_error_about_autocast_before_the_kernel_is_a_ban():
    ban = trial(call(error="RuntimeError: bce is unsafe to autocast."), FP32)
    assert classify({**UNTOUCHED, "fp32": ban}, "float16") == "banned"
    broken = trial(call(error="AcceleratorError: no driver"), FP32)
    assert classify({**UNTOUCHED, "fp32": broken}, "float16") is None


def test_an_outcome_tells_a_refusal_by_autocast_from_one_by_the_op():
    refusal = call("float64", error="RuntimeError: not for Double")
    assert outcome(trial(FP32, FP32)) == "unchanged"
    assert outcome(trial(LOW, FP32)) == "changed"
    assert outcome(trial(refusal, call("float64"))) == "refused"
    assert outcome(trial(refusal, refusal)) == "unchanged"
    assert outcome(trial(call(error="no"), call(error="no"))) is None


@pytest.mark.parametrize(
    ("name", "device", "category"),
    [
        ("aten::addmm", "cpu", "lower_precision"),
        ("aten::cat", "cpu", "widest"),
        ("aten::lstm_cell", "cpu", "lower_inside"),
        ("aten::lstm_cell", "cuda", "lower_precision"),
        ("aten::binary_cross_entropy", "cpu", "float32"),
        ("aten::softmax.int", "cuda", "float32"),
        ("aten::sum", "cuda", "float32"),
        ("aten::scaled_dot_product_attention", "xpu", "lower_precision"),
        ("aten::binary_cross_entropy", "cuda", "banned"),
    ],
)
def test_real_ops_show_their_rules(name, device, category):
    if device != "cpu" and is_present(device):
        pytest.skip(f"written for fake tensors; there is a real {device}")
    assert observed(name, device) == category


def test_the_dtypes_that_reach_a_kernel_are_seen_where_the_output_does_not_show_them():
    trials = run_trials(find_op("aten::prod"), SAMPLES["aten::prod"], "cpu", torch.bfloat16)
    lower = trials["lower"]
    assert lower.autocast.casts == ["bfloat16 to float32"]
    assert lower.autocast.computed == ["float32"]
    assert lower.plain.computed == ["bfloat16"]


ATEN = torch.ops.aten


def variants(name, observed, dtype=torch.bfloat16):
    return run_variants(find_op(name), SAMPLES[name], "cpu", dtype, observed)


def test_the_forms_of_an_op_come_from_its_schemas():
    assert find_inplace(ATEN.addmm.default) is ATEN.addmm_.default
    assert find_out(ATEN.addmm.default) is ATEN.addmm.out
    assert find_out(ATEN.softmax.int) is ATEN.softmax.int_out
    assert find_out(ATEN.prod.dim_int) is ATEN.prod.int_out
    assert find_inplace(ATEN.matmul.default) is None


def test_addmm_can_be_autocast_but_not_in_place_nor_with_out_nor_in_fp64_nor_with_integers():
    assert variants("aten::addmm", "lower_precision") == {
        "fp64": "unchanged",
        "integer": "unchanged",
        "in-place": "unchanged",
        "out=": "unchanged",
    }


def test_names_of_documents_are_ops_of_the_dispatcher_with_all_their_overloads():
    assert documented_category(PYTORCH_PAGE, "cuda", "aten::lstm_cell") == "lower_precision"
    assert documented_category(PYTORCH_PAGE, "cuda", "aten::softmax.int") == "float32"
    assert documented_category(PYTORCH_PAGE, "cuda", "aten::pow.Scalar") == "float32"
    assert documented_category(PYTORCH_PAGE, "cuda", "aten::conv_transpose2d.input") == "lower_precision"
    assert documented_category(PYTORCH_PAGE, "cpu", "aten::softmax.int") == "unlisted"
    assert documented_category(PYTORCH_PAGE, "cuda", "nn.functional.normalize") == "float32"
    assert documented_category(XPU_REFERENCE, "cpu", "aten::mm") is None
    assert documented_category(XPU_REFERENCE, "xpu", "aten::prelu") == "lower_precision"


def test_all_lists_hold_known_categories_and_no_name_twice():
    for device in ("cpu", "cuda", "xpu"):
        assert set(documented_ops(PYTORCH_PAGE, device).values()) <= set(CATEGORIES)
        lists = document(PYTORCH_PAGE)["devices"][device].values()
        names = [name for names in lists for name in names]
        assert len(names) == len(set(names))


def test_the_dispatcher_knows_the_rules_of_every_device_type_on_every_build():
    cpu, cuda, xpu = (registered_ops(device) for device in ("cpu", "cuda", "xpu"))
    assert {"aten::addmm", "aten::linear", "aten::conv2d"} <= cpu & cuda & xpu
    assert "aten::softmax.int" in cuda & xpu
    assert "aten::softmax.int" not in cpu
    assert len(xpu) > 100


def test_ops_that_fall_through_and_other_libraries_ops_are_not_rules():
    for device in ("cpu", "cuda", "xpu"):
        ops = registered_ops(device)
        assert all(name.startswith("aten::") for name in ops)
        assert not ops & {"aten::relu", "aten::addmm_", "aten::addmm.out", "aten::_to_copy"}


NOT_ON_CPU = {
    "aten::_cudnn_rnn", "aten::_scaled_dot_product_flash_attention", "aten::_thnn_fused_gru_cell",
    "aten::_thnn_fused_lstm_cell", "aten::cudnn_convolution", "aten::cudnn_convolution_transpose",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_each_sample_is_a_call_that_works_in_fp32(name):
    op = find_op(name)
    if op is None or name in NOT_ON_CPU:
        pytest.skip("not an op of this torch, or of the CPU")
    sample = fill(SAMPLES[name], "cpu", lambda _: torch.float32)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated ops have rules too
        result = op(*sample.args, **sample.kwargs)
    tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    assert tensors
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors if tensor.is_floating_point())
