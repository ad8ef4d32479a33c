"""What two traces do differently, of real programs and of made-up ones."""

import random
from dataclasses import replace

import pytest
import torch
from torch._subclasses import FakeTensorMode

from ampbench.judge.compare import (
    BACKWARD,
    FORWARD,
    bare_name,
    changed_names,
    compare_traces,
    computed,
    concerned_rules,
)
from ampbench.records.casts import CastTrace, Operation
from ampbench.records.rules import RuleChange
from ampbench.trace.ledger import trace_casts
from tests.traced_programs import autocast, conv_net, encoder


class Upcast(torch.nn.Module):
    """A layer that someone took out of autocast."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return self.layer(x.float())


def step(*layers, training=True):
    """Trace a step through `layers` under bf16 autocast."""
    model, x = torch.nn.Sequential(*layers), torch.randn(4, 8)
    with trace_casts(model) as ledger:
        with autocast(), torch.set_grad_enabled(training):
            out = model(x).float().sum()
        if training:
            out.backward()
    return ledger.trace


def linear():
    return torch.nn.Linear(8, 8)


def found(changes, function, phase=FORWARD):
    (one,) = [one for one in changes.ops if bare_name(one.function) == function and one.phase == phase]
    return one


@pytest.mark.parametrize("build", [conv_net, encoder])
def test_the_same_step_twice_differs_in_nothing(build):
    def traced():
        model = build()
        x = torch.randn(2, 3, 8, 8) if build is conv_net else torch.randn(2, 4, 16)
        with trace_casts(model) as ledger:
            with autocast():
                out = model(x).float().sum()
            out.backward()
        return ledger.trace

    changes = compare_traces(traced(), traced())
    assert changes.nothing
    assert len(changes.before.ops) == len(changes.after.ops) > 20
    assert len(changes.before.casts) == len(changes.after.casts) > 0


def test_a_layer_out_of_autocast_is_named_with_its_dtypes_in_both_phases():
    changes = compare_traces(step(linear(), linear()), step(linear(), Upcast(linear())))
    for phase in (FORWARD, BACKWARD):
        one = found(changes, "linear", phase)
        assert (computed(one.before), computed(one.after), one.modules) == (("bf16",), ("fp32",), ["1.layer"])


def made_up(*rows):
    """Return a trace of ops given as (name, function, module, dtype)."""
    ops = [
        Operation(index=index, name=name, function=function, module=module, inputs=(dtype,), outputs=(dtype,))
        for index, (name, function, module, dtype) in enumerate(rows)
    ]
    return CastTrace(ops=ops)


def test_the_order_of_ops_in_a_module_is_no_change_and_a_large_trace_is_compared():
    rows = [("aten.add", "add", "", dtype) for dtype in ("fp32", "bf16") * 50_000]
    shuffled = random.Random(0).sample(rows, len(rows))
    assert compare_traces(made_up(*rows), made_up(*shuffled)).nothing
    (one,) = compare_traces(made_up(*rows), made_up(*shuffled, ("aten.add", "add", "", "fp32"))).ops
    assert (one.before.total(), one.after.total(), computed(one.after)) == (0, 1, ("fp32",))


RMS_NORM = RuleChange(
    op="aten::rms_norm", device="cuda", dtypes=["float16"], field="observed", before="unlisted", after="float32"
)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = torch.nn.RMSNorm(16), torch.nn.Linear(16, 16)

    def forward(self, x):
        return x + self.linear(self.norm(x))


def on_fake_cuda():
    """Trace two blocks under fp16 autocast on CUDA as fake tensors have it: its rules, without hardware."""
    with FakeTensorMode(), torch.device("cuda"):
        model, x = torch.nn.Sequential(Block(), Block()), torch.empty(4, 16, dtype=torch.float16)
        with torch.no_grad(), trace_casts(model) as ledger:
            torch.set_autocast_dtype("cuda", torch.float16)
            torch.set_autocast_enabled("cuda", True)
            try:
                model(x)
            finally:
                torch.set_autocast_enabled("cuda", False)
                torch.clear_autocast_cache()
    return ledger.trace


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_the_rule_that_torch_2_12_gave_rms_norm_is_what_changed_in_a_block():
    """Fake tensors, not on hardware: the rule is taken away from this torch, as 2.11 does not have it."""
    after = on_fake_cuda()
    with torch.library._scoped_library("aten", "IMPL", "AutocastCUDA") as library:
        library.impl("rms_norm", torch.library.fallthrough_kernel, allow_override=True)
        before = on_fake_cuda()
    changes = compare_traces(before, after)
    one = found(changes, "rms_norm")
    assert one.modules == ["0.norm", "1.norm"]
    assert {bare_name(each.function) for each in changes.ops} == {"rms_norm"}
    assert concerned_rules(changed_names(changes), [RMS_NORM], "cuda") == [RMS_NORM]
    assert compare_traces(after, on_fake_cuda()).nothing  # the rule is back


def rule(op="aten::rms_norm", **fields):
    return replace(RMS_NORM, op=op, **fields)


def test_a_changed_rule_concerns_the_function_the_op_and_what_casts_for_them_once_each():
    changes = compare_traces(
        made_up(("aten._fused_rms_norm", "torch.nn.functional.rms_norm", "a", "bf16")),
        made_up(("aten._fused_rms_norm", "torch.nn.functional.rms_norm", "a", "fp32")),
    )
    observed, registered = rule(), rule(field="registered", before="no", after="yes")
    others = [rule("aten::softmax.int"), rule(device="xpu"), rule("aten::rms_norm.x", field="op"), rule(field="claim")]
    assert concerned_rules(changed_names(changes), [registered, *others, observed], "cuda") == [observed]
    assert concerned_rules(changed_names(changes), [registered, *others], "cuda") == [registered]
    assert concerned_rules(changed_names(changes), [observed], "cpu") == []
