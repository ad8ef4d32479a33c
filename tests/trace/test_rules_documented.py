from ampbench.records.rules import CATEGORIES, PYTORCH_PAGE, XPU_REFERENCE
from ampbench.trace.rules import document, documented_category, documented_ops, registered_ops


def test_the_xpu_reference_speaks_of_xpu_only():
    assert documented_ops(XPU_REFERENCE, "cuda") is None
    assert documented_category(XPU_REFERENCE, "cpu", "aten::mm") is None
    assert documented_category(XPU_REFERENCE, "xpu", "aten::prelu") == "lower_precision"


def test_names_of_documents_are_ops_of_the_dispatcher_with_all_their_overloads():
    assert documented_category(PYTORCH_PAGE, "cuda", "aten::lstm_cell") == "lower_precision"
    assert documented_category(PYTORCH_PAGE, "cuda", "aten::softmax.int") == "float32"
    assert documented_category(PYTORCH_PAGE, "cuda", "aten::pow.Scalar") == "float32"
    assert documented_category(PYTORCH_PAGE, "cuda", "aten::conv_transpose2d.input") == "lower_precision"
    assert documented_category(PYTORCH_PAGE, "cpu", "aten::softmax.int") == "unlisted"
    assert documented_category(PYTORCH_PAGE, "cuda", "nn.functional.normalize") == "float32"


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
