"""Short names of cases, what cannot be judged about their results, and what arithmetic says of optimizers in half."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import nn

from ampbench.core.precisions import PRECISIONS
from ampbench.core.statement import Arithmetic, Flaw, state
from ampbench.records.labels import (
    case_labels,
    common_traits,
    gathered,
    hints_of,
    not_finite,
    optimizer_name,
    remarks,
    remarks_of,
)
from ampbench.records.measured import Divergence, OptimizerGroup, Recipe
from ampbench.show.wording import words
from ampbench.worker.network import recipe_of
from tests.compared_runs import BF16, FP32
from tests.stored_runs import make_case, make_divergence


def test_labels_hold_what_tells_cases_apart_and_no_more():
    wide, training = make_case(parameters={"width": 1024, "depth": 4}), replace(BF16, phase="training")
    other = make_case(workload="mlp", parameters={"width": 9}, batch_size=1)
    labels = case_labels([FP32, wide, training, other])
    assert list(labels.values()) == [
        "linear_chain[width=512] fp32 inference",
        "linear_chain[width=1024] fp32 inference",
        "linear_chain[width=512] bf16_autocast training",
        "mlp fp32 inference",
    ]


@given(
    st.lists(
        st.builds(
            make_case,
            st.sampled_from(["fp32", "fp16_autocast"]),
            workload=st.sampled_from(["mlp", "vit"]),
            parameters=st.fixed_dictionaries({"width": st.sampled_from([1, 2])}),
            device=st.sampled_from(["cpu", "cuda"]),
            phase=st.sampled_from(["inference", "training"]),
            path=st.sampled_from(["eager", "compiled"]),
            batch_size=st.sampled_from([None, 1, 2]),
            input_dtype=st.sampled_from(["fp32", "fp16"]),
            memory_format=st.sampled_from(["contiguous", "channels_last"]),
            sdpa=st.sampled_from(["", "math", "flash"]),
            scaler=st.booleans(),
            recipe=st.sampled_from(["", "finetune", "finetune,lr=0.1"]),
        ).map(lambda case: case if case.phase == "training" else replace(case, recipe="")),
        max_size=12,
    )
)
def test_no_two_cases_have_one_label(cases):
    labels = case_labels(cases)
    assert len(set(labels.values())) == len(labels) == len({case.case_id for case in cases})


def test_what_all_cases_share_is_said_once():
    assert common_traits([FP32, BF16]) == "inference · cpu · eager"
    assert common_traits([FP32, replace(FP32, phase="training")]) == "cpu · eager"


def made(**fields: Any) -> Divergence:
    return make_divergence(make_case("bf16_pure"), **{"output_elements": 32, "grad_elements": 8} | fields)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, ""),
        ({"output_reference_nonfinite": 4, "output_reference_nan": 0}, ""),
        ({"output_nonfinite": 3, "output_nan": 0}, "inf"),
        ({"output_nonfinite": 3, "output_nan": 1}, "nan"),
        ({"output_reference_nonfinite": 4, "output_reference_nan": 1, "output_nonfinite": 3}, "nan in fp64"),
        ({"output_reference_nan": 1, "reference_dtype": "fp32"}, "nan in fp32"),
        ({"output_unlike": 2}, "inf in fp64"),
    ],
)
def test_a_word_tells_what_is_not_finite_and_where_it_begins(fields: dict[str, Any], word: str) -> None:
    assert not_finite(made(**fields)) == word


OF_OUTPUTS = {"elements": 32, "what": "output"}


@pytest.mark.parametrize(
    ("fields", "code", "facts"),
    [
        (
            {"output_reference_nonfinite": 16, "output_reference_nan": 16, "output_undefined": "x"},
            Flaw.REFERENCE_NAN, {"count": 16, "dtype": "fp64"} | OF_OUTPUTS,
        ),
        (
            {"output_nonfinite": 3, "output_fp32_nonfinite": 3},
            Flaw.FP32_OUTPUT, {"count": 3} | OF_OUTPUTS,
        ),
        (
            {"output_reference_nonfinite": 8, "output_reference_nan": 0},
            Flaw.REFERENCE_INFINITE, {"count": 8, "dtype": "fp64"} | OF_OUTPUTS,
        ),
        (
            {"reference_dtype": "fp32", "reference_error": "RuntimeError: no (m.py, line 3)"},
            Flaw.REFERENCE_IS_FP32, {"why": "RuntimeError: no (m.py, line 3)"},
        ),
        (
            {"reference_dtype": "", "reference_error": "RuntimeError: no; fp32 failed: no", "output_undefined": "x"},
            Flaw.REFERENCE_FAILED, {"why": "RuntimeError: no; fp32 failed: no"},
        ),
        ({"output_undefined": "the output is empty"}, Flaw.NO_ERROR, {"why": "the output is empty"}),
    ],
)  # fmt: skip
def test_what_stands_beside_the_numbers(fields: dict[str, Any], code: Flaw, facts: dict[str, Any]) -> None:
    found = made(**fields)
    assert remarks(found) == [state(code, found.case_id, **facts)]


def test_a_sentence_is_said_once_of_all_that_it_is_true_of() -> None:
    assert gathered([("a", "x"), ("b", "x"), ("a", "x"), ("a", "y")]) == ["a, b: x", "a: y"]


DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
HALF_UNIT = {"bf16": 2.0**-9, "fp16": 2.0**-12}
WAYS: list[dict[str, Any]] = [{}, {"foreach": True}]


def stored(values: torch.Tensor, dtype: str) -> nn.Parameter:
    return nn.Parameter(values.to(DTYPES[dtype]))


def told(parameter: nn.Parameter, optimizer: torch.optim.Optimizer, dtype: str) -> dict[str, dict[str, Any]]:
    module = nn.Module()
    module.weight = parameter
    return {each.code: dict(each.facts) for each in remarks_of(recipe_of(optimizer, module), dtype)}


def adam(kind: str, parameter: nn.Parameter, **settings: Any) -> torch.optim.Optimizer:
    if kind != "AdamW" and "weight_decay" in settings:
        settings["decoupled_weight_decay"] = True
    return getattr(torch.optim, kind)([parameter], **settings)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "NAdam", "RAdam"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_decoupled_weight_decay_below_half_a_unit_moves_no_weight(dtype, kind, way):
    weights = torch.linspace(1, 4, 4001)
    for factor, lost in ((0.999, True), (1.001, False), (2.001, False)):
        parameter = stored(weights, dtype)
        before = parameter.detach().clone()
        decay = HALF_UNIT[dtype] * factor / 1e-2
        optimizer = adam(kind, parameter, lr=1e-2, weight_decay=decay, eps=1e-4, **way)
        parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        assert torch.equal(parameter, before) == lost
        assert (Arithmetic.DECAY in told(parameter, optimizer, dtype)) == lost
        if factor > 2:
            assert not bool((parameter == before).any())


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *product(["Adam", "AdamW", "NAdam", "RAdam", "RMSprop"], WAYS),
        *(("Adam", {"fused": True}), ("AdamW", {"fused": True})),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mean_of_squares_that_is_told_not_to_decay_never_does(dtype, kind, way):
    for factor, stuck in ((0.99, True), (2.1, False)):
        decay = 1 - HALF_UNIT[dtype] * factor
        settings: dict[str, Any] = {"alpha": decay} if kind == "RMSprop" else {"betas": (0.9, decay)}
        parameter = stored(torch.ones(1000), dtype)
        optimizer = getattr(torch.optim, kind)([parameter], lr=1e-3, eps=1e-4, **settings, **way)
        parameter.grad = torch.linspace(10, 20, 1000).to(parameter.dtype)
        optimizer.step()
        squares = optimizer.state[parameter]["square_avg" if kind == "RMSprop" else "exp_avg_sq"]
        largest = squares.clone()
        for step in range(8):
            parameter.grad = (torch.linspace(0, 9, 1000) * (step % 3)).to(parameter.dtype)
            optimizer.step()
            assert bool((squares >= largest).all()) == stuck
            largest = torch.maximum(largest, squares)
        assert (Arithmetic.SQUARES in told(parameter, optimizer, dtype)) == stuck


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "NAdam", "RMSprop"])
def test_squares_of_small_gradients_are_zero_in_fp16_and_with_an_eps_that_is_zero_weights_are_lost(kind, way):
    decay = 0.999
    border = math.sqrt(2**-25 / (1 - decay))
    settings: dict[str, Any] = {"alpha": decay} if kind == "RMSprop" else {"betas": (0.9, decay)}
    for eps, lost in ((1e-8, True), (2.0**-25, True), (2.0**-24, False)):
        parameter = stored(torch.ones(3), "fp16")
        optimizer = getattr(torch.optim, kind)([parameter], lr=1e-3, eps=eps, **settings, **way)
        parameter.grad = torch.tensor([border * 0.99, border * 1.02, 0.0]).half()
        optimizer.step()
        squares = optimizer.state[parameter]["square_avg" if kind == "RMSprop" else "exp_avg_sq"]
        assert squares.tolist() == [0, 2**-24, 0]
        small, large, none = parameter.tolist()
        assert math.isfinite(large)
        assert math.isinf(small) or not lost
        assert math.isnan(none) == lost
        ((code, facts),) = [
            (code, facts) for code, facts in told(parameter, optimizer, "fp16").items() if "border" in facts
        ]
        assert code == (Arithmetic.INFINITE if lost else Arithmetic.DIVIDED)
        assert (facts["border"], facts["power"]) == (pytest.approx(border), 25)


@pytest.mark.parametrize("momentum", [0.1, 0.01])
@pytest.mark.parametrize("dtype", DTYPES)
def test_running_statistics_stop_about_half_a_unit_over_the_momentum_away(dtype, momentum):
    layer = nn.BatchNorm1d(200, momentum=momentum).to(DTYPES[dtype])
    means = torch.linspace(1, 4, 200).to(DTYPES[dtype])
    for _ in range(round(40 / momentum)):
        layer(means.repeat(2, 1))
    stopped = layer.running_mean.clone()
    for _ in range(5):
        layer(means.repeat(2, 1))
    assert torch.equal(layer.running_mean, stopped)
    away = ((means.double() - stopped.double()) / means.double()).abs() / (HALF_UNIT[dtype] / momentum)
    assert away.min() > 0.5
    assert away.max() < 4
    assert 0.8 < away.mean() < 2.5
    (remark,) = remarks_of(recipe_of(torch.optim.SGD(layer.parameters(), lr=0.1), layer), dtype)
    assert remark.code is Arithmetic.STATISTICS
    assert remark.facts["away"] == HALF_UNIT[dtype] / momentum


def test_settings_are_read_from_the_optimizer_and_momenta_from_the_network():
    network = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4, momentum=0.01), nn.BatchNorm1d(4, momentum=None),
        nn.BatchNorm1d(4, momentum=0.5, track_running_stats=False), nn.LayerNorm(4),
    )  # fmt: skip
    recipe = recipe_of(torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4), network)
    assert recipe.running_momenta == [0.1, 0.01]
    (group,) = recipe.groups
    assert (group.lr, group.momentum, group.weight_decay, group.decoupled) == (0.1, 0.9, 5e-4, False)
    assert group.elements == sum(parameter.numel() for parameter in network.parameters())
    assert optimizer_name(recipe) == "SGD lr=0.1 momentum=0.9 weight_decay=0.0005"
    assert (
        optimizer_name(recipe, "sgd-vision,clip=2") == "SGD lr=0.1 momentum=0.9 weight_decay=0.0005 clip=2 (sgd-vision)"
    )
    tensor = recipe_of(torch.optim.Adam(network.parameters(), lr=torch.tensor(0.25), capturable=True), network)
    assert (tensor.groups[0].lr, tensor.groups[0].capturable) == (0.25, True)


def test_only_precisions_that_store_in_half_have_a_line_and_master_weights_lose_only_statistics():
    group = OptimizerGroup(elements=1, lr=1e-4, weight_decay=0.01, decoupled=True, beta1=0.9, beta2=0.999, eps=1e-8)
    recipe = Recipe(optimizer="torch.optim.AdamW", groups=[group], running_momenta=[0.1])
    hints = {name: hints_of(recipe, row, "case") for name, row in PRECISIONS.items()}
    halves = {name for name, row in PRECISIONS.items() if row.storage != "float32" and row.autocast is None}
    assert {name for name, found in hints.items() if found} == halves
    for name in halves:
        codes = {hint.code for hint in hints[name]}
        arrives = PRECISIONS[name].master or PRECISIONS[name].updates != "nearest"
        assert (Arithmetic.DECAY in codes) == (not arrives)
        assert Arithmetic.STATISTICS in codes
    assert words(hints["bf16_pure"][1]) == (
        "bf16_pure with AdamW: the running mean of squared gradients cannot decay and only grows (1 - betas[1] is "
        "0.001, under 2^-9)"
    )
    assert hints_of(replace(recipe, groups=[], running_momenta=[]), PRECISIONS["bf16_pure"], "case") == []
