import warnings

import pytest
import torch

from ampbench.trace.rules import SAMPLES, fill, find_op

NOT_ON_CPU = {
    "aten::_cudnn_rnn",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_thnn_fused_gru_cell",
    "aten::_thnn_fused_lstm_cell",
    "aten::cudnn_convolution",
    "aten::cudnn_convolution_transpose",
}


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
