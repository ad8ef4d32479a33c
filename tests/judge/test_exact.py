"""What is compared number by number: memory, accuracy, and what fp64 gave held against what fp64 gave."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from ampbench.core.metrics import DRIFT
from ampbench.core.stats import sketch_of
from ampbench.judge import exact
from ampbench.judge.compare import compare
from ampbench.records.changes import OUTCOME, ChangeCode, ChangeStatus
from ampbench.records.measured import Failure, Skip, Update
from ampbench.show.comparison import change_text, conditions, drift_said, reason, remarks
from tests.compared_runs import BF16, FP32, Times, arms, environment, make_run, noisy
from tests.stored_runs import change_divergence, make_header, make_memory

TIMES = Times((FP32, noisy(1e-3)))
ELSEWHERE = environment(make_header(), torch_version="2.16.0")


def finding(metric, baseline, candidate, threshold_of=lambda metric, case: None):
    found = [one for one in compare(baseline, candidate, threshold_of).findings if one.metric == metric]
    assert len(found) <= 1
    return found[0] if found else None


def error(metric, before, after, header=None, **every):
    return finding(metric, make_run(TIMES, **before, **every), make_run(TIMES, header=header, **after, **every))


REGRESSED, IMPROVED, UNCHANGED = ChangeStatus.REGRESSED, ChangeStatus.IMPROVED, ChangeStatus.UNCHANGED
MIRRORED = {REGRESSED: IMPROVED, IMPROVED: REGRESSED, UNCHANGED: UNCHANGED}
PEAK, ERROR = "peak_memory_bytes", "output_rel_l2"
FLUSHED = {"grad_elements": 1_000_000, "grad_flushed": 20_000}
BROKEN = {"output_rel_l2": None, "output_nonfinite": 7}


def kept(value, **told):
    return {"update": Update(steps=20, kept=value, rel_l2=0.5, **told), "grad_elements": 1_000_000}


@pytest.mark.parametrize(
    ("metric", "before", "after", "header", "status"),
    [
        (PEAK, {}, {"peak_bytes": 1_000_001}, None, REGRESSED),
        (PEAK, {}, {"peak_bytes": 1_000_000}, None, UNCHANGED),
        (PEAK, {}, {"peak_bytes": 1_000_001}, ELSEWHERE, UNCHANGED),
        (PEAK, {}, {"peak_bytes": 1_010_001}, ELSEWHERE, REGRESSED),
        (ERROR, {}, {ERROR: 4e-3 * (1 + 1e-6)}, None, REGRESSED),
        (ERROR, {}, {ERROR: 4e-3 * (1 + 1e-14)}, None, UNCHANGED),
        (ERROR, {}, {ERROR: 4.2e-3}, ELSEWHERE, UNCHANGED),
        (ERROR, {}, {ERROR: 4.5e-3}, ELSEWHERE, REGRESSED),
        (ERROR, {}, BROKEN, None, REGRESSED),
        ("output_nonfinite", {"output_nonfinite": 2}, {"output_nonfinite": 3}, ELSEWHERE, REGRESSED),
        ("output_fp32_nonfinite", {"output_fp32_nonfinite": 16}, {"output_fp32_nonfinite": 16}, None, UNCHANGED),
        ("grad_flushed_share", FLUSHED, FLUSHED | {"grad_flushed": 20_050}, None, UNCHANGED),
        ("grad_flushed_share", FLUSHED, FLUSHED | {"grad_flushed": 23_000}, None, REGRESSED),
        ("param_rel_l2", {"param_rel_l2": 1e-6}, {"param_rel_l2": None}, None, REGRESSED),
        ("update_kept", kept(0.95), kept(0.5), None, REGRESSED),
        ("update_kept", kept(0.95), kept(-0.2), None, REGRESSED),
        ("update_kept", kept(0.95), kept(0.97), None, IMPROVED),
        ("update_kept", kept(0.95), kept(0.5), ELSEWHERE, REGRESSED),
        ("update_kept", kept(0.95), kept(0.955), ELSEWHERE, UNCHANGED),
    ],
)
def test_numbers_are_exact_on_one_environment_and_have_a_tolerance_between_two(metric, before, after, header, status):
    assert error(metric, before, after, header).status is status
    assert error(metric, after, before, header).status is MIRRORED[status]


@given(st.floats(1e-5, 1e-1), st.floats(1e-5, 1e-1), st.floats(0, 0.5))
def test_swapped_sides_mirror_every_verdict_on_errors_and_bytes(one, other, threshold):
    ours, theirs = (make_run(TIMES, output_rel_l2=each, peak_bytes=round(each * 1e9)) for each in (one, other))
    for metric in ("output_rel_l2", "peak_memory_bytes"):
        there = finding(metric, ours, theirs, lambda metric, case: threshold).status
        back = finding(metric, theirs, ours, lambda metric, case: threshold).status
        assert back is MIRRORED.get(there, there)


def test_a_threshold_that_is_given_takes_the_place_of_the_default():
    baseline, candidate = make_run(TIMES), make_run(TIMES, peak_bytes=1_040_000)
    assert finding("peak_memory_bytes", baseline, candidate, lambda metric, case: 0.05).status is ChangeStatus.UNCHANGED


def test_bytes_counted_by_other_means_and_peaks_of_nothing_are_incomparable():
    candidate = make_run(TIMES)
    candidate.memory[FP32.case_id] = make_memory(FP32, 1_000_000, source="allocator")
    assert finding("peak_memory_bytes", make_run(TIMES), candidate).code is ChangeCode.OTHER_COUNTER
    assert error(PEAK, {"peak_bytes": 0}, {"peak_bytes": 0}).code is ChangeCode.INVALID


def test_memory_of_one_side_alone_is_incomparable_and_of_neither_is_nothing():
    baseline, candidate = make_run(TIMES), make_run(TIMES)
    candidate.memory.clear()
    found = finding("peak_memory_bytes", baseline, candidate)
    assert (found.status, found.code) == (ChangeStatus.INCOMPARABLE, ChangeCode.NOT_MEASURED)
    assert reason(found) == "the candidate has no number"
    baseline.memory.clear()
    assert finding("peak_memory_bytes", baseline, candidate) is None


def test_errors_of_a_step_that_is_not_repeatable_have_the_tolerance_of_two_environments():
    found = error("output_rel_l2", {"repeatable": False}, {"output_rel_l2": 4.2e-3})
    assert (found.status, found.threshold) == (ChangeStatus.UNCHANGED, 0.1)


def commits(*names):
    return [make_header(run=name, commit=name * 40) for name in names]


def of_commits(metric, before, after, asked=None, **every):
    ours, theirs = commits("a", "b")
    runs = [make_run(TIMES, header=one, **every, **own) for one, own in ((ours, before), (theirs, after))]
    return finding(metric, *runs, lambda metric, case: asked)


@pytest.mark.parametrize(
    ("elements", "after", "verdict"),
    [
        (80, 5.3e-3, ChangeStatus.UNCHANGED),
        (80, 5.5e-3, ChangeStatus.REGRESSED),
        (80, 2.9e-3, ChangeStatus.IMPROVED),
        (1_000_000, 4.3e-3, ChangeStatus.UNCHANGED),
        (1_000_000, 4.5e-3, ChangeStatus.REGRESSED),
    ],
)
def test_errors_of_two_commits_count_beyond_the_luck_of_another_order_of_summation(elements, after, verdict):
    shapes = {"output_shapes": [[elements // 8, 8]]}
    assert of_commits("output_rel_l2", {}, {"output_rel_l2": after}, **shapes).status is verdict


@pytest.mark.parametrize(
    ("elements", "growth", "verdict"),
    [
        (8, 3.3, ChangeStatus.UNCHANGED),
        (8, 3.4, ChangeStatus.REGRESSED),
        (8, 1 / 3.4, ChangeStatus.IMPROVED),
        (20, 2.01, ChangeStatus.UNCHANGED),
        (24, 1.99, ChangeStatus.UNCHANGED),
        (24, 2.01, ChangeStatus.REGRESSED),
    ],
)
def test_fp32s_own_error_over_few_elements_may_more_than_double_by_the_order_of_its_sums(elements, growth, verdict):
    errors = [{"output_rel_l2": each, "output_fp32_rel_l2": each} for each in (1e-6, 1e-6 * growth)]
    assert (
        of_commits("output_rel_l2", *errors, output_floor_rel_l2=2e-8, output_shapes=[[1, elements]]).status is verdict
    )


@pytest.mark.parametrize("elements", [2, 8, 20])
def test_growth_that_is_none_is_as_rare_as_three_deviations_where_nothing_but_luck_differs(elements):
    squares = np.random.default_rng(0).chisquare(elements, (2, 400_000))
    share = np.mean(np.sqrt(squares[0] / squares[1]) > 1 + exact.growth_by_order(elements))
    assert share == pytest.approx(0.00135, rel=0.15)


def test_errors_as_small_as_those_of_fp32_are_those_of_an_order_of_summation():
    def judged(metric, before, after):
        return of_commits(metric, {metric: before}, {metric: after, "output_fp32_rel_l2": after}).status

    assert judged("output_rel_l2", 2.4e-7, 2.41e-7) is ChangeStatus.UNCHANGED
    assert judged("grad_rel_l2", 2.4e-7, 4.7e-7) is ChangeStatus.UNCHANGED
    assert judged("grad_rel_l2", 2.4e-7, 4.9e-7) is ChangeStatus.REGRESSED
    assert judged("param_rel_l2", 2.2e-8, 1.2e-8) is ChangeStatus.UNCHANGED


def test_of_other_precisions_what_fp32_is_wrong_by_in_the_same_run_is_known():
    both = Times((FP32, noisy(1e-3)), (BF16, noisy(1e-3)))
    ours, theirs = (make_run(both, header=one, grad_rel_l2=2e-7) for one in commits("a", "b"))
    for run, error in ((ours, 5e-7), (theirs, 6.9e-7)):
        run.divergence[BF16.case_id] = change_divergence(run.divergence[BF16.case_id], grad_rel_l2=error)
    found = [one for one in compare(ours, theirs).findings if one.metric == "grad_rel_l2"]
    assert [one.status for one in found] == [ChangeStatus.UNCHANGED] * 2
    assert max(one.threshold for one in found) == 1.0


def test_a_threshold_of_zero_is_taken_at_its_word():
    found = of_commits("output_rel_l2", {}, {"output_rel_l2": 4e-3 * (1 + 1e-6)}, asked=0.0)
    assert found.status is ChangeStatus.REGRESSED


def test_a_parameter_that_an_arm_sets_changes_no_environment():
    ours, theirs = arms(depth="5")
    deeper = structs.replace(FP32, parameters={"depth": 5, "width": 512})
    candidate = make_run(Times((deeper, noisy(1e-3))), header=theirs, output_rel_l2=4.2e-3)
    found = finding("output_rel_l2", make_run(TIMES, header=ours), candidate)
    assert (found.status, found.threshold) == (ChangeStatus.REGRESSED, 0.0)


def test_errors_of_arms_with_other_settings_have_the_tolerance_of_two_environments():
    ours, theirs = arms(path="compiled")
    after = structs.replace(FP32, path="compiled")
    candidate = make_run(Times((after, noisy(1e-3))), header=theirs, output_rel_l2=4.2e-3)
    assert finding("output_rel_l2", make_run(TIMES, header=ours), candidate).status is ChangeStatus.UNCHANGED


def test_an_error_below_that_of_rounding_counts_relative_to_it():
    found = error("output_rel_l2", {"output_rel_l2": 1e-6}, {"output_rel_l2": 5e-5}, ELSEWHERE)
    assert found.change == pytest.approx(0.049)
    assert found.status is ChangeStatus.UNCHANGED
    assert found.facts == {"of_rounding": 1.0}
    nothing = of_commits("output_rel_l2", {"output_rel_l2": 0.0}, {"output_rel_l2": 0.0}, output_floor_rel_l2=0.0)
    assert (nothing.status, nothing.change, nothing.facts) == (ChangeStatus.UNCHANGED, 0.0, {"equal": 1.0})


def test_an_error_that_is_undefined_because_something_is_not_finite_names_its_side():
    worse, better = error("output_rel_l2", {}, BROKEN), error("output_rel_l2", BROKEN, {})
    assert (worse.facts["undefined"], better.facts["undefined"]) == ("candidate", "baseline")


def test_an_error_that_is_undefined_for_another_reason_is_incomparable():
    found = error("output_rel_l2", {}, {"output_rel_l2": None})
    assert (found.status, found.code) == (ChangeStatus.INCOMPARABLE, ChangeCode.NOT_MEASURED)
    assert error("grad_rel_l2", {}, {}) is None


def test_cases_skipped_on_both_sides_for_one_reason_are_told_together_and_have_no_verdict():
    comparison = compare(skipped(make_run(TIMES)), skipped(make_run(TIMES)))
    assert not comparison.findings
    assert "skipped on both sides: 1 case (this CPU has no tf32)" in conditions(comparison)


def test_errors_of_chance_are_incomparable_and_say_why():
    found = error("output_rel_l2", {}, {"output_rel_l2": 1.3, "chance_rel_l2": 1.2})
    assert (found.status, found.code) == (ChangeStatus.INCOMPARABLE, ChangeCode.INVALID)
    assert reason(found).startswith("errors by chance: ")


@pytest.mark.parametrize("digest", ["weights_digest", "inputs_digest"])
def test_other_weights_or_inputs_make_accuracy_incomparable_and_are_remarked_upon_elsewhere(digest):
    comparison = compare(make_run(TIMES), make_run(TIMES, **{digest: "other"}))
    accuracy = [one for one in comparison.findings if one.kind == "accuracy"]
    assert {one.code for one in accuracy} == {ChangeCode.OTHER_WEIGHTS}
    (time,) = [one for one in comparison.findings if one.kind == "time"]
    assert time.status is ChangeStatus.UNCHANGED
    assert remarks(time) == [f"other {digest.split('_')[0]}: the time may differ"]


def test_another_version_of_a_workload_makes_accuracy_incomparable():
    candidate = make_run(Times((structs.replace(FP32, version=1), noisy(1e-3))))
    found = finding("output_rel_l2", make_run(TIMES), candidate)
    assert found.code is ChangeCode.OTHER_WEIGHTS
    assert reason(found) == "another version of the workload (0 → 1)"


def failed(stored):
    message = "CUDA out of memory"
    stored.failures[FP32.case_id] = Failure(case_id=FP32.case_id, stage="round", cause="out of memory", message=message)
    return stored


def skipped(stored):
    stored.rounds.clear()
    stored.skips[FP32.case_id] = Skip(case_id=FP32.case_id, reason="this CPU has no tf32")
    return stored


def weights_differ(stored):
    stored.rounds[0] = replace(stored.rounds[0], weights_digest="other")
    return stored


def ok(stored):
    return stored


@pytest.mark.parametrize(
    ("before", "after", "verdict", "code", "said"),
    [
        (
            ok,
            failed,
            ChangeStatus.REGRESSED,
            ChangeCode.OUTCOME_CHANGED,
            "ok → failed: out of memory: CUDA out of memory",
        ),
        (ok, weights_differ, ChangeStatus.REGRESSED, ChangeCode.OUTCOME_CHANGED, "weights differ between rounds"),
        (failed, ok, ChangeStatus.IMPROVED, ChangeCode.OUTCOME_CHANGED, "failed → ok: out of memory"),
        (ok, skipped, ChangeStatus.INCOMPARABLE, ChangeCode.NOT_MEASURED, "ok → skipped: this CPU has no tf32"),
        (skipped, ok, ChangeStatus.INCOMPARABLE, ChangeCode.NOT_RUN, "skipped → ok: this CPU has no tf32"),
        (failed, skipped, ChangeStatus.INCOMPARABLE, ChangeCode.NOT_RUN, "; before: out of memory"),
        (failed, failed, ChangeStatus.INCOMPARABLE, ChangeCode.NOT_RUN, "failed → failed: out of memory"),
    ],
)
def test_outcomes_are_compared_and_no_time_of_a_case_that_is_not_ok_on_both_sides(before, after, verdict, code, said):
    every = compare(before(make_run(TIMES)), after(make_run(TIMES))).findings
    (found,) = [one for one in every if one.kind == OUTCOME]
    assert not any(one.kind == "time" for one in every)
    assert (found.metric, found.kind) == (OUTCOME, OUTCOME)
    assert (found.status, found.code) == (verdict, code)
    assert said in reason(found)


def test_a_baseline_that_failed_late_hides_no_regression_of_what_it_had_counted():
    ours, theirs = make_run(TIMES), make_run(TIMES, peak_bytes=2_000_000)
    ours.failures[FP32.case_id] = Failure(case_id=FP32.case_id, stage="round", cause="killed", message="signal 9")
    verdicts = {one.metric: one.status for one in compare(ours, theirs).findings}
    assert verdicts[OUTCOME] is ChangeStatus.IMPROVED
    assert verdicts["peak_memory_bytes"] is ChangeStatus.REGRESSED


def test_other_weights_are_known_without_any_error_being_measured():
    theirs = make_run(TIMES)
    theirs.divergence.clear()
    theirs.rounds[:] = [structs.replace(one, weights_digest="zz") for one in theirs.rounds]
    assert compare(make_run(TIMES), theirs).other_numbers == [FP32.case_id]


def test_a_reference_that_became_nan_is_a_regression_and_back_an_improvement():
    broken = {
        "output_rel_l2": None, "output_elements": 32, "output_reference_nonfinite": 16, "output_reference_nan": 16,
        "output_undefined": "16 of 32 output elements are NaN in fp64 already",
    }  # fmt: skip
    whole = {"output_reference_nonfinite": 0}
    worse, better = error("output_rel_l2", whole, broken), error("output_rel_l2", broken, whole)
    assert (worse.status, better.status) == (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED)
    assert worse.facts["why"] == "16 of 32 output elements are NaN in fp64 already"
    counts = error("output_reference_nonfinite", whole, broken, ELSEWHERE)
    assert (counts.status, change_text(counts)) == (ChangeStatus.REGRESSED, "+16")


def test_errors_against_different_references_are_incomparable_and_no_regression():
    failed = {"reference_dtype": "fp32", "reference_error": "RuntimeError: no (m.py, line 3)", "output_rel_l2": 0.5}
    for before, after in (({}, failed), (failed, {})):
        found = error("output_rel_l2", before, after)
        assert (found.status, found.code) == (ChangeStatus.INCOMPARABLE, ChangeCode.OTHER_REFERENCE)
        assert {found.facts["before"], found.facts["after"]} == {"fp64", "fp32"}
        assert "RuntimeError: no (m.py, line 3)" in reason(found)
    assert error("output_rel_l2", failed, failed).status is ChangeStatus.UNCHANGED


def test_parameters_that_are_no_longer_finite_are_a_regression_and_the_update_has_no_number():
    lost = Update(steps=20, undefined="3 parameter elements are not finite after the step", nonfinite=3)
    ours, theirs = make_run(TIMES, **kept(1.0), param_nonfinite=0), make_run(TIMES, update=lost, param_nonfinite=3)
    found = {one.metric: one for one in compare(ours, theirs).findings}
    assert found["param_nonfinite"].status is ChangeStatus.REGRESSED
    assert lost.undefined in reason(found["update_kept"])


A, B = make_header(run="base", commit="a" * 40), make_header(run="new", commit="b" * 40)
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
    assert (drift.status, drift.code) == (ChangeStatus.REGRESSED, ChangeCode.OTHER_FUNCTION)
    assert drift.change == pytest.approx(distance, rel=0.2)
    assert reason(drift) == f"the fp64 output moved by {change_text(drift)}"
    error = every["output_rel_l2"]
    assert (error.status, error.code) == (ChangeStatus.INCOMPARABLE, ChangeCode.OTHER_FUNCTION)
    assert reason(error).startswith("errors of another function: the fp64 output moved by ")


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


@pytest.mark.parametrize(
    ("before", "after", "said", "change"),
    [
        (
            gave(X, X, reference_loss=2.0), gave(X, 2 * X, reference_loss=2.5),
            "the gradients moved by 100% and the loss by 20%", pytest.approx(1.0),
        ),
        ({"output_reference_norm": 5.0}, {"output_reference_norm": 5.5}, "the fp64 output moved by at least 10%", 0.1),
        (
            gave(X), gave(X, output_shapes=[[8, 125], [8, 125]]),
            "the output's shape is 8x125 and 8x125, was 8x250", None,
        ),
        (gave(0 * X), gave(X), "the fp64 output moved from zero", math.inf),
    ],
)  # fmt: skip
def test_what_moved_is_told_with_how_far(before, after, said, change):
    drift = found(before, after)[DRIFT]
    assert drift_said(drift.facts) == said
    assert drift.change == (pytest.approx(change) if isinstance(change, float) else change)


def test_references_in_fp32_are_compared_up_to_its_rounding_and_two_dtypes_not_at_all():
    fp32 = {"reference_dtype": "fp32", "reference_error": "it wants floats"}
    rounded = gave(X * (1 + 1e-5 * NOISE), **fp32)
    assert DRIFT not in found(gave(X, **fp32), rounded)
    drift = found(gave(X, **fp32), gave(0.9 * X, **fp32))[DRIFT]
    assert drift_said(drift.facts) == "the fp32 output moved by 11%"
    every = found(gave(X), gave(0.9 * X, **fp32))
    assert DRIFT not in every
    assert every["output_rel_l2"].code is ChangeCode.OTHER_REFERENCE


def test_a_network_that_draws_random_numbers_has_moved_beyond_what_chance_does():
    def judged(distance):
        return DRIFT in found(gave(X), gave(X + distance * NOISE, chance_rel_l2=0.2))

    assert not judged(0.4)
    assert judged(0.9)


def allowing(share):
    return lambda metric, case: share if metric == DRIFT else None


def test_what_a_threshold_allows_is_told_and_errors_are_compared():
    every = found(gave(X), gave(0.9 * X, output_rel_l2=8e-3), threshold_of=allowing(0.2))
    drift = every[DRIFT]
    assert (drift.status, drift.code) == (ChangeStatus.UNCHANGED, ChangeCode.WITHIN_THRESHOLD)
    assert remarks(drift) == ["the fp64 output moved by 11%, which the threshold of 20% allows"]
    assert every["output_rel_l2"].status is ChangeStatus.REGRESSED
    assert found(gave(X), gave(-X), threshold_of=allowing(0.2))[DRIFT].status is ChangeStatus.REGRESSED


def test_what_is_not_finite_is_told_of_another_function_too():
    every = found(gave(X, X), gave(-X, -X, output_rel_l2=None, output_nonfinite=7))
    assert every["output_nonfinite"].status is ChangeStatus.REGRESSED
    assert every["output_rel_l2"].facts["undefined"] == "candidate"
    assert found(gave(X), gave(-X))["output_nonfinite"].status is ChangeStatus.UNCHANGED
    back = found(gave(X, X, output_rel_l2=None, output_nonfinite=7), gave(-X, -X))
    assert back["output_nonfinite"].code is ChangeCode.OTHER_FUNCTION
