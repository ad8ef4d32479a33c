"""Times of two runs compared, and the words for what was decided."""

import math
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from ampbench.judge.compare import compare
from ampbench.records.changes import Change, ChangeCode, ChangeStatus, ControlCode
from ampbench.records.measured import Fitness
from ampbench.show.comparison import reason, remarks
from ampbench.store import StoredRun
from tests.compared_runs import BF16, FP32, Times, arms, environment, make_run, noisy, rounds_of
from tests.stored_runs import make_case, make_header, make_round


def times(comparison) -> list[Change]:
    return [one for one in comparison.findings if one.kind == "time"]


def interleaved(before, after, control=()):
    """Compare two arms in one case."""
    ours, theirs = arms()
    baseline = make_run(Times((FP32, before)), control=control, header=ours)
    return compare(baseline, make_run(Times((FP32, after)), header=theirs))


def partly_busy(run, blocks):
    """Return an arm of which so many of the blocks that confirm were measured while others used much of the CPU."""
    fresh = [one for one in run.rounds if one.confirmation][:blocks]
    run.rounds[:] = [
        structs.replace(one, fitness=Fitness(other_share=0.45)) if one in fresh else one for one in run.rounds
    ]
    return run


@pytest.mark.parametrize(("factor", "verdict"), [(4.5, ChangeStatus.REGRESSED), (1.07, ChangeStatus.INCONCLUSIVE)])
def test_of_confirming_blocks_on_a_busy_machine_only_a_change_beyond_twice_as_long_is_believed(factor, verdict):
    ours, theirs = (
        make_run(Times((FP32, noisy(value, 16, seed=seed))), fresh=noisy(value, 10, seed=seed + 2), header=header)
        for seed, (value, header) in enumerate(zip((1e-3, factor * 1e-3), arms(), strict=True))
    )
    (found,) = times(compare(partly_busy(ours, 6), partly_busy(theirs, 6)))  # six of 26, too few of all to matter
    assert found.status is verdict
    assert "other processes used 45% of the CPU in 6 of 26 blocks" in reason(found)


def sampled(header, seed, slow_steps=0.0, fresh=10):
    """An arm of 32 blocks, and fresh ones, of 200 samples of a millisecond each; a share takes three times as long."""
    generator = np.random.default_rng(seed)

    def block(number, **changes):
        took = generator.lognormal(math.log(1e-3), 0.002) * (1 + generator.exponential(0.01, 200))
        took = np.where(generator.random(200) < slow_steps, 3 * took, took)
        return make_round(FP32, number=number, samples=[took.tolist()], steps_per_sample=[1], **changes)

    run = make_run(Times((FP32, [])), header=header)
    rounds = [block(number) for number in range(32)] + [block(number, confirmation=True) for number in range(fresh)]
    return replace(run, rounds=rounds)


def test_a_tail_that_grew_is_a_finding_of_its_own_beside_an_unchanged_typical_time():
    ours, theirs = arms()
    typical, mean = sorted(
        times(compare(sampled(ours, 1), sampled(theirs, 2, slow_steps=0.06))), key=lambda one: one.metric, reverse=True
    )
    assert (typical.metric, typical.status, typical.code) == (
        "seconds_median", ChangeStatus.UNCHANGED, ChangeCode.WITHIN_THRESHOLD,
    )  # fmt: skip
    assert (mean.metric, mean.kind, mean.status) == ("seconds_mean", "time", ChangeStatus.REGRESSED)
    assert mean.change == pytest.approx(2 * 0.06, abs=0.03)
    assert 0.05 < mean.low < mean.change < mean.high
    assert (mean.baseline, mean.threshold) == (pytest.approx(1.01e-3, rel=0.01), 0.05)
    assert mean.candidate == pytest.approx(1.12e-3, rel=0.03)
    assert reason(mean) == "certainly over 5%, 32 blocks, confirmed by 10 fresh ones"


@pytest.mark.parametrize(
    ("policy", "threshold", "verdict"),
    [
        ({}, 0.05, ChangeStatus.REGRESSED),
        ({"seconds_median": 0.2}, 0.2, None),
        ({"seconds_median": 0.2, "seconds_mean": 0.03}, 0.03, ChangeStatus.REGRESSED),
        ({"seconds_mean": 0.3}, 0.3, None),
    ],
)
def test_a_mean_may_change_by_what_is_said_of_it_or_as_much_as_the_time_may(policy, threshold, verdict):
    ours, theirs = arms()
    both = sampled(ours, 1), sampled(theirs, 2, slow_steps=0.06)
    found = {one.metric: one for one in times(compare(*both, lambda metric, case: policy.get(metric)))}
    assert found["seconds_median"].details["mean_threshold"] == threshold
    assert (found["seconds_mean"].status if "seconds_mean" in found else None) == verdict


def test_blocks_are_paired_by_their_number_not_by_their_order():
    """A drift of 4% a block makes order decide; the candidate's file lacks the first block."""
    drift = [1e-3 * 1.04**number for number in range(17)]
    ours, theirs = arms()
    baseline = make_run(Times((FP32, drift)), header=ours)
    candidate = make_run(Times((FP32, drift)), header=theirs)
    del candidate.rounds[0]
    (found,) = times(compare(baseline, candidate))
    assert found.status is ChangeStatus.UNCHANGED
    assert found.change == pytest.approx(0, abs=1e-9)
    assert found.blocks == 16


def test_a_control_that_fires_takes_every_time_verdict_away():
    comparison = interleaved(noisy(1e-3), noisy(1e-3, seed=1), control=noisy(1.07e-3, seed=2))
    (found,) = times(comparison)
    assert (found.status, found.code) == (ChangeStatus.INCONCLUSIVE, ChangeCode.CONTROL_FIRED)
    assert comparison.control.fired


@pytest.mark.parametrize("swapped", [False, True])
def test_the_control_stands_beside_its_own_arm_when_the_arms_are_swapped(swapped):
    runs = [
        make_run(Times((FP32, noisy(1e-3))), control=noisy(1.001e-3, seed=2), header=arms()[0]),
        make_run(Times((FP32, noisy(1.3e-3, seed=1))), header=arms()[1]),
    ]
    control = compare(*(reversed(runs) if swapped else runs)).control
    assert (control.cells, control.code, control.facts["case"]) == (1, ControlCode.QUIET, FP32.case_id)
    assert control.facts["change"] == pytest.approx(1e-3, abs=1e-3)


def test_stored_runs_are_widened_by_their_controls():
    quiet = make_run(Times((FP32, noisy(1e-3, 8))), control=noisy(1e-3, 8, seed=5))
    lucky = make_run(Times((FP32, noisy(1e-3, 8))), control=noisy(1.2e-3, 8, seed=5))
    candidate = make_run(Times((FP32, noisy(1.1e-3, 8, seed=1))))
    assert times(compare(quiet, candidate))[0].status is ChangeStatus.REGRESSED
    widened = compare(lucky, candidate)
    assert times(widened)[0].status is ChangeStatus.INCONCLUSIVE
    assert widened.control.code is ControlCode.APART
    assert "candidate" not in widened.control.facts
    assert widened.control.cells == 1
    assert not widened.interleaved


def test_confirmation_rounds_take_no_part_in_a_comparison_with_another_session():
    baseline = make_run(Times((FP32, noisy(1e-3, 8))), fresh=noisy(9e-3, 8), header=arms()[0])
    (found,) = times(compare(baseline, make_run(Times((FP32, noisy(1e-3, 8, seed=1))))))
    assert found.blocks == 8
    assert abs(found.change) < 0.01


def unfit_run(fitness, blocks, **changes):
    """Return a run in which the first `blocks` of eight blocks had `fitness`, and took twice as long."""
    run = make_run(Times((FP32, [])), **changes)
    unfit = [make_round(FP32, 2e-3, number, fitness=fitness) for number in range(blocks)]
    quiet = [make_round(FP32, value, blocks + number, fitness=Fitness(frequency_hz=3e9)) for number, value in
             enumerate(noisy(1e-3, 8 - blocks))]  # fmt: skip
    run.rounds[:] = unfit + quiet
    return run


@pytest.mark.parametrize(
    ("fitness", "cause"),
    [
        (Fitness(other_share=0.41), "other processes used 41% of the CPU in 4 of 8 blocks"),
        (Fitness(steal_share=0.3), "the hypervisor gave 30% of the CPU time to other machines in 4 of 8 blocks"),
        (Fitness(load=8.0), "the load was 4.0 per CPU in 4 of 8 blocks"),
        (Fitness(frequency_hz=1.5e9), "the CPU's clock was at 67% of its usual one in 4 of 8 blocks"),
    ],
)
def test_too_many_unfit_blocks_are_no_evidence_and_the_cause_is_named(fitness, cause):
    ours, theirs = arms()
    found = compare(make_run(Times((FP32, noisy(1e-3, 8))), header=ours), unfit_run(fitness, 4, header=theirs))
    (found,) = times(found)
    assert (found.status, found.code) == (ChangeStatus.INCONCLUSIVE, ChangeCode.UNFIT_MACHINE)
    assert found.change is None
    assert reason(found) == cause


def busy_run(seconds, header, fresh=(), **changes):
    """Return an arm of which every block was measured while others used most of the CPU."""
    run = make_run(Times((FP32, seconds)), header=header, fresh=fresh)
    run.rounds[:] = [structs.replace(one, fitness=Fitness(other_share=0.92)) for one in run.rounds]
    return run


def disturbed(factor, seed, count=32):
    """Return times of code that takes `factor` ms, of which any may be up to 3 times as long for others' work."""
    held_up = np.random.default_rng(seed).uniform(1, 3, count)
    return [float(factor * value * times) for value, times in zip(noisy(1e-3, count, seed=seed), held_up, strict=True)]


@pytest.mark.parametrize(("factor", "verdict"), [(15, ChangeStatus.REGRESSED), (1 / 15, ChangeStatus.IMPROVED)])
def test_in_turns_a_change_far_beyond_what_disturbs_both_arms_is_judged_on_a_busy_machine(factor, verdict):
    ours, theirs = arms()
    baseline = busy_run(disturbed(1, 0), ours, fresh=disturbed(1, 1, 10))
    (found,) = times(compare(baseline, busy_run(disturbed(factor, 2), theirs, fresh=disturbed(factor, 3, 10))))
    assert (found.status, found.code, found.threshold) == (verdict, ChangeCode.BEYOND_THRESHOLD, 1.0)
    assert reason(found).endswith("; other processes used 92% of the CPU in 42 of 42 blocks")
    (found,) = times(compare(busy_run(disturbed(1, 0), ours), busy_run(disturbed(factor, 2), theirs)))
    assert found.code is ChangeCode.UNCONFIRMED


def test_blocks_in_which_one_arm_alone_was_disturbed_decide_nothing():
    ours, theirs = arms()
    in_turns = compare(make_run(Times((FP32, noisy(1e-3, 32))), header=ours), busy_run(disturbed(15, 2), theirs))
    one_after_the_other = compare(make_run(Times((FP32, noisy(0.2e-3, 8)))), unfit_run(Fitness(other_share=0.41), 4))
    for comparison in (in_turns, one_after_the_other):
        (found,) = times(comparison)
        assert (found.status, found.code) == (ChangeStatus.INCONCLUSIVE, ChangeCode.UNFIT_MACHINE)
        assert (found.change, found.low, found.high) == (None, None, None)


def test_few_unfit_blocks_are_left_out_in_pairs():
    ours, theirs = arms()
    busy = unfit_run(Fitness(other_share=0.41), 2, header=theirs)
    (found,) = times(compare(make_run(Times((FP32, noisy(1e-3, 8))), header=ours), busy))
    assert found.blocks == 6
    assert abs(found.change) < 0.01


def test_a_load_is_judged_only_where_nothing_better_is_known():
    ours, theirs = arms()
    loaded = unfit_run(Fitness(load=8.0, other_share=0.01), 8, header=theirs)
    (found,) = times(compare(make_run(Times((FP32, noisy(1e-3, 8))), header=ours), loaded))
    assert found.code is not ChangeCode.UNFIT_MACHINE


def test_a_changed_share_of_slow_blocks_is_remarked_upon_whatever_the_verdict():
    after = noisy(1e-3, 16, seed=1)
    after[::4] = [2e-3] * 4
    after[1::4] = [2e-3] * 4
    (found,) = times(interleaved(noisy(1e-3), after))
    assert any(remark.startswith("slow blocks: 0% → 50% (p = ") for remark in remarks(found))
    assert found.details["slow_share_candidate"] == 0.5
    assert found.details["mean_change"] > 0.3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"host": "other"}, "measured differently: host bench → other"),
        ({"cpu": "Intel"}, "measured differently: CPU AMD EPYC → Intel"),
        ({"cpu_count": 4}, "measured differently: number of CPUs 2 → 4"),
        ({"threads": 1}, "measured differently: number of threads 2 → 1"),
        ({"cpu": "Intel", "threads": 1}, "measured differently: CPU AMD EPYC → Intel; number of threads 2 → 1"),
    ],
)
def test_times_of_another_machine_are_incomparable_and_memory_and_accuracy_are_not(changes, said):
    other = make_run(Times((FP32, noisy(1e-3))), header=environment(make_header(), **changes))
    comparison = compare(make_run(Times((FP32, noisy(1e-3)))), other)
    (found,) = times(comparison)
    assert (found.status, found.code) == (ChangeStatus.INCOMPARABLE, ChangeCode.OTHER_MACHINE)
    assert reason(found) == said
    assert {one.status for one in comparison.findings if one.kind != "time"} == {ChangeStatus.UNCHANGED}


def test_a_threshold_holds_for_its_case_and_is_never_below_what_the_clock_resolves():
    baseline, candidate = (make_run(Times((FP32, noisy(1e-3, seed=seed)), (BF16, noisy(1e-7, seed=seed))))
                           for seed in (0, 1))  # fmt: skip
    found = compare(baseline, candidate, lambda metric, case: 0.05 if metric == "seconds_median" else None)
    limits = {one.case.precision: one.threshold for one in times(found)}
    assert limits["fp32"] == 0.05
    assert limits["bf16_autocast"] == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize(
    ("clock", "seconds", "status", "threshold"),
    [
        (1.8e9, 1.05e-3, ChangeStatus.INCONCLUSIVE, 1.02 * 2.0 / 1.8 - 1),
        (2.2e9, 0.5e-3, ChangeStatus.IMPROVED, 1.02 * 2.2 / 2.0 - 1),
        (1.965e9, 1.05e-3, ChangeStatus.REGRESSED, 0.02),
        (1.955e9, 1.03e-3, ChangeStatus.INCONCLUSIVE, 1.02 * 2.0 / 1.955 - 1),
    ],
)
def test_under_another_clock_only_a_change_beyond_what_the_clocks_explain_is_judged(clock, seconds, status, threshold):
    case = make_case(device="cuda")

    def at(clock_hz: float, seconds: float, seed: int) -> StoredRun:
        values = noisy(seconds, 8, seed=seed)
        fitness = Fitness(accelerator_clock_hz=clock_hz)
        return replace(make_run(Times((case, []))), rounds=rounds_of(case, values, fitness=fitness))

    (found,) = times(compare(at(2.0e9, 1e-3, 0), at(clock, seconds, 1)))
    assert (found.status, found.threshold) == (status, pytest.approx(threshold, rel=1e-9))
    clocks = {name: value for name, value in found.facts.items() if name.startswith("clock")}
    assert clocks == ({"clock_before": 2.0, "clock_after": clock / 1e9} if threshold > 0.02 else {})
    assert found.change == pytest.approx(seconds / 1e-3 - 1, abs=0.01)
