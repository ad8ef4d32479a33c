"""Predictions held against what a low precision did: hand-made records of every way they can agree or not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from ampbench.records.ranges import (
    ACTIVATION,
    GRADIENT,
    INPUT,
    WEIGHT,
    FirstNonfinite,
    LowRun,
    SeenGradient,
)
from ampbench.studies.headroom import (
    FLUSHING,
    OVERFLOW,
    by_running_module,
    flushed_together,
    predict,
    predicted_and_seen,
    predicted_gradients,
)
from tests.studies.range_records import error, passed, values

TOO_LARGE, SMALL = 1e6, 1e-9


def low_run(*modules, precision="fp16_pure", **fields):
    return LowRun(precision=precision, modules=list(modules), **fields)


def autocast(*modules, lowered=(), weights=(), **fields):
    return low_run(*modules, precision="fp16_autocast", lowered=list(lowered), lowered_weights=list(weights), **fields)


def first(module, phase="forward"):
    return FirstNonfinite(operation="aten.mm", module=module, phase=phase, step=0)


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


def test_inputs_of_a_module_that_gives_fp32_are_told_of_where_they_come_from():
    found = passed(values("softmax", TOO_LARGE, what=INPUT, kind="Softmax"), values("softmax", 1.0, kind="Softmax"))
    assert outcome(found, autocast(error("softmax", 0.0)), "softmax").events[OVERFLOW].predicted == ""
    assert (
        outcome(found, autocast(error("softmax"), lowered=["softmax"]), "softmax").events[OVERFLOW].predicted == INPUT
    )


def test_the_whole_step_shows_which_module_overflows_first():
    low = autocast(error("square", 0.0), lowered=["square"], first_nonfinite=first("square"))
    found = passed(values("square", TOO_LARGE))
    assert outcome(found, low, "square").events[OVERFLOW].seen is True
    backward = structs.replace(low, first_nonfinite=first("square", "backward"))
    assert outcome(found, backward, "square").events[OVERFLOW].seen is False


def test_nothing_is_held_against_a_step_that_does_not_say_what_was_cast():
    found = passed(values("a", TOO_LARGE))
    for ended in ({"error": "RuntimeError: no kernel"}, {"notes": ["modules compiled by torch.compile"]}):
        row = outcome(found, autocast(error("a", overflowed=1), **ended), "a")
        assert (row.events[OVERFLOW].predicted, row.events[OVERFLOW].seen) == ("", None)
    assert outcome(found, autocast(error("a", overflowed=1)), "a").events[OVERFLOW].seen is True  # nothing was lowered
    assert outcome(found, low_run(error("a", overflowed=1), error="no kernel"), "a").events[OVERFLOW].seen is True


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
