"""What a range of magnitudes says of a format: what overflows, is flushed, or fits, at which loss scales, in words."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from ampbench.core.precisions import FORMATS
from ampbench.records.ranges import ACTIVATION, INPUT, WEIGHT, Magnitudes
from ampbench.studies.headroom import (
    FLUSHES,
    FLUSHING,
    OVERFLOW,
    fit,
    predict,
    usable_scales,
)
from ampbench.studies.headroom import (
    _normalised_to_zero as normalised_to_zero,
)
from ampbench.trace.ranges import count_magnitudes

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def magnitudes(values, what=ACTIVATION, kind="Linear", name=""):
    counts = count_magnitudes(torch.tensor(values, dtype=torch.float32))
    lowest, highest = min(counts.exponents, default=0), max(counts.exponents, default=-1)
    return Magnitudes(
        module="layer",
        kind=kind,
        what=what,
        name=name,
        elements=counts.elements,
        zeros=counts.zeros,
        nonfinite=counts.nonfinite,
        largest=counts.largest,
        lowest=lowest,
        counts=[counts.exponents[place] for place in range(lowest, highest + 1)],
        powers=[counts.powers[place] for place in range(lowest, highest + 1)],
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_format_is_torch_s(dtype):
    form, info = FORMATS[dtype], torch.finfo(DTYPES[dtype])
    assert form.largest == info.max
    assert form.normal == info.smallest_normal
    assert 2 * form.flush == info.smallest_normal * info.eps
    for border, beyond in ((form.overflow, math.inf), (form.overflow * (1 - 2**-20), form.largest)):
        assert torch.tensor(border, dtype=torch.float64).to(DTYPES[dtype]).item() == beyond
    assert torch.tensor(form.flush, dtype=torch.float64).to(DTYPES[dtype]).item() == 0
    assert torch.tensor(form.flush * (1 + 2**-10), dtype=torch.float64).to(DTYPES[dtype]).item() == 2 * form.flush


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40),
    st.sampled_from(sorted(DTYPES)),
    st.integers(-20, 20),
)
@settings(max_examples=300)
def test_shares_are_those_of_really_rounding_the_values(values, dtype, power):
    form, scale = FORMATS[dtype], 2.0**power
    exact = torch.tensor(values, dtype=torch.float32).double() * scale
    # A histogram does not show on which side of a border a value rounds that lies next to it.
    borders = torch.tensor([form.flush, form.normal, form.overflow], dtype=torch.float64)
    keep = ((exact.abs()[:, None] / borders - 1).abs() > 2 * 2.0**-form.digits).all(1)
    exact = exact[keep]
    if not len(exact):
        return
    found = fit(magnitudes((exact / scale).tolist()), dtype, scale)
    low = exact.to(DTYPES[dtype]).double()
    assert found.overflow == pytest.approx(float(low.isinf().double().mean()))
    assert found.flushed == pytest.approx(float(((low == 0) & (exact != 0)).double().mean()))
    assert found.subnormal == pytest.approx(float(((low != 0) & (low.abs() < form.normal)).double().mean()))
    assert found.reach == pytest.approx(float(exact.abs().max()) / form.largest)


def test_a_normalisation_flushes_where_whole_channels_do_or_where_it_remembers_a_mean_of_zero():
    def flushes(together, *rows):
        inputs = magnitudes([2.0**-30] * 50 + [1.0] * 50, INPUT, "BatchNorm2d")
        inputs = structs.replace(inputs, together=together)
        found = predict([*rows, inputs, magnitudes([1.0], kind="BatchNorm2d")], "fp16")
        share = normalised_to_zero(inputs, rows, FORMATS["fp16"], True)
        assert found[FLUSHING].predicted == (INPUT if share >= FLUSHES else "")
        return share

    mean, bias = (magnitudes([0.0, value], WEIGHT, "BatchNorm2d", f"layer.{name}") for name, value in
                  (("running_mean", 1.0), ("bias", 1.0)))  # fmt: skip
    assert flushes([]) == 0.0
    assert flushes([25]) == 0.25
    assert flushes([25], mean) == 0.25
    assert flushes([25], bias) == 0.125
    assert flushes(None) == 0.5
    assert flushes(None, mean, bias) == 0.125


@pytest.mark.parametrize(
    ("kind", "lowered", "share"), [("BatchNorm2d", None, 0.5), ("BatchNorm2d", [], 0.0), ("LayerNorm", None, 0.0)]
)
def test_a_batch_normalisation_in_pure_half_loses_the_mean_of_small_values_too(kind, lowered, share):
    small = structs.replace(magnitudes([2.0**-30] * 50 + [2.0**-23] * 50, INPUT, kind), together=[])
    found = predict([small, magnitudes([1.0], kind=kind)], "fp16", lowered_weights=lowered)
    assert found[FLUSHING].predicted == (INPUT if share else "")


@pytest.mark.parametrize(
    ("rows", "overflows", "flushes"),
    [
        ([magnitudes([1.0])], "", ""),
        ([magnitudes([65520.0])], ACTIVATION, ""),
        ([magnitudes([1e9], INPUT, "Conv2d"), magnitudes([1.0], kind="Conv2d")], INPUT, ""),
        ([magnitudes([1e9], INPUT, "ReLU6"), magnitudes([6.0], kind="ReLU6")], "", ""),
        ([magnitudes([1e9], WEIGHT, name="layer.weight"), magnitudes([1.0])], WEIGHT, ""),
        ([magnitudes([1e9], WEIGHT, name="layer.running_var"), magnitudes([1.0])], "", ""),
        ([magnitudes([1e9], "gradient"), magnitudes([1.0])], "", ""),
        ([magnitudes([1e-9] * 2 + [1.0] * 98)], "", ACTIVATION),
        ([magnitudes([1e-9] + [1.0] * 199)], "", ""),
        ([magnitudes([1e-9], INPUT, "BatchNorm2d"), magnitudes([1.0], kind="BatchNorm2d")], "", INPUT),
        ([magnitudes([1e-9], INPUT, "Linear"), magnitudes([1.0])], "", ""),
        (
            [
                magnitudes([0.5], WEIGHT, "BatchNorm2d", "layer.bias"),
                magnitudes([1e-9], INPUT, "BatchNorm2d"),
                magnitudes([1.0], kind="BatchNorm2d"),
            ],
            "",
            "",
        ),
    ],
)
def test_what_a_module_is_predicted_to_do_in_fp16(rows, overflows, flushes):
    found = predict(rows, "fp16")
    assert (found[OVERFLOW].predicted, found[FLUSHING].predicted) == (overflows, flushes)
    assert predict(rows, "bf16")[FLUSHING].predicted == ""


def gradients(*values):
    return magnitudes(list(values), "gradient")


def test_the_largest_gradient_bounds_the_scale_and_the_smallest_says_what_is_lost():
    found = usable_scales([gradients(1.0, 2.0**-30), gradients(0.5)])
    assert found.highest == 2.0**15  # times 1.0 it is 32768, doubled it would be infinite
    assert found.lowest == 2.0**6  # below it 2**-30 becomes 2**-25, a tie, and zero
    assert found.needed
    assert (found.flushed, found.unscaled) == (0.0, pytest.approx(1 / 3))
    assert found.limiting == "layer"
