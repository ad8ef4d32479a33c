"""Whether two runs compute the same: what fp64 gave held against what fp64 gave."""

import numpy as np
import pytest

from ampbench.base.metrics import DRIFT
from ampbench.base.sketch import sketch_of
from ampbench.judge.compare import compare
from ampbench.judge.said import change_text, summary, verdict
from ampbench.records.verdicts import Code, Verdict
from tests.compared_runs import BF16, FP32, Times, environment, make_run, noisy
from tests.stored_runs import make_header

TIMES = Times((FP32, noisy(1e-3)))
A, B = make_header(run="base", commit="a" * 40), make_header(run="new", commit="b" * 40)
ELSEWHERE = environment(make_header(), torch_version="2.16.0")
X = np.random.default_rng(0).normal(size=2000)
NOISE = np.random.default_rng(1).normal(size=2000)


def gave(output, gradients=None, **more):
    """Return the fields of a divergence whose reference gave these."""
    sketch = sketch_of([("0", [output])])
    fields = {
        "output_reference_norm": sketch.norm,
        "output_sketch": sketch.text,
        "output_shapes": [[8, len(output) // 8]],
    }
    if gradients is not None:
        sketch = sketch_of([("weight", [gradients])])
        fields |= {"grad_reference_norm": sketch.norm, "grad_sketch": sketch.text, "grad_rel_l2": 1e-3}
    return fields | more


def found(before, after, ours=A, theirs=B, threshold_of=lambda metric, case: None):
    comparison = compare(make_run(TIMES, header=ours, **before), make_run(TIMES, header=theirs, **after), threshold_of)
    return {one.metric: one for one in comparison.findings if one.kind == "accuracy"}


@pytest.mark.parametrize(
    ("after", "distance"),
    [(np.maximum(X, 0), 0.7), (0.9 * X, 0.1), (np.round(X * 16) / 16, 0.018), (-X, 2.0), (X[::-1].copy(), 1.4)],
    ids=["relu", "scaled", "rounded", "sign", "permuted"],
)
def test_another_function_is_a_regression_of_its_own_and_its_errors_are_of_another_function(after, distance):
    every = found(gave(X, output_rel_l2=4e-3), gave(after, output_rel_l2=3e-3))
    drift = every[DRIFT]
    assert (drift.verdict, drift.code) == (Verdict.REGRESSED, Code.OTHER_FUNCTION)
    assert drift.change == pytest.approx(distance, rel=0.2)
    assert drift.reason.startswith("computes something else: the fp64 output moved by ")
    assert drift.reason.endswith(f" {change_text(drift)}")
    error = every["output_rel_l2"]
    assert (error.verdict, error.code) == (Verdict.INCOMPARABLE, Code.OTHER_FUNCTION)
    assert error.reason.startswith("errors of another function: the fp64 output moved by ")


@pytest.mark.parametrize(
    ("noise", "theirs", "told"),
    [
        (1e-13, A, False),
        (1e-7, A, True),
        (1e-7, B, False),
        (1e-7, ELSEWHERE, False),
        (1e-5, B, True),
        (1e-5, ELSEWHERE, True),
    ],
)
def test_rounding_in_another_order_is_no_other_function(noise, theirs, told):
    assert (DRIFT in found(gave(X), gave(X * (1 + noise * NOISE)), theirs=theirs)) is told


def test_gradients_and_the_loss_are_compared_as_well():
    drift = found(gave(X, X, reference_loss=2.0), gave(X, 2 * X, reference_loss=2.5))[DRIFT]
    assert drift.reason == "computes something else: the gradients moved by 100% and the loss by 20%"
    assert drift.change == pytest.approx(1.0)
    assert drift.details == {"output_drift": 0.0, "gradients_drift": pytest.approx(1.0), "loss_drift": 0.2}


def test_of_files_without_a_sketch_the_norms_tell_at_least_how_far():
    drift = found({"output_reference_norm": 5.0}, {"output_reference_norm": 5.5})[DRIFT]
    assert drift.reason == "computes something else: the fp64 output moved by at least 10%"
    assert not found({"output_reference_norm": 5.0}, {"output_reference_norm": 5.0 * (1 + 1e-9)}).get(DRIFT)


def test_little_is_told_in_parts_of_the_norm():
    drift = found({"output_reference_norm": 5.0}, {"output_reference_norm": 5.0 * (1 + 3e-6)})[DRIFT]
    assert drift.reason == "computes something else: the fp64 output moved by at least 3.0e-06 of its norm"
    assert change_text(drift) == "3.0e-06"


def test_outputs_of_other_shapes_have_no_distance():
    drift = found(gave(X), gave(X, output_shapes=[[8, 125], [8, 125]]))[DRIFT]
    assert drift.reason == "computes something else: the output's shape is 8x125 and 8x125, was 8x250"
    assert drift.change is None


def test_a_result_that_was_zero_has_moved_from_zero():
    drift = found(gave(0 * X), gave(X))[DRIFT]
    assert drift.reason == "computes something else: the fp64 output moved from zero"


def test_references_in_fp32_are_compared_up_to_its_rounding_and_two_dtypes_not_at_all():
    fp32 = {"reference_dtype": "fp32", "reference_error": "it wants floats"}
    rounded = gave(X * (1 + 1e-5 * NOISE), **fp32)
    assert DRIFT not in found(gave(X, **fp32), rounded)
    drift = found(gave(X, **fp32), gave(0.9 * X, **fp32))[DRIFT]
    assert drift.reason == "computes something else: the fp32 output moved by 11%"
    every = found(gave(X), gave(0.9 * X, **fp32))
    assert DRIFT not in every
    assert every["output_rel_l2"].code is Code.OTHER_REFERENCE


def test_a_network_that_draws_random_numbers_has_moved_beyond_what_chance_does():
    def judged(distance):
        return DRIFT in found(gave(X), gave(X + distance * NOISE, chance_rel_l2=0.2))

    assert not judged(0.4)
    assert judged(0.9)


def test_other_weights_are_no_other_function():
    every = found(gave(X), gave(-X, weights_digest="cc"))
    assert DRIFT not in every
    assert every["output_rel_l2"].code is Code.OTHER_WEIGHTS


def allowing(share):
    return lambda metric, case: share if metric == DRIFT else None


def test_what_a_threshold_allows_is_told_and_errors_are_compared():
    every = found(gave(X), gave(0.9 * X, output_rel_l2=8e-3), threshold_of=allowing(0.2))
    drift = every[DRIFT]
    assert (drift.verdict, drift.code) == (Verdict.UNCHANGED, Code.WITHIN_THRESHOLD)
    assert drift.remarks == ("the fp64 output moved by 11%, which the threshold of 20% allows",)
    assert every["output_rel_l2"].verdict is Verdict.REGRESSED
    assert found(gave(X), gave(-X), threshold_of=allowing(0.2))[DRIFT].verdict is Verdict.REGRESSED


def test_what_is_not_finite_is_told_of_another_function_too():
    every = found(gave(X, X), gave(-X, -X, output_rel_l2=None, output_nonfinite=7))
    assert every["output_nonfinite"].verdict is Verdict.REGRESSED
    assert every["output_rel_l2"].reason == "output error became undefined: 7 output elements that are not finite"
    assert found(gave(X), gave(-X))["output_nonfinite"].verdict is Verdict.UNCHANGED
    back = found(gave(X, X, output_rel_l2=None, output_nonfinite=7), gave(-X, -X))
    assert back["output_nonfinite"].code is Code.OTHER_FUNCTION


def test_a_comparison_says_first_what_computes_something_else():
    both = Times((FP32, noisy(1e-3)), (BF16, noisy(1e-3)))
    baseline = make_run(both, header=A, peak_bytes=1_000_000, **gave(X))
    comparison = compare(baseline, make_run(both, header=B, peak_bytes=9_000_000, **gave(0.9 * X)))
    assert [one.metric for one in comparison.findings[:3]] == [DRIFT, DRIFT, "peak_memory_bytes"]
    assert verdict(comparison).startswith("2 cases compute something else, 2 regressed (memory 2), ")
    assert verdict(comparison).endswith(": most of all linear_chain bf16_autocast, the fp64 output moved by 11%")
    one = summary(comparison.findings[:1], {BF16.case_id: "m bf16"})
    assert one == "1 case computes something else: m bf16, the fp64 output moved by 11%"
