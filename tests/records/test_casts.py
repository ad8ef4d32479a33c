import pytest
import torch

from ampbench.judge.compare import compare_traces
from ampbench.records.casts import KEEP, ONCE, STORE, cast_users, casts_inside, savings
from ampbench.trace.ledger import trace_casts
from tests.traced_programs import BF16, FP16, autocast, encoder, trace


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


def kinds(ledger):
    return [(saving.kind, saving.what, saving.names) for saving in savings(ledger.trace)]


def test_an_input_that_every_op_casts_could_be_stored_low():
    lin, x = torch.nn.Linear(16, 16), torch.randn(4, 16)
    ledger = trace(lambda: lin(x), lin)
    (saving,) = savings(ledger.trace)
    assert (saving.kind, saving.names, saving.casts) == (STORE, ("input",), (2,))
    assert saving.bytes_moved == 4 * 16 * 6
    assert saving.to_dtype == "bf16"
    assert kinds(trace(lambda: lin(x.bfloat16()), lin)) == []


@pytest.mark.parametrize("grad", [torch.inference_mode, torch.enable_grad])
def test_a_weight_cast_again_because_no_cache_holds_it_could_be_kept(grad):
    lin, x = torch.nn.Linear(8, 8), torch.randn(4, 8, dtype=BF16)
    with grad():
        found = kinds(trace(lambda: lin(lin(x)), lin))
    both = [(kind, "weight", ("bias", "weight")) for kind in (KEEP, STORE)]
    assert sorted((kind, what, tuple(sorted(names))) for kind, what, names in found) == (
        both if grad is torch.inference_mode else []
    )


def test_a_value_cast_twice_could_be_cast_once_unless_it_changed():
    x = torch.randn(4, 4)

    def program(change):
        y = x + 1
        first = torch.mm(y, y.clone())
        if change:
            y.add_(1)
        return first, torch.mm(y, y.clone())

    assert [kind for kind, *_ in kinds(trace(lambda: program(False)))] == [ONCE]
    assert kinds(trace(lambda: program(True))) == []


@pytest.mark.parametrize(("grad", "stored"), [(torch.no_grad, [{"weight", "bias"}]), (torch.enable_grad, [])])
def test_weights_could_be_stored_low_in_inference_only(grad, stored):
    lin, x = torch.nn.Linear(16, 16), torch.randn(4, 16, dtype=BF16)
    with grad():
        found = savings(trace(lambda: lin(x), lin).trace)
    assert [set(saving.names) for saving in found] == stored
    assert {(saving.kind, saving.what) for saving in found} <= {(STORE, "weight")}


def test_a_buffer_could_be_stored_low_in_inference_only():
    class Adds(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randn(8, 8))

        def forward(self, x):
            return torch.mm(x, self.table)

    net, x = Adds(), torch.randn(4, 8, dtype=BF16)
    with torch.inference_mode():
        (saving,) = savings(trace(lambda: net(x), net).trace)
    assert (saving.kind, saving.what, saving.names) == (STORE, "buffer", ("table",))
    assert kinds(trace(lambda: net(x), net)) == []
