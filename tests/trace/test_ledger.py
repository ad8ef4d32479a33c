import contextlib
import copy
import gc
import weakref
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

import ampbench
from ampbench.trace.ledger import trace_casts
from tests.traced_programs import BF16, FP16, autocast, conv_net, encoder, trace

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


@pytest.mark.parametrize("without", ["", "inference", "cache_enabled"])
def test_the_second_use_of_a_weight_comes_from_the_cache_where_there_is_one(without):
    lin, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    cache = without != "cache_enabled"
    with trace_casts(lin) as ledger, torch.inference_mode(without == "inference"), autocast(cache_enabled=cache):
        lin(lin(x))
    again = "cast" if without else "reused"
    assert [(use.name, use.status) for use in ledger.weights] == [
        ("bias", "cast"), ("weight", "cast"), ("bias", again), ("weight", again),
    ]  # fmt: skip
    assert without or [use.cast for use in ledger.weights] == [0, 1, 0, 1]
    assert ledger.cache_bytes == (0 if without else (64 + 8) * 2)


def test_inputs_activations_and_frozen_weights_are_never_cached():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8))
    model[2].requires_grad_(False)
    x = torch.randn(4, 8)
    ledger = trace(lambda: (model(x), model(x)), model)
    assert {cast.name for cast in ledger.casts if cast.cached} == {"0.weight", "0.bias"}
    assert Counter(cast.name for cast in ledger.casts if cast.what == "weight")["2.weight"] == 2


def test_a_slice_of_a_weight_has_its_name_and_no_place_in_the_cache():
    attention, x = torch.nn.MultiheadAttention(8, 2), torch.randn(3, 4, 8)
    ledger = trace(lambda: attention(x, x + 1, x), attention)
    slices = [cast for cast in ledger.casts if cast.name == "in_proj_weight"]
    assert [cast.cached for cast in slices] == [False] * 3
    assert {cast.tensor for cast in slices} == {cast.tensor for cast in slices}
    assert len({cast.tensor for cast in slices}) == 3
    assert [cast.cached for cast in ledger.casts if cast.name == "out_proj.weight"] == [True]


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


def test_without_a_model_the_outermost_modules_name_themselves():
    first, second, x = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.randn(2, 4)
    ledger = trace(lambda: second(first(x)))
    assert [name for what, name in kinds(ledger) if what == "weight"] == [
        "Linear.bias",
        "Linear.weight",
        "Linear#2.bias",
        "Linear#2.weight",
    ]


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


def states():
    return (
        len(_get_current_dispatch_mode_stack()), len(_get_current_function_mode_stack()),
        len(module_hooks._global_forward_hooks), len(module_hooks._global_forward_pre_hooks),
        len(optimizer_hooks._global_optimizer_pre_hooks), len(optimizer_hooks._global_optimizer_post_hooks),
        torch.is_autocast_enabled("cpu"),
    )  # fmt: skip


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
        ("aten.mul", "bf16", "fp32", 32 * 6), ("aten.mul", "fp64", "fp32", 12), ("aten.gt", "bf16", "fp32", 32 * 6),
        ("aten.where", "bf16", "fp32", 32 * 6), ("aten.mean", "bf16", "fp32", 32 * 6),
        ("aten.mean", "bf16", "fp32", 4 * 6),
    ]  # fmt: skip
    assert not ledger.casts


def gradients(model, x, *, traced, dtype, scaler=False):
    """Return output, gradients and buffers of a training step."""
    model, x = copy.deepcopy(model), x.clone().requires_grad_()
    torch.manual_seed(1)
    grad_scaler = torch.amp.GradScaler("cpu", enabled=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    with trace_casts(model) if traced else contextlib.nullcontext():
        with autocast(dtype):
            output = model(x)
            loss = output.float().square().mean()
        grad_scaler.scale(loss).backward()
        grad_scaler.step(optimizer)
        grad_scaler.update()
    kept = [output, x.grad, *(p.grad for p in model.parameters()), *model.state_dict().values()]
    return [tensor.detach().clone() for tensor in kept]


@pytest.mark.parametrize(("dtype", "scaler"), [(BF16, False), (FP16, True)])
@pytest.mark.parametrize(
    ("build", "shape"),
    [(lambda: torch.nn.Linear(8, 4), (5, 8)), (conv_net, (2, 3, 8, 8)), (encoder, (2, 3, 16))],
    ids=["linear", "conv", "encoder"],
)
def test_a_traced_training_step_is_bit_identical(build, shape, dtype, scaler):
    torch.manual_seed(0)
    model, x = build(), torch.randn(shape)
    untraced, traced = (gradients(model, x, traced=traced, dtype=dtype, scaler=scaler) for traced in (False, True))
    assert all(torch.equal(left, right) for left, right in zip(untraced, traced, strict=True))


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


NESTED = {
    "bilinear": lambda a: F.bilinear(a, a, torch.ones(4, 8, 8)),
    "affine_grid": lambda a: F.affine_grid(a[:2, :6].reshape(2, 2, 3), (2, 3, 4, 4), align_corners=False),
    "pinv": torch.linalg.pinv,
    "hfft2": lambda a: torch.fft.hfft2(a.float()),
    "complex pinv": lambda a: torch.view_as_real(torch.linalg.pinv(a.to(torch.complex64)).resolve_conj()),
    "bicubic": lambda a: F.interpolate(a[None, None].to(BF16), scale_factor=2, mode="bicubic"),
    "nearest": lambda a: F.interpolate(a[None, None].to(BF16), scale_factor=2, mode="nearest"),
    "GRU": lambda a: FROZEN(a[:, None])[0],
}
"""Functions whose kernels run other ops, or that inference runs by a kernel of its own."""
FROZEN = torch.nn.GRU(8, 16).eval().requires_grad_(False)


@pytest.mark.parametrize("name", NESTED)
def test_a_kernel_that_runs_other_ops_computes_as_it_does_untraced(name):
    torch.manual_seed(0)
    x, ops = torch.randn(6, 8), []
    for grad_off in (torch.inference_mode, torch.no_grad):
        with grad_off(), autocast():
            untraced = NESTED[name](x)
            with trace_casts() as ledger:
                traced = NESTED[name](x)
        assert traced.dtype is untraced.dtype
        assert torch.equal(traced, untraced)
        ops.append([op.name for op in ledger.ops])
    assert name not in ("bicubic", "nearest", "GRU") or ops[0] == ops[1]


def test_a_ledger_keeps_no_tensor_alive():
    model, x = conv_net(), torch.randn(2, 3, 8, 8)
    with trace_casts(model) as ledger, autocast():
        output = model(x)
        seen = weakref.ref(output)
        del output
    gc.collect()
    assert seen() is None
    assert ledger.casts


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
    assert len(ledger.casts) == 5


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
