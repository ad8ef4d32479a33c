import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampbench.explain.ranges import SMALL, Counts, count_magnitudes

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def plain(values):
    """Return the counts of Python floats, one by one."""
    finite = [abs(value) for value in values if math.isfinite(value)]
    return Counts(
        elements=len(values),
        zeros=sum(value == 0 for value in finite),
        nonfinite=len(values) - len(finite),
        largest=max(finite, default=None),
        exponents=Counter(math.frexp(value)[1] - 1 for value in finite if value),
        powers=Counter(
            math.frexp(value)[1] - 1 for value in finite if math.frexp(value)[0] == 0.5 and value <= 2.0**SMALL
        ),
    )


@given(st.lists(st.floats(width=32), max_size=50))
@settings(max_examples=200, deadline=None)
def test_fp32_values_are_counted_one_by_one(values):
    assert count_magnitudes(torch.tensor(values, dtype=torch.float32)) == plain(values)


@given(st.lists(st.floats(width=64), max_size=50))
@settings(max_examples=200, deadline=None)
def test_fp64_values_are_counted_one_by_one(values):
    assert count_magnitudes(torch.tensor(values, dtype=torch.float64)) == plain(values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_bit_pattern_of_a_half_is_counted(dtype):
    tensor = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    assert count_magnitudes(tensor) == plain(tensor.tolist())


@pytest.mark.parametrize("dtype", FLOATS)
def test_more_elements_than_a_chunk_has_are_counted_each_once(dtype):
    tensor = torch.randn(3, 100_003, generator=torch.Generator().manual_seed(0)).to(dtype)
    tensor[1, 7] = math.inf
    found = count_magnitudes(tensor)
    assert found == plain(tensor.flatten().tolist())
    assert found.elements == 300_009 == found.zeros + found.nonfinite + found.exponents.total()


@pytest.mark.parametrize("count", [100, 10_000, 600_000])
def test_zeros_subnormals_and_nans_are_told_apart_among_any_number_of_values(count):
    tensor = torch.randn(count, generator=torch.Generator().manual_seed(0))
    tensor[::3], tensor[1::7], tensor[-1], tensor[5] = 0.0, 2.0**-140, math.nan, -math.inf
    assert count_magnitudes(tensor) == plain(tensor.tolist())


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.transpose(0, 3),
        lambda x: x[:, ::2],
        lambda x: x[0, 0, 0, 0].expand(5, 3),
        lambda x: x[:, :0],
    ],
)
def test_strides_do_not_matter(change):
    tensor = change(torch.randn(2, 4, 5, 6, requires_grad=True))
    assert count_magnitudes(tensor) == plain(tensor.flatten().tolist())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("count", [10, 4_000, 250_000])
@pytest.mark.parametrize("zero", [0.0, 1.0])
def test_powers_of_two_are_counted_apart_where_values_are_small(dtype, count, zero):
    tensor = torch.randn(count, generator=torch.Generator().manual_seed(0)).to(dtype) * 2.0**-25
    tensor[:8] = torch.tensor([2.0**-24, 2.0**-25, -(2.0**-25), 2.0**-26, 2.0**-126, -(2.0**-127), 2.0**-149, zero])
    tensor[8], tensor[9] = math.inf, math.nan
    tensor[17::97] = 2.0**-30
    found = count_magnitudes(tensor)
    assert found == plain(tensor.tolist())
    assert found.powers[-25] == 2


def test_what_a_sparse_tensor_does_not_store_is_zero():
    tensor = torch.eye(4).to_sparse()
    assert count_magnitudes(tensor) == plain(torch.eye(4).flatten().tolist())
    rows = torch.sparse_coo_tensor([[1, 1]], torch.ones(2, 3), (4, 3), check_invariants=True)
    assert count_magnitudes(rows) == plain(rows.to_dense().flatten().tolist())
    assert count_magnitudes(torch.zeros(3).to_sparse()) == plain([0.0] * 3)


def test_counts_add_up():
    first, second = torch.tensor([0.0, 3.0, math.nan]), torch.tensor([2.0**-149, -7.0])
    counts = count_magnitudes(first)
    counts.add(count_magnitudes(second))
    counts.add(count_magnitudes(torch.tensor([math.inf])))
    assert counts == Counts(6, 1, 2, 7.0, Counter({1: 1, -149: 1, 2: 1}), Counter({-149: 1}))


def test_of_nothing_finite_there_is_no_largest():
    assert count_magnitudes(torch.tensor([math.nan, -math.inf])).largest is None
    assert count_magnitudes(torch.zeros(3)).largest == 0.0
