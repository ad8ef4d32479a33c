import pytest
import torch

from ampbench.records.casts import KEEP, ONCE, STORE, savings
from tests.traced_programs import BF16, trace


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
