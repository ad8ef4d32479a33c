"""Autocast's rules: documented, registered in the dispatcher, and observed.

The documents are the vendor's older XPU reference and PyTorch's own page, as data files; their printed names become ops
of the dispatcher here. The dispatcher's table of ops with a rule is the same on every build of a torch version. What
autocast does to an op is seen by running it with and without, below autocast.

A device that is absent is stood in for by fake tensors, whose ops pass through the same dispatcher; nothing computes.
Variants are the calls that documents call not eligible: fp64 and integer inputs, in-place, `out=`, an explicit
`dtype=`. They come from the dispatcher's schemas, so each torch version is tested on its own variants.

`SAMPLES` has a minimal call of each op with a rule. A tensor in it is a `T` (shape and kind), everything else is
itself. Floating tensors ("unit", "spd") take the dtype of the trial, the others keep theirs. Values come from
`arange`, never from a generator: random fills fail on fake tensors, and every torch version gets the same numbers.
"""

import json
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ampbench.errors import first_line
from ampbench.records.rules import (
    BANNED,
    CHANGED,
    FLOAT32,
    INSIDE,
    LOWER,
    PYTORCH_PAGE,
    REFUSED,
    UNCHANGED,
    UNLISTED,
    WIDEST,
    XPU_REFERENCE,
    RuleCall,
    RuleTrial,
)
from ampbench.trace.dtypes import autocast_to, is_present

FLOATING = ("unit", "spd")


@dataclass(frozen=True, slots=True)
class T:
    """A tensor of a sample: "unit" is in (0, 1), "spd" is symmetric positive definite, the others hold integers.

    "index" counts from 0 and wraps at `high`, "label" likewise from 1, "length" is `high` everywhere; "pivot" counts
    from 1 in int32, as LAPACK's row swaps do.
    """

    shape: tuple[int, ...]
    kind: str = "unit"
    high: int = 4


@dataclass(frozen=True, slots=True)
class Sample:
    """Positional and keyword arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def make_tensor(spec: T, device: str, dtype: torch.dtype, *, fake: bool = False) -> torch.Tensor:
    """Return the tensor of `spec` on `device`: floating kinds in `dtype`, integers in int64, pivots in int32.

    With `fake`, nothing is filled in: fake tensors have no values, and filling them fails on an absent XPU.
    """
    floating = spec.kind in FLOATING
    wanted = dtype if floating else torch.int32 if spec.kind == "pivot" else torch.int64
    if fake:
        return torch.empty(spec.shape, device=device, dtype=wanted)
    count = math.prod(spec.shape)
    steps = torch.arange(count, dtype=torch.float64)
    if floating and not dtype.is_floating_point:
        values = steps % 3 + 1  # numbers of (0, 1) would all become zero
    elif spec.kind == "unit":
        values = 0.1 + 0.8 * (steps + 1) / (count + 1)
    elif spec.kind == "spd":
        values = (torch.eye(spec.shape[0], dtype=torch.float64) * 3 + 0.1).flatten()
    elif spec.kind == "length":
        values = torch.full((count,), spec.high)
    else:
        values = steps % spec.high + (0 if spec.kind == "index" else 1)
    return values.reshape(spec.shape).to(device=device, dtype=wanted)


SOURCES = {XPU_REFERENCE: "xpu_amp_op_reference.json", PYTORCH_PAGE: "pytorch_amp_page.json"}
"""Each document's short name and file; its own `source` line tells where it comes from."""

SPELLINGS: dict[str, tuple[str, ...]] = {
    "__matmul__": ("aten::matmul",),
    "multi_dot": ("aten::linalg_multi_dot",),
    "GRUCell": ("aten::gru_cell",),
    "LSTMCell": ("aten::lstm_cell",),
    "RNNCell": ("aten::rnn_tanh_cell", "aten::rnn_relu_cell"),
    "__pow__": ("aten::pow.Tensor_Scalar", "aten::pow.Tensor_Tensor"),
    "__rpow__": ("aten::pow.Scalar",),
    "__rdiv__": ("Tensor.__rtruediv__",),
    "__rtruediv__": ("Tensor.__rtruediv__",),
    "cross_entropy": ("aten::cross_entropy_loss",),
    "grid_sample": ("aten::grid_sampler",),
    "normalize": ("nn.functional.normalize",),
    "softmin": ("nn.functional.softmin",),
    "add": ("aten::add.Tensor",),
}
"""Names of documents that are not the dispatcher's; `__rdiv__` is `__rtruediv__` under an older name."""

_LISTS = {
    "lower_precision": LOWER,
    "float32": FLOAT32,
    "widest": WIDEST,
    "natively_promoting_examples": UNLISTED,
    "banned": BANNED,
}


@cache
def document(source: str) -> Mapping[str, Any]:
    """Return the parsed data file of a document."""
    text = files(__package__).joinpath(SOURCES[source]).read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


@cache
def documented_ops(source: str, device: str) -> Mapping[str, str] | None:
    """Return each op that `source` names for `device`, with its category; None where it has no lists for the device.

    An op is `aten::name` (all its overloads) or, where the document names one, `aten::name.overload`.
    """
    data = document(source)
    lists = (data if device == "xpu" else None) if source == XPU_REFERENCE else data["devices"].get(device)
    if lists is None:
        return None
    return {
        op: category
        for key, category in _LISTS.items()
        for name in lists.get(key, ())
        for op in SPELLINGS.get(name, (f"aten::{name}",))
    }


def documented_category(source: str, device: str, op: str) -> str | None:
    """Return the category that `source` names for an op with its overload, "unlisted" where it does not name the op.

    None where it has no lists for the device.
    """
    named = documented_ops(source, device)
    if named is None:
        return None
    return named.get(op) or named.get(op.partition(".")[0] if op.startswith("aten::") else op) or UNLISTED


NAMESPACE = "aten::"
"""torchvision registers rules of its own when it is imported; a probe must not depend on that."""


def registered_ops(device: str) -> frozenset[str]:
    """Return the names (`aten::conv1d.padding`) of PyTorch's own ops with an autocast kernel for `device`.

    An autocast kernel is a rule: ops without one fall through. Which rule it is, the dispatcher does not tell.
    """
    key = f"Autocast{device.upper()}"
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    names = torch._C._dispatch_get_all_op_names()
    return frozenset(name for name in names if name.startswith(NAMESPACE) and has_kernel(name, key))


_REAL = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every op below autocast before it runs, so that dtypes at a kernel are known even if it fails."""

    def __init__(self, probed: object):
        super().__init__()  # type: ignore[no-untyped-call]
        self.computed: set[str] = set()
        self.casts: list[str] = []
        self._probed = probed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)  # fake tensors ask for their device this way
        dtypes = _floating(args) + _floating(kwargs)
        if func is torch.ops.aten._to_copy.default:
            wanted = kwargs.get("dtype")
            if dtypes and wanted is not None and wanted.is_floating_point and dtypes != [_short(wanted)]:
                self.casts.append(f"{dtypes[0]} to {_short(wanted)}")
        elif func is self._probed or not any(  # an op that merely gives another view of its input computes nothing
            value.alias_info is not None and not value.alias_info.is_write for value in func._schema.returns
        ):
            self.computed.update(dtypes)
        return func(*args, **kwargs)


def _floating(tree: object) -> list[str]:
    tensors = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return [_short(tensor.dtype) for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def find_op(name: str) -> Callable[..., Any] | None:
    """Return the op of a sample's name; None where this torch has none."""
    if not name.startswith("aten::"):
        owner: Any = torch
        for part in name.split("."):
            owner = getattr(owner, part, None)
        return owner  # type: ignore[no-any-return]
    base, _, overload = name.removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, overload or "default", None)


def run_trial(op: Callable[..., Any], make: Callable[[], Sample], device: str, dtype: torch.dtype) -> RuleTrial:
    """Return the behaviour of `op` on fresh arguments of `make`, with autocast to `dtype` and without."""
    inputs, autocast = _called(op, make, device, dtype, enabled=True)
    _, plain = _called(op, make, device, dtype, enabled=False)
    return RuleTrial(inputs=inputs, autocast=autocast, plain=plain)


def _called(
    op: Callable[..., Any], make: Callable[[], Sample], device: str, dtype: torch.dtype, *, enabled: bool
) -> tuple[list[str], RuleCall]:
    """Make the arguments and call `op`; return the dtypes of its inputs and the record, with any error of both."""
    watch = _Watch(op)
    inputs: list[str] = []
    outputs: list[str] = []
    message = None
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # deprecated ops have rules too
        try:
            sample = make()
            inputs = _floating((sample.args, sample.kwargs))
            with autocast_to(device, dtype, enabled), watch:
                result = op(*sample.args, **sample.kwargs)
            leaves = pytree.tree_leaves(result)
            outputs = [_short(leaf.dtype) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        except Exception as error:  # noqa: BLE001 - an op's error is recorded
            message = first_line(error)[:200]
    return inputs, RuleCall(outputs=outputs, computed=sorted(watch.computed), casts=watch.casts, error=message)


def fill(sample: Sample, device: str, dtypes: Callable[[int], torch.dtype]) -> Sample:
    """Return `sample` with its tensors made on `device`; the n-th floating one has dtype `dtypes(n)`."""
    count = 0
    fake = not is_present(device)

    def tensor(leaf: Any) -> Any:
        nonlocal count
        if not isinstance(leaf, T):
            return leaf
        filled = make_tensor(leaf, device, dtypes(count), fake=fake)
        count += leaf.kind in FLOATING
        return filled

    args, kwargs = pytree.tree_map(tensor, (sample.args, sample.kwargs))
    return Sample(args, kwargs)


def run_trials(op: Callable[..., Any], sample: Sample, device: str, dtype: torch.dtype) -> dict[str, RuleTrial]:
    """Return the trials "fp32", "lower", "mixed": all inputs fp32, all in the autocast dtype, or the first alone in it.

    "mixed" is absent where there is but one floating input.
    """
    kinds: dict[str, Callable[[int], torch.dtype]] = {
        "fp32": lambda _: torch.float32,
        "lower": lambda _: dtype,
        "mixed": lambda position: torch.float32 if position else dtype,
    }
    leaves = pytree.tree_leaves((sample.args, sample.kwargs))
    if sum(isinstance(leaf, T) and leaf.kind in FLOATING for leaf in leaves) < 2:
        del kinds["mixed"]
    return {
        name: run_trial(op, lambda of=of: fill(sample, device, of), device, dtype)  # type: ignore[misc]
        for name, of in kinds.items()
    }


def classify(trials: Mapping[str, RuleTrial], dtype: str) -> str | None:
    """Return the category that `trials` show, for autocast to `dtype`; None where a call did not reach a kernel.

    Each rule leaves a trace that the call without autocast does not have: "banned" ends the call with an error about
    autocast before any kernel is reached; "lower_precision" casts fp32 inputs to `dtype` (a kernel may cast them
    back), "lower_inside" some of them, so that all outputs are fp32; "float32" makes inputs in `dtype` reach kernels,
    or leave them, in fp32; "widest" turns mixed inputs into fp32 before the kernel. What leaves none is "unlisted".
    Complex numbers count as the dtype of their parts.
    """
    fp32, lower, mixed = trials["fp32"], trials["lower"], trials.get("mixed")
    if fp32.plain.computed and not fp32.autocast.computed and "autocast" in (fp32.autocast.error or ""):
        return BANNED
    if dtype in _lowered(fp32.autocast) - _lowered(fp32.plain):
        only_lowers = all(cast.endswith(f" to {dtype}") for cast in fp32.autocast.casts)
        return INSIDE if only_lowers and _parts(fp32.autocast.outputs) == {"float32"} else LOWER
    if any(not trial.autocast.computed and (trial.plain.computed or trial is fp32) for trial in (fp32, lower)):
        return None
    if _in_fp32(lower.autocast.computed, lower.plain.computed) or _in_fp32(lower.autocast.outputs, lower.plain.outputs):
        return FLOAT32
    if mixed is not None and not mixed.same and _parts(mixed.autocast.computed) == {"float32"}:
        return WIDEST
    return UNLISTED


def _lowered(call: RuleCall) -> set[str]:
    return _parts(call.computed) | {cast.partition(" to ")[2] for cast in call.casts}


def _in_fp32(autocast: list[str], plain: list[str]) -> bool:
    """Tell whether fp32 is there with autocast and not without, or alone with it and in company without."""
    with_it, without = _parts(autocast), _parts(plain)
    return "float32" in with_it - without or (with_it == {"float32"} and without != with_it)


def _parts(dtypes: list[str]) -> set[str]:
    return {_REAL.get(dtype, dtype) for dtype in dtypes}


def outcome(trial: RuleTrial) -> str | None:
    """Return autocast's effect on a call: "unchanged", "changed" or "refused"; None where the op refuses it anyway.

    The same error with and without autocast, from a kernel that got the same dtypes, is "unchanged": not helped.
    """
    if trial.same:
        return UNCHANGED if trial.plain.computed or trial.plain.error is None else None
    if trial.plain.error is not None and not trial.plain.computed:
        return None
    return REFUSED if trial.autocast.error is not None and trial.plain.error is None else CHANGED


def run_variants(
    op: Callable[..., Any], sample: Sample, device: str, dtype: torch.dtype, observed: str | None
) -> dict[str, str]:
    """Return autocast's effect on each variant of `op` that runs (`outcome`).

    In-place and out= calls get the floating inputs that the op's rule would change, going by its category `observed`:
    the autocast dtype where the rule is fp32, mixed ones where it is the widest input, fp32 otherwise.
    """
    variants: dict[str, tuple[Callable[..., Any], Callable[[], Sample]]] = {
        "fp64": (op, lambda: fill(sample, device, lambda _: torch.float64)),
        "integer": (op, lambda: fill(sample, device, lambda _: torch.int64)),
    }
    if isinstance(op, torch._ops.OpOverload):
        first = dtype if observed == FLOAT32 else torch.float32  # where mixed, the output can hold the result
        others = dtype if observed in (FLOAT32, WIDEST) else torch.float32

        def telling(position: int) -> torch.dtype:
            return others if position else first

        inplace, out = find_inplace(op), find_out(op)
        if inplace is not None:
            variants["in-place"] = (inplace, lambda: fill(sample, device, telling))
        if out is not None:
            variants["out="] = (out, lambda: _with_outputs(op, fill(sample, device, telling), device, dtype, out))
        if any(argument.name == "dtype" for argument in op._schema.arguments):
            given = Sample(sample.args, {**sample.kwargs, "dtype": dtype})
            variants["dtype="] = (op, lambda: fill(given, device, lambda _: dtype))
    outcomes = {name: outcome(run_trial(form, make, device, dtype)) for name, (form, make) in variants.items()}
    return {name: effect for name, effect in outcomes.items() if effect is not None}


def find_inplace(op: torch._ops.OpOverload[..., Any]) -> torch._ops.OpOverload[..., Any] | None:
    """Return the in-place form of `op`: the op whose name has one more `_`, same overload, same arguments."""
    packet = getattr(getattr(torch.ops, op.namespace), f"{op._opname}_", None)
    form = getattr(packet, op._overloadname, None)
    if form is None:
        return None
    theirs, ours = ([argument.name for argument in overload._schema.arguments] for overload in (form, op))
    return form if theirs == ours else None


def find_out(op: torch._ops.OpOverload[..., Any]) -> torch._ops.OpOverload[..., Any] | None:
    """Return the out= form of `op`: the overload with the same arguments and, after them, tensors to write to."""
    packet = op.overloadpacket
    for overload in packet.overloads():
        form = getattr(packet, overload)
        inputs = [argument for argument in form._schema.arguments if not argument.is_out]
        wanted = [argument for argument in op._schema.arguments if argument.name != "dtype"]
        if len(inputs) < len(form._schema.arguments) and [
            (a.name, str(a.type)) for a in inputs if a.name != "dtype"
        ] == [(a.name, str(a.type)) for a in wanted]:
            return form  # type: ignore[no-any-return]
    return None


def _with_outputs(
    op: torch._ops.OpOverload[..., Any],
    sample: Sample,
    device: str,
    dtype: torch.dtype,
    form: torch._ops.OpOverload[..., Any],
) -> Sample:
    """Return `sample` with empty tensors to write to, of the shapes and dtypes that the op returns without autocast."""
    with torch.no_grad(), autocast_to(device, dtype, enabled=False):
        results = op(*sample.args, **sample.kwargs)
    tensors = [torch.empty_like(leaf) for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]
    names = [argument.name for argument in form._schema.arguments if argument.is_out]
    return Sample(sample.args, {**sample.kwargs, **dict(zip(names, tensors, strict=True))})


def _s(*args: Any, **kwargs: Any) -> Sample:
    return Sample(args, kwargs)


def _index(*shape: int, high: int = 4) -> T:
    return T(shape, "index", high)


def _t(*shape: int) -> T:
    return T(shape)


N = _t()
V = _t(4)
M = _t(4, 4)
S = T((4, 4), "spd")
B = _t(2, 4, 4)
ROWS = _index(4)
HEADS = _t(2, 2, 8, 8)
LINE, IMAGE, VOLUME = _t(1, 2, 8), _t(1, 2, 8, 8), _t(1, 2, 8, 8, 8)
LINE_WEIGHT, IMAGE_WEIGHT, VOLUME_WEIGHT = _t(2, 2, 3), _t(2, 2, 3, 3), _t(2, 2, 3, 3, 3)
BIAS = _t(2)
STEPS = _t(6, 2, 4)


def _samples(names: str, sample: Sample) -> dict[str, Sample]:
    return {f"aten::{name}": sample for name in names.split()}


def _cell(gates: int) -> tuple[T, ...]:
    """Weights and biases of a recurrent cell with `gates` gates, 4 inputs and 4 hidden units."""
    return _t(4 * gates, 4), _t(4 * gates, 4), _t(4 * gates), _t(4 * gates)


_UNARY = "acos asin cosh erfinv exp expm1 log log10 log1p log2 reciprocal rsqrt sinh tan softplus prod sum trace"
_NORMS = "norm.Scalar nuclear_norm linalg_vector_norm linalg_matrix_norm.str_ord pdist"
_FFTS = "fft fft2 fftn hfft ifft ifft2 ifftn ihfft irfft irfft2 irfftn rfft rfft2 rfftn"
_MATRIX = (
    "cholesky cholesky_inverse geqrf inverse pinverse svd qr _lu_with_info linalg_cholesky linalg_cholesky_ex "
    "linalg_cond linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_inv linalg_inv_ex "
    "linalg_matrix_rank.atol_rtol_float linalg_matrix_sqrth linalg_qr linalg_svd linalg_svdvals"
)
_PAIRS = (
    "mm matmul cosine_similarity cdist dist atan2 pow.Tensor_Tensor add.Tensor linalg_vecdot l1_loss mse_loss "
    "smooth_l1_loss huber_loss soft_margin_loss hinge_embedding_loss kl_div binary_cross_entropy "
    "binary_cross_entropy_with_logits"
)
_CONVOLUTION = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
_CUDNN = (1, False, True, False)

SAMPLES: dict[str, Sample] = {
    **_samples(_UNARY, _s(M)),
    **_samples(_NORMS, _s(M)),
    **_samples(" ".join(f"fft_{name}" for name in _FFTS.split()), _s(M)),
    **_samples(_MATRIX, _s(S)),
    **_samples(_PAIRS, _s(M, M)),
    **_samples("dot vdot polar", _s(V, V)),
    **_samples("addmm addcdiv addcmul triplet_margin_loss _addmm_activation", _s(M, M, M)),
    **_samples("cumprod cumsum prod.dim_int logsumexp softmax.int log_softmax.int sum.dim_IntList", _s(M, 1)),
    **_samples("frobenius_norm.dim nuclear_norm.dim", _s(M, [0, 1])),
    **_samples("cat stack", _s([M, M])),
    **_samples("chain_matmul linalg_multi_dot", _s([M, M, M])),
    **_samples("nll_loss nll_loss_nd cross_entropy_loss multi_margin_loss", _s(M, ROWS)),
    **_samples("multilabel_margin_loss_forward", _s(M, _index(4, 4), 1)),
    **_samples("layer_norm rms_norm", _s(M, [4], V)),
    **_samples("conv1d conv1d.padding conv_transpose1d", _s(LINE, LINE_WEIGHT, BIAS)),
    **_samples("conv2d conv2d.padding conv_transpose2d.input", _s(IMAGE, IMAGE_WEIGHT, BIAS)),
    **_samples("conv3d conv3d.padding conv_transpose3d.input", _s(VOLUME, VOLUME_WEIGHT, BIAS)),
    **_samples("grid_sampler grid_sampler_2d _grid_sampler_2d_cpu_fallback", _s(IMAGE, _t(1, 3, 3, 2), 0, 0, False)),
    **_samples("orgqr linalg_householder_product", _s(M, V)),
    **_samples("quantile nanquantile", _s(V, N)),
    **_samples("quantile.scalar nanquantile.scalar", _s(V, 0.5)),
    **_samples("reflection_pad1d replication_pad1d", _s(LINE, [1, 1])),
    **_samples("reflection_pad2d replication_pad2d", _s(IMAGE, [1, 1, 1, 1])),
    **_samples("upsample_nearest1d _upsample_nearest_exact1d", _s(LINE, [12])),
    **_samples("upsample_nearest2d _upsample_nearest_exact2d", _s(IMAGE, [12, 12])),
    **_samples("upsample_nearest3d _upsample_nearest_exact3d", _s(VOLUME, [12, 12, 12])),
    **_samples(
        "upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
        _s(IMAGE, [12, 12], False),
    ),
    **_samples("adaptive_avg_pool3d adaptive_max_pool3d", _s(VOLUME, [2, 2, 2])),
    **_samples("avg_pool3d max_pool3d", _s(VOLUME, [2, 2, 2])),
    **_samples("bmm", _s(B, B)),
    **_samples("baddbmm", _s(B, B, B)),
    **_samples("rnn_relu_cell rnn_tanh_cell", _s(M, M, *_cell(1))),
    **_samples("scaled_dot_product_attention _scaled_dot_product_flash_attention", _s(HEADS, HEADS, HEADS)),
    "aten::_convolution": _s(IMAGE, IMAGE_WEIGHT, BIAS, *_CONVOLUTION, False, False, True, True),
    "aten::_convolution.deprecated": _s(IMAGE, IMAGE_WEIGHT, BIAS, *_CONVOLUTION, False, False, True),
    "aten::_cudnn_rnn": _s(
        STEPS, [*_cell(4)], 4, None, _t(1, 2, 4), _t(1, 2, 4), 2, 4, 0, 1, False, 0.0, False, False, [], None
    ),
    "aten::_native_multi_head_attention": _s(B, B, B, 4, 2, _t(12, 4), _t(12), M, V),
    "aten::_thnn_fused_gru_cell": _s(_t(4, 12), _t(4, 12), M, _t(12), _t(12)),
    "aten::_thnn_fused_lstm_cell": _s(_t(4, 16), _t(4, 16), M, _t(16), _t(16)),
    "aten::addbmm": _s(M, B, B),
    "aten::addmv": _s(V, M, V),
    "aten::addr": _s(M, V, V),
    "aten::bilinear": _s(_t(4, 2), _t(4, 3), _t(5, 2, 3), _t(5)),
    "aten::cholesky_solve": _s(M, S),
    "aten::conv_tbc": _s(STEPS, _t(3, 4, 2), BIAS),
    "aten::convolution": _s(IMAGE, IMAGE_WEIGHT, BIAS, *_CONVOLUTION),
    "aten::cosine_embedding_loss": _s(M, M, V),
    "aten::cross": _s(_t(4, 3), _t(4, 3)),
    "aten::ctc_loss.IntList": _s(STEPS, T((2, 3), "label", 3), [6, 6], [3, 3]),
    "aten::ctc_loss.Tensor": _s(STEPS, T((2, 3), "label", 3), T((2,), "length", 6), T((2,), "length", 3)),
    "aten::cudnn_convolution": _s(IMAGE, IMAGE_WEIGHT, [0, 0], [1, 1], [1, 1], *_CUDNN),
    "aten::cudnn_convolution_transpose": _s(IMAGE, IMAGE_WEIGHT, [0, 0], [0, 0], [1, 1], [1, 1], *_CUDNN),
    "aten::einsum": _s("ij,jk->ik", [M, M]),
    "aten::fake_quantize_per_tensor_affine": _s(M, 0.1, 0, 0, 255),
    "aten::fractional_max_pool2d": _s(IMAGE, [2, 2], [3, 3], _t(1, 2, 2)),
    "aten::fractional_max_pool3d": _s(VOLUME, [2, 2, 2], [3, 3, 3], _t(1, 2, 3)),
    "aten::grid_sampler_3d": _s(VOLUME, _t(1, 3, 3, 3, 3), 0, 0, False),
    "aten::group_norm": _s(IMAGE, 2, BIAS, BIAS),
    "aten::gru_cell": _s(M, M, *_cell(3)),
    "aten::index_copy": _s(M, 0, ROWS, M),
    "aten::index_put": _s(M, [ROWS], M),
    "aten::linalg_cond.p_str": _s(S, "fro"),
    "aten::linalg_lstsq": _s(S, M),
    "aten::linalg_matrix_norm": _s(M, 1),
    "aten::linalg_matrix_rank": _s(S, 0.1),
    "aten::linalg_matrix_rank.atol_rtol_tensor": _s(S, atol=N),
    "aten::linalg_matrix_rank.tol_tensor": _s(S, N),
    "aten::linalg_solve": _s(S, M),
    "aten::linalg_tensorinv": _s(S, 1),
    "aten::linalg_tensorsolve": _s(S, V),
    "aten::linear": _s(M, M, V),
    "aten::lstm_cell": _s(M, [M, M], *_cell(4)),
    "aten::lu_solve": _s(M, S, T((4,), "pivot")),
    "aten::margin_ranking_loss": _s(V, V, V),
    "aten::max_unpool2d": _s(_t(1, 2, 2, 2), _index(1, 2, 2, 2, high=16), [4, 4]),
    "aten::max_unpool3d": _s(_t(1, 2, 2, 2, 2), _index(1, 2, 2, 2, 2, high=64), [4, 4, 4], [2, 2, 2], [0, 0, 0]),
    "aten::mkldnn_rnn_layer": _s(
        STEPS, *_cell(4), _t(1, 2, 4), _t(1, 2, 4), False, [], 2, 4, 1, True, False, False, False
    ),
    "aten::multilabel_margin_loss": _s(M, _index(4, 4)),
    "aten::mv": _s(M, V),
    "aten::native_layer_norm": _s(M, [4], V, V, 1e-5),
    "aten::nll_loss2d": _s(_t(2, 4, 3, 3), _index(2, 3, 3)),
    "aten::norm.ScalarOpt_dim": _s(M, 2, [1]),
    "aten::ormqr": _s(M, V, M),
    "aten::poisson_nll_loss": _s(M, M, True, False, 1e-8, 1),
    "aten::pow.Scalar": _s(2.0, M),
    "aten::pow.Tensor_Scalar": _s(M, 1.5),
    "aten::prelu": _s(M, V),
    "aten::renorm": _s(M, 2, 0, 1.0),
    "aten::replication_pad3d": _s(VOLUME, [1, 1, 1, 1, 1, 1]),
    "aten::scatter_add": _s(M, 0, _index(4, 4), M),
    "aten::stft": _s(_t(16), 8, 4, 8, _t(8), return_complex=True),
    "aten::stft.center": _s(_t(16), 8, 4, 8, _t(8), return_complex=True),
    "aten::tensordot": _s(_t(2, 3, 4), _t(4, 5), [2], [0]),
    "aten::triangular_solve": _s(M, S),
    "aten::upsample_linear1d": _s(LINE, [12], False),
    "aten::upsample_trilinear3d": _s(VOLUME, [12, 12, 12], False),
    "aten::view_as_complex": _s(_t(4, 2)),
    "nn.functional.normalize": _s(M),
    "nn.functional.softmin": _s(M, 1),
    "Tensor.__rtruediv__": _s(M, 2.0),
}
"""By the name of the op with its overload; names without `aten::` are Python functions that only documents list."""
