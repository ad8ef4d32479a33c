import pytest

from ampbench.records.rules import CATEGORIES, PYTORCH_PAGE, XPU_REFERENCE
from ampbench.trace.dtypes import is_present
from ampbench.trace.rules.documented import (
    DEFAULT_DTYPES,
    SOURCES,
    document,
    documented_category,
    documented_ops,
    gradient_scaler,
    new_spelling,
    old_spelling,
    probe_claims,
    registered_ops,
)


def test_every_document_says_where_it_comes_from():
    for source in SOURCES:
        assert len(document(source)["source"]) > 40
    assert "4e0ff98084d470b85e94fccdca7213f6580b1d5b" in document(PYTORCH_PAGE)["obtained"]


def test_the_xpu_reference_speaks_of_xpu_only():
    assert documented_ops(XPU_REFERENCE, "cuda") is None
    assert documented_category(XPU_REFERENCE, "cpu", "aten::mm") is None
    assert documented_category(XPU_REFERENCE, "xpu", "aten::prelu") == "lower_precision"


def test_the_two_documents_differ_about_prelu_and_binary_cross_entropy_on_xpu():
    assert documented_category(PYTORCH_PAGE, "xpu", "aten::prelu") == "unlisted"
    assert documented_category(XPU_REFERENCE, "xpu", "aten::binary_cross_entropy") == "float32"
    assert documented_category(PYTORCH_PAGE, "cuda", "aten::binary_cross_entropy") == "banned"


def test_names_of_documents_are_ops_of_the_dispatcher_with_all_their_overloads():
    assert documented_category(PYTORCH_PAGE, "cuda", "aten::lstm_cell") == "lower_precision"
    assert documented_category(PYTORCH_PAGE, "cuda", "aten::softmax.int") == "float32"
    assert documented_category(PYTORCH_PAGE, "cuda", "aten::pow.Scalar") == "float32"
    assert documented_category(PYTORCH_PAGE, "cuda", "aten::conv_transpose2d.input") == "lower_precision"
    assert documented_category(PYTORCH_PAGE, "cpu", "aten::softmax.int") == "unlisted"
    assert documented_category(PYTORCH_PAGE, "cuda", "nn.functional.normalize") == "float32"


def test_an_op_that_promotes_natively_is_documented_to_have_no_rule():
    assert documented_category(XPU_REFERENCE, "xpu", "aten::add.Tensor") == "unlisted"


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


ABSENT = [device for device in ("xpu", "cuda") if not is_present(device)]


def by_name(device):
    return {(claim.name, claim.source): claim for claim in probe_claims(device)}


def test_default_dtypes_are_pytorchs_and_the_older_xpu_document_is_wrong_about_them():
    for device, dtype in DEFAULT_DTYPES.items():
        assert by_name(device)["default dtype", "pytorch_page"].found == dtype
    older = by_name("xpu")["default dtype", "xpu_reference"]
    assert (older.said, older.found, older.holds) == ("bfloat16", "float16", False)


def test_the_older_documents_spelling_is_not_there_and_the_newer_one_is():
    assert old_spelling().holds is False
    cpu = new_spelling("cpu")
    assert (cpu.found, cpu.holds, cpu.how) == ("entered", True, "device")


def test_inference_on_an_absent_xpu_is_observed_on_fake_tensors_in_both_dtypes():
    if is_present("xpu"):
        pytest.skip("there is an XPU")
    claims = by_name("xpu")
    for dtype in ("float16", "bfloat16"):
        claim = claims[f"inference {dtype}", "xpu_reference"]
        assert (claim.found, claim.holds, claim.how) == (f"conv2d gives {dtype}", True, "fake tensors")


@pytest.mark.parametrize("device", ABSENT)
def test_what_only_a_device_can_tell_is_marked_and_not_guessed(device):
    for claim in (*probe_claims(device), new_spelling(device), gradient_scaler(device)):
        if claim.name.startswith(("training", "spelling", "GradScaler")):
            assert (claim.holds, claim.how) == (None, "not observed")


def test_the_older_documents_claim_on_training_is_about_both_dtypes():
    claims = by_name("xpu")
    assert claims["training bfloat16", "xpu_reference"].said == "bfloat16 is supported for training"
    assert claims["training float16", "xpu_reference"].said == "float16 is not supported for training"
