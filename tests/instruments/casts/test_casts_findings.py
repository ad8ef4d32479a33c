"""What the samples of a cast pass come to, and which of its times are said."""

import random
from typing import Any

import pytest
from msgspec import structs

from ampbench.core import stats
from ampbench.instruments.casts.findings import casts_said, costs, saved_by, times_said
from ampbench.records.casts import PRE_CAST_INPUTS, Cast, CastPass, CastTrace, CheckedSaving, Operation
from ampbench.records.measured import Fitness
from ampbench.records.rules import FAKE
from ampbench.studies.paired import saving_said
from tests.stored_runs import make_case

CASE = make_case("bf16_autocast")


def a_trace(seconds: float | None = 1e-5, casts: int = 1, **changes: Any) -> CastTrace:
    """Return four ops of `seconds` each, the first ones casts."""
    made = [
        Cast(
            index=index,
            operation=3,
            what="input",
            name=f"x{index}",
            from_dtype="fp32",
            to_dtype="bf16",
            elements=256,
            bytes_read=1024,
            bytes_written=512,
            seconds=seconds,
            tensor=index,
        )
        for index in range(casts)
    ]
    ops = [Operation(index=index, name="aten._to_copy", seconds=seconds) for index in range(4)]
    return CastTrace(ops=ops, casts=made, timed=seconds is not None, **changes)


def a_pass(*builds: float, trace: CastTrace | None = None, **changes: Any) -> CastPass:
    """Return a pass whose builds' fastest samples are `builds`; each has slower ones too."""
    samples = [[3 * build, build, 2 * build] for build in builds]
    fields: dict[str, Any] = {"case_id": CASE.case_id, "how": "device", "trace": trace or a_trace()}
    return CastPass(**fields | {"step_samples": samples, "traced_steps": 20} | changes)


def saving(differences: list[float], before: float = 1e-3) -> CheckedSaving:
    """Return a change that saves `differences`, pair by pair; slower samples are noise."""
    return CheckedSaving(
        change=PRE_CAST_INPUTS,
        names=["x"],
        casts=1,
        bytes_moved=1536,
        before=[[2 * before, before] for _ in differences],
        after=[[before - each, 5 * before] for each in differences],
        identical=True,
    )


def test_a_step_is_worth_the_median_of_its_builds_fastest_samples():
    known = costs(a_pass(2e-5, 2.2e-5, 2.1e-5))
    assert known.step_seconds == 2.1e-5
    assert known.step_low < 2.1e-5 < known.step_high
    assert (known.traced_seconds, known.traced_cast_seconds, known.cast_share) == (4e-5, 1e-5, 0.25)
    assert known.step_cast_seconds == pytest.approx(0.25 * 2.1e-5)
    assert known.doubts == ()


def test_a_step_whose_interval_is_absurd_has_no_time():
    found = a_pass(2e-5, 2e-5, 2e-2)
    known = costs(found)
    assert (known.step_seconds, known.step_low, known.step_high, known.step_cast_seconds) == (None,) * 4
    (line, doubt) = times_said(found)
    assert line == "traced, its ops take 40.0 us (medians of 20 steps)"
    assert doubt == "the time of the untraced step is too noisy to say: its 3 builds took 20.0 us to 20.0 ms"


def test_two_builds_give_a_time_without_an_interval_and_no_share_of_it():
    found = a_pass(2e-5, 2e-5)
    assert costs(found).step_seconds == 2e-5
    assert costs(found).step_cast_seconds is None
    assert times_said(found)[0].startswith(
        "the step takes 20.0 us (from 2 builds, too few for an interval) when nothing traces it; traced, "
    )


def test_the_casts_have_no_time_in_a_step_that_tracing_slows_too_much():
    found = a_pass(6.7e-7, 6.8e-7, 6.83e-7)
    assert costs(found).step_cast_seconds is None
    assert times_said(found)[-1].startswith("traced, the ops take 58.8 times as long as the untraced step")
    assert "untraced" not in casts_said(found, CASE)
    assert "about 5.00 us of the untraced step" in casts_said(a_pass(2e-5, 2e-5, 2e-5), CASE)


def test_the_headline_has_the_numbers_that_tables_and_machines_have():
    found = a_pass(2e-5, 2e-5, 2e-5)
    known = costs(found)
    assert casts_said(found, CASE) == (
        "1 cast a step, 1.50 KiB, 25.0% of the traced ops' time (10.0 us), about 5.00 us of the untraced step; "
        "1 of them could be saved"
    )
    assert (known.traced_cast_seconds, known.step_cast_seconds) == (1e-5, 5e-6)


@pytest.mark.parametrize(
    ("fitness", "said"),
    [
        (Fitness(other_share=0.41, steal_share=0.0), "other processes used 41.0% of the CPU while this was timed"),
        (Fitness(steal_share=0.5), "the hypervisor gave 50.0% of the CPU time to other machines while"),
        (Fitness(other_share=0.1, steal_share=0.05), None),
        (Fitness(), None),
    ],
)
def test_times_of_a_busy_machine_are_said_to_be_none_to_trust(fitness: Fitness, said: str | None):
    doubts = costs(a_pass(2e-5, 2e-5, 2e-5, fitness=fitness)).doubts
    assert len(doubts) == (said is not None)
    assert said is None or (doubts[0].startswith(said) and doubts[0].endswith("do not trust its times"))


@pytest.mark.parametrize(("steps", "said"), [(1, "of one step"), (2, "of two steps")])
def test_times_of_steps_too_few_for_a_median_are_said_to_be_so(steps: int, said: str):
    assert f"({said}, in which one delay may be most of it)" in times_said(a_pass(2e-5, traced_steps=steps))[0]
    assert "(medians of 3 steps)" in times_said(a_pass(2e-5, traced_steps=3))[0]


def test_what_is_not_timed_has_no_times():
    found = a_pass(trace=a_trace(None))
    known = costs(found)
    assert (known.traced_seconds, known.traced_cast_seconds, known.cast_share) == (None, None, None)
    assert times_said(found) == []
    assert casts_said(found, CASE) == "1 cast a step, 1.50 KiB; 1 of them could be saved"


def test_a_training_step_without_its_backward_pass_is_no_step():
    fake = a_pass(how=FAKE, trace=a_trace(None))
    assert casts_said(fake, CASE).startswith("1 cast in the forward pass (backward pass not traced), ")
    whole = a_pass(how=FAKE, trace=a_trace(None, inference=True))
    assert casts_said(whole, CASE).startswith("1 cast a step, ")


def test_a_precision_without_autocast_is_said_to_cast_nothing():
    nothing = a_pass(2e-5, 2e-5, 2e-5, trace=a_trace(casts=0))
    assert casts_said(nothing, make_case("fp32")) == "no casts: fp32 runs without autocast"
    assert casts_said(nothing, CASE) == "0 casts a step, 0 B"
    assert casts_said(a_pass(2e-5), make_case("fp32")).startswith("1 cast a step")  # its own .half()


def test_a_saving_is_that_of_pairs_with_the_interval_that_belongs_to_it():
    differences = [5e-6, 4e-6, 6e-6, 5.5e-6, 4.5e-6, 5.2e-6]
    saved = saved_by(saving(differences))
    assert saved.low <= saved.seconds <= saved.high
    assert saved.seconds == pytest.approx(5e-6, rel=0.1)
    assert (saved.pairs, saved.before, saved.certain) == (6, 1e-3, True)
    assert saving_said(saved_by(saving(differences))) == "1.00 ms → 995 us, 5.00 us saved (95%: 4.00 us to 6.00 us)"


def test_the_word_is_that_of_the_interval_and_the_estimate_lies_in_it():
    generator = random.Random(0)
    words = set()
    for _ in range(400):
        shift = generator.choice([-1, 0, 1]) * 1e-4
        one = saving([shift + generator.lognormvariate(0, 1.5) * 5e-5 - 5e-5 for _ in range(12)], before=5e-2)
        saved, said = saved_by(one), saving_said(saved_by(one))
        assert saved.low <= saved.seconds <= saved.high
        word = "saved" if saved.low > 0 else "lost" if saved.high < 0 else "no certain saving"
        assert f" {word} (95%" in said
        words.add(word)
    assert words == {"saved", "lost", "no certain saving"}


def test_a_loss_has_the_smaller_end_first():
    said = saving_said(saved_by(saving([-5e-6, -4e-6, -6e-6, -5.5e-6, -4.5e-6, -5.2e-6])))
    assert said.endswith("5.00 us lost (95%: 4.00 us to 6.00 us)")


def test_an_end_below_zero_has_a_true_minus():
    assert saving_said(saved_by(saving([5e-6, -4e-6, 6e-6, -5.5e-6, 4.5e-6, -5.2e-6]))).endswith(
        "no certain saving (95%: -5.50 us to 6.00 us)"
    )


def test_too_few_pairs_give_no_interval_and_no_word():
    saved = saved_by(saving([5e-6] * 5))
    assert (saved.low, saved.high, saved.certain) == (None, None, False)
    assert saving_said(saved_by(saving([5e-6] * 5))) == "1.00 ms → 995 us, without an interval (of 5 pairs of builds)"


def test_a_build_is_worth_in_a_saving_what_it_is_worth_elsewhere():
    one = saving([5e-6] * 6)
    assert saved_by(one).before == stats.median([stats.round_value([build]) for build in one.before])


def test_builds_that_differ_by_more_than_a_step_prove_no_saving():
    quiet = saving([1e-4] * 8)
    noisy = structs.replace(quiet, before=[*quiet.before[:-1], [2e-2, 1e-2]])
    assert saved_by(quiet).certain
    assert not saved_by(noisy).certain
    assert "too noisy to say: builds of one step differ more than 3 times" in saving_said(saved_by(noisy))
