import torch

from ampbench.judge.compare import compare_traces
from ampbench.records.casts import cast_users, casts_inside
from ampbench.trace.ledger import trace_casts
from tests.traced_programs import FP16, autocast, encoder


def test_a_fused_layer_that_casts_inside_is_said_where_no_cast_is_seen():
    model = encoder().eval()
    with trace_casts(model) as ledger, torch.inference_mode(), autocast():
        model(torch.randn(2, 3, 16))
    assert ledger.casts == []
    assert casts_inside(ledger.trace) == {("_transformer_encoder_layer_fwd", ("fp32",), ("bf16",)): 1}


def scaled_step():
    model = torch.nn.Linear(4, 4)
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(model.parameters(), lr=0.1)
    with trace_casts(model) as ledger:
        with autocast(FP16):
            loss = model(torch.randn(2, 4)).float().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return ledger.trace


def test_a_gradient_s_cast_is_made_for_the_op_whose_cast_it_undoes_not_for_the_scaler_that_reads_it():
    trace = scaled_step()
    users = dict(zip((cast.index for cast in trace.casts), cast_users(trace), strict=True))
    back = [users[cast.index] for cast in trace.casts if cast.phase == "backward" and cast.name]
    assert {(user.name, user.function) for user in back} == {("aten.addmm", "torch.nn.functional.linear")}


def test_changes_of_gradients_are_told_by_the_forward_op_whether_a_scaler_reads_them_or_not():
    plain = torch.nn.Linear(4, 4)
    with trace_casts(plain) as ledger:
        with autocast(FP16):
            loss = plain(torch.randn(2, 4)).float().sum()
        loss.backward()
    changes = compare_traces(ledger.trace, scaled_step())
    assert {(one.what, one.phase) for one in changes.casts} == {("state", "optimizer")}
