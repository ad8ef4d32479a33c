"""What headroom and origin conclude, in codes and facts, and their tables, of hand-made passes."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from ampbench.core.precisions import FORMATS
from ampbench.core.statement import Arithmetic, Statement
from ampbench.records.measured import OptimizerGroup, Recipe
from ampbench.records.ranges import (
    ACTIVATION,
    GRADIENT,
    INPUT,
    WEIGHT,
    FirstNonfinite,
    LowRun,
    OriginPass,
    RangePass,
    SeenGradient,
)
from ampbench.show.document import records
from ampbench.studies import headroom, origin
from ampbench.studies.headroom import (
    FLUSHING,
    MODULE_COLUMNS,
    OVERFLOW,
    Headroom,
    by_running_module,
    fit,
    flushed_together,
    predict,
    predicted_and_seen,
    predicted_gradients,
    usable_scales,
)
from ampbench.studies.origin import Origin
from ampbench.trace.ranges import count_magnitudes, record_of
from tests.stored_runs import make_case
from tests.studies.range_records import error, passed, values

CASE = make_case()


def about(found: RangePass, subject: str = "fp16") -> dict[str, Statement]:
    return {each.code: each for each in headroom.conclusions(CASE, found) if each.subject == subject}


def facts(found: RangePass, code: Headroom, subject: str = "fp16") -> dict[str, Any]:
    return dict(about(found, subject)[code].facts)


def modules(found: RangePass, dtype: str = "fp16") -> dict[str, str]:
    return {
        row["module"]: row[f"{dtype}_would"] for row in records(MODULE_COLUMNS, headroom.modules_of(found.magnitudes))
    }


def test_a_sum_of_4096_sixteens_is_told_before_and_after_it_is_run():
    first = FirstNonfinite(operation="aten.sum", module="", phase="forward", step=0, inputs_largest=16.0)
    low = LowRun(
        precision="fp16_pure", modules=[error("", None, kind="Sum", elements=1, overflowed=1)], first_nonfinite=first
    )
    found = passed(values("", 65536.0, kind="Sum"), low=low)
    assert facts(found, Headroom.OVERFLOWS)["reach"] == pytest.approx(65536 / 65504)
    assert list(about(found, "bf16")) == [Headroom.FITS]
    assert facts(found, Headroom.SEEN, "fp16_pure") == {"event": "overflow", "predicted": 1, "seen": 1}
    assert modules(found) == {"": "overflow"}


def test_the_worst_is_the_largest_and_flushing_modules_are_named():
    found = passed(
        values("a", 1e5), values("b", 131008.0, what=INPUT), values("b", 1.0),
        *(values(name, 1e-9) for name in "cdef"),
    )  # fmt: skip
    worst = {"worst": "b", "values": "input", "reach": 2.0}
    assert facts(found, Headroom.OVERFLOWS) == {"count": 2, "modules": 6, "dtype": "fp16", **worst}
    assert facts(found, Headroom.FLUSHES) == {"count": 4, "names": "c, d, e and 1 more"}
    assert list(modules(found)) == list("bacdef")


@pytest.mark.parametrize(
    ("gradients", "code", "expected"),
    [
        ([1.0, 2.0**-3], Headroom.UNSCALED, {}),
        ([1.0, 2.0**-60], Headroom.UNSCALED, {"flushed": 0.5}),
        (
            [1.0, 1.5 * 2.0**-30, 2.0**-60, 1.0],
            Headroom.SCALE,
            {"lowest": "2^5", "highest": "2^15", "flushed": 0.25, "unscaled": 0.5, "limiting": "a"},
        ),
    ],
)
def test_which_loss_scale_serves_is_told(gradients: list[float], code: Headroom, expected: dict[str, Any]):
    found = passed(values("a", 1.0), values("a", *gradients, what=GRADIENT))
    assert facts(found, code) == expected
    assert list(about(passed(values("a", 1.0)))) == [Headroom.FITS]


def test_what_arithmetic_knows_of_the_optimizer_is_told_for_both_dtypes():
    group = OptimizerGroup(elements=8, lr=1e-4, weight_decay=0.01, decoupled=True, beta1=0.9, beta2=0.999, eps=1e-8)
    recipe = Recipe(optimizer="torch.optim.AdamW", groups=[group])
    found = passed(values("a", 1.0), recipe=recipe)
    told = [each for each in headroom.conclusions(CASE, found) if isinstance(each.code, Arithmetic)]
    assert {each.subject.split(",")[0] for each in told} == {"stored in fp16", "stored in bf16"}
    assert Arithmetic.DECAY in {each.code for each in told}


# Origin

FAILING = OriginPass(
    case_id="case",
    modules=[
        error("a", 1e-4),
        error("b", None, elements=0, note="it draws"),
        error("c", 3e-3),
        error("", None, overflowed=100),
        error("d", None, overflowed=50, inputs_overflowed=7),
        error("e", 1.0, flushed=100),
    ],
)


def concluded(found: OriginPass, case: Any = CASE) -> dict[str, dict[str, Any]]:
    return {each.code: dict(each.facts) for each in origin.conclusions(case, found)}


def test_an_origin_is_told_by_what_modules_err_by_themselves():
    assert concluded(FAILING) == {
        Origin.UNDEFINED: {"strange": 1},
        Origin.OVERFLOWS: {"names": "the network itself", "count": 1, "modules": 5},
        Origin.FLUSHES: {"names": "e", "count": 1, "modules": 5, "least": 0.01},
        Origin.WORST: {"names": "e, c, a", "error": 1.0},
        Origin.LEFT_OUT: {"count": 1, "modules": 6, "reasons": "it draws (1)"},
    }
    calm = OriginPass(case_id="case", modules=[error("a", 0.0)], output_rel_l2=2e-3)
    assert list(concluded(calm)) == [Origin.OUTPUT, Origin.EXACT]
    undefined = OriginPass(case_id="case", modules=[error("a", None)])
    assert concluded(undefined)[Origin.UNDEFINED] == {"strange": 0}


def ablated(base: float | None, **kept: float | None) -> dict[str, dict[str, Any]]:
    modules = [error(name, kept_rel_l2=left) for name, left in kept.items()]
    return concluded(OriginPass(case_id="case", modules=modules, output_rel_l2=base, ablations=len(kept)))


def test_modules_kept_in_fp32_alone_say_what_reaches_the_output():
    found = ablated(1e-2, a=9e-3, b=8e-3, c=9.5e-3, d=None, e=1e-2)
    assert found[Origin.KEPT] == {"module": "b", "error": 8e-3, "share": pytest.approx(0.2), "then": "a, c"}
    assert Origin.WORST not in found
    assert ablated(1e-2, a=9.8e-3)[Origin.SPREAD] == {"module": "a", "share": pytest.approx(0.02)}
    assert ablated(1e-2, a=2e-2)[Origin.SPREAD] == {"module": "a", "share": 0.0}
    assert ablated(None, a=None, b=3e-3)[Origin.KEPT] == {"module": "b", "error": 3e-3}
    for nothing in (ablated(None, a=None), ablated(0.0, a=0.0)):
        assert nothing.keys().isdisjoint({Origin.KEPT, Origin.SPREAD})


DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def magnitudes(values, what=ACTIVATION, kind="Linear", name=""):
    return record_of("layer", what, name, kind, count_magnitudes(torch.tensor(values, dtype=torch.float32)))


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
    assert (found.flushed, found.unscaled) == (0.0, pytest.approx(1 / 3))
    assert found.limiting == "layer"


TOO_LARGE, SMALL = 1e6, 1e-9


def low_run(*modules, precision="fp16_pure", **fields):
    return LowRun(precision=precision, modules=list(modules), **fields)


def autocast(*modules, lowered=(), weights=(), **fields):
    return low_run(*modules, precision="fp16_autocast", lowered=list(lowered), lowered_weights=list(weights), **fields)


def outcome(found, low, module=""):
    (row,) = [row for row in predicted_and_seen(found, low) if row.error.module == module]
    return row


def test_a_module_flushes_from_one_per_cent_of_its_outputs_on():
    found = passed(values("", SMALL, 1.0))
    assert outcome(found, low_run(error("", elements=1000, flushed=9))).events[FLUSHING].seen is False
    flushing = outcome(found, low_run(error("", elements=1000, flushed=10)))
    assert (flushing.events[FLUSHING].predicted, flushing.events[FLUSHING].seen) == (ACTIVATION, True)


@pytest.mark.parametrize(
    ("lowered", "weights", "predicted"),
    [
        ((), (), ""),
        (("a",), (), ACTIVATION),
        ((), ("a.weight",), ACTIVATION),  # it computes in fp16 and returns fp32
        ((), ("a.bias",), ACTIVATION),
        (("b",), ("b.weight",), ""),
    ],
)
def test_with_autocast_outputs_overflow_only_where_a_module_computes_in_the_low_dtype(lowered, weights, predicted):
    found = passed(
        values("a", 1.0, what=WEIGHT, name="a.weight"),
        values("a", 1.0, what=WEIGHT, name="a.bias"),
        values("a", TOO_LARGE),
        values("b", 1.0),
    )
    assert (
        outcome(found, autocast(error("a"), lowered=lowered, weights=weights), "a").events[OVERFLOW].predicted
        == predicted
    )


def test_weights_of_parts_that_do_not_run_belong_to_the_module_around_them():
    rows = [
        values("attention", 1.0, kind="MultiheadAttention"),
        values("attention.out_proj", TOO_LARGE, what=WEIGHT, name="attention.out_proj.weight"),
        values("attention.out_proj", 1.0, what=GRADIENT, name="attention.out_proj.weight"),
        values("unused", TOO_LARGE, what=WEIGHT, name="unused.weight"),
    ]
    assert list(by_running_module(rows)) == ["attention"]
    assert by_running_module(rows)["attention"] == rows[:2]
    found = passed(*rows)
    assert outcome(found, low_run(error("attention")), "attention").events[OVERFLOW].predicted == WEIGHT
    low = autocast(error("attention"), lowered=["attention"], weights=["attention.in_proj_weight"])
    assert outcome(found, low, "attention").events[OVERFLOW].predicted == ""
    assert by_running_module([values("", 1.0), rows[-1]])[""] == [values("", 1.0), rows[-1]]


# Gradients


def gradient(name, *numbers):
    return values(name.rpartition(".")[0], *numbers, what=GRADIENT, name=name)


def together(found, low):
    return flushed_together(predicted_gradients(found, low))


def seen_gradient(name, elements, flushed=0, nonfinite=0):
    return SeenGradient(parameter=name, elements=elements, flushed=flushed, nonfinite=nonfinite)


def test_gradients_flush_at_the_loss_scale_of_the_step():
    found = passed(gradient("fc.weight", 2.0**-30, 1.0), values("fc", 2.0**-30, what=GRADIENT))
    low = low_run(gradients=[seen_gradient("fc.weight", 2, flushed=1)])
    assert together(found, low) == (0.5, 0.5)
    assert together(found, structs.replace(low, scaler_scale=2.0**10)) == (0.0, 0.5)


# Monotonicity

KINDS = st.sampled_from(["Linear", "ReLU6", "BatchNorm2d", "Softmax"])
NAMES = st.sampled_from(["", "layer.weight", "layer.running_var"])
NUMBERS = st.lists(st.floats(0.0, 1e30, allow_nan=False), max_size=6)


@given(
    st.lists(st.tuples(st.sampled_from([ACTIVATION, INPUT, WEIGHT, GRADIENT]), NAMES, NUMBERS), max_size=4),
    KINDS,
    st.integers(0, 40),
    st.sampled_from(["fp16", "bf16"]),
    st.booleans(),
    st.sampled_from([None, frozenset(), frozenset({"layer.weight"})]),
)
@settings(max_examples=200)
def test_larger_values_never_take_an_overflow_back(rows, kind, power, dtype, computes_low, weights):
    def predicted(factor):
        made = [
            values("layer", *(number * factor for number in numbers), what=what, kind=kind, name=name)
            for what, name, numbers in rows
        ]
        return predict(made, dtype, computes_low=computes_low, lowered_weights=weights)[OVERFLOW].predicted

    if predicted(1.0):
        assert predicted(2.0**power)
