import torch

from ampbench.explain.ledger import trace_casts
from ampbench.records.casts import CastTrace, Operation, casts_inside
from tests.traced_programs import autocast, encoder, trace


def test_a_fused_layer_that_casts_inside_is_said_where_no_cast_is_seen():
    model = encoder().eval()
    with trace_casts(model) as ledger, torch.inference_mode(), autocast():
        model(torch.randn(2, 3, 16))
    assert ledger.casts == []
    assert casts_inside(ledger.trace) == [
        "_transformer_encoder_layer_fwd: fp32 in, bf16 out, cast inside 1 op and in no count"
    ]


def test_casts_that_are_seen_promotions_and_tensors_made_anew_are_no_casts_inside():
    def program():
        x = torch.randn(4, 4)
        low = torch.mm(x, x)
        return x + low, torch.zeros_like(low, dtype=torch.float32), low.float(), torch.layer_norm(low, (4,))

    assert casts_inside(trace(program).trace) == []


def test_ops_that_cast_alike_are_counted_together():
    ops = [Operation(index=at, name="own.op", inputs=("fp32", "int64"), outputs=("bf16",)) for at in range(3)]
    assert casts_inside(CastTrace(ops=ops)) == ["op: fp32 in, bf16 out, cast inside 3 ops and in no count"]
