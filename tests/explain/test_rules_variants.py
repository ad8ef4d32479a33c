import torch

from ampbench.explain.rules.observed import find_inplace, find_op, find_out, run_variants
from ampbench.explain.rules.samples import SAMPLES

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


def test_cpu_autocast_changes_prod_although_its_dtype_is_given():
    assert variants("aten::prod", "float32")["dtype="] == "changed"


def test_an_op_without_other_forms_is_tried_with_fp64_and_integers_only():
    assert set(variants("aten::smooth_l1_loss", "float32")) <= {"fp64", "integer", "out="}
    assert "in-place" not in variants("aten::mse_loss", "float32")


def test_a_python_function_has_no_forms():
    assert set(variants("nn.functional.softmin", "unlisted")) <= {"fp64", "integer"}
