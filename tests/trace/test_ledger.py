import copy
import gc
import weakref
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

import ampbench
from ampbench.trace import modules
from ampbench.trace.ledger import CallMode, trace_casts
from tests.traced_programs import BF16, FP16, CastLog, autocast, conv_net, encoder, trace

LINEAR = "torch.nn.functional.linear"


def kinds(ledger):
    return [(cast.what, cast.name) for cast in ledger.casts]


def run_ops(ledger):
    return [operation.name.removeprefix("aten.") for operation in ledger.ops]


def test_a_linear_casts_bias_weight_and_input_and_then_runs_t_and_addmm():
    lin, x = torch.nn.Linear(16, 16), torch.randn(4, 16)
    ledger = trace(lambda: lin(x), lin)
    assert run_ops(ledger) == ["_to_copy", "_to_copy", "_to_copy", "t", "addmm"]
    assert kinds(ledger) == [("weight", "bias"), ("weight", "weight"), ("input", "input")]
    assert {cast.operation for cast in ledger.casts} == {4}
    assert {cast.origin for cast in ledger.casts} == {"autocast"}
    assert {operation.function for operation in ledger.ops} == {LINEAR}
    weight = ledger.casts[1]
    assert (weight.from_dtype, weight.to_dtype, weight.elements) == ("fp32", "bf16", 256)
    assert (weight.bytes_read, weight.bytes_written) == (1024, 512)
    assert ledger.ops[4].inputs == ("bf16", "bf16", "bf16")


def test_a_linear_given_half_casts_only_bias_and_weight():
    lin, x = torch.nn.Linear(16, 16), torch.randn(4, 16).bfloat16()
    assert kinds(trace(lambda: lin(x), lin)) == [("weight", "bias"), ("weight", "weight")]


def test_the_next_layer_takes_a_half_activation_as_it_is_and_an_fp32_op_casts_it_back():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    x, target = torch.randn(4, 8), torch.randn(4, 8)
    with trace_casts(model) as ledger, autocast():
        F.mse_loss(model(x), target)
    activations = [cast for cast in ledger.casts if cast.what == "activation"]
    assert [(cast.name, cast.to_dtype, cast.origin) for cast in activations] == [("1", "fp32", "autocast")]
    assert ledger.ops[activations[0].operation].name == "aten.mse_loss"


def test_the_second_use_of_a_weight_comes_from_the_cache():
    lin, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    ledger = trace(lambda: lin(lin(x)), lin)
    assert [(use.name, use.status) for use in ledger.weights] == [
        ("bias", "cast"),
        ("weight", "cast"),
        ("bias", "reused"),
        ("weight", "reused"),
    ]
    assert [use.cast for use in ledger.weights] == [0, 1, 0, 1]
    assert ledger.cache_bytes == (64 + 8) * 2


@pytest.mark.parametrize("leaving_out", ["inference", "cache_enabled"])
def test_nothing_is_reused_where_there_is_no_cache(leaving_out):
    lin, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    inference = leaving_out == "inference"
    with trace_casts(lin) as ledger, torch.inference_mode(inference), autocast(cache_enabled=inference):
        lin(lin(x))
    assert [use.status for use in ledger.weights] == ["cast"] * 4
    assert ledger.cache_bytes == 0


def test_a_new_autocast_region_casts_weights_anew():
    lin, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    with trace_casts(lin) as ledger:
        for _ in range(2):
            with autocast():
                lin(x)
    assert [use.status for use in ledger.weights] == ["cast"] * 4
    assert ledger.cache_bytes == (64 + 8) * 2


def test_the_cache_holds_each_weight_once_however_many_steps_are_traced():
    model, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trace_casts(model) as ledger:
        for _ in range(3):
            optimizer.zero_grad()
            with autocast():
                loss = model(x).float().sum()
            loss.backward()
            optimizer.step()
    assert len([cast for cast in ledger.casts if cast.cached]) == 6
    assert ledger.cache_bytes == (64 + 8) * 2


def test_inputs_activations_and_frozen_weights_are_never_cached():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8))
    model[2].requires_grad_(False)
    x = torch.randn(4, 8)
    ledger = trace(lambda: (model(x), model(x)), model)
    assert {cast.name for cast in ledger.casts if cast.cached} == {"0.weight", "0.bias"}
    assert Counter(cast.name for cast in ledger.casts if cast.what == "weight")["2.weight"] == 2


def test_a_weight_stored_in_the_dtype_is_not_cast():
    lin, x = torch.nn.Linear(8, 8).bfloat16(), torch.randn(4, 8).bfloat16()
    ledger = trace(lambda: lin(x), lin)
    assert ledger.casts == []
    assert [use.status for use in ledger.weights] == ["not needed", "not needed"]


def test_a_slice_of_a_weight_has_its_name_and_no_place_in_the_cache():
    attention, x = torch.nn.MultiheadAttention(8, 2), torch.randn(3, 4, 8)
    ledger = trace(lambda: attention(x, x + 1, x), attention)
    slices = [cast for cast in ledger.casts if cast.name == "in_proj_weight"]
    assert [cast.cached for cast in slices] == [False] * 3
    assert {cast.tensor for cast in slices} == {cast.tensor for cast in slices}
    assert len({cast.tensor for cast in slices}) == 3
    assert [cast.cached for cast in ledger.casts if cast.name == "out_proj.weight"] == [True]


def test_a_module_tells_the_dtypes_in_and_out_and_softmax_stays_low_on_a_cpu():
    class Head(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.softmax = torch.nn.Linear(8, 4), torch.nn.Softmax(-1)

        def forward(self, x):
            return {"probabilities": self.softmax(self.linear(x))}

    head, x = Head(), torch.randn(2, 8)
    ledger = trace(lambda: head(x=x), head)
    rows = [(row.module, row.kind, row.inputs, row.outputs, row.parameters) for row in ledger.modules]
    assert rows == [
        ("", "Head", ("fp32",), ("bf16",), ()),
        ("linear", "Linear", ("fp32",), ("bf16",), ("fp32",)),
        ("softmax", "Softmax", ("bf16",), ("bf16",), ()),
    ]


def test_gradients_are_cast_back_in_the_backward_pass_of_their_module():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    x = torch.randn(4, 8)
    with trace_casts(model) as ledger:
        with autocast():
            loss = model(x).float().sum()
        loss.backward()
    back = [cast for cast in ledger.casts if cast.phase == "backward"]
    assert {cast.what for cast in back} == {"gradient"}
    assert [(cast.name, cast.module, cast.origin, cast.to_dtype) for cast in back] == [
        ("2", "", "explicit", "bf16"),
        *((name, name[0], "autocast", "fp32") for name in [cast.name for cast in back[1:]]),
    ]
    assert {cast.name for cast in back[1:]} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert {operation.module for operation in ledger.ops if operation.name == "aten.threshold_backward"} == {"1"}


def test_a_product_of_fp32_matrices_is_half_and_mixing_it_outside_raises():
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    with trace_casts() as ledger:
        with autocast():
            product = torch.mm(a, b)
            assert torch.mm(product, b).dtype is BF16
        with pytest.raises(RuntimeError, match="dtype"):
            torch.mm(product, b)
        torch.mm(product.float(), b)
    assert [(cast.what, cast.origin, cast.to_dtype) for cast in ledger.casts] == [
        ("input", "autocast", "bf16"),
        ("input", "autocast", "bf16"),
        ("input", "autocast", "bf16"),
        ("activation", "explicit", "fp32"),
    ]
    assert ledger.casts[0].tensor == ledger.casts[2].tensor


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.half(),
        lambda x: x.to(FP16),
        lambda x: x.to("cpu", FP16),
        lambda x: x.type(FP16),
        lambda x: x.type_as(torch.zeros(1, dtype=FP16)),
        lambda x: torch.softmax(x, -1, dtype=FP16),
        lambda x: torch.nn.Linear(4, 4).half() and x.to(dtype=FP16),
    ],
)
def test_a_conversion_in_the_users_code_is_explicit_inside_autocast_and_out(convert):
    x = torch.randn(4, 4)
    with trace_casts() as ledger:
        convert(x)
        with autocast():
            convert(x)
    assert ledger.casts
    assert {cast.origin for cast in ledger.casts} == {"explicit"}


def test_attention_without_a_fused_kernel_has_casts_of_its_own():
    q = torch.randn(1, 2, 4, 8)
    ledger = trace(lambda: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5))
    origins = Counter((cast.origin, cast.to_dtype) for cast in ledger.casts)
    assert origins == {("autocast", "bf16"): 3, ("internal", "fp32"): 3, ("internal", "bf16"): 2}


def test_autocast_casts_the_parts_of_an_op_without_a_rule_in_inference_mode_too():
    x = torch.randn(3, 3)
    with torch.inference_mode(), autocast():
        untraced = torch.einsum("ij,jk->ik", x, x)
        with trace_casts() as ledger:
            traced = torch.einsum("ij,jk->ik", x, x)
    assert traced.dtype is BF16
    assert torch.equal(traced, untraced)
    assert [cast.origin for cast in ledger.casts] == ["autocast", "autocast"]


def test_an_op_of_the_users_own_computes_as_it_does_untraced():
    @torch.library.custom_op("ampbench_tests::product", mutates_args=())
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.mm(a, b).float()

    a, b = torch.randn(8, 8), torch.randn(8, 8)
    with autocast():
        untraced = product(a, b)
        with trace_casts() as ledger:
            traced = product(a, b)
    assert torch.equal(traced, untraced)
    assert [operation.name for operation in ledger.ops] == ["ampbench_tests.product"]


def test_sources_are_the_callers_lines():
    lin, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    ledger = trace(lambda: lin(x), lin, sources=True)
    assert {operation.source.rpartition(":")[0] for operation in ledger.ops} == {__file__}
    assert trace(lambda: lin(x), lin).ops[0].source is None


def test_time_is_measured_where_asked_for():
    lin, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    ledger = trace(lambda: lin(x), lin, time=True)
    assert all(operation.seconds > 0 for operation in ledger.ops)
    assert [cast.seconds for cast in ledger.casts] == [ledger.ops[cast.index].seconds for cast in ledger.casts]
    assert trace(lambda: lin(x), lin).ops[0].seconds is None


def test_a_shared_module_is_named_by_the_way_it_was_called():
    class Pair(torch.nn.Module):
        def __init__(self):
            super().__init__()
            shared = torch.nn.Linear(4, 4)
            self.left, self.right = torch.nn.Sequential(shared), torch.nn.Sequential(shared)
            self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4)])

        def forward(self, x):
            return self.layers[0](self.right(self.left(x)))

    model, x = Pair(), torch.randn(2, 4)
    ledger = trace(lambda: model(x), model)
    assert [o.module for o in ledger.ops if o.name == "aten.addmm"] == ["left.0", "right.0", "layers.0"]
    assert {(use.name, use.status) for use in ledger.weights if use.module == "right.0"} == {
        ("left.0.weight", "reused"),
        ("left.0.bias", "reused"),
    }


def test_a_shared_module_is_not_named_below_one_whose_name_only_begins_like_that_of_its_caller():
    class Outer(torch.nn.Module):
        def __init__(self, shared):
            super().__init__()
            self.inner = torch.nn.ModuleList([shared])

        def forward(self, x):
            return self.inner[0](x)

    shared = torch.nn.Linear(4, 4)
    model = torch.nn.ModuleDict({"layer10": Outer(shared), "layer1": Outer(shared)})
    x = torch.randn(2, 4)
    ledger = trace(lambda: model["layer1"](x), model)
    assert {operation.module for operation in ledger.ops} == {"layer1.inner.0"}


def test_without_a_model_the_outermost_modules_name_themselves():
    first, second, x = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.randn(2, 4)
    ledger = trace(lambda: second(first(x)))
    assert [name for what, name in kinds(ledger) if what == "weight"] == [
        "Linear.bias",
        "Linear.weight",
        "Linear#2.bias",
        "Linear#2.weight",
    ]


def test_functions_without_modules_are_traced():
    x, weight = torch.randn(2, 4), torch.randn(4, 4, requires_grad=True)
    ledger = trace(lambda: (F.linear(x, weight), F.linear(x, weight)))
    assert [(cast.what, cast.cached) for cast in ledger.casts] == [
        ("weight", True),
        ("input", False),
        ("input", False),
    ]
    assert {operation.module for operation in ledger.ops} == {""}
    assert [use.status for use in ledger.weights] == ["cast", "reused"]


def test_an_optimizers_step_is_a_phase_of_its_own_and_uses_no_weights():
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    with trace_casts(model) as ledger:
        with autocast():
            loss = model(x).float().sum()
        loss.backward()
        optimizer.step()
    assert [operation.phase for operation in ledger.ops][-1] == "optimizer"
    assert [use.status for use in ledger.weights] == ["cast", "cast"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_forward_pass_is_recomputed_inside_the_backward_pass(reentrant):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    x = torch.randn(2, 4, requires_grad=True)
    with trace_casts(model) as ledger:
        with autocast():
            loss = checkpoint(model, x, use_reentrant=reentrant).float().sum()
        loss.backward()
    products = [(o.module, o.phase, o.recomputed) for o in ledger.ops if o.name == "aten.addmm"]
    assert products[:2] == [("0", "forward", False), ("1", "forward", False)]
    assert set(products[2:]) <= {("0", "forward", True), ("1", "forward", True)}
    assert len(products) >= 3
    back = [cast for cast in ledger.casts if cast.phase == "backward"]
    assert {cast.name for cast in back} >= {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert {cast.what for cast in back} == {"gradient"}


def test_a_checkpointed_function_is_recomputed_too():
    x, weight = torch.randn(2, 4), torch.randn(4, 4, requires_grad=True)
    with trace_casts() as ledger:
        with autocast():
            loss = checkpoint(lambda: F.linear(x, weight).relu(), use_reentrant=False).float().sum()
        loss.backward()
    assert [(o.phase, o.recomputed) for o in ledger.ops if o.name == "aten.mm"][:2] == [
        ("forward", False),
        ("forward", True),
    ]


class Scaled(torch.autograd.Function):
    """A user's function that converts in both passes."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.half() @ weight.half()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        wide = grad.float()
        return wide @ weight.t(), x.t() @ wide


class Custom(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return Scaled.apply(x, self.weight)


@pytest.mark.parametrize("how", ["backward", "grad"])
def test_a_custom_function_converts_explicitly_in_its_module(how):
    model, x = Custom(), torch.randn(2, 4)
    with trace_casts(model) as ledger:
        loss = model(x).sum()
        if how == "backward":
            loss.backward()
        else:
            torch.autograd.grad(loss, model.weight)
    assert [(cast.what, cast.phase, cast.origin, cast.to_dtype) for cast in ledger.casts] == [
        ("input", "forward", "explicit", "fp16"),
        ("weight", "forward", "explicit", "fp16"),
        ("gradient", "backward", "explicit", "fp32"),
    ]
    assert not any(operation.recomputed for operation in ledger.ops)
    assert [o.phase for o in ledger.ops if o.name == "aten.mm"] == ["forward", "backward", "backward"]


def test_second_derivatives_are_backward_and_not_recomputed():
    lin, x = torch.nn.Linear(4, 1), torch.randn(2, 4, requires_grad=True)
    with trace_casts(lin) as ledger:
        with autocast():
            y = lin(x).float().tanh().sum()
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        slope.square().sum().backward()
    assert not any(operation.recomputed for operation in ledger.ops)
    assert {"forward", "backward"} == {operation.phase for operation in ledger.ops}


def test_hooks_and_control_flow_on_data_are_traced_as_they_happen():
    class Gate(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.low, self.high = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.high(x) if x.sum() > 0 else self.low(x)

    model = Gate()
    model.low.register_forward_pre_hook(lambda _, args: (args[0].double().float(),))
    ledger = trace(lambda: (model(torch.ones(2, 4)), model(-torch.ones(2, 4))), model)
    assert [o.module for o in ledger.ops if o.name == "aten.addmm"] == ["high", "low"]
    hooked = [cast for cast in ledger.casts if cast.origin == "explicit"]
    assert [(cast.from_dtype, cast.to_dtype, cast.module) for cast in hooked] == [
        ("fp32", "fp64", "low"),
        ("fp64", "fp32", "low"),
    ]
    assert hooked[1].made_by == hooked[0].index


def test_a_recurrent_layer_uses_each_weight_once_a_call():
    gru, x = torch.nn.GRU(4, 4), torch.randn(5, 2, 4)
    ledger = trace(lambda: gru(x), gru)
    assert len([operation for operation in ledger.ops if operation.name == "aten.addmm"]) > 1
    assert Counter(use.name for use in ledger.weights).most_common(1)[0][1] == 1


def test_traces_nest_and_see_the_same():
    lin, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    with trace_casts(lin) as outer:
        with trace_casts(lin) as inner, autocast():
            lin(x).sum().backward()
        with autocast():
            lin(x)
    assert outer.trace.ops[: len(inner.ops)] == inner.trace.ops
    assert kinds(outer)[: len(inner.casts)] == kinds(inner)
    assert len(outer.ops) > len(inner.ops)


def states():
    return (
        len(_get_current_dispatch_mode_stack()),
        len(_get_current_function_mode_stack()),
        len(module_hooks._global_forward_hooks),
        len(module_hooks._global_forward_pre_hooks),
        len(optimizer_hooks._global_optimizer_pre_hooks),
        len(optimizer_hooks._global_optimizer_post_hooks),
        torch.is_autocast_enabled("cpu"),
    )


@pytest.mark.parametrize("inference", [False, True])
def test_an_exception_leaves_the_program_as_it_was_and_the_ledger_readable(inference):
    class Breaks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(4, 4)
            self.second = torch.nn.MultiheadAttention(4, 1)

        def forward(self, x):
            return self.second(self.first(x), x.int(), x)

    model, before = Breaks().eval(), states()
    x = torch.randn(2, 4)
    with pytest.raises(RuntimeError), trace_casts(model) as ledger, torch.inference_mode(inference), autocast():
        model(x)
    assert states() == before
    assert {"first.weight", "first.bias"} <= {cast.name for cast in ledger.casts}
    assert len(trace(lambda: model.first(x), model).casts) == 3


def test_an_exception_that_the_program_catches_does_not_disturb_the_modules_names():
    class Tries(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bad, self.good = torch.nn.Linear(3, 3), torch.nn.Linear(4, 4)

        def forward(self, x):
            try:
                return self.bad(x)
            except RuntimeError:
                return self.good(x)

    model, x = Tries(), torch.randn(2, 4)
    ledger = trace(lambda: model(x), model)
    assert [o.module for o in ledger.ops if o.name == "aten.addmm"] == ["good"]


class Hidden(torch.Tensor):
    """A tensor whose ops run where no mode sees them."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with no_dispatch():
            return func(*args, **(kwargs or {}))


def test_what_a_tensor_subclass_runs_in_place_of_an_op_is_seen_or_else_the_op():
    lin, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    two = TwoTensor(x, x.clone())
    ledger = trace(lambda: lin(two).float().sum().backward(), lin)
    casts = Counter((cast.what, cast.phase) for cast in ledger.casts)
    assert casts["input", "forward"] == 2, "one for each of the two tensors"
    assert casts["weight", "forward"] == 2
    before = states()
    with trace_casts() as ledger:
        torch.Tensor._make_subclass(Hidden, x) + 1
    assert states() == before
    assert "aten.add" in [op.name for op in ledger.ops]


def test_a_tensor_subclass_without_ops_of_its_own_is_traced():
    class Named(torch.Tensor):
        pass

    x = torch.randn(2, 4).as_subclass(Named)
    lin = torch.nn.Linear(4, 4)
    assert [cast.what for cast in trace(lambda: lin(x), lin).casts] == ["weight", "weight", "input"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # TorchScript is both
def test_a_scripted_module_is_cast_by_autocast_too():
    scripted, x = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 4))), torch.randn(2, 4)
    ledger = trace(lambda: scripted(x), scripted)
    assert {(cast.what, cast.origin) for cast in ledger.casts} == {("weight", "autocast"), ("input", "autocast")}


def test_fake_tensors_of_an_absent_device_are_traced():
    with FakeTensorMode():
        lin, x = torch.nn.Linear(4, 4, device="cuda"), torch.empty(2, 4, device="cuda")
        with trace_casts(lin) as ledger:
            torch.set_autocast_enabled("cuda", True)
            try:
                F.layer_norm(lin(x), (4,))
            finally:
                torch.set_autocast_enabled("cuda", False)
    assert [(cast.what, cast.to_dtype) for cast in ledger.casts][-1] == ("activation", "fp32")
    assert {cast.origin for cast in ledger.casts} == {"autocast"}


def test_a_module_built_and_converted_in_the_block_has_weights():
    ledger = trace(lambda: torch.nn.Linear(4, 4).half())
    assert [(cast.what, cast.origin) for cast in ledger.casts] == [("weight", "explicit")] * 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch 2.11 imports what it deprecates
@pytest.mark.parametrize("how", ["in place", "wrapped", "a part"])
def test_compiled_modules_run_uncompiled_and_are_seen_whole(how):
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.randn(2, 4)
    plain = [op.name for op in trace(lambda: model(x), model).ops]
    if how == "in place":
        model.compile(backend="eager")
    else:
        model = torch.compile(model) if how == "wrapped" else torch.nn.Sequential(torch.compile(model))
    ledger = trace(lambda: model(x), model)
    assert [op.name for op in ledger.ops] == plain
    assert [cast.what for cast in ledger.casts] == ["weight", "weight", "input"]


def test_a_custom_op_is_one_op_with_what_autocast_casts_for_it():
    with torch.library._scoped_library("casts_of", "DEF") as library:
        library.define("halved(Tensor x) -> Tensor")
        library.impl("halved", lambda x: (x.half() @ x.half().t()).float(), "CompositeExplicitAutograd")
        lin, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
        ledger = trace(lambda: torch.ops.casts_of.halved(lin(x).detach()), lin)
    assert ledger.ops[-1].name == "casts_of.halved"
    assert len(ledger.casts) == 3


def test_inputs_that_an_op_promotes_inside_are_no_casts_and_have_their_bytes():
    low, full = torch.randn(4, 8).bfloat16(), torch.randn(8)
    with trace_casts() as ledger:
        low * full
        full.add_(1) * torch.ones((), dtype=torch.float64)
        torch.where(low > full, low, full)
        low.mean(1)
    found = [(ledger.ops[one.operation].name, one.from_dtype, one.to_dtype, one.bytes_moved) for one in
             ledger.trace.promotions]  # fmt: skip
    assert found == [
        ("aten.mul", "bf16", "fp32", 32 * 6),
        ("aten.mul", "fp64", "fp32", 12),
        ("aten.gt", "bf16", "fp32", 32 * 6),
        ("aten.where", "bf16", "fp32", 32 * 6),
        ("aten.mean", "bf16", "fp32", 32 * 6),
        ("aten.mean", "bf16", "fp32", 4 * 6),
    ]
    assert not ledger.casts


def gradients(model, x, *, traced, dtype, scaler=False):
    """Return output, gradients and buffers of a training step, and the number of casts where traced."""
    model, x = copy.deepcopy(model), x.clone().requires_grad_()
    torch.manual_seed(1)
    grad_scaler = torch.amp.GradScaler("cpu", enabled=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step():
        with autocast(dtype):
            output = model(x)
            loss = output.float().square().mean()
        grad_scaler.scale(loss).backward()
        grad_scaler.step(optimizer)
        grad_scaler.update()
        return output

    if traced:
        with trace_casts(model) as log:
            output = step()
        casts = len(log.casts)
    else:
        with CastLog() as log:
            output = step()
        casts = log.casts
    kept = [output, x.grad, *(p.grad for p in model.parameters()), *model.state_dict().values()]
    return [tensor.detach().clone() for tensor in kept], casts


@pytest.mark.parametrize(("dtype", "scaler"), [(BF16, False), (FP16, True)])
@pytest.mark.parametrize(
    ("build", "shape"),
    [(lambda: torch.nn.Linear(8, 4), (5, 8)), (conv_net, (2, 3, 8, 8)), (encoder, (2, 3, 16))],
    ids=["linear", "conv", "encoder"],
)
def test_a_traced_training_step_is_bit_identical_and_counts_what_a_plain_log_counts(build, shape, dtype, scaler):
    torch.manual_seed(0)
    model, x = build(), torch.randn(shape)
    untraced, logged = gradients(model, x, traced=False, dtype=dtype, scaler=scaler)
    traced, counted = gradients(model, x, traced=True, dtype=dtype, scaler=scaler)
    assert all(torch.equal(left, right) for left, right in zip(untraced, traced, strict=True))
    assert counted == logged > 0


@pytest.mark.parametrize("grad_off", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("low", [True, False])
@pytest.mark.parametrize(
    ("build", "shape"),
    [(lambda: torch.nn.Linear(8, 4), (5, 8)), (conv_net, (2, 3, 8, 8)), (encoder, (2, 3, 16))],
    ids=["linear", "conv", "encoder"],
)
def test_traced_inference_is_bit_identical_on_the_fused_paths_too(build, shape, low, grad_off):
    torch.manual_seed(0)
    model, x = build().eval(), torch.randn(shape)
    with grad_off(), torch.autocast("cpu", dtype=BF16, enabled=low):
        untraced = model(x)
        with trace_casts(model) as ledger:
            traced = model(x)
        with trace_casts(model), trace_casts(model) as inner:
            again = model(x)
    assert torch.equal(traced, untraced)
    assert torch.equal(again, untraced)
    # The fused kernels cast within themselves.
    assert bool(ledger.casts) is (low and not isinstance(model, torch.nn.TransformerEncoder))
    assert [o.name for o in inner.ops] == [o.name for o in ledger.ops]


INTERPOLATIONS = [
    *[("nearest", 2, {}), ("nearest-exact", 2, {}), ("linear", 1, {}), ("bilinear", 2, {"align_corners": True})],
    *[("bicubic", 2, {}), ("trilinear", 3, {}), ("area", 2, {})],
]


@pytest.mark.parametrize(("mode", "dims", "options"), INTERPOLATIONS)
def test_interpolation_in_inference_is_the_kernel_that_runs_untraced(mode, dims, options):
    torch.manual_seed(0)
    x = torch.randn((2, 3, *[8] * dims), dtype=BF16)

    def run():
        return F.interpolate(x, scale_factor=2, mode=mode, **options)

    counts = []
    for grad_off in (torch.inference_mode, torch.no_grad):
        with grad_off(), autocast():
            untraced = run()
            with trace_casts() as ledger:
                assert torch.equal(run(), untraced)
        counts.append([op.name for op in ledger.ops])
    assert counts[0] == counts[1]


@pytest.mark.parametrize("build", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_a_recurrent_network_in_inference_is_traced_as_it_runs(build):
    torch.manual_seed(0)
    model, x = build(8, 16).eval().requires_grad_(False), torch.randn(5, 2, 8)
    ops = []
    for grad_off in (torch.inference_mode, torch.no_grad):
        with grad_off(), autocast():
            untraced = model(x)[0]
            with trace_casts() as ledger:
                assert torch.equal(model(x)[0], untraced)
        ops.append([op.name for op in ledger.ops])
    assert ops[0] == ops[1]


def test_rms_norm_in_inference_is_taken_apart_on_a_cpu_which_has_no_kernel_for_it():
    norm, x = torch.nn.RMSNorm(8).bfloat16(), torch.randn(2, 8)
    with torch.inference_mode(), autocast(), trace_casts() as ledger:
        norm(x.bfloat16())
    assert "aten._fused_rms_norm" not in [op.name for op in ledger.ops]


NESTED = {
    "bilinear": lambda a: F.bilinear(a, a, torch.ones(4, 8, 8)),
    "affine_grid": lambda a: F.affine_grid(a[:2, :6].reshape(2, 2, 3), (2, 3, 4, 4), align_corners=False),
    "pinv": torch.linalg.pinv,
    "hfft2": lambda a: torch.fft.hfft2(a.float()),
    "complex pinv": lambda a: torch.view_as_real(torch.linalg.pinv(a.to(torch.complex64)).resolve_conj()),
}
"""Functions whose kernels run other ops: products, which autocast casts, or what is conjugated by name."""


@pytest.mark.parametrize("grad_off", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("name", NESTED)
def test_a_kernel_that_runs_other_ops_computes_as_it_does_untraced(name, grad_off):
    torch.manual_seed(0)
    x = torch.randn(6, 8)
    with grad_off(), autocast():
        untraced = NESTED[name](x)
        with trace_casts():
            traced = NESTED[name](x)
    assert traced.dtype is untraced.dtype
    assert torch.equal(traced, untraced)


def test_a_ledger_keeps_no_tensor_alive():
    model, x = conv_net(), torch.randn(2, 3, 8, 8)
    with trace_casts(model) as ledger, autocast():
        output = model(x)
        seen = weakref.ref(output)
        del output
    gc.collect()
    assert seen() is None
    assert ledger.casts


def test_the_ledger_is_public_and_a_frame_has_a_row_per_op():
    lin, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    with ampbench.trace_casts(lin) as ledger, autocast():
        assert ledger.ops == []
        lin(x)
    frame = ledger.to_frame()
    assert frame["name"].tolist() == [operation.name for operation in ledger.ops]
    assert frame["what"].tolist()[:3] == ["weight", "weight", "input"]
    assert frame["what"].isna().tolist()[3:] == [True, True]


def test_inputs_given_by_keyword_have_the_names_they_were_given_by():
    class Named(torch.nn.Module):
        def forward(self, left, *, right):
            return left @ right

    with ampbench.trace_casts() as ledger, autocast():
        Named()(torch.randn(2, 2), right=torch.randn(2, 2))
    assert {(cast.what, cast.name) for cast in ledger.casts} == {("input", "left"), ("input", "right")}


def test_a_trace_is_of_inference_where_gradients_are_off_all_along():
    lin, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    kinds = []
    for grad in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with ampbench.trace_casts(lin) as ledger, grad(), autocast():
            lin(x)
        kinds.append(ledger.trace.inference)
    assert kinds == [True, True, False]


def test_the_ops_of_a_loss_scaler_belong_to_the_optimizer():
    lin = torch.nn.Linear(4, 4)
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(lin.parameters(), lr=0.1)
    with ampbench.trace_casts(lin) as ledger:
        with autocast(FP16):
            loss = lin(torch.randn(2, 4)).float().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert {op.phase for op in ledger.ops if op.name.startswith("aten._amp_")} == {"optimizer"}


def test_a_trace_leaves_no_hook_behind():
    from torch.nn.modules import module

    before = len(module._global_forward_hooks_with_kwargs)
    with ampbench.trace_casts(torch.nn.Linear(2, 2)):
        pass
    assert len(module._global_forward_hooks_with_kwargs) == before


def test_everything_a_scaler_does_after_the_backward_pass_is_the_optimizer_s_and_casts_no_input():
    lin, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(lin.parameters(), lr=0.1)

    def step():
        with autocast(FP16):
            loss = lin(x).float().sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(lin.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    step()
    with ampbench.trace_casts(lin) as ledger:
        for _ in range(2):
            step()
    of_scale = [cast for cast in ledger.casts if "fp64" in (cast.from_dtype, cast.to_dtype)]
    assert [(cast.what, cast.phase) for cast in of_scale] == [("state", "optimizer")] * 4
    forward = [(cast.what, cast.to_dtype) for cast in ledger.casts if cast.phase == "forward"]
    assert forward == [("weight", "fp16"), ("weight", "fp16"), ("input", "fp16"), ("activation", "fp32")] * 2
    phases = [operation.phase for operation in ledger.ops]
    assert [one for at, one in enumerate(phases) if one != phases[at - 1]] == ["forward", "backward", "optimizer"] * 2
    assert [use.status for use in ledger.weights] == ["cast"] * 4


def test_a_ledger_read_before_the_optimizer_s_step_is_corrected_by_it():
    lin = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(lin.parameters(), lr=0.1)
    with ampbench.trace_casts(lin) as ledger:
        lin(torch.randn(2, 4)).sum().backward()
        lin.bias.grad.double()
        assert (ledger.casts[0].phase, ledger.ops[-1].phase) == ("forward", "forward")
        optimizer.step()
    assert [cast.phase for cast in ledger.casts] == ["optimizer"]


def test_what_runs_between_two_backward_passes_is_forward():
    weight = torch.randn(4, 4, requires_grad=True)
    with ampbench.trace_casts() as ledger:
        for _ in range(2):
            with autocast():
                loss = F.linear(torch.ones(2, 4), weight).float().sum()
            loss.backward()
        torch.optim.SGD([weight], lr=0.1).step()
    assert [o.phase for o in ledger.ops if o.name == "aten.mm"] == ["forward", "backward"] * 2


def copying():
    cache, half = torch.zeros(4, 4), torch.randn(4, 4).half()
    cache.copy_(half)
    cache[1:2] = half[1:2]
    cache.copy_(torch.ones(4, 4))
    cache.copy_(torch.ones(4, 4, dtype=torch.int64))
    torch._foreach_copy_([torch.zeros(3), torch.zeros(2)], [torch.ones(3).half(), half[0, :2]])


def test_a_copy_into_a_tensor_of_another_floating_dtype_is_an_explicit_cast():
    with CastLog() as log:
        copying()
    with ampbench.trace_casts() as ledger:
        copying()
    copies = [cast for cast in ledger.casts if ledger.ops[cast.index].name != "aten._to_copy"]
    assert [(ledger.ops[cast.index].name, cast.elements) for cast in copies] == [
        ("aten.copy_", 16),
        ("aten.copy_", 4),
        ("aten._foreach_copy_", 5),
    ]
    assert {(cast.from_dtype, cast.to_dtype, cast.origin) for cast in copies} == {("fp16", "fp32", "explicit")}
    assert [(cast.bytes_read, cast.bytes_written) for cast in copies] == [(32, 64), (8, 16), (10, 20)]
    assert len(ledger.casts) == log.casts == 5


def test_the_gradient_of_a_copy_undoes_its_cast():
    leaf = torch.randn(4, requires_grad=True)
    with ampbench.trace_casts() as ledger:
        torch.zeros(4).half().clone().copy_(leaf).sum().backward()
    there, back = ledger.casts[-2:]
    assert (there.phase, back.phase, back.from_dtype, back.to_dtype) == ("forward", "backward", "fp16", "fp32")
    assert (back.origin, ledger.ops[back.index].forward) == ("explicit", there.index)


def test_a_backward_op_has_the_forward_op_it_differentiates_and_a_cast_the_op_that_made_its_value():
    lin, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    with ampbench.trace_casts(lin) as ledger:
        with autocast():
            loss = lin(x).float().sum()
        loss.backward()
    weights = {cast.name: cast.index for cast in ledger.casts if cast.what == "weight"}
    back = {cast.name: cast for cast in ledger.casts if cast.name in weights and cast.phase == "backward"}
    assert {name: ledger.ops[cast.index].forward for name, cast in back.items()} == weights
    assert ledger.ops[back["weight"].producer].name == "aten.mm"
    assert [cast.producer for cast in ledger.casts if cast.what in ("weight", "input")] == [None] * 3


@pytest.mark.parametrize("given", [True, False])
def test_the_loss_begins_where_the_model_returns(given):
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.randn(2, 4)
    with ampbench.trace_casts(model if given else None) as ledger:
        with autocast():
            loss = checkpoint(model[0], model(x), use_reentrant=False).float().sum() if given else model(x).sum()
        loss.backward()
    at = ledger.trace.model_ops
    assert ledger.ops[at - 1].module.endswith("1")
    assert not ledger.ops[at].module.endswith("1")
    assert trace(lambda: x + 1).trace.model_ops is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # TorchScript is both
def test_a_frozen_module_that_is_first_called_in_the_block_runs():
    class Twice(torch.nn.Module):
        def forward(self, batch):
            return batch * 2 * 3

    x = torch.randn(2, 4)
    frozen = torch.jit.freeze(torch.jit.trace(Twice().eval(), x))
    with ampbench.trace_casts() as ledger:
        traced = [frozen(x) for _ in range(3)]
    assert all(torch.equal(one, x * 2 * 3) for one in traced)
    assert {operation.name for operation in ledger.ops} == {"aten.mul"}


def test_a_torch_without_that_list_of_hooks_is_traced(monkeypatch):
    hooks = modules.ModuleStack(None, lambda *_: None, CallMode(lambda *_: None, sources=False), lambda: None)
    with monkeypatch.context() as patch, hooks.hooked():
        patch.setattr(modules, "module_hooks", object())
    assert not module_hooks._global_forward_pre_hooks
