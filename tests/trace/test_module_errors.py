import copy

import pytest
import torch

from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.ranges import ranked
from ampbench.trace.errors import watch_errors
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
