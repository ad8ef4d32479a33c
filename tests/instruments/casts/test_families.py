import pytest

from ampbench.records.casts import is_view, plain_name


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("aten.addmm", "addmm"),
        ("aten::linear", "linear"),
        ("prims.convert_element_type", "convert_element_type"),
        ("aten.native_batch_norm", "batch_norm"),
        ("aten.relu_", "relu"),
        ("UnsafeViewBackward0", "unsafe_view"),
        ("TBackward0", "t"),
        ("ReshapeAliasBackward0", "reshape_alias"),
    ],
)
def test_an_op_has_one_name_in_every_graph(name, plain):
    assert plain_name(name) == plain


def test_a_view_is_one_in_every_graph():
    assert all(map(is_view, ["aten.transpose", "aten::transpose", "TransposeBackward0", "aten.unsqueeze"]))
    assert not any(map(is_view, ["aten.mm", "aten.clone", "MmBackward0", "torch::autograd::AccumulateGrad"]))
