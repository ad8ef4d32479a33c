"""Short names of cases, and what cannot be judged about their results."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ampbench.core.statement import Flaw, state
from ampbench.records.labels import case_labels, common_traits, gathered, not_finite, remarks
from ampbench.records.measured import Divergence
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
