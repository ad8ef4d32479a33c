import copy
import math

import pytest
import torch
import torch.nn.functional as F

from ampbench.trace.nonfinite import find_nonfinite
from tests.planted_faults import FAULTS, FLUSHES, SMALL
from tests.traced_programs import conv_net, encoder


def found(function, model=None):
    with find_nonfinite(model or torch.nn.Identity()) as seen:
        function()
    return seen.first


def test_a_sum_of_4096_sixteens_is_found_in_fp16():
    sixteens = torch.full((4096,), 16.0)
    first = found(lambda: sixteens.half().sum())
    assert (first.operation, first.phase, first.inputs_largest) == ("aten.sum", "forward", 16.0)
    assert found(sixteens.sum) is None
    assert found(lambda: sixteens.bfloat16().sum()) is None


def test_the_op_its_module_and_the_lines_before_it_are_named():
    class Scales(torch.nn.Module):
        def forward(self, x):
            return x * 1e6

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Scales(), torch.nn.Linear(4, 4)).half()
    x = torch.randn(2, 4).half()
    with find_nonfinite(model) as seen:
        model(x)
    first = seen.first
    assert (first.operation, first.module, first.phase, first.step) == ("aten.mul", "1", "forward", 0)
    assert first.inputs_largest == model[0](x).abs().max()
    assert first.frames[-1].endswith("in forward: return x * 1e6")
    assert all(__file__ in frame for frame in first.frames[-2:])
    assert not any("torch/nn/modules" in frame for frame in first.frames)


def test_a_gradient_that_overflows_is_found_in_the_backward_pass():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, bias=False)).half()
    with torch.no_grad():
        model[0].weight.fill_(1e-3)
        model[1].weight.fill_(0.5)
    x = torch.full((8, 4), 100.0).half()
    with find_nonfinite(model) as seen:
        model(x).backward(torch.full((8, 4), 200.0).half())
    first = seen.first
    assert (first.module, first.phase, first.parameter) == ("0", "backward", "0.weight")
    assert first.operation == "aten.mm"


SCORES = torch.randn(2, 4, 4)
MASK = torch.ones(4, 4).tril().bool()


@pytest.mark.parametrize(
    "meant",
    [
        lambda: SCORES.masked_fill(~MASK, -math.inf).softmax(-1),
        lambda: SCORES.clone().masked_fill_(~MASK, -math.inf).softmax(-1),
        lambda: (SCORES + torch.full((4, 4), -math.inf).triu(1)).softmax(-1),
        lambda: torch.where(MASK, SCORES, -math.inf).softmax(-1),
        lambda: (SCORES + MASK.float().log()).softmax(-1),
        lambda: (SCORES.half() + torch.where(MASK, 0.0, torch.finfo(torch.float32).min).half()).softmax(-1),
        lambda: F.scaled_dot_product_attention(SCORES, SCORES, SCORES, attn_mask=MASK),
        lambda: F.scaled_dot_product_attention(SCORES, SCORES, SCORES, is_causal=True),
        lambda: torch.full((3,), math.nan).nan_to_num(),
        lambda: torch.empty(10_000).fill_(1.0) + 1,
        lambda: SCORES.clamp(min=-math.inf),
        lambda: torch.full((), -math.inf).maximum(SCORES).amax(),
    ],
)
def test_infinities_that_are_meant_are_no_fault(meant):
    assert found(meant) is None


@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        ("aten._softmax", lambda: torch.full((2, 2), -math.inf).softmax(-1)),
        ("aten.neg", lambda: -torch.zeros(2).log()),
        ("aten.mul", lambda: torch.zeros(2) * math.inf),
        ("aten.div", lambda: torch.ones(2) / torch.zeros(2)),
        ("aten.div", lambda: torch.ones(2, dtype=torch.int64) / torch.zeros(2, dtype=torch.int64)),
        ("aten.sqrt", lambda: torch.tensor([-1.0]).sqrt()),
        ("aten._to_copy", lambda: torch.tensor([1e5]).half()),
        ("aten.add_", lambda: torch.tensor([6e4]).half().add_(6e4)),
        ("aten.exp_", lambda: torch.tensor([100.0]).exp_()),
    ],
)
def test_infinities_and_nans_that_are_computed_are(operation, fault):
    assert found(fault).operation == operation


def test_a_network_with_nothing_wrong_trains_bit_identically():
    torch.manual_seed(0)
    for model, x in ((conv_net(), torch.randn(4, 3, 8, 8)), (encoder(), torch.randn(2, 5, 16))):
        other = copy.deepcopy(model)

        def step(net, x=x):
            torch.manual_seed(1)
            optimizer = torch.optim.AdamW(net.parameters())
            with torch.autocast("cpu", torch.bfloat16):
                out = net(x)
            out.float().square().mean().backward()
            optimizer.step()
            return [out.detach(), *net.state_dict().values()]

        plain = step(model)
        with find_nonfinite(other) as seen:
            watched = step(other)
        assert seen.first is None
        assert all(torch.equal(left, right) for left, right in zip(plain, watched, strict=True))


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != FLUSHES])
@pytest.mark.parametrize("build", SMALL)
def test_a_planted_fault_is_found_where_it_is(build, fault):
    model, x, name = build(fault)
    model, x = model.half(), x.half()
    with find_nonfinite(model) as seen:
        model(x)
    assert (seen.first.module, seen.first.phase) == (name, "forward")
