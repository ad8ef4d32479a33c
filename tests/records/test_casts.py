import pytest
import torch

from ampbench.judge.compare import compare_traces
from ampbench.records.casts import CastTrace, Operation, cast_users, casts_inside, is_view, plain_name
from ampbench.trace.ledger import trace_casts
from tests.traced_programs import FP16, autocast, encoder, trace


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("aten.addmm", "addmm"),
        ("aten::linear", "linear"),
        ("prims.convert_element_type", "convert_element_type"),
        ("aten.native_batch_norm", "batch_norm"),
        ("aten.relu_", "relu"),
    ],
)
def test_an_op_has_one_name_in_every_graph(name, plain):
    assert plain_name(name) == plain


def test_a_view_is_one_in_every_graph():
    assert all(map(is_view, ["aten.transpose", "aten::transpose", "aten.unsqueeze"]))
    assert not any(map(is_view, ["aten.mm", "aten.clone"]))


def test_a_fused_layer_that_casts_inside_is_said_where_no_cast_is_seen():
    model = encoder().eval()
    with trace_casts(model) as ledger, torch.inference_mode(), autocast():
        model(torch.randn(2, 3, 16))
    assert ledger.casts == []
    assert casts_inside(ledger.trace) == {("_transformer_encoder_layer_fwd", ("fp32",), ("bf16",)): 1}


def test_casts_that_are_seen_promotions_and_tensors_made_anew_are_no_casts_inside():
    def program():
        x = torch.randn(4, 4)
        low = torch.mm(x, x)
        return x + low, torch.zeros_like(low, dtype=torch.float32), low.float(), torch.layer_norm(low, (4,))

    assert not casts_inside(trace(program).trace)


def test_ops_that_cast_alike_are_counted_together():
    ops = [Operation(index=at, name="own.op", inputs=("fp32", "int64"), outputs=("bf16",)) for at in range(3)]
    assert casts_inside(CastTrace(ops=ops)) == {("op", ("fp32",), ("bf16",)): 3}


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


def test_a_gradient_s_cast_that_undoes_none_belongs_to_the_op_that_made_it():
    low, wide = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    with trace_casts() as ledger:
        (low.bfloat16() * wide).sum().backward()
    (inside,) = [cast for cast in ledger.casts if cast.phase == "backward" and cast.origin == "internal"]
    (user,) = [user for cast, user in zip(ledger.casts, cast_users(ledger.trace), strict=True) if cast == inside]
    assert (user.name, user.phase) == ("aten.mul", "backward")


def test_changes_of_gradients_are_told_by_the_forward_op_whether_a_scaler_reads_them_or_not():
    plain = torch.nn.Linear(4, 4)
    with trace_casts(plain) as ledger:
        with autocast(FP16):
            loss = plain(torch.randn(2, 4)).float().sum()
        loss.backward()
    changes = compare_traces(ledger.trace, scaled_step())
    assert {(one.what, one.phase) for one in changes.casts} == {("state", "optimizer")}
