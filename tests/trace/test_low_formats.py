"""Formats below 16 bits against torch's own casts, ml_dtypes and torchao's reference paths, bit for bit."""

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampbench.trace.formats import MX, SCHEMES, count_blocks, quantise

FLOAT8 = {"float8_e4m3": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
FP32_ROUNDINGS = 2.0**-22


def spread(*shape: int, low: int = -20, high: int = 12, block: int = 32) -> torch.Tensor:
    """Return normal values whose blocks along the last dimension have sizes far apart."""
    generator = torch.Generator().manual_seed(0)
    powers = torch.randint(low, high, (*shape[:-1], shape[-1] // block), generator=generator)
    return torch.randn(shape, generator=generator) * torch.exp2(powers.float()).repeat_interleave(block, -1)


def block_shares(tensor: torch.Tensor, fmt: str, axis: int | None = None) -> tuple[float, float]:
    """Return the shares of blocks with an element that saturates, and with one that becomes zero."""
    counts = count_blocks(tensor, fmt, axis)
    return counts.saturated / max(counts.blocks, 1), counts.flushed / max(counts.blocks, 1)


def of_torchao(path: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(path)


@pytest.mark.parametrize("name", FLOAT8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_elements_are_torchs_casts_for_all_patterns_midpoints_and_a_million_values(
    name: str, dtype: torch.dtype
) -> None:
    cast, largest = FLOAT8[name], torch.finfo(FLOAT8[name]).max
    every = torch.arange(256, dtype=torch.uint8).view(cast).float()
    numbers = every[every.isfinite()].unique()
    middle = (numbers[1:] + numbers[:-1]) / 2
    beside = [middle.nextafter(torch.tensor(end)) for end in (torch.inf, -torch.inf)]
    values = torch.cat([every[every.isfinite()], middle, *beside, spread(1000, 1024).flatten()])
    whole = torch.tensor([largest])  # so that the scale is 1
    values = torch.cat([values.clamp(-largest, largest), whole]).to(dtype)
    quantised = quantise(values, f"{name}:tensor")
    assert torch.equal(quantised, values.to(cast).to(dtype))
    assert torch.equal(quantised.signbit(), values.signbit())
    assert torch.equal(quantise(numbers, f"{name}:tensor"), numbers)


def test_elements_of_nvfp4_are_those_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = torch.cat([torch.arange(-24, 25) / 4, torch.randn(151, generator=torch.Generator().manual_seed(0)) * 3])
    blocks = torch.full((40, 16), 6.0)  # with the largest, each block and the tensor have the scale 1
    blocks[:, :5] = values.clamp(-6, 6).reshape(40, 5)
    blocks = torch.cat([blocks, torch.full((1, 16), 6.0 * 448)])
    expected = torch.from_numpy(blocks[:40].numpy().astype(ml_dtypes.float4_e2m1fn).astype("float32"))
    assert torch.equal(quantise(blocks, "nvfp4")[:40], expected)


@pytest.mark.parametrize(("fmt", "dtype"), [("mxfp8", torch.float8_e4m3fn), ("mxfp8_e5m2", torch.float8_e5m2)])
@pytest.mark.parametrize("given_dtype", [torch.float32, torch.bfloat16])
def test_mx_is_torchaos_with_scales_rounded_up(fmt: str, dtype: torch.dtype, given_dtype: torch.dtype) -> None:
    mx = of_torchao("torchao.prototype.mx_formats.mx_tensor")
    values = spread(1000, 1024, low=-60, high=60).to(given_dtype)
    scale, elements = mx.to_mx(values, dtype, 32, mx.ScaleCalculationMode.RCEIL)
    assert scale.dtype is torch.float8_e8m0fnu
    assert torch.equal(quantise(values, fmt), mx.to_dtype(elements, scale, dtype, 32, given_dtype))


def test_nvfp4_is_torchaos_with_two_levels_of_scales() -> None:
    nv = of_torchao("torchao.prototype.mx_formats.nvfp4_tensor")
    values = spread(1000, 1024, low=-5, high=5, block=16)
    whole = nv.per_tensor_amax_to_scale(values.abs().amax())
    expected = nv.NVFP4Tensor.to_nvfp4(values, per_tensor_scale=whole).dequantize(torch.float32)
    assert torch.equal(quantise(values, "nvfp4"), expected)


@pytest.mark.parametrize("name", FLOAT8)
def test_float8_is_torchaos_dynamic_scaling(name: str) -> None:
    utils, values, cast = of_torchao("torchao.float8.float8_utils"), spread(1000, 1024), FLOAT8[name]
    for scaling, axis in (("tensor", None), ("row", 0), ("row", 1)):
        granularity = utils.ScalingGranularity.TENSORWISE if axis is None else utils.ScalingGranularity.AXISWISE
        scale = utils.tensor_to_scale(values, cast, scaling_granularity=granularity, axiswise_dim=axis)
        expected = utils.to_fp8_saturated(values * scale, cast).float() / scale
        assert torch.equal(quantise(values, f"{name}:{scaling}", axis), expected)


@pytest.mark.parametrize("power", [-127, -126, -64, 0, 63, 119])
def test_mx_scales_are_the_least_powers_of_two_that_saturate_nothing(power: int) -> None:
    largest, least = 448 * 2.0**power, 2.0 ** (power - 9)
    block = torch.tensor([largest, least])
    assert torch.equal(quantise(block, "mxfp8"), block)
    above = block[:1].nextafter(torch.tensor(torch.inf))
    assert torch.equal(
        quantise(torch.cat([above, block[1:]]), "mxfp8"), torch.tensor([largest, 0.0])
    )  # twice the scale
    assert block_shares(torch.cat([above, block[1:]]), "mxfp8") == (0.0, 1.0)


def test_int8_has_255_integers_and_a_scale_for_each_channel() -> None:
    integers = torch.arange(-127.0, 128)
    values = torch.stack([integers, integers * 4])
    assert torch.equal(quantise(values, "int8:row", 1), values)
    ties = torch.tensor([[127.0, 0.5, 1.5, 2.5, -3.5]])
    assert torch.equal(quantise(ties, "int8:row", 1), torch.tensor([[127.0, 0, 2, 2, -4]]))


_VALUES = st.lists(st.floats(-(2.0**20), 2.0**20, width=32), min_size=1, max_size=70).map(torch.tensor)


@given(values=_VALUES, power=st.integers(-8, 8), fmt=st.sampled_from(sorted(SCHEMES)))
def test_scaling_by_powers_of_two_changes_nothing_else(values: torch.Tensor, power: int, fmt: str) -> None:
    values = values.where(values.abs() > 2.0**-20, 0.0)
    assert torch.equal(quantise(values * 2.0**power, fmt), quantise(values, fmt) * 2.0**power)


@given(values=_VALUES, fmt=st.sampled_from(sorted(SCHEMES)))
def test_quantised_values_stay(values: torch.Tensor, fmt: str) -> None:
    values = values.where(values.abs() > 2.0**-4, 0.0)
    quantised = quantise(values, fmt)
    torch.testing.assert_close(quantise(quantised, fmt), quantised, rtol=FP32_ROUNDINGS, atol=0)
    if SCHEMES[fmt].scaling == MX:
        assert torch.equal(quantise(quantised, fmt), quantised)


@given(values=_VALUES, rows=st.integers(1, 3), fmt=st.sampled_from(sorted(SCHEMES)))
def test_a_last_block_is_filled_with_zeros_and_blocks_follow_their_axis(
    values: torch.Tensor, rows: int, fmt: str
) -> None:
    matrix = values.repeat(rows, 1) * torch.exp2(-torch.arange(float(rows)))[:, None]
    padded = torch.nn.functional.pad(matrix, (0, -matrix.shape[1] % 32))
    quantised = quantise(matrix, fmt, 1)
    assert torch.equal(quantised, quantise(padded, fmt, 1)[:, : matrix.shape[1]])
    assert torch.equal(quantised.T, quantise(matrix.T, fmt, 0))
    assert block_shares(matrix, fmt, 1) == block_shares(matrix.T, fmt, 0)


@pytest.mark.parametrize("fmt", SCHEMES)
def test_what_is_not_finite_and_other_dtypes_and_shapes(fmt: str) -> None:
    values = torch.ones(3, 40)
    values[1, 3], values[2, 3] = torch.inf, torch.nan
    lost = quantise(values, fmt).isnan().sum(1).tolist()
    assert lost == {"row": [0, 40, 40], "mx": [0, 0, 32]}.get(SCHEMES[fmt].scaling, [40, 40, 40])
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        quantised = quantise(values[:1].to(dtype), fmt)
        assert quantised.dtype is dtype
        narrow = torch.float32 if dtype is torch.float64 else dtype
        assert torch.equal(quantised.to(narrow), quantise(values[:1], fmt).to(narrow))
    assert quantise(torch.zeros(0, 3), fmt).shape == (0, 3)
    assert block_shares(torch.zeros(0, 3), fmt) == block_shares(torch.zeros(3), fmt) == (0.0, 0.0)


def test_shares_count_blocks_that_saturate_and_blocks_that_flush() -> None:
    flushing = torch.tensor([[448.0, 2.0**-11], [448.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    assert block_shares(flushing, "float8_e4m3:row") == (0.0, 0.25)
    assert block_shares(flushing, "float8_e4m3:tensor") == (0.0, 1.0)
    blocks = torch.zeros(4, 16)  # the tensor's scale is 1, and the block's is 2**-9 where 1.49 * 2**-9 would do
    blocks[0, 0], blocks[1, 0], blocks[2, 0] = 6.0 * 448, 6 * 1.49 * 2.0**-9, 6 * 0.49 * 2.0**-9
    assert block_shares(blocks, "nvfp4") == (0.25, 0.25)
