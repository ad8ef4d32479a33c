"""What modules err by in half precision, and where values first are not finite."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.ranges import ranked
from ampbench.trace.errors import watch_errors
from ampbench.trace.nonfinite import find_nonfinite
from tests.planted_faults import FAULTS, FLUSHES, SMALL
from tests.traced_programs import conv_net, encoder


def errors_of(model, *inputs, precision="fp16_pure", **named):
    with watch_errors(model, precision) as seen:
        model(*inputs, **named)
    return {row.module: row for row in seen.modules}


def test_a_sum_of_4096_sixteens_overflows_fp16_and_not_bf16():
    class Sum(torch.nn.Module):
        def forward(self, x):
            return x.sum()

    sixteens = torch.full((4096,), 16.0)
    assert Sum()(sixteens) == 65536
    row = errors_of(Sum(), sixteens)[""]
    assert (row.overflowed, row.elements, row.own_rel_l2) == (1, 1, None)
    assert errors_of(Sum(), sixteens, precision="bf16_pure")[""].overflowed == 0


@pytest.mark.parametrize(("precision", "half"), [("fp16_pure", torch.float16), ("bf16_pure", torch.bfloat16)])
def test_in_pure_half_weights_are_rounded_and_the_rounding_of_inputs_is_not_the_modules(precision, half):
    lin, x = torch.nn.Linear(16, 8), torch.randn(4, 16)
    with torch.no_grad():
        exact, low = lin(x.to(half).float()).double(), copy.deepcopy(lin).to(half)(x.to(half)).double()
    row = errors_of(lin, x, precision=precision)[""]
    assert row.own_rel_l2 == pytest.approx(float((low - exact).norm() / exact.norm()), rel=1e-6)


def test_under_autocast_the_module_does_as_autocast_does():
    model, x = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.LayerNorm(8)), torch.randn(4, 16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        low = model[0](x).double()
    exact = model[0](x).detach().double()
    rows = errors_of(model, x, precision="bf16_autocast")
    assert rows["0"].own_rel_l2 == pytest.approx(float((low - exact).norm() / exact.norm()), rel=1e-6)
    assert rows["1"].own_rel_l2 == 0.0  # its input is exact, and fp32


@pytest.mark.parametrize("precision", ["fp16_pure", "bf16_autocast"])
@pytest.mark.parametrize("build", [conv_net, encoder])
def test_results_buffers_gradients_and_random_numbers_stay_the_same(build, precision):
    torch.manual_seed(0)
    model = build()
    x = torch.randn(4, 3, 8, 8) if build is conv_net else torch.randn(2, 5, 16)
    other = copy.deepcopy(model)

    def step(net):
        torch.manual_seed(1)
        out = net(x)
        out.square().mean().backward()
        grads = [p.grad for p in net.parameters()]
        return [out.detach(), *grads, *net.state_dict().values(), torch.rand(1)]

    plain = step(model)
    with watch_errors(other, precision) as seen:
        watched = step(other)
    assert all(torch.equal(left, right) for left, right in zip(plain, watched, strict=True))
    assert all(row.elements and not row.note for row in seen.modules)
    assert max(row.own_rel_l2 for row in seen.modules) < 0.02


def test_what_cannot_run_in_half_says_so():
    class Picky(torch.nn.Module):
        def forward(self, x):
            if x.dtype is not torch.float32:
                raise TypeError("float32 only\nand a second line")
            return x

    row = errors_of(Picky(), torch.ones(3))[""]
    assert (row.elements, row.own_rel_l2) == (0, None)
    assert row.note == "it does not run in fp16_pure: float32 only"


def test_the_user_s_hooks_run_once():
    model, heard = torch.nn.Linear(4, 4), []
    model.register_forward_pre_hook(lambda _, args: heard.append("pre") or (args[0] * 2,))
    model.register_forward_hook(lambda *_: heard.append("post"))
    row = errors_of(model, torch.randn(2, 4))[""]
    assert heard == ["pre", "post"]
    assert 0 < row.own_rel_l2 < 1e-2  # on the inputs that the hook made


def test_fp32_is_no_shadow_and_unknown_precisions_are_named():
    with pytest.raises(UsageError, match="rounds no module"), watch_errors(torch.nn.Linear(1, 1), "fp32"):
        pass
    with pytest.raises(UnknownNameError, match="fp16_pure"), watch_errors(torch.nn.Linear(1, 1), "fp16_pur"):
        pass


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("build", SMALL)
def test_a_planted_fault_is_the_first_in_the_ranking(build, fault):
    model, x, name = build(fault)
    with watch_errors(model, "fp16_pure") as seen:
        model(x)
    worst = ranked(seen.modules)[0]
    assert worst.module == name
    assert worst.flushed / worst.elements > 0.9 if fault == FLUSHES else worst.overflowed > 0


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
