"""Counts of floating-point operations: torch's own where it counts, by hand where it does not."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from ampbench.base.precisions import PRECISIONS
from ampbench.measure.machine import open_device
from ampbench.measure.memory import count_flops
from ampbench.measure.sources import build_workload
from ampbench.measure.step import Step, TrainingStep, build_step
from ampbench.records.case import Case
from ampbench.workloads.index import WORKLOADS
from ampbench.workloads.index import source as builtin_source

POSITIONS = 4 * 10


def linear() -> Callable[[], Any]:
    module, given = torch.nn.Linear(64, 32), torch.randn(16, 64)
    return lambda: module(given)


def total(run: Callable[[], Any]) -> int:
    found = count_flops(run)
    assert found is not None
    return sum(found.values())


def torchs(run: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def step_of(name: str, case: Case) -> Step:
    spec = WORKLOADS[name]
    return build_step(build_workload(builtin_source(spec), spec.tiny, 0), case, open_device("cpu"))


@pytest.mark.parametrize("phase", ["inference", "training"])
@pytest.mark.parametrize("precision", ["fp32", "bf16_autocast", "fp16_autocast", "bf16_pure"])
@pytest.mark.parametrize("name", ["mlp", "simple_conv", "transformer_encoder", "gru"])
def test_the_total_is_that_of_torchs_own_counter(
    name: str, precision: str, phase: str, case: Callable[..., Case]
) -> None:
    step = step_of(name, case(precision, phase))
    with nullcontext() if isinstance(step, TrainingStep) else torch.no_grad():
        found = count_flops(step.run)
        assert found is not None
        assert sum(found.values()) == torchs(step.run) > 0
    row = PRECISIONS[precision]
    expected = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[row.autocast or row.storage]
    assert max(found, key=lambda dtype: found[dtype]) == expected


def test_products_count_in_the_dtype_that_autocast_casts_them_to() -> None:
    run = linear()
    count = 2 * 16 * 64 * 32
    assert count_flops(run) == {"fp32": count}
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert count_flops(run) == {"bf16": count}


def test_what_tf32_multiplies_counts_as_tf32() -> None:
    assert set(count_flops(linear(), tf32=True) or {}) == {"tf32"}
    halves = torch.randn(8, 8, dtype=torch.bfloat16)
    assert set(count_flops(lambda: halves @ halves, tf32=True) or {}) == {"bf16"}


def test_a_step_without_products_has_none_to_count() -> None:
    assert count_flops(lambda: torch.ones(3) + 1) == {}


def test_what_torch_does_not_count_is_not_counted_here() -> None:
    matrix, vector = torch.randn(4, 4), torch.randn(4)
    bilinear = torch.nn.Bilinear(4, 4, 2)

    def run() -> None:
        torch.mv(matrix, vector), torch.dot(vector, vector), torch.cdist(matrix, matrix), bilinear(matrix, matrix)

    with torch.no_grad():
        assert count_flops(run) == {}
        assert torchs(run) == 0


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("kind", [torch.nn.GRU, torch.nn.LSTM, torch.nn.RNN])
def test_every_position_of_a_recurrent_network_is_multiplied_by_every_weight(kind: Any, low: bool) -> None:
    module, given = kind(32, 64, 2, batch_first=True, bidirectional=True), torch.randn(4, 10, 32)
    products = 2 * POSITIONS * sum(weight.numel() for weight in module.parameters() if weight.ndim == 2)
    region = torch.autocast("cpu", dtype=torch.bfloat16, enabled=low)
    with torch.no_grad(), region:
        assert count_flops(lambda: module(given)) == {"bf16" if low else "fp32": products}

    def train() -> None:
        with region:
            loss = module(given)[0].sum()
        loss.backward()

    # the first layer's input needs no gradient, which not every kernel makes use of
    assert 2.5 * products <= total(train) <= 3 * products


@pytest.mark.parametrize("groups", [1, 4, 8])
@pytest.mark.parametrize("kind", [torch.nn.Conv2d, torch.nn.ConvTranspose2d])
def test_the_groups_of_a_convolution_divide_its_work_forwards_and_backwards(kind: Any, groups: int) -> None:
    module, images = kind(8, 16, 3, groups=groups), torch.randn(2, 8, 12, 12, requires_grad=True)
    places = 10 * 10 if kind is torch.nn.Conv2d else 12 * 12
    forward = 2 * 2 * places * module.weight.numel()
    assert total(lambda: module(images)) == forward
    assert total(lambda: module(images).sum().backward()) == 3 * forward


def test_an_encoders_fast_path_counts_as_its_plain_one() -> None:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    attention = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    given = torch.randn(4, 10, 32)
    for module, run in ((layer, lambda: layer(given)), (attention, lambda: attention(given, given, given))):
        with torch.no_grad():
            plain = total(run)
            assert plain == torchs(run) > 0
            module.eval()
            assert total(run) == plain


def test_fused_kernels_count_in_the_dtype_that_autocast_makes_them_multiply_in() -> None:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    attention = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    recurrent = torch.nn.LSTM(32, 16, batch_first=True).eval()
    given = torch.randn(4, 10, 32)
    for run in (
        lambda: layer(given),
        lambda: attention(given, given, given),
        lambda: recurrent(given),
        lambda: torch.nn.functional.scaled_dot_product_attention(given, given, given),
    ):
        with torch.no_grad():
            assert set(count_flops(run) or {}) == {"fp32"}
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert set(count_flops(run) or {}) == {"bf16"}


def test_nested_tensors_count_as_the_values_they_hold() -> None:
    module = torch.nn.Linear(8, 4)
    nested = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)], layout=torch.jagged)
    assert count_flops(lambda: module(nested)) == {"fp32": 2 * (3 + 5) * 8 * 4}


def test_what_cannot_be_counted_is_unknown_and_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> int:
        raise AssertionError("no such layout")

    monkeypatch.setitem(flop_registry, torch.ops.aten.addmm, unknown)
    run, seen = linear(), []
    assert count_flops(lambda: seen.append(run())) is None
    assert torch.equal(seen[0], run())


def test_an_error_of_the_step_is_raised_and_one_of_the_counter_is_not() -> None:
    def fail() -> None:
        raise ValueError("no luck today")

    with pytest.raises(ValueError, match="no luck today"):
        count_flops(fail)
    times: list[int] = []

    def fail_once() -> None:
        times.append(1)
        if len(times) == 1:
            raise RuntimeError("a mode is on")

    assert count_flops(fail_once) is None
    assert len(times) == 2


def test_results_under_the_counter_are_those_without_it() -> None:
    module, given = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), torch.randn(4, 8)
    seen: list[torch.Tensor] = []
    count_flops(lambda: seen.append(module(given)))
    assert torch.equal(seen[0], module(given))
