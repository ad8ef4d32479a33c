"""A minimal call of every op that has an autocast rule, as data; in-place, out= and dtype= forms come from the schemas.

A tensor is a `T` (shape and kind), everything else stands for itself. Floating tensors ("unit", "spd") take the dtype
of the trial, the others keep theirs. Values come from `arange`, never from a generator: random fills fail on fake
tensors of an absent device, and every torch version gets the same numbers.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

FLOATING = ("unit", "spd")


@dataclass(frozen=True, slots=True)
class T:
    """A tensor of a sample: "unit" lies in (0, 1), "spd" is symmetric positive definite, the others hold integers.

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
