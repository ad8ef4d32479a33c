import pytest
import torch
import torch.nn.functional as F

from ampbench.records.casts import KEEP, ONCE, STAY, STORE, bytes_moved, savings
from ampbench.trace.ledger import trace_casts
from tests.traced_programs import BF16, autocast, trace


def kinds(ledger):
    return [(saving.kind, saving.what, saving.names) for saving in savings(ledger.trace)]


def training_step():
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)), torch.randn(4, 8)
    with trace_casts(model, time=True) as ledger:
        with autocast():
            loss = F.mse_loss(model(x), torch.zeros(4, 2))
        loss.backward()
    return ledger


def test_bytes_count_what_was_cast_and_what_the_cache_keeps():
    ledger = training_step()
    assert len(ledger.casts) == 11
    assert bytes_moved(ledger.casts) == sum(cast.elements * 6 for cast in ledger.casts)
    assert ledger.cache_bytes == (64 + 8 + 16 + 2) * 2


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


def test_a_value_cast_there_and_back_could_stay():
    lin, x = torch.nn.Linear(8, 8), torch.randn(4, 8, dtype=BF16)
    ledger = trace(lambda: lin(lin(x).float()), lin)
    (saving,) = savings(ledger.trace)
    assert (saving.kind, saving.what) == (STAY, "activation")
    assert ledger.casts[-1].index in saving.casts
    assert saving.to_dtype == "bf16"


def test_casts_inside_an_op_are_nobodys_to_save():
    q = torch.randn(1, 2, 4, 8, dtype=BF16)
    ledger = trace(lambda: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5))
    assert {cast.origin for cast in ledger.casts} == {"internal"}
    assert kinds(ledger) == []


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
