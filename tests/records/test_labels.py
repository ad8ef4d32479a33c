from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ampbench.records.labels import case_labels, common_traits, few
from tests.compared_runs import BF16, FP32
from tests.stored_runs import make_case


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
            scaler=st.booleans(),
        ),
        max_size=12,
    )
)
def test_no_two_cases_have_one_label(cases):
    labels = case_labels(cases)
    assert len(set(labels.values())) == len(labels) == len({case.case_id for case in cases})


def test_what_all_cases_share_is_said_once():
    assert common_traits([FP32, BF16]) == "inference · cpu · eager"
    assert common_traits([FP32, replace(FP32, phase="training")]) == "cpu · eager"


def test_a_few_distinct_names_are_listed_and_the_others_counted():
    assert few(["a", "b", "a", "c"]) == "a, b, c"
    assert few("abcde", most=2) == "a, b and 3 more"
    assert few([]) == ""
