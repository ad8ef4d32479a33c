"""Casts and promotions are the conversions that torch makes, as `conversions.py` counts them: each, and its bytes."""

import pytest
import torch
from torch import nn

from ampbench import Workload, trace_casts
from tests.twin import networks
from tests.twin.conversions import Conversions, asked_for, made, step_of


class Masked(nn.Module):
    """Attention with a mask in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(16, 2, batch_first=True), nn.RMSNorm(16)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        mask = torch.triu(torch.full((7, 7), -1e4), 1)
        return self.norm(inputs + self.attention(inputs, inputs, inputs, attn_mask=mask)[0])


@networks.seeded
def masked() -> Workload:
    return networks.workload(Masked(), torch.randn(2, 7, 16), torch.randn(2, 7, 16), nn.functional.mse_loss)


@networks.seeded
def cells() -> Workload:
    """Return two layers of a GRU, whose cells mix states in fp32 with products in half."""

    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.GRU(6, 12, 2, batch_first=True)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.cells(inputs)[0]

    return networks.workload(Cells(), torch.randn(3, 5, 6), torch.randn(3, 5, 12), nn.functional.mse_loss)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("make", [*networks.NETWORKS, masked, cells])
def test_casts_and_promotions_are_the_conversions_that_torch_makes(
    make: networks.Make, dtype: torch.dtype, training: bool
) -> None:
    workload = make()
    step = step_of(workload, dtype, training=training)
    step()
    with trace_casts() as ledger:
        step()
    casts = [cast for cast in ledger.casts if cast.from_dtype.startswith(("fp", "bf"))]
    inside = ledger.trace.promotions
    of_casts = Conversions(len(casts), sum(cast.bytes_moved for cast in casts))
    if training:
        assert of_casts == asked_for(step)
    if "aten._transformer_encoder_layer_fwd" in {op.name for op in ledger.ops}:
        return  # one op that casts inside, which is said and in no count
    if (
        "aten.convolution_backward" in {op.name for op in ledger.ops}
        and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    ):
        return  # without oneDNN's kernel the backward pass of a convolution converts inside
    both = Conversions(len(casts) + len(inside), of_casts.moved + sum(one.bytes_moved for one in inside))
    assert both == made(step)
    assert inside or make is not cells
