from dataclasses import replace

import pytest

from ampbench.errors import UsageError
from ampbench.judge.pairing import arm_settings, pair_cases
from tests.compared_runs import BF16, FP32, arms
from tests.stored_runs import make_case, make_header

PURE = make_case("bf16_pure", input_dtype="bf16")
WIDE = replace(FP32, parameters={"width": 1024, "depth": 4})


def pairs(baseline, candidate, *settings):
    paired = pair_cases(baseline, candidate, settings)
    return [(pair.baseline, pair.candidate) for pair in paired.pairs]


def test_cases_are_paired_by_their_id_and_the_others_are_listed():
    paired = pair_cases([FP32, BF16], [WIDE, FP32], ())
    assert [(pair.baseline_id, pair.candidate_id) for pair in paired.pairs] == [(FP32.case_id, FP32.case_id)]
    assert (paired.only_baseline, paired.only_candidate) == ([BF16.case_id], [WIDE.case_id])


def test_versions_of_a_workload_meet():
    assert pairs([FP32], [replace(FP32, version=1)]) == [(FP32, replace(FP32, version=1))]


@pytest.mark.parametrize(
    ("setting", "candidate"),
    [
        ("precision", PURE),
        ("precision", replace(FP32, precision="fp16_autocast", scaler=False)),
        ("scaler", replace(FP32, scaler=False)),
        ("path", replace(FP32, path="compiled")),
        ("memory_format", replace(FP32, memory_format="channels_last")),
        ("batch_size", replace(FP32, batch_size=16)),
        ("linear_chain.batch_size", replace(FP32, batch_size=16)),
        ("width", WIDE),
        ("linear_chain.width", WIDE),
    ],
)
def test_what_an_arm_sets_is_left_out_of_the_comparison(setting, candidate):
    assert pairs([FP32], [candidate], setting) == [(FP32, candidate)]
    assert pairs([candidate], [FP32], setting) == [(candidate, FP32)]
    assert pairs([FP32], [candidate], "threads", "OMP_NUM_THREADS") == []


def test_a_setting_of_another_workload_says_nothing_about_this_one():
    assert pairs([FP32], [WIDE], "mlp.width") == []


def test_cases_that_differ_only_in_what_an_arm_sets_leave_a_choice_and_are_refused():
    with pytest.raises(UsageError, match=r"the candidate has .*/fp32/.* and .*/bf16_pure/.* \(precision\)"):
        pair_cases([FP32], [FP32, PURE], ["precision"])


def test_the_settings_of_both_arms_count():
    ours, theirs = arms(threads="2")
    assert arm_settings(ours, theirs) == {"threads": "2"}
    assert arm_settings(make_header()) == {}
